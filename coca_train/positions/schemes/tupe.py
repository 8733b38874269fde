"""TUPE with relative positions, TUPE-R (Ke et al., arXiv 2006.15595, section 3.1): untied absolute positions + T5.

    score(m, n) = q_m · k_n / √(2D) + (U_Q p_m) · (U_K p_n) / √(2D) + b[bucket(m - n), h]

p (max_len, C), U_Q (H·D, C), U_K (G·D, C) and the bias table b (n_buckets, H; buckets of T5, arXiv 1910.10683) are
shared by all layers. With q' = (q, U_Q p_m) / √2 and k' = (k, U_K p_n) both first terms are one dot product,
which attention divides by √D. Text has no [CLS] token here, so nothing is untied from it (section 3.2). The released
code (guolinke/TUPE) layer-normalises p, and U_Q and U_K have biases there; the equations have neither, and neither has
this. A bias b_Q would add b_Q · U_K p_n, a learned preference for places in the text; what b_K adds belongs to the
query alone, where the softmax does not see it. p starts with variance 1, as a norm would give it: started at
init_std, the product of both projections would be too small to learn from.

Path: blocked on the CPU (the bias b); FlexAttention on CUDA. Memory O(T·block), and O(T·D) for q' and k', twice as
wide as q and k. Cost: a dot product of 2D instead of D, and two projections of the positions per forward (not per
layer). There are no positions beyond max_len: an error (E-POS-04), never a guess.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions._buckets import bucket_problems, buckets, sides_problems
from coca_train.positions.base import AttentionShape, Heads, Initial, Position, Problem, Terms
from coca_train.positions.schemes.learned import check_max_len
from coca_train.positions.token_positions import DeviceCopies, Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Untied absolute positions and a relative bias."""

    scheme: Literal["tupe"]
    max_len: int = Field(ge=1, description="rows of the table of absolute positions [tokens]; beyond it: an error")
    n_buckets: int = Field(ge=2, description="buckets of the relative bias (T5: 32); half of them hold one distance")
    max_distance: int = Field(ge=2, description="distances from this on share the last bucket [tokens] (T5: 128)")

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse combinations that cannot be computed."""
        return bucket_problems(self.n_buckets, self.max_distance)


class Tables(NamedTuple):
    """Results of the shared parameters, float32 or wider: their gradients add up over the layers before any cast."""

    query_BTHD: Tensor  # U_Q p_m
    key_BSGD: Tensor  # U_K p_n
    bias_HR: Tensor


class Scheme(Position):
    """Positions correlate with positions, through their own projections."""

    settings: Settings

    INITIAL: ClassVar[Mapping[str, Initial]] = {"p": lambda p, generator: p.normal_(0.0, 1.0, generator=generator)}

    relative = False
    bidirectional = True

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.p = nn.Parameter(torch.empty(settings.max_len, shape.d_model))
        self.u_q = nn.Parameter(torch.empty(shape.n_heads * shape.head_dim, shape.d_model))
        self.u_k = nn.Parameter(torch.empty(shape.n_kv_heads * shape.head_dim, shape.d_model))
        self.table = nn.Parameter(torch.empty(settings.n_buckets, shape.n_heads))
        self.buckets_R = buckets(settings.n_buckets, settings.max_distance, shape.bidirectional)
        self._on_device = DeviceCopies()

    def bidirectional_problems(self) -> list[Problem]:
        """Refuse buckets that cannot be halved."""
        return sides_problems(self.settings.n_buckets, self.settings.max_distance)

    @property
    def max_positions(self) -> int:
        """Rows of p."""
        return self.settings.max_len

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return the projected positions and the bias. Raises UserError (E-POS-04) when a position has no row in p."""
        for positions in (keys, queries):
            check_max_len(positions, self.settings.max_len, self.settings.scheme)
        dtype = torch.promote_types(self.p.dtype, torch.float32)
        query, key = (F.linear(self.p[each.pos_BT], u).to(dtype) for each, u in ((queries, self.u_q), (keys, self.u_k)))
        width = (-1, self.shape.head_dim)
        bias_RH = self.table[self._on_device.on(self.buckets_R, self.table.device)]
        return Tables(query.unflatten(-1, width), key.unflatten(-1, width), bias_RH.T.to(dtype))

    def select_heads(self, tables: Tables, heads: Heads) -> Tables:
        """Select some heads of both projections of the positions."""
        key_BSGD = tables.key_BSGD.repeat_interleave(heads.repeats, dim=2)[:, :, heads.key]
        return tables._replace(query_BTHD=tables.query_BTHD[:, :, heads.query], key_BSGD=key_BSGD)

    def rotate(self, q_BTHD: Tensor, k_BSGK: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """Concatenate queries and keys with their projected positions. K = D, E = 2D."""
        return _concatenate(q_BTHD, tables.query_BTHD) * 2**-0.5, _concatenate(k_BSGK, tables.key_BSGD)

    def terms(self, tables: Tables) -> Terms:
        """Return the relative bias, which is divided neither by √2 nor by √D."""
        return Terms(distance_HR=tables.bias_HR)


def _concatenate(x_BTHD: Tensor, untied_BTHD: Tensor) -> Tensor:
    """Concatenate x and the untied positions in x's dtype; positions of one row serve the whole batch."""
    return torch.cat((x_BTHD, untied_BTHD.to(x_BTHD.dtype).expand(x_BTHD.shape[0], -1, -1, -1)), -1)
