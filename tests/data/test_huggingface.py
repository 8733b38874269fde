"""tokenizer.json: encoded as text and nothing added, whatever the file asks for; and files that are no good."""

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data import tokenizer_backends
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError, UserError
from tests.data.vocabularies import GPT2_END, TEXT, byte_level, llama2, saved

ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(saved(byte_level(), tmp_path_factory.mktemp("gpt2") / "tokenizer.json"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(saved(llama2(), tmp_path_factory.mktemp("llama") / "tokenizer.json"))


def test_like_gpt2(gpt2: Tokenizer) -> None:
    assert (gpt2.kind, gpt2.vocab_size, gpt2.eod, gpt2.bos, gpt2.lossless) == ("huggingface", 400, 0, None, True)
    assert gpt2.control == {0}
    plain = TEXT.replace(GPT2_END, "")
    assert gpt2.encode(plain) == byte_level().encode(plain, add_special_tokens=False).ids


def test_like_llama2(llama: Tokenizer) -> None:
    assert (llama.eod, llama.bos, llama.lossless) == (2, 1, False)
    assert llama.control == {0, 1, 2}
    assert llama.encode("the") == llama.encode(" the")[1:] or llama.decode(llama.encode("the")) == "the"
    assert llama.decode(llama.encode(TEXT + "漢\n")) == TEXT + "漢\n"


@settings(max_examples=150, deadline=None)
@given(ANY)
def test_every_text_comes_back(gpt2: Tokenizer, text: str) -> None:
    ids = gpt2.encode(text)
    assert gpt2.decode(ids) == text
    assert gpt2.eod not in ids
    assert gpt2.encode_array(text).tolist() == ids


def test_special_tokens_in_a_text_are_text(gpt2: Tokenizer, llama: Tokenizer) -> None:
    for tokenizer, end in ((gpt2, GPT2_END), (llama, "</s>")):
        text = f"a{end}b {end}"
        assert tokenizer.eod not in tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decoding_leaves_out_what_is_no_text(gpt2: Tokenizer) -> None:
    assert gpt2.decode([gpt2.eod, *gpt2.encode("fox"), 400, 100_000, gpt2.eod]) == "fox"


def test_what_is_control(tmp_path: Path) -> None:
    """Special tokens, and the end even where the file does not call it special; no other added token."""

    def change(record: dict[str, Any]) -> None:
        record["model"]["vocab"]["</s>"] = 400
        token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        record["added_tokens"].append({"id": 401, "content": "XX", **token})

    tokenizer = Tokenizer(saved(byte_level(), tmp_path / "tokenizer.json", change))
    assert tokenizer.eod == 400 and tokenizer.control == {0, 400}
    assert tokenizer.decode(tokenizer.encode("aXXb")) == "aXXb" and tokenizer.decode([400, 0]) == ""


def test_batches(gpt2: Tokenizer) -> None:
    texts = [TEXT, "", "漢"]
    expected = [gpt2.encode(text) for text in texts]
    assert gpt2.encode_batch(texts, num_threads=1) == expected == gpt2.encode_batch(texts, num_threads=2)


def test_what_the_file_asks_for_besides_is_switched_off(tmp_path: Path, gpt2: Tokenizer) -> None:
    """Truncation would cut documents without a word; dropout would give other ids every time."""
    theirs = byte_level()
    theirs.enable_truncation(5)
    theirs.enable_padding(length=900)
    theirs.post_processor = tokenizers.processors.TemplateProcessing(f"{GPT2_END} $A", None, [(GPT2_END, 0)])

    def change(record: dict[str, Any]) -> None:
        record["model"]["dropout"] = 0.5

    tokenizer = Tokenizer(saved(theirs, tmp_path / "tokenizer.json", change))
    for _ in range(5):
        assert tokenizer.encode(TEXT) == gpt2.encode(TEXT)
    assert tokenizer.encode_batch([TEXT, "a"], 2) == gpt2.encode_batch([TEXT, "a"], 2)


def without(record: dict[str, Any], *tokens: str) -> None:
    """Take tokens, and the merges that need them, out of a vocabulary; their ids stay free."""
    for token in tokens:
        del record["model"]["vocab"][token]
    record["model"]["merges"] = [m for m in record["model"]["merges"] if not {"".join(m), *m} & set(tokens)]


LOSSY = {
    "normaliser": lambda r: r.update(normalizer={"type": "NFC"}),
    "space in front": lambda r: r["pre_tokenizer"].update(add_prefix_space=True),
    "no byte level": lambda r: r.update(pre_tokenizer=None),
    "spaces removed": lambda r: r.update(pre_tokenizer={"type": "Whitespace"}),
    "split removes": lambda r: r.update(
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False},
                r["pre_tokenizer"],
            ],
        }
    ),
    "decoder": lambda r: r.update(decoder=None),
    "a byte is missing": lambda r: without(r, "Ā", "Ġ"),
    "added token strips": lambda r: r["added_tokens"].append(
        {"id": 400, "content": "XX", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False}
        | {"special": False}
    ),
}


