"""PaTH (Yang et al., arXiv 2505.16381): between key and query every token turns the query by a Householder-like map.

    score(m, n) = q_mᵀ H_m H_{m-1} … H_{n+1} k_n / √D,   H_t = I - β_t w_t w_tᵀ,   β_t = 2σ(W_β x_t + b_β)

w_t, a unit vector for each key head, is a projection of low rank of the layer's normalised input, after a short causal
convolution and a SiLU; β_t is between 0, which leaves the query as it is, and 2, which reflects it. `forget` adds FoX's
gates, Σ_{l=n+1…m} log f_l, after 1/√D (PaTH-FoX); the released kernels divide the gates by √D as well.

Positions say where a document begins, and so does the convolution; beyond that they are never looked at, and scores
stay when all of them move. What is not seen turns nothing (other documents, tokens beyond a window). The cache keeps
with key and value what the convolution reads (`rank` numbers), β and the gates.

Path: its hook, in `blocked` on the CPU and in a loop over compiled tiles on CUDA. Within CHUNK keys what the maps take
off a query follows from one triangular system, as in the paper's section 3.2, so the work is that of attention and
CHUNK times its width more. Memory O(T): queries, keys and w in float32.
"""

from functools import cache
from types import MappingProxyType
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions._phases import convolve
from coca_train.positions.base import (
    AttentionShape,
    Hook,
    LayerPosition,
    Pairs,
    Position,
    PositionedQK,
    Problem,
    Projections,
    ScoreMod,
)
from coca_train.positions.schemes.fox import forget
from coca_train.positions.token_positions import Positions

CHUNK = 64  # keys whose maps are solved for together


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Maps between key and query."""

    scheme: Literal["path"]
    rank: int = Field(gt=0, description="of the projection that w comes from; the paper: 32")
    taps: int = Field(gt=0, description="tokens of the causal convolution before w; the paper: 3; 1: none")
    forget: bool = Field(description="forget gates besides (PaTH-FoX)")

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse what would change the scores before the hook, which makes its own of queries and keys."""
        named = {"model.score_cap": model.score_cap is not None, "model.score_scale": model.score_scale != "none"}
        wrong = "path computes its scores from queries and keys, past what this option makes of them"
        fixes = {"model.score_cap": "null", "model.score_scale": "none"}
        return [(key, wrong, f"write {key}={fixes[key]}") for key, given in named.items() if given]


