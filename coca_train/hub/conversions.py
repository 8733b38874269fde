"""Conversions of initial weights to another model, as a training declares them (`start.convert`)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coca_train.config.messages import nearest
from coca_train.config.schema import StartConfig
from coca_train.hub import parity
from coca_train.hub.architecture import Architecture
from coca_train.hub.weights import Source
from coca_train.models.init import init_parameter
from coca_train.positions import rotary
from coca_train.positions.schemes import coca, rope
from coca_train.runtime import dist
from coca_train.runtime.errors import CheckpointError, UserError

KEYS = ("attention.k.weight", "attention.k.bias")  # K, and CoCA's T in its place
EVERYWHERE = "everywhere"
AT_FIRST = "at the first token"  # which attends to itself only, whatever the score

TFromK = Literal["mean_of_halves", "first_half", "random"]
TWidth = Literal["half", "full_mean"]


class Conversion(NamedTuple):
    """Converts the weights of a model to another model.

    equal: where the logits must be unchanged, EVERYWHERE or AT_FIRST. applies: whether it converts one architecture to
    the other, or a step towards it. convert: (source, architecture of the run, `start`, seed of random weights) -> the
    converted source; raises UserError where it cannot be converted.
    """

    summary: str
    equal: str
    applies: Callable[[Architecture, Architecture], bool]
    convert: Callable[[Source, Architecture, StartConfig, int], Source]


def _rope_to_coca(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    assert isinstance(after.position, coca.Settings)
    return make_t_from_k(source, after.position.variant, start.t_from_k, after.position.t_width, seed)


def _half_to_full(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    pairs = _n_pairs(source.architecture)

    def double(tensor: Tensor) -> Tensor:
        by_head = tensor.unflatten(0, (source.architecture.n_kv_heads, -1))
        return torch.cat((by_head[:, :pairs], by_head), 1).flatten(0, 1)

    return _with_t_width(source, "full_mean", double, "half, twice")


def _new_theta(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    before, scaling, wanted = source.architecture, source.architecture.rope_scaling, after.rope_scaling
    position = before.position
    if scaling is not None and wanted is not None:
        position = replace(position, rope_scaling=replace(scaling, theta=wanted.theta))
    # The layers of the result: any other difference in them is refused afterwards.
    return replace(source, architecture=replace(before, position=position, layers=after.layers))


def _drops_rope(before: Architecture, after: Architecture) -> bool:
    return len(before.layer_types) == len(after.layer_types) and any(
        (theirs.position.scheme, ours.position.scheme) == ("rope", "nope")
        for theirs, ours in zip(before.layer_types, after.layer_types, strict=True)
    )


def _rope_to_nope(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    before = source.architecture
    # Where only some layers lose it, the default keeps its scheme.
    position = after.position if after.position.scheme == "nope" else before.position
    return replace(source, architecture=replace(before, position=position, layers=after.layers))


def _rope_to_pope(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    architecture = replace(source.architecture, position=after.position)
    shapes = architecture.shapes()
    dtypes = {name: source.dtypes.get(name, torch.float32) for name in shapes}

    def read(name: str) -> Tensor:
        if name in source.shapes:
            return source.read(name)
        phases = torch.empty(shapes[name])
        init_parameter(name, phases, architecture.model, architecture.position, seed)
        return phases

    origin = source.origin | {"seed": seed}
    return replace(source, architecture=architecture, shapes=shapes, dtypes=dtypes, read=read, origin=origin)


def _t_widths(before: Architecture, after: Architecture) -> tuple[str, ...]:
    return tuple(each.position.t_width if isinstance(each.position, coca.Settings) else "" for each in (before, after))


CONVERSIONS = {
    # Both halves of a full T get the same gradients, so nothing is lost for training either; in bfloat16 and float16
    # the mean is rounded once.
    "coca_full_to_half": Conversion(
        "A T of full width, whose halves the model averages, as the T of half width of the same function.",
        EVERYWHERE,
        lambda before, after: _t_widths(before, after) == ("full_mean", "half"),
        lambda source, after, start, seed: fold_t(source),
    ),
    "coca_half_to_full": Conversion(
        "A T of half width as one of full width, whose halves the model averages: the half, twice.",
        EVERYWHERE,
        lambda before, after: _t_widths(before, after) == ("half", "full_mean"),
        _half_to_full,
    ),
    "new_theta": Conversion(
        "Another base of the rotary frequencies, as Code Llama was tuned with (arXiv 2308.12950).",
        AT_FIRST,
        lambda before, after: any(
            None not in pair and pair[0] != pair[1] for pair in zip(before.thetas, after.thetas, strict=False)
        ),
        _new_theta,
    ),
    # Stage 1 of the paper then trains T.
    "rope_to_coca": Conversion(
        "CoCA in place of RoPE: T begins as K (arXiv 2309.08646, section 4.3; start.t_from_k).",
        AT_FIRST,
        lambda before, after: (before.position.scheme, after.position.scheme) == ("rope", "coca"),
        _rope_to_coca,
    ),
    # Queries and keys become lengths, softplus of what they were, so most of what they said of each other is lost.
    "rope_to_pope": Conversion(
        "PoPE in place of RoPE, with phases as in a new run: a training must follow (2509.10534 trains from scratch).",
        AT_FIRST,
        lambda before, after: (before.position.scheme, after.position.scheme) == ("rope", "pope"),
        _rope_to_pope,
    ),
    # Every weight is kept; a short training at the trained window recalibrates the model without the rotation.
    "rope_to_nope": Conversion(
        "No positions in place of RoPE, in all layers or in some: drop it after pretraining, recalibrate (2512.12167).",
        AT_FIRST,
        _drops_rope,
        _rope_to_nope,
    ),
}


def summaries() -> dict[str, str]:
    """Return the summary of each conversion, by name."""
    return {name: conversion.summary for name, conversion in CONVERSIONS.items()}


def ways(before: Architecture, after: Architecture) -> list[str]:
    """Return the conversions from one architecture to the other, or a step towards it."""
    return [name for name, conversion in CONVERSIONS.items() if conversion.applies(before, after)]


def apply(source: Source, after: Architecture, start: StartConfig, seed: int) -> tuple[Source, list[str]]:
    """Apply the conversions of `start.convert` in their order; return also the names of those that applied.

    after: the architecture of the run. seed: of random weights. Raises UserError E-STA-06 for an unknown conversion,
    and as `Conversion.convert`.
    """
    done = []
    for name in start.convert:
        if name not in CONVERSIONS:
            close = nearest(name, list(CONVERSIONS))
            fix = f"did you mean {close[0]}?" if close else f"there are {', '.join(CONVERSIONS)}"
            raise UserError(
                f"E-STA-06 start.convert={name}: there is no such conversion; python -m coca_train schemes lists them. "
                f"Fix: {fix}"
            )
    for name in start.convert:
        if CONVERSIONS[name].applies(source.architecture, after):
            source = CONVERSIONS[name].convert(source, after, start, seed)
            done.append(name)
    return source, done


def prove(before: Source, after: Source, done: Sequence[str], n_tokens: int) -> dict[str, object]:
    """Check that the conversions keep the logits that they must keep; log and return the figures for parity.json.

    n_tokens: of each probe. Raises CheckpointError E-STA-05.
    """
    everywhere = all(CONVERSIONS[name].equal == EVERYWHERE for name in done)
    probes = parity.probes(before.architecture, None, n_tokens)
    if not everywhere:
        first = probes[0].tokens_BT[:, :1]
        probes = [parity.Probe("the first token", first, torch.zeros_like(first), 1)]
    side = parity.Side("the same weights converted", parity.our_logits(after.architecture, after.read))
    results = parity.compare(probes, parity.our_logits(before.architecture, before.read), side, None)
    where, names = EVERYWHERE if everywhere else AT_FIRST, ",".join(done)
    if not parity.passed(results):
        worst = max(results, key=lambda result: result.relative)
        raise CheckpointError(
            f"E-STA-05 {before.path} start.convert={names}: {worst.probe}: logits before and after differ by "
            f"{worst.max_abs_difference:.3g} where the largest is {worst.max_abs_logit:.3g}; {where} they must be "
            "equal, and nothing was started. Fix: check the weights for NaN, or report the conversion"
        )
    report = parity.Report(f"{before.path}, {names}", side.name, results)
    dist.log(report.lines())
    return report.record() | {"equal": where}


def _n_pairs(architecture: Architecture) -> int:
    """Return the number of pairs of a head that turn."""
    position = architecture.position
    assert isinstance(position, rope.Settings | coca.Settings)
    return rotary.width(architecture.head_dim, position.rotary_pct) // 2


def make_t_from_k(source: Source, variant: str, how: TFromK, t_width: TWidth, seed: int = 0) -> Source:
    """Return the same weights with CoCA instead of RoPE.

    W_K has D rows a key head, and of the R that turn, feature j is paired with j + R/2. T has one value per pair, R/2
    rows a head; rows of features that do not turn stay as they are:

    mean_of_halves  row j = (row j + row j + R/2) / 2; what the authors' code computes from a full-width projection
    first_half      row j = row j
    random          as in a new run, from a seed

    This is t_width=half. With full_mean T keeps R rows a head and the model averages the halves: the same functions,
    from W_K itself, or from its first half twice. Query heads that share a key head (GQA) share its T.

    Layers without positions keep their K. variant: slack or strict. Precision is kept; means are computed in float32.
    Raises UserError E-IOP-14 where there is no K to take T from, or where it cannot be as narrow.
    """
    before, n_kv_heads = source.architecture.position, source.architecture.n_kv_heads
    if not isinstance(before, rope.Settings):
        raise UserError(
            f"E-IOP-14 {source.path}: its scheme is {before.scheme}; CoCA takes T from the K of RoPE. Fix: keep its "
            f"scheme: in a training position={before.scheme} without start.convert, in an import no position"
        )
    if t_width == "half":
        _refuse_norm(source, "full_mean")
    architecture, pairs = source.architecture.with_coca(variant, t_width), _n_pairs(source.architecture)
    shapes = architecture.shapes()
    kinds = [kind.position for kind in source.architecture.layer_types]
    turns = [kind.position.scheme == "coca" for kind in architecture.layer_types]
    for kind in (kind for kind, turned in zip(kinds, turns, strict=True) if turned):
        if not isinstance(kind, rope.Settings) or kind.rotary_pct != before.rotary_pct:
            raise UserError(
                f"E-IOP-14 {source.path}: some of its layers would be CoCA and have no RoPE as the others ("
                f"{kind.scheme}). Fix: keep its scheme: in a training no start.convert, in an import no position"
            )

    def read(name: str) -> Tensor:
        k = source.read(name)
        if not name.endswith(KEYS) or not turns[int(name.split(".")[1])]:
            return k
        if how == "mean_of_halves" and t_width == "full_mean":
            return k
        if how == "mean_of_halves":
            return coca.fold_full_mean(k.float(), n_kv_heads, before.rotary_pct).to(k.dtype)
        by_head = k.unflatten(0, (n_kv_heads, -1))
        first, rest = by_head[:, :pairs], by_head[:, 2 * pairs :]
        if how == "first_half":
            t = first if t_width == "half" else torch.cat((first, first), 1)
        else:
            drawn = torch.empty(shapes[name])
            init_parameter(name, drawn, architecture.model, architecture.position, seed)
            by_head = drawn.to(k.dtype).unflatten(0, (n_kv_heads, -1))
            t = by_head[:, : by_head.shape[1] - rest.shape[1]]
        return torch.cat((t, rest), 1).flatten(0, 1)

    origin = source.origin | {"t_from_k": how, "t_width": t_width, "seed": seed if how == "random" else None}
    return replace(source, architecture=architecture, shapes=shapes, read=read, origin=origin)


def fold_t(source: Source) -> Source:
    """Return a T of full width as one of half width, formed in float32. Raises UserError E-IOP-14 for another T."""
    position = source.architecture.position
    if not isinstance(position, coca.Settings) or position.t_width != "full_mean":
        raise UserError(
            f"E-IOP-14 {source.path} t_width=half: its T is not of full width (scheme {position.scheme}). "
            "Fix: omit t_width"
        )

    def fold(tensor: Tensor) -> Tensor:
        return coca.fold_full_mean(tensor.float(), source.architecture.n_kv_heads, position.rotary_pct).to(tensor.dtype)

    return _with_t_width(source, "half", fold, "folded to half")


def _refuse_norm(source: Source, keep: TWidth) -> None:
    """Raise UserError E-IOP-14 where a norm comes between the projection and the mean of its halves, so that both
    widths are no one function. keep: the width that can be had."""
    if (norm := source.architecture.model.qk_norm) != "none":
        raise UserError(
            f"E-IOP-14 {source.path} qk_norm={norm}: keys are normalised before the halves of T are averaged, so a T "
            f"of the other width is another function. Fix: t_width={keep}"
        )


def _with_t_width(source: Source, t_width: TWidth, convert_key: Callable[[Tensor], Tensor], origin: str) -> Source:
    """Return the source with another width of T. convert_key: of its key weights and biases. Raises UserError
    E-IOP-14."""
    _refuse_norm(source, "half" if t_width == "full_mean" else "full_mean")
    position = replace(source.architecture.position, t_width=t_width)
    architecture = replace(source.architecture, position=position)
    shapes = architecture.shapes()

    def read(name: str) -> Tensor:
        tensor = source.read(name)
        return tensor if shapes[name] == source.shapes[name] else convert_key(tensor)

    return replace(
        source,
        architecture=architecture,
        shapes=shapes,
        read=read,
        origin=source.origin | {"t_width": origin},
    )
