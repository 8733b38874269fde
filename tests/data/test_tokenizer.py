"""Tokenizers of SentencePiece: faithful both ways, and clear about files that are none."""

import hashlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data import tokenizer as module
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from data_prep.tokenizer_files import train_tokenizer
from tests.data.vocabularies import sentencepiece_model

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
    assert (tokenizer.eod, tokenizer.bos, tokenizer.kind, tokenizer.lossless) == (2, 1, "sentencepiece", True)
    assert tokenizer.control == {1, 2}
    assert tokenizer.digest == hashlib.sha256(path.read_bytes()).hexdigest()


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
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


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80" * 100, b'{"model": 1}', b"{", b"{\xff}"])
def test_not_a_model(tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.model").write_bytes(content)
    with pytest.raises(DataError, match=r"E-TKN-02 .*x\.model.*Fix:"):
        Tokenizer(tmp_path / "x.model")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["missing.model", "."])
def test_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="E-TKN-01"):
        Tokenizer(tmp_path / name)


@pytest.mark.parametrize(
    ("size", "why"), [(10, "E-PREP-01 vocab_size=10"), (70_000, "E-PREP-01"), (20_000, "E-PREP-01")]
)
def test_vocabulary_sizes_that_cannot_be(tmp_path: Path, size: int, why: str) -> None:
    with pytest.raises(DataError, match=why):
        train_tokenizer([TEXT], tmp_path / "x.model", size)
    assert not (tmp_path / "x.model").exists()


def test_batches_and_arrays(tokenizer: Tokenizer) -> None:
    expected = [tokenizer.encode(text) for text in (TEXT, "", "a\nb")]
    assert tokenizer.encode_batch([TEXT, "", "a\nb"], num_threads=2) == expected
    array = tokenizer.encode_array(TEXT)
    assert (array.tolist(), array.dtype) == (expected[0], "uint16")


def test_a_model_that_is_encoded_as_a_whole(tmp_path: Path) -> None:
    tokenizer = Tokenizer(sentencepiece_model(tmp_path / "x.model", model_type="unigram"))
    assert tokenizer.lossless
    assert tokenizer.encode_batch([TEXT, "a"], num_threads=2) == [tokenizer.encode(TEXT), tokenizer.encode("a")]
    array = tokenizer.encode_array(TEXT)
    assert (array.tolist(), array.dtype) == (tokenizer.encode(TEXT), "uint16")


@pytest.mark.parametrize(
    ("changes", "back"),
    [
        ({"add_dummy_prefix": True}, "a  ﬁ 漢"),
        ({"byte_fallback": False}, "a   \u2047   \u2047 "),
        ({"normalization_rule_name": "nmt_nfkc"}, "a  fi 漢"),
        ({"remove_extra_whitespaces": True}, "a ﬁ 漢"),
    ],
)
def test_models_that_lose_something_say_so(tmp_path: Path, changes: dict, back: str) -> None:
    tokenizer = Tokenizer(sentencepiece_model(tmp_path / "x.model", **changes))
    assert not tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode("a  ﬁ 漢")) == back


@pytest.mark.parametrize(
    ("changes", "eod", "bos"),
    [
        ({"eos_id": -1, "bos_id": -1, "control_symbols": ["<|endoftext|>", "<bos>"]}, "<|endoftext|>", "<bos>"),
        ({"eos_piece": "<stop>", "bos_piece": "<go>"}, "<stop>", "<go>"),
        ({"bos_id": -1}, "</s>", None),
    ],
)
def test_pieces_that_end_and_begin(tmp_path: Path, changes: dict, eod: str, bos: str | None) -> None:
    path = sentencepiece_model(tmp_path / "x.model", **changes)
    tokenizer = Tokenizer(path)
    library = module.SentencePiece(path.read_bytes())
    assert tokenizer.eod == library.id_of(eod)
    assert tokenizer.bos == (None if bos is None else library.id_of(bos))
    assert tokenizer.control == {i for i in (tokenizer.eod, tokenizer.bos) if i is not None}
    assert tokenizer.eod not in tokenizer.encode(f"{eod} {eod}")


def test_without_an_end(tmp_path: Path) -> None:
    path = sentencepiece_model(tmp_path / "x.model", eos_id=-1)
    with pytest.raises(DataError, match="E-TKN-03 "):
        Tokenizer(path)


def test_an_end_that_any_text_can_spell(tmp_path: Path) -> None:
    symbols = ["\n", "<|endoftext|>"]
    path = sentencepiece_model(tmp_path / "x.model", eos_id=-1, user_defined_symbols=symbols)
    with pytest.raises(DataError, match=r"E-TKN-12 .*'<\|endoftext\|>'"):
        Tokenizer(path)


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "x.model"
    path.touch()
    os.truncate(path, 64 << 20)
    with pytest.raises(DataError, match=r"E-TKN-02 .*more than 67,108,863 bytes"):
        Tokenizer(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    errors: list[Exception] = []

    def load() -> None:
        try:
            Tokenizer(tmp_path / "pipe")
        except DataError as error:
            errors.append(error)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(20)
    assert "E-TKN-01" in str(errors) and "is a pipe" in str(errors)


def test_tiktoken_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\nIw== 2\n")
    with pytest.raises(DataError, match=r"E-TKN-02 .*one of tiktoken.*tokenizer.json"):
        Tokenizer(tmp_path / "tokenizer.model")
