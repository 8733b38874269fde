"""What the checkpoints of a run take on the disk."""

from collections.abc import Sequence
from dataclasses import dataclass

from coca_train.checkpoint.commit import SPARE
from coca_train.checkpoint.format import file_size
from coca_train.engine.base import spec_of
from coca_train.planning.outline import Outline


@dataclass(frozen=True)
class Storage:
    """checkpoint: the largest of all stages [bytes]. kept: how many there are at once, at most, one of them just being
    written."""

    checkpoint: int
    kept: int

    @property
    def total(self) -> int:
        """All of them [bytes]."""
        return self.checkpoint * self.kept + SPARE


def storage(outlines: Sequence[Outline], keep: int) -> Storage:
    """Of a run with these stages. keep: checkpoint.keep.

    float32 weights and persistent buffers, and what the optimizer keeps of what is trained. While one is written,
    `keep` are there, and that at the end of each stage before stays.
    """
    largest = max(file_size(spec_of(outline.model, outline.moments)) for outline in outlines)
    return Storage(largest, keep + 1 + len(outlines) - 1)
