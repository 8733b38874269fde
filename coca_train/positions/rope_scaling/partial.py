"""p-RoPE (Barbero et al., arXiv 2410.06205): only the fast pairs turn, the slow ones carry content alone.

The ⌊share·J⌋ fastest of the J pairs keep their θ_j, the others get 0. Over long distances a slow pair's small angles
add up and disturb what it has learned to match; a pair that does not turn cannot be disturbed. Not `rotary_pct`, whose
rotated part has frequencies of its own, from the fastest to the slowest. `transformers` calls this "proportional".
"""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.base import Problem
from coca_train.positions.hugging_face import NativeScaling, NotTheSame, ScalingReader
from coca_train.positions.rope_scaling import RopeScaling, Spectrum, base_inv_freq, rounded

UNKNOWN = "transformers before 5.5 do not know rope_type proportional, and refuse to load it"


def _turning(share: float, rotary_dim: int) -> int:
    """Count the pairs that turn."""
    return int(share * rotary_dim // 2)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """Rotation of the fastest pairs only."""

    name: Literal["partial"]
    share: Annotated[float, Field(gt=0, le=1, description="p, the share of pairs that turn; the paper's best: 0.75")]

    ROPE_TYPE = "proportional"

    def problems(self, rotary_dim: int) -> list[Problem]:
        """Refuse a share so small that nothing turns."""
        if _turning(self.share, rotary_dim):
            return []
        pairs = rotary_dim // 2
        wrong = f"a share of {self.share:g} of {pairs} pairs is less than one pair, so that nothing would turn"
        return [("position.rope_scaling.share", wrong, f"position.rope_scaling.share={1 / pairs:g} or more")]

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        """Return the frequencies, which do not depend on `length` [tokens]."""
        inv_freq_J = base_inv_freq(self.theta, rotary_dim)
        inv_freq_J[_turning(self.share, rotary_dim) :] = 0.0
        return rounded(inv_freq_J)

    @classmethod
    def from_transformers(cls, scaling: ScalingReader) -> dict[str, object]:
        """Read the share of pairs, which their key for the rotated share of a head holds; the whole head is rotated."""
        scaling.refuse_factor()
        share, scaling.rotary_pct = scaling.rotary_pct, 1.0
        return {"theta": scaling.theta, "share": share}

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        """Write the section, which versions of transformers before 5.5 refuse to load."""
        if rotary_pct < 1:
            raise NotTheSame("p-RoPE on a part of the head only (partial rotation)")
        scaling = {"rope_type": self.ROPE_TYPE, "partial_rotary_factor": self.share}
        return NativeScaling(self.theta, scaling, caveats=(UNKNOWN,))
