"""Disentangled attention as DeBERTa's code computes it (He et al., arXiv 2006.03654), with the layer's own projections.

    score(m, n) = (q_m · k_n + q_m · W_K p_r + W_Q p_r · k_n) / √D          r = min(m - n, max_distance)

The paper's Eq. 4 looks p up at the distance from m to n in the second term and from n to m in the third, which are two
rows of its table; the released code and `transformers` take the row of m - n in both, and so does this (surveys of
position codes too; one calls the form TUPE's, whose scheme is `tupe`). The table has rows of later keys where attention
is bidirectional, 2·max_distance + 1 in all.

p, a row of C numbers for each distance, is shared by all layers; each sends it through the W_Q and W_K (and their
biases, where the model has them) that its hidden states go through. DeBERTa-v2 does so too ("share_att_key"); v1 has
projections of its own for p, and both divide by √(3D) instead of √D: left to what is learned. p starts with variance 1,
like the normed hidden states that share W_Q and W_K with it, so that the new terms start as large as q · k.

Path: blocked on the CPU; on CUDA FlexAttention while max_distance is below 512 (it looks up q · W_K p and k · W_Q p
computed before: T·max_distance products per head), blocked beyond. Memory O(T·block) when blocked, O(T·max_distance)
per head in FlexAttention. Cost: up to three times the scores of plain attention, and max_distance + 1 more tokens
through W_Q and W_K in every layer.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coca_train.config.schema import STRICT
from coca_train.positions.base import AttentionShape, Initial, LayerPosition, Position, Projections, Terms
from coca_train.positions.token_positions import Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Content to position, and position to content."""

    scheme: Literal["disentangled"]
    max_distance: int = Field(ge=1, description="distances beyond this share its vector [tokens]")


class Layer(LayerPosition):
    """Sends the shared table through this layer's W_Q and W_K."""

    def terms(self, position: Position, q_BTHD: Tensor, k_BSGK: Tensor, tables: Tensor, project: Projections) -> Terms:
        """Project p_RC (tables) by W_K and W_Q of this layer."""
        p_RC = tables.to(q_BTHD.dtype)
        key_RGD = project.key(p_RC)
        key_RHD = key_RGD.repeat_interleave(q_BTHD.shape[2] // key_RGD.shape[1], -2)
        return Terms(query=(q_BTHD, key_RHD), key=(k_BSGK, project.query(p_RC)))


class Scheme(Position):
    """A learned vector for each clipped distance, which attends and is attended to like a token."""

    INITIAL: ClassVar[Mapping[str, Initial]] = {"p": lambda p, generator: p.normal_(0.0, 1.0, generator=generator)}

    bidirectional = True
    layer_class = Layer

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        n_rows = settings.max_distance * (2 if shape.bidirectional else 1) + 1
        self.p = nn.Parameter(torch.empty(n_rows, shape.d_model))

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tensor:
        """Return p_RC, float32 or wider. A copy: ZeRO 3 frees the parameter after this call, and the layers read it
        later."""
        return self.p.to(torch.promote_types(self.p.dtype, torch.float32), copy=True)
