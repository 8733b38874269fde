"""A finished corpus, opened to be looked at: manifest, tokenizer, datasets."""

from functools import cached_property
from pathlib import Path
from typing import Any

from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from data_prep.merging import manifest
from data_prep.schema import PrepareConfig


class Corpus:
    """The corpus in corpus.dir. Raises what `manifest.read` raises (E-TOK-23: none is finished there)."""

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
        """A dataset. Raises DataError E-TOK-25 when it is not as long as the manifest says."""
        data, record = IndexedDataset(self.folder / f"{source}_{split}"), self.record(source, split)
        if (data.n_documents, data.n_tokens) != (record["documents"], record["tokens"]):
            raise DataError(
                f"E-TOK-25 {data.prefix}: holds {data.n_documents:,} documents of {data.n_tokens:,} tokens together, "
                f"the manifest says {record['documents']:,} and {record['tokens']:,}; both must agree. "
                "Fix: python -m data_prep verify, then copy the files again or prepare the corpus again"
            )
        return data
