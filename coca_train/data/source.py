"""One part of a mixture: a dataset cut into windows, and the place a sample has in it."""

from typing import NamedTuple

from coca_train.config.errors import DataError
from coca_train.config.schema import SourceConfig
from coca_train.data.indexed import IndexedDataset


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
    """A dataset cut into windows of T = seq_len inputs: window w is tokens w*T .. w*T + T."""

    def __init__(self, name: str, config: SourceConfig, seq_len: int) -> None:
        self.name, self.config = name, config
        self.dataset = IndexedDataset(config.path)
        self.n_windows = count_windows(self.dataset, seq_len, name)

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


def count_windows(dataset: IndexedDataset, seq_len: int, name: str) -> int:
    """Windows of a dataset; DataError E-TOK-12 when it is shorter than one."""
    n_windows = (dataset.n_tokens - 1) // seq_len
    if n_windows < 1:
        raise DataError(
            f"E-TOK-12 {dataset.bin_path} ({name}): {dataset.n_tokens} tokens; one window takes seq_len + 1 = "
            f"{seq_len + 1}. Fix: lower train.seq_len, or give the source more text"
        )
    return n_windows
