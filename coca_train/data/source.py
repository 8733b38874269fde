"""One part of a mixture: a dataset cut into windows, and the place a sample has in it."""

from typing import NamedTuple

from coca_train.config.schema import SourceConfig
from coca_train.data.indexed import IndexedDataset
from coca_train.data.packings.base import Packing
from coca_train.runtime.errors import DataError


class Place(NamedTuple):
    """Where a sample comes from.

    source: its number. epoch: how often its windows have been through. window: which window of the source.
    continues: whether the same row of the step before was the window before this one.
    """

    source: int
    epoch: int
    window: int
    continues: bool


class Source:
    """A dataset and how it is packed into windows."""

    def __init__(self, name: str, config: SourceConfig, packing: Packing) -> None:
        self.name, self.config, self.packing = name, config, packing

    @property
    def dataset(self) -> IndexedDataset:
        return self.packing.dataset

    @property
    def n_windows(self) -> int:
        """Windows of an epoch."""
        return self.packing.n_windows

    @property
    def stops(self) -> bool:
        """Whether the run ends with this source."""
        return self.config.on_exhausted == "stop"

    def exhausted(self, windows: str) -> DataError:
        """The error for a sample beyond the end of a source that stops. windows: those that were drawn, in words."""
        return DataError(
            f"E-MIX-01 data.sources.{self.name}: {windows} were drawn and on_exhausted is 'stop'; the run asks for "
            "more. Fix: lower train.max_steps, or set on_exhausted=repeat"
        )
