"""What the errors about data say: the commands that make it, in the tokens of the weights a run begins from."""

from pathlib import Path

import pytest

from coca_train.config.schema import Config
from coca_train.models.transformer import vocab_size
from coca_train.runtime.errors import DataError
from coca_train.settings import load
from coca_train.training.data import commands_for_missing, commands_for_own_tokens, prepare_data


def config(*words: str) -> Config:
    return load([*words, "engine=local", "train.micro_batch_size=32", "train.global_batch_size=32"]).config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of weights, as far as the errors look: there is a tokenizer in it."""
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "tokenizer.model").touch()
    return tmp_path / "llama"


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (["data=pile_code"], "tokenizer corpus=pile_code, then python -m data_prep tokenize corpus=pile_code ("),
        (["data=pile_code_llama"], "tokenizer corpus=pile_code_llama tokenizer.import_from={folder}, then "),
        (["data=pile_code", "data.dir=elsewhere"], "python -m data_prep --help"),
    ],
)
def test_missing_data_is_answered_with_what_makes_it(words: list[str], commands: str, folder: Path) -> None:
    with pytest.raises(DataError, match="E-TOK-01") as caught:
        prepare_data(config(*words, f"start.path={folder}"), None)
    assert commands.format(folder=folder) in str(caught.value)


def test_before_there_are_weights_the_place_that_the_corpus_names_is_given() -> None:
    assert "tokenizer.import_from=models/llama_7b" in commands_for_missing(config("data=pile_code_llama"))


def test_data_in_other_tokens_is_not_answered_with_another_model(folder: Path) -> None:
    """model.vocab_size=null would be the next error (E-STA-02), and its fix this one again."""
    started = config("data=pile_code", f"start.path={folder}", "model.vocab_size=32000")
    with pytest.raises(DataError, match="E-TOK-09") as caught:
        vocab_size(started.model, 100_864, "data/pile_code/tokenizer.model", lambda: commands_for_own_tokens(started))
    text = str(caught.value)
    assert "model.vocab_size=null" not in text
    words = "corpus=pile_code corpus.name=pile_code_own_tokens corpus.dir=data/pile_code_own_tokens"
    assert f"tokenizer {words} tokenizer.import_from={folder}; python -m data_prep tokenize {words}; " in text
    assert (
        f"mix {words}; then train with --config-dir data/pile_code_own_tokens/config data=pile_code_own_tokens" in text
    )


def test_from_nothing_the_model_takes_as_many_rows_as_there_are_tokens() -> None:
    fresh = config("data=pile_code", "model.vocab_size=32000")
    with pytest.raises(DataError, match=r"Fix: model\.vocab_size=null"):
        vocab_size(fresh.model, 100_864, "tokenizer.model", lambda: commands_for_own_tokens(fresh))