@pytest.mark.parametrize("name", LOSSY)
def test_files_that_lose_something(tmp_path: Path, name: str) -> None:
    assert not Tokenizer(saved(byte_level(), tmp_path / "tokenizer.json", LOSSY[name])).lossless


def test_like_llama3(tmp_path: Path) -> None:
    """Two steps before the bytes, a beginning of text, ids of special tokens behind the vocabulary."""
    theirs = byte_level()
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\p{N}{1,3}| ?\p{L}+|\s+|[^\s\p{L}\p{N}]+"), "isolated")
    bytes_ = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, bytes_])
    theirs.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    tokenizer = Tokenizer(saved(theirs, tmp_path / "tokenizer.json", lambda r: r["added_tokens"].pop(0)))
    assert (tokenizer.bos, tokenizer.eod, tokenizer.lossless, tokenizer.vocab_size) == (400, 0, True, 402)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_holes_in_the_vocabulary(tmp_path: Path) -> None:
    """The size is the highest id + 1, not the number of tokens; ids without a token give no text."""

    def change(record: dict[str, Any]) -> None:
        record["model"]["vocab"]["<far>"] = 999

    tokenizer = Tokenizer(saved(byte_level(), tmp_path / "tokenizer.json", change))
    assert tokenizer.vocab_size == 1000
    assert tokenizer.decode([700, *tokenizer.encode("fox"), 998]) == "fox"


def changed(change: Any) -> str:
    record = json.loads(byte_level().to_str())
    change(record)
    return json.dumps(record)


HOSTILE = {
    "not JSON": "{nothing",
    "deep": '{"a":' * 50_000,
    "empty": "{}",
    "a vocab.json": '{"a": 0, "</s>": 1}',
    "a tekken.json": '{"config": {"pattern": "x"}, "vocab": []}',
    "unknown model": changed(lambda r: r["model"].update(type="Evil", module="os", cls="system")),
    "negative id": changed(lambda r: r["model"]["vocab"].update(x=-1)),
    "absurd id": changed(lambda r: r["model"]["vocab"].update(x=4_294_967_295)),
    "merge of nothing": changed(lambda r: r["model"]["merges"].append(["§§", "§"])),
    "broken pattern": changed(
        lambda r: r.update(
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
        )
    ),
    "no tokens": changed(lambda r: r.update(added_tokens=[], model={"type": "Unigram", "vocab": [], "unk_id": None})),
    "unknown words": changed(
        lambda r: r.update(
            pre_tokenizer=None, model={"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "?"}
        )
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text(HOSTILE[name], encoding="utf-8")
    with pytest.raises(DataError, match=r"^E-TKN-02 .*tokenizer\.json: .*Fix: ") as caught:
        Tokenizer(tmp_path / "tokenizer.json")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 700


def test_a_panic_of_the_library_is_reported_in_words(tmp_path: Path) -> None:
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    path = saved(byte_level(), tmp_path / "tokenizer.json", lambda r: r.update(normalizer=charsmap))
    with pytest.raises(DataError, match=r"E-TKN-02 .*charsmap"):
        Tokenizer(path)


def test_an_interrupt_is_no_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        __version__ = "0"

        class Tokenizer:
            @staticmethod
            def from_str(text: str) -> None:
                raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer_backends, "_library", lambda path: Interrupted)
    with pytest.raises(KeyboardInterrupt):
        Tokenizer(saved(byte_level(), tmp_path / "tokenizer.json"))


def test_the_highest_id_that_is_believed(tmp_path: Path) -> None:
    def change(to: int) -> Any:
        return lambda record: record["model"]["vocab"].update(x=to)

    assert Tokenizer(saved(byte_level(), tmp_path / "a.json", change(2**22 - 1))).vocab_size == 2**22
    with pytest.raises(DataError, match=r"E-TKN-02 .* 4194304; 0 .. 4194303"):
        Tokenizer(saved(byte_level(), tmp_path / "b.json", change(2**22)))


def test_an_end_that_any_text_can_spell(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        """A whole word that is in the vocabulary is its token, whatever the merges."""
        record["added_tokens"] = []
        record["model"]["ignore_merges"] = True
        record["pre_tokenizer"]["use_regex"] = False

    with pytest.raises(DataError, match=r"E-TKN-12 .*'<\|endoftext\|>'"):
        Tokenizer(saved(byte_level(), tmp_path / "tokenizer.json", change))


def test_without_an_end(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["added_tokens"] = []
        without(record, GPT2_END)

    with pytest.raises(DataError, match="E-TKN-03 "):
        Tokenizer(saved(byte_level(), tmp_path / "tokenizer.json", change))


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(byte_level(), tmp_path / "tokenizer.json")
    original = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "tokenizers")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match=r"E-TKN-04 .*pip install 'coca-train\[hf\]'") as caught:
        Tokenizer(path)
    assert caught.value.exit_code == 2