def turn(pairs: Pairs, carry_BHtN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of the turned queries. Carried: what the maps of the tiles nearer to the query have added to
    it, and the log gates where there are some."""
    width = pairs.queries[0].shape[-1]
    q_BHtD, (k_BGsD, w_BGsD) = pairs.queries[0].transpose(1, 2), (x.transpose(1, 2) for x in pairs.keys[:2])
    beta_BGs, scale = pairs.keys[2].transpose(1, 2), pairs.parameters[0]
    n_heads, n_groups = q_BHtD.shape[1], k_BGsD.shape[1]

    def stacked(x_BHtN: Tensor) -> Tensor:  # the query heads of a group below each other
        return x_BHtN.unflatten(1, (n_groups, -1)).flatten(2, 3)

    seen_BGts = None
    if pairs.seen_B1ts is not None:
        seen_BHts = pairs.seen_B1ts.expand(-1, n_heads, -1, -1)
        seen_BGts = stacked(seen_BHts)
    turned = q_BHtD + carry_BHtN[..., :width]
    turned, pieces = stacked(turned), []
    for start in reversed(range(0, k_BGsD.shape[2], CHUNK)):
        some = slice(start, start + CHUNK)
        k, w, beta = k_BGsD[:, :, some], w_BGsD[:, :, some], beta_BGs[:, :, some]
        seen = None if seen_BGts is None else seen_BGts[..., some]
        takes = (turned @ w.mT) * beta[:, :, None]  # β w·u with the query as the chunk receives it
        if seen is not None:
            takes = takes * seen
        # What a query sees is one stretch of keys (attention/patterns/_pairs.py), so those that it does not see are all
        # on its right, where nothing is taken yet, or on its left, where nothing is asked any more.
        # A map further left meets a query that those on its right have changed: c = β W u
        # minus what those took, one triangular system.
        system = ((w @ w.mT) * beta[..., None]).triu(1)
        taken = torch.linalg.solve_triangular(system.mT, takes, upper=False, left=False, unitriangular=True)
        if seen is not None:
            taken = taken * seen
        pieces.append(turned @ k.mT - taken @ (w @ k.mT).tril(-1))
        turned = turned - taken @ w
    scores_BHts = torch.cat(pieces[::-1], -1).unflatten(2, (n_heads // n_groups, -1)).flatten(1, 2) * scale
    if pairs.scale_B1t1 is not None:
        scores_BHts = scores_BHts * pairs.scale_B1t1
    turned = turned.unflatten(2, (n_heads // n_groups, -1)).flatten(1, 2)
    return scores_BHts, turned - q_BHtD


def turn_and_forget(pairs: Pairs, carry_BHtN: Tensor) -> tuple[Tensor, Tensor]:
    """Return them with the gates between key and query."""
    scores_BHts, added = turn(pairs, carry_BHtN)
    gates = pairs._replace(scores_BHts=scores_BHts, keys=pairs.keys[3:])
    scores_BHts, log_f = forget(gates, carry_BHtN[..., -1:])
    return scores_BHts, torch.cat((added, log_f), -1)


@cache
def hook(head_dim: int, forgets: bool) -> Hook:
    """Return the hook for heads of a width."""
    return Hook(turn_and_forget, carried=head_dim + 1) if forgets else Hook(turn, carried=head_dim)


class Directions(nn.Module):
    """w of one layer."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__()
        width = shape.n_kv_heads * shape.head_dim
        self.up = nn.Linear(settings.rank, width, bias=False)
        self.mix = nn.Parameter(torch.empty(settings.taps, width))

    def forward(self, low_BSR: Tensor, pos_BS: Tensor) -> Tensor:
        """Return unit vectors (B, S, G·D), float32 or wider; a document's first tokens have fewer taps."""
        wide_BSC = self.up(low_BSR).to(torch.promote_types(low_BSR.dtype, torch.float32))
        return F.silu(convolve(wide_BSC, self.mix.to(wide_BSC.dtype), pos_BS))


class Layer(LayerPosition):
    """The maps of one layer."""

    settings: Settings

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.down = nn.Linear(shape.d_model, settings.rank, bias=False)
        self.strength = nn.Linear(shape.d_model, shape.n_kv_heads)
        self.gate = nn.Linear(shape.d_model, shape.n_heads) if settings.forget else None
        self.directions = Directions(settings, shape)
        # Looked up here: what is compiled may change nothing outside, a cache neither.
        self.hook = hook(shape.head_dim, settings.forget)

    def tokens(self, x_BSC: Tensor) -> tuple[Tensor, ...]:
        """Return what w comes from (B, S, rank), β (B, S, G), and log f (B, S, H) where there are gates."""
        wide = torch.promote_types(x_BSC.dtype, torch.float32)
        beta_BSG = 2 * self.strength(x_BSC).to(wide).sigmoid()
        gates = () if self.gate is None else (F.logsigmoid(self.gate(x_BSC).to(wide)),)
        return self.down(x_BSC), beta_BSG, *gates

    def forward(
        self,
        position: Position,
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: Tensor,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Leave queries and keys as they are; return the hook with both in float32, w, β and the gates."""
        low_BSR, beta_BSG, *gates = tokens
        heads, wide = project.heads, beta_BSG.dtype
        w_BSGD = self.directions(low_BSR, tables).unflatten(-1, (-1, self.shape.head_dim))
        w_BSGD = F.normalize(w_BSGD, dim=-1)
        if heads.repeats > 1:
            w_BSGD, beta_BSG = (x.repeat_interleave(heads.repeats, 2) for x in (w_BSGD, beta_BSG))
        keys = (k_BSGK.to(wide), w_BSGD[:, :, heads.key], beta_BSG[:, :, heads.key])
        keys += tuple(log_f_BSH[..., heads.query] for log_f_BSH in gates)
        factor = self.shape.attention_multiplier or self.shape.head_dim**-0.5
        scale = torch.full((), factor, dtype=wide, device=q_BTHD.device)
        mapped = super().forward(position, q_BTHD, k_BSGK, tables, project, tokens)
        return mapped._replace(score_mod=ScoreMod(self.hook, (scale,), (q_BTHD.to(wide),), keys))


class Scheme(Position):
    """Tokens that turn what looks past them."""

    settings: Settings
    carries = True
    layer_class = Layer
    INITIAL = MappingProxyType(
        {
            "mix": lambda mix_RC, generator: mix_RC.uniform_(
                -(len(mix_RC) ** -0.5), len(mix_RC) ** -0.5, generator=generator
            )
        }
    )

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.sees_positions = settings.taps > 1  # where documents begin, and so does the convolution

    @property
    def halo(self) -> int:
        """Taps before a token's own."""
        return self.settings.taps - 1

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tensor:
        """Return the positions of all keys, (B, S): by them the convolution knows where a document begins."""
        return keys.pos_BT
