"""CoCA in place of RoPE: T begins as K (arXiv 2309.08646, section 4.3; start.t_from_k).

W_K has D rows a key head, and feature j is paired with j + D/2. T has one value per pair, D/2 rows a head:

mean_of_halves  row j = (row j + row j + D/2) / 2; what the authors' code computes from a full-width projection
first_half      row j = row j
random          as a new run would begin, from a seed

This is t_width=half. With full_mean T keeps D rows a head and the model averages the halves: the same functions, from
W_K as it is, or from its first half twice. Where query heads share a key head (GQA), they share its T.

All else is kept as it is. The result is no trained CoCA model yet: stage 1 of the paper trains T.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from coca_train.config.schema import StartConfig
from coca_train.hub.architecture import Architecture
from coca_train.hub.conversions import AT_FIRST
from coca_train.hub.weights import KEYS, Source
from coca_train.models.init import init_parameter
from coca_train.positions.schemes.coca import fold_full_mean
from coca_train.runtime.errors import UserError

How = Literal["mean_of_halves", "first_half", "random"]
Width = Literal["half", "full_mean"]
EQUAL = AT_FIRST


def leads(before: Architecture, after: Architecture) -> bool:
    return (before.position.scheme, after.position.scheme) == ("rope", "coca")


def converted(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    return convert(source, after.position.variant, start.t_from_k, after.position.t_width, seed)


def convert(source: Source, variant: str, how: How, t_width: Width, seed: int = 0) -> Source:
    """The same weights with CoCA in the place of RoPE. variant: slack or strict. seed: of `random`.

    Precision stays; means are formed in float32. Raises UserError E-IOP-14 where there is no K to take T from.
    """
    before = source.architecture.position
    if before.scheme != "rope" or before.rotary_pct < 1:
        share = f" with rotary_pct {before.rotary_pct:g}" if before.scheme == "rope" else ""
        raise UserError(
            f"E-IOP-14 {source.path}: its scheme is {before.scheme}{share}; CoCA makes T from the K of a RoPE that "
            "rotates the whole head: pairs that do not turn have no angle to be collinear in. Fix: keep its scheme: "
            f"in a training position={before.scheme} without start.convert, in an import no position"
        )
    if not source.architecture.is_uniform:
        raise UserError(
            f"E-IOP-14 {source.path}: its layers are of several kinds; CoCA makes T from the K of a model with RoPE in "
            "all its layers. Fix: keep its scheme: in a training no start.convert, in an import no position"
        )
    architecture = source.architecture.with_coca(variant, t_width)
    shapes = architecture.shapes()

    def read(name: str) -> Tensor:
        if not name.endswith(KEYS):
            return source.read(name)
        if how == "random":
            t = torch.empty(shapes[name])
            init_parameter(name, t, architecture.model, architecture.position, seed)
            return t.to(source.dtypes[name])
        k = source.read(name)
        if how == "first_half":
            first = k.unflatten(0, (architecture.n_kv_heads, 2, -1))[:, :1]
            return (first if t_width == "half" else torch.cat((first, first), 1)).flatten(0, 2)
        return k if t_width == "full_mean" else fold_full_mean(k.float(), architecture.n_kv_heads).to(k.dtype)

    origin = source.origin | {"t_from_k": how, "t_width": t_width, "seed": seed if how == "random" else None}
    return replace(source, architecture=architecture, shapes=shapes, read=read, origin=origin)
