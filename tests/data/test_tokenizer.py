"""The SentencePiece wrapper: faithful both ways, and clear about files that are none."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.config.errors import DataError
from coca_train.data.tokenizer import Tokenizer
from data_prep.vocabulary import train_tokenizer

TEXT = Path(__file__).read_text(encoding="utf-8") + "\tThe quick brown fox; jumps over 13 lazy dogs.\n" * 3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    train_tokenizer([TEXT], path, 512)
    return path


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer(path)


def test_shape(tokenizer: Tokenizer, path: Path) -> None:
    assert tokenizer.vocab_size == 512
    assert tokenizer.eod == 2
    assert tokenizer.digest == hashlib.sha256(path.read_bytes()).hexdigest()


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=60))
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < 512 for i in ids)
    assert tokenizer.eod not in ids


@pytest.mark.parametrize(
    "text", ["  if x:\n\n\t\treturn  1234 \n", " ", "\n", "\r\n", "", "</s><s><unk>", "é\0漢🙂", TEXT]
)
def test_code_whitespace_and_written_out_pieces(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eod not in tokenizer.encode(text)


def test_digits_are_split_and_newlines_alone(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("123456")) >= 6
    assert len(tokenizer.encode("\n\n")) == 2


def test_decoding_leaves_out_what_is_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The fox")
    assert tokenizer.decode([1, *ids, tokenizer.eod, 512, 600]) == "The fox"


def test_training_is_deterministic(path: Path, tmp_path: Path) -> None:
    train_tokenizer([TEXT], tmp_path / "again.model", 512)
    assert (tmp_path / "again.model").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80" * 100, b'{"model": 1}'])
def test_not_a_model(tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.model").write_bytes(content)
    with pytest.raises(DataError, match=r"E-TKN-02 .*x\.model.*Fix:"):
        Tokenizer(tmp_path / "x.model")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["missing.model", "."])
def test_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="E-TKN-01"):
        Tokenizer(tmp_path / name)


@pytest.mark.parametrize(("size", "why"), [(10, "E-PREP-01 vocab_size"), (70_000, "E-PREP-01"), (20_000, "E-PREP-01")])
def test_vocabulary_sizes_that_cannot_be(tmp_path: Path, size: int, why: str) -> None:
    with pytest.raises(DataError, match=why):
        train_tokenizer([TEXT], tmp_path / "x.model", size)
    assert not (tmp_path / "x.model").exists()
