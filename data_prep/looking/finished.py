"""A finished corpus, opened to be looked at: manifest, tokenizer, datasets, and where each document comes from."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coca_train.config.errors import DataError
from coca_train.data.indexed import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from data_prep.merging import manifest
from data_prep.merging.concatenate import ORIGINS
from data_prep.readers.base import shown
from data_prep.schema import PrepareConfig


class Corpus:
    """The corpus in corpus.dir. Raises what `manifest.read` raises (E-TOK-15: none is finished there)."""

    def __init__(self, config: PrepareConfig) -> None:
        self.folder = Path(config.corpus.dir)
        self.manifest: dict[str, Any] = manifest.read(self.folder)
        self.report = self.folder / "report"

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / self.manifest["tokenizer"]["file"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises DataError E-TOK-11 when it is not the one the corpus was made with, E-TKN-01 when it is gone."""
        tokenizer = Tokenizer(self.tokenizer_path)
        if tokenizer.digest != self.manifest["tokenizer"]["sha256"]:
            raise DataError(
                f"E-TOK-11 {self.tokenizer_path}: is tokenizer {tokenizer.digest[:16]}, the corpus was made with "
                f"{self.manifest['tokenizer']['sha256'][:16]}; they must be the same. Fix: restore the tokenizer"
            )
        return tokenizer

    def names(self, split: str) -> list[str]:
        """Sources that have documents in a split, sorted."""
        return [name for name in sorted(self.manifest["sources"]) if f"{name}_{split}" in self.manifest["datasets"]]

    def record(self, source: str, split: str) -> dict[str, int]:
        """What the manifest says about a dataset: documents, tokens, characters, bytes, longest_document."""
        return self.manifest["datasets"][f"{source}_{split}"]

    def dataset(self, source: str, split: str) -> IndexedDataset:
        """A dataset. Raises DataError E-TOK-08 when it is not as long as the manifest says."""
        data, record = IndexedDataset(self.folder / f"{source}_{split}"), self.record(source, split)
        if (data.n_documents, data.n_tokens) != (record["documents"], record["tokens"]):
            raise DataError(
                f"E-TOK-08 {data.prefix}: holds {data.n_documents:,} documents of {data.n_tokens:,} tokens together, "
                f"the manifest says {record['documents']:,} and {record['tokens']:,}; both must agree. "
                "Fix: python -m data_prep verify, then copy the files again or prepare the corpus again"
            )
        return data

    def origins(self, source: str, split: str) -> "Origins":
        inputs = [shown(_before_line(record)) for record in self.manifest["sources"][source]["inputs"]]
        return Origins(self.folder / f"{source}_{split}.origins.npy", inputs, self.record(source, split)["documents"])


class Origins:
    """Where each document of a dataset comes from, as file:line; memory-mapped.

    inputs: what stands before the line number, by number of the input.
    Raises DataError E-TOK-22 for a file that is missing or damaged.
    """

    def __init__(self, path: Path, inputs: list[str], n_documents: int) -> None:
        self.path, self._inputs = path, inputs
        try:
            self._rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(f"cannot be read ({error})") from error
        if self._rows.dtype != ORIGINS or self._rows.shape != (n_documents,):
            raise self._damaged(f"holds {self._rows.shape} rows, {n_documents} are needed")

    def __getitem__(self, document: int) -> str:
        input, line = int(self._rows[document]["input"]), int(self._rows[document]["line"])
        if input >= len(self._inputs):
            raise self._damaged(f"names input {input} of {len(self._inputs)}")
        return f"{self._inputs[input]}{line}"

    def _damaged(self, what: str) -> DataError:
        return DataError(
            f"E-TOK-22 {self.path}: {what}; it says where each document comes from. "
            "Fix: python -m data_prep verify, then copy the file again or prepare the corpus again"
        )


def _before_line(record: dict[str, Any]) -> str:
    """What people know an input by, up to the number of its line, of its file, or of its row."""
    if "hub" in record:
        return f"{record['hub']}[{record['split']}] shard {record['shard']}, row "
    return f"{record['name']}, file " if "files" in record else f"{record['name']}:"
