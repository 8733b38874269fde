"""The check at the end of every import and export: the same tokens through both sides, the same logits.

Where the other side is a class of transformers, this proves the formula too. Of our own form both sides run the same
definitions, and it proves the files, the names and the loading; the schemes' contracts prove the formula, and for one
export the attention of CoCA's authors in transformers' LLaMA (tests/hub/test_to_coca.py).

One side at a time is in memory, in float32. Where a length has more positions than tokens are spent on it, the tokens
stand at positions spread evenly over all of it (so far distances are compared too), or, when a window hides far keys,
at its end.

transformers computes rotary frequencies in float32, we in float64, rounded once: they differ by an ulp or two, which
an angle at position 16,000 multiplies by 16,000. Where logits differ by more than the bound, they are compared again
with our frequencies in the other side, after these have been found equal to 1e-6; both figures are kept.

Shape legend: B = 1, T tokens, J rotary pairs, V vocab_size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import parameters_on_meta
from coca_train.hub.architecture import Architecture
from coca_train.runtime.errors import CheckpointError

NAME = "parity.json"
FREQUENCY_BOUND = 1e-6  # relative, of the other side's frequencies
BOUND = 1e-5  # of the largest difference, relative to max(1, largest logit)
MULTIPLES = (1, 4)  # of the trained length
TEXT = (
    "Mr. Utterson the lawyer was a man of a rugged countenance, that was never lighted by a smile; cold, scanty and "
    "embarrassed in discourse. 1 234,56 €; naïve façade, 北京, def main(argv): return 0\n\tif x != y: pass"
)


class Probe(NamedTuple):
    """The tokens that both sides compute logits for. length: what dynamic frequencies adapt to [tokens]."""

    name: str
    tokens_BT: Tensor
    pos_BT: Tensor
    length: int


Read = Callable[[str], Tensor]  # a parameter by its name
Logits = Callable[[list[Probe]], list[Tensor]]  # one logits_TV for each probe, float32
Spectra = Callable[[int], Tensor]  # length [tokens] -> our inv_freq_J


@dataclass(frozen=True)
class Side:
    """What we are compared with.

    ask_with: computes the same with our frequencies in it, and returns also the largest relative difference from its
    own ones; None where they are ours anyway.
    """

    name: str
    ask: Logits
    ask_with: Callable[[list[Probe], Spectra], tuple[list[Tensor], float]] | None = None


@dataclass(frozen=True)
class Result:
    """One probe, compared. relative: the largest difference over max(1, largest logit).

    with_our_frequencies: the same, with our frequencies in both; frequencies: how far those of the other side are
    from them, relative; None: not needed.
    """

    probe: str
    length: int
    n_tokens: int
    max_abs_difference: float
    max_abs_logit: float
    relative: float
    with_our_frequencies: float | None = None
    frequencies: float | None = None

    @property
    def passed(self) -> bool:
        """NaN is no pass."""
        if self.with_our_frequencies is None or self.frequencies is None:
            return self.relative <= BOUND
        return self.with_our_frequencies <= BOUND and self.frequencies <= FREQUENCY_BOUND


def probes(architecture: Architecture, tokenizer: Tokenizer | None, max_tokens: int) -> list[Probe]:
    """Return fixed random ids at 1x and 4x the trained length, as far as there are positions; a text where there is a
    tokenizer. max_tokens: of each."""
    with torch.device("meta"):
        limit = architecture.build().max_positions
    generator = torch.Generator().manual_seed(0)
    spread = all(kind.attention_pattern.name == "causal" for kind in architecture.layer_types)
    probes = []
    for multiple in MULTIPLES:
        length = multiple * architecture.seq_len
        if limit is not None and length > limit:
            continue
        pos_T = _positions(length, min(length, max_tokens), spread=spread)
        tokens_BT = torch.randint(architecture.n_rows, (1, len(pos_T)), generator=generator)
        probes.append(Probe(f"random ids at {multiple}x", tokens_BT, pos_T[None], int(pos_T[-1]) + 1))
    if tokenizer is not None and (ids := tokenizer.encode(TEXT)[: min(max_tokens, architecture.seq_len)]):
        probes.append(Probe("text", torch.tensor([ids]), torch.arange(len(ids))[None], len(ids)))
    return probes


def _positions(length: int, n_tokens: int, spread: bool) -> Tensor:
    if not spread:
        return torch.arange(length - n_tokens, length)
    return torch.linspace(0, length - 1, n_tokens, dtype=torch.float64).round().long()


@torch.no_grad()
def our_logits(architecture: Architecture, read: Read) -> Logits:
    """Return a function that runs our model, one block in memory at a time. read: parameters by our names."""

    def logits(probes: list[Probe]) -> list[Tensor]:
        with parameters_on_meta():
            model = architecture.build()
        with torch.no_grad(), stream_blocks(model, list(model.blocks), read):
            return [model(probe.tokens_BT, pos_BT=probe.pos_BT, length=probe.length)[0] for probe in probes]

    return logits


def our_spectra(architecture: Architecture) -> Spectra | None:
    """Return a function that computes our fixed or dynamic frequencies; None for a scheme without."""
    with parameters_on_meta():
        frequencies = getattr(architecture.build().position, "rope_scaling", None)
    return None if frequencies is None else lambda length: frequencies(length).inv_freq_J


def check(architecture: Architecture, read: Read, theirs: Side, tokenizer: Tokenizer | None, n: int) -> list[Result]:
    """Compare our model, with weights read by our names, with the other side. n: tokens of each probe."""
    asked = probes(architecture, tokenizer, n)
    return compare(asked, our_logits(architecture, read), theirs, our_spectra(architecture))


def compare(probes: list[Probe], ours: Logits, theirs: Side, spectra: Spectra | None) -> list[Result]:
    """Compare the logits of both sides; where they differ, again with our frequencies in the other side."""
    our_logits = ours(probes)
    results = [result(*each) for each in zip(probes, our_logits, theirs.ask(probes), strict=True)]
    if passed(results) or theirs.ask_with is None or spectra is None:
        return results
    their_logits, frequencies = theirs.ask_with(probes, spectra)
    again = [result(*each).relative for each in zip(probes, our_logits, their_logits, strict=True)]
    return [
        replace(result, with_our_frequencies=relative, frequencies=frequencies)
        for result, relative in zip(results, again, strict=True)
    ]


def result(probe: Probe, our_TV: Tensor, their_TV: Tensor) -> Result:
    """Compare the logits of one probe."""
    difference = (our_TV - their_TV).abs().max().item() if our_TV.shape == their_TV.shape else float("inf")
    scale = max(our_TV.abs().max().item(), their_TV.abs().max().item())
    relative = difference / max(1.0, scale)
    return Result(probe.name, probe.length, probe.tokens_BT.shape[1], difference, scale, relative)


def record(results: list[Result], what: str, against: str) -> dict[str, Any]:
    """Return what parity.json holds."""
    return {
        "passed": passed(results),
        "bound": BOUND,
        "dtype": "float32",
        "what": what,
        "against": against,
        "probes": [asdict(result) for result in results],
    }


def passed(results: list[Result]) -> bool:
    return bool(results) and all(result.passed for result in results)


def settled(results: list[Result], what: str, against: str) -> dict[str, Any]:
    """Return what parity.json holds. Raises CheckpointError E-IOP-13 when the sides differ."""
    refuse_difference(results, what, against)
    return record(results, what, against)


def refuse_difference(results: list[Result], what: str, against: str) -> None:
    """Raises CheckpointError E-IOP-13 when the sides differ by more than the bound."""
    if passed(results):
        return
    worst = next(result for result in results if not result.passed)
    if not math.isfinite(worst.max_abs_logit):
        raise CheckpointError(
            f"E-IOP-19 {what}: {worst.probe}: logits are NaN or infinity; finite weights are needed, and nothing is "
            "published. Fix: download the weights again, or train with a lower optim.lr"
        )
    again = ""
    if worst.with_our_frequencies is not None:
        again = f" (with our frequencies {worst.with_our_frequencies:.1e}; theirs are off by {worst.frequencies:.1e})"
    raise CheckpointError(
        f"E-IOP-13 {what}: {worst.probe} ({worst.length} positions): logits differ from {against} by "
        f"{worst.max_abs_difference:.3g} where the largest is {worst.max_abs_logit:.3g}; relative "
        f"{worst.relative:.1e}{again}, at most {BOUND:.0e} is allowed, and nothing is published. Fix: one side reads "
        "this model differently: mend to_transformers and from_transformers of a scheme or frequencies of your own, or "
        "report it with its config.json"
    )


def lines(figures: dict[str, Any]) -> str:
    """Format the figures of parity.json for a person."""
    rows = []
    for p in figures["probes"]:
        row = (
            f"  {p['probe']:18s} {p['length']:>8,} positions  max |difference| {p['max_abs_difference']:.2e}  "
            f"max |logit| {p['max_abs_logit']:.2f}"
        )
        if p["with_our_frequencies"] is not None:
            row += f"; frequencies differ by {p['frequencies']:.1e}, with equal ones {p['with_our_frequencies']:.2e}"
        rows.append(row)
    return "\n".join([f"parity with {figures['against']}, {figures['dtype']}:", *rows])


@contextmanager
def stream_blocks(model: nn.Module, blocks: Sequence[nn.Module], read: Read) -> Iterator[nn.Module]:
    """Run a model that does not fit into memory, whose parameters are on the meta device, in float32.

    blocks: modules that are called once per forward, each with weights of its own; these are read when the call comes
    and freed after it. All other weights are read now. read: a parameter by its name in the model.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    with ExitStack() as stack:
        _fill(model, names, read, leave=inside)
        for block in blocks:
            own = {name: names[id(parameter)] for name, parameter in block.named_parameters()}
            hook = block.register_forward_pre_hook(lambda module, _, own=own: _load(module, own, read))
            stack.callback(hook.remove)
            hook = block.register_forward_hook(lambda module, *_: _forget(module))
            stack.callback(hook.remove)
        yield model.eval()


def _fill(model: nn.Module, names: dict[int, str], read: Read, leave: set[int]) -> None:
    """Read all parameters except those of `leave`; shared ones stay shared."""
    filled: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in leave and id(parameter) not in filled:
                filled[id(parameter)] = _parameter(read(names[id(parameter)]))
            if id(parameter) in filled:
                setattr(module, leaf, filled[id(parameter)])


def _load(block: nn.Module, own: dict[str, str], read: Read) -> None:
    for name, known_as in own.items():
        owner, _, leaf = name.rpartition(".")
        setattr(block.get_submodule(owner), leaf, _parameter(read(known_as)))


def _forget(block: nn.Module) -> None:
    for module in block.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, leaf, nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False))


def _parameter(tensor: Tensor) -> Any:
    return nn.Parameter(tensor.to(torch.float32), requires_grad=False)
