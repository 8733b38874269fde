"""The parity check at the end of every import and export: the same tokens give the same logits on both sides.

Against a class of transformers it proves the formula too. Against our own form it proves files, names and loading; the
contracts of the schemes prove the formula (and tests/hub/test_to_coca.py with the attention of CoCA's authors).

One side at a time is in memory, in float32. Fewer tokens than positions are spread evenly over the length, so that far
distances are compared too, or are at its end where a window hides far keys.

transformers computes rotary frequencies in float32, we in float64, rounded once: they differ by an ulp or two, which
position 16,000 multiplies by 16,000. Where logits differ by more than the bound, they are compared again with our
frequencies in the other side, which must be equal to 1e-6; both figures are kept.

Shape legend: B = 1, T tokens, J rotary pairs, V vocab_size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import parameters_on_meta
from coca_train.hub.architecture import Architecture
from coca_train.hub.layer_rules import has_window
from coca_train.runtime.errors import CheckpointError

NAME, DTYPE = "parity.json", "float32"
FREQUENCY_BOUND = 1e-6  # relative, of the other side's frequencies
BOUND = 1e-5  # of the largest difference, relative to max(1, largest logit)
MULTIPLES = (1, 4)  # of the trained length
# Classes with ALiBi add slope times position, rounded to float32, to every score: beyond a few hundred tokens that
# rounding is larger than the bound.
LONGEST_COUNTED = 256  # [tokens]
TEXT = (
    "Mr. Utterson the lawyer was a man of a rugged countenance, that was never lighted by a smile; cold, scanty and "
    "embarrassed in discourse. 1 234,56 €; naïve façade, 北京, def main(argv): return 0\n\tif x != y: pass"
)


class Frequencies(NamedTuple):
    """Our inv_freq_J of layers without a window, and of those with one; the same where only one of them rotates."""

    full: Tensor
    windows: Tensor


class Probe(NamedTuple):
    """The tokens of one comparison."""

    name: str
    tokens_BT: Tensor
    pos_BT: Tensor
    length: int  # what dynamic frequencies adapt to [tokens]


Read = Callable[[str], Tensor]  # a parameter by its name
Logits = Callable[[list[Probe]], list[Tensor]]  # one logits_TV for each probe, float32
Spectra = Callable[[int], "Frequencies"]  # by the length [tokens]


@dataclass(frozen=True)
class Side:
    """What we are compared with."""

    name: str
    logits: Logits
    # The same with our frequencies in it, and their largest relative difference from its own; None: they are ours.
    logits_with: Callable[[list[Probe], Spectra], tuple[list[Tensor], float]] | None = None
    counts_positions: bool = False  # from 0, and takes none: positions without gaps


@dataclass(frozen=True)
class Result:
    """The comparison of one probe."""

    probe: str
    length: int
    n_tokens: int
    max_abs_difference: float
    max_abs_logit: float
    relative: float  # the largest difference over max(1, largest logit)
    with_our_frequencies: float | None = None  # the same with our frequencies on both sides; None: not needed
    frequencies: float | None = None  # the largest relative difference of the other side's own

    @property
    def passed(self) -> bool:
        """Whether it is within the bound; NaN is not."""
        if self.with_our_frequencies is None or self.frequencies is None:
            return self.relative <= BOUND
        return self.with_our_frequencies <= BOUND and self.frequencies <= FREQUENCY_BOUND


def probes(
    architecture: Architecture, tokenizer: Tokenizer | None, max_tokens: int, counted: bool = False
) -> list[Probe]:
    """Return fixed random ids at 1x and 4x the trained length, as far as there are positions, and a text where there is
    a tokenizer. max_tokens: of each. counted: positions without gaps, for a side that counts them."""
    with torch.device("meta"):
        limit = architecture.build().max_positions
    generator = torch.Generator().manual_seed(0)
    spread = all(kind.attention_pattern.name == "causal" for kind in architecture.layer_types)
    probes = []
    for multiple in MULTIPLES:
        length = multiple * architecture.seq_len
        if limit is not None and length > limit:
            continue
        n = min(length, max_tokens)
        if counted:
            pos_T = torch.arange(min(n, LONGEST_COUNTED))
        elif spread:
            pos_T = torch.linspace(0, length - 1, n, dtype=torch.float64).round().long()
        else:
            pos_T = torch.arange(length - n, length)
        tokens_BT = torch.randint(architecture.n_rows, (1, len(pos_T)), generator=generator)
        probes.append(Probe(f"random ids at {multiple}x", tokens_BT, pos_T[None], int(pos_T[-1]) + 1))
    if tokenizer is not None and (ids := tokenizer.encode(TEXT)[: min(max_tokens, architecture.seq_len)]):
        ids = ids[:LONGEST_COUNTED] if counted else ids
        probes.append(Probe("text", torch.tensor([ids]), torch.arange(len(ids))[None], len(ids)))
    return probes


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
    """Return a function from a length to our frequencies; None for a scheme without."""
    with parameters_on_meta():
        model = architecture.build()
    found = {}
    for name, kind in zip(architecture.layer_type_names, architecture.layer_types, strict=True):
        if (scaling := getattr(model.position_of(name), "rope_scaling", None)) is not None:
            found.setdefault(has_window(kind), scaling)
    if not found:
        return None
    full, windows = (found[each] if each in found else found[not each] for each in (False, True))
    return lambda length: Frequencies(full(length).inv_freq_J, windows(length).inv_freq_J)


def check(architecture: Architecture, read: Read, theirs: Side, tokenizer: Tokenizer | None, n: int) -> list[Result]:
    """Compare our model, with weights read by our names, with the other side. n: tokens of each probe."""
    ours = our_logits(architecture, read)
    wanted = probes(architecture, tokenizer, n, theirs.counts_positions)
    return compare(wanted, ours, theirs, our_spectra(architecture))


def compare(probes: list[Probe], ours: Logits, theirs: Side, spectra: Spectra | None) -> list[Result]:
    """Compare the logits of both sides; where they differ, again with our frequencies in the other side."""
    our_logits = ours(probes)
    results = [result(*each) for each in zip(probes, our_logits, theirs.logits(probes), strict=True)]
    if passed(results) or theirs.logits_with is None or spectra is None:
        return results
    their_logits, frequencies = theirs.logits_with(probes, spectra)
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


def passed(results: list[Result]) -> bool:
    return bool(results) and all(result.passed for result in results)


@dataclass(frozen=True)
class Report:
    """The results of a comparison of two sides."""

    what: str
    against: str
    results: list[Result]

    def record(self) -> dict[str, object]:
        """Return the content of parity.json."""
        return {
            "passed": passed(self.results),
            "bound": BOUND,
            "dtype": DTYPE,
            "what": self.what,
            "against": self.against,
            "probes": [asdict(result) for result in self.results],
        }

    def lines(self) -> str:
        """Format the figures for the log."""
        rows = []
        for r in self.results:
            row = (
                f"  {r.probe:18s} {r.length:>8,} positions  max |difference| {r.max_abs_difference:.2e}  "
                f"max |logit| {r.max_abs_logit:.2f}"
            )
            if r.with_our_frequencies is not None:
                row += f"; frequencies differ by {r.frequencies:.1e}, with equal ones {r.with_our_frequencies:.2e}"
            rows.append(row)
        return "\n".join([f"parity with {self.against}, {DTYPE}:", *rows])

    def refuse_difference(self) -> None:
        """Raise CheckpointError E-IOP-13 when the sides differ by more than the bound, E-IOP-19 for NaN."""
        if passed(self.results):
            return
        worst = next(result for result in self.results if not result.passed)
        if not math.isfinite(worst.max_abs_logit):
            raise CheckpointError(
                f"E-IOP-19 {self.what}: {worst.probe}: logits are not finite; finite weights are needed, and nothing "
                "is published. Fix: download the weights again, or train with a lower optim.lr"
            )
        again = ""
        if worst.with_our_frequencies is not None:
            again = f" ({worst.with_our_frequencies:.1e} with our frequencies, from which theirs differ by "
            again += f"{worst.frequencies:.1e})"
        raise CheckpointError(
            f"E-IOP-13 {self.what}: {worst.probe} ({worst.length} positions): logits differ from {self.against} by "
            f"{worst.max_abs_difference:.3g} where the largest is {worst.max_abs_logit:.3g}; relative "
            f"{worst.relative:.1e}{again}, at most {BOUND:.0e} is allowed, and nothing is published. Fix: one side "
            "reads this model differently: correct to_transformers and from_transformers of your own scheme or "
            "frequencies, or report it with its config.json"
        )


@contextmanager
def stream_blocks(model: nn.Module, blocks: Sequence[nn.Module], read: Read) -> Iterator[nn.Module]:
    """Run a model that does not fit into memory, whose parameters are on the meta device, in float32.

    blocks: modules that are called once per forward, each with weights of its own, which are read before the call and
    freed after it. All other weights are read now. read: a parameter by its name in the model.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    with ExitStack() as stack:
        _fill(model, names, read, leave=inside)
        for block in blocks:
            own = {name: names[id(parameter)] for name, parameter in block.named_parameters()}
            hook = block.register_forward_pre_hook(lambda module, _, own=own: _load(module, own, read))
            stack.callback(hook.remove)
            hook = block.register_forward_hook(lambda module, *_: _free(module))
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


def _free(block: nn.Module) -> None:
    for module in block.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, leaf, nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False))


def _parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.to(torch.float32), requires_grad=False)
