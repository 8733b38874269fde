"""Small datasets, and a mixture over them without any yaml."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coca_train.config.schema import DataConfig, SourceConfig
from coca_train.data.dataset import IndexedWriter
from coca_train.data.loader import Mixture

SIZES = {"text": 5000, "code": 2311}


def write(prefix: Path, documents: list, dtype: type = np.uint16) -> str:
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add_document(document)
    return str(prefix)


@pytest.fixture
def write_dataset() -> Callable[..., str]:
    return write


def cut(ids: np.ndarray, seed: int) -> list[np.ndarray]:
    """A token stream in documents of 1 to 40 tokens."""
    lengths = np.random.default_rng(seed).integers(1, 40, len(ids))
    return [part for part in np.split(ids, np.cumsum(lengths)) if len(part)]


@pytest.fixture
def data_config(tmp_path: Path) -> Callable[..., DataConfig]:
    """Two sources whose token ids are their own positions, so a batch tells where it came from."""
    tokenizer = tmp_path / "tokenizer.model"
    tokenizer.write_bytes(b"tokenizer")
    for seed, (name, size) in enumerate(SIZES.items()):
        write(tmp_path / name, cut(np.arange(size) + 10_000 * seed, seed))

    def build(weights: dict[str, float] | None = None, on_exhausted: str = "repeat", **changes) -> DataConfig:
        sources = {
            name: SourceConfig(path=str(tmp_path / name), valid_path=None, weight=weight, on_exhausted=on_exhausted)
            for name, weight in (weights or {"text": 0.75, "code": 0.25}).items()
        }
        values = {"seed": 1, "order": "shuffled", "document_mask": False, "prefetch_steps": 2}
        values |= {"prepare": "none", "dir": str(tmp_path), "packing": "windows", "verify_blocks": True}
        values |= {"upsample_from_tokens": None, "upsample_factor": 1}
        values |= {"path": None, "text_field": "text", "vocab_size": None, "valid_share": None, "on_error": "stop"}
        return DataConfig(tokenizer=str(tokenizer), sources=sources, **(values | changes))

    return build


@pytest.fixture
def mixture(data_config: Callable[..., DataConfig]) -> Mixture:
    return Mixture(data_config(), seq_len=16)
