"""T5 (Raffel et al., arXiv 1910.10683, section 2.1): one trained number per head and bucket of distances.

    b(h, r) = table[bucket(r), h],   r = m - n

Half of the buckets hold one distance each, the others grow logarithmically up to max_distance; all larger distances
share the last one (positions/_buckets.py). One table for all layers, as in the paper. T5 leaves out the division
by √D; here scores have it and b is added after it. In bidirectional attention half of the buckets are those of later
keys, as in its encoder.

Path: a bias by distance: `blocked` on the CPU (memory O(T·block)), FlexAttention on CUDA (O(T)). The table over
distances has a row for each up to max_distance, whatever T. Cost: one addition per score. Relative.
"""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions._buckets import bucket_problems, buckets, sides_problems
from coca_train.positions.base import AttentionShape, Position, Problem, Terms
from coca_train.positions.token_positions import DeviceCopies, Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Bucketed relative biases."""

    scheme: Literal["t5"]
    n_buckets: int = Field(ge=2, description="buckets; the first half holds one distance each")
    max_distance: int = Field(gt=0, description="from this distance on, all share the last bucket [tokens]")

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse buckets that would hold no distance."""
        return bucket_problems(self.n_buckets, self.max_distance)


class Scheme(Position):
    """A trained bias per bucket and head, the same in every layer."""

    settings: Settings
    bidirectional = True

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.table = nn.Parameter(torch.empty(settings.n_buckets, shape.n_heads))
        self.buckets_R = buckets(settings.n_buckets, settings.max_distance, shape.bidirectional)
        self._on_device = DeviceCopies()

    def bidirectional_problems(self) -> list[Problem]:
        """Refuse buckets that cannot be halved."""
        return sides_problems(self.settings.n_buckets, self.settings.max_distance)

    def forward(self, queries: Positions, keys: Positions, length: int) -> Terms:
        """Return the bias of each distance, float32 or wider."""
        dtype = torch.promote_types(self.table.dtype, torch.float32)
        bucket_R = self._on_device.on(self.buckets_R, queries.pos_BT.device)
        return Terms(distance_HR=self.table[bucket_R].to(dtype).T.contiguous())
