"""`python -m data_prep tokenizer` as a user meets it."""

import functools
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.corpus_config import load
from coca_train.data.tokenizer import Tokenizer
from coca_train.data.tokenizer_backends import fields
from coca_train.runtime.errors import DataError, StorageError, UserError
from data_prep import tokenizer_files
from data_prep.tokenizer_files import TEXT as TEST_TEXT
from data_prep.tokenizer_files import import_tokenizer, train
from data_prep.verbs import tokenizer as verb
from tests.data.vocabularies import byte_level, llama2, saved, sentencepiece_model
from tests.data_prep.test_vocabulary import corpus, text_of, write

ROOT = Path(__file__).resolve().parents[2]


def prose(number: int) -> str:
    """Enough different words for 512 pieces."""
    noise = hashlib.sha256(str(number).encode()).hexdigest().translate(str.maketrans("0123456789", "ghijklmno "))
    return f"{text_of(number)} {noise}"


@functools.cache
def remembered(texts: tuple[str, ...], *settings: Any) -> bytes:
    return train(texts, "a test", *settings)


@pytest.fixture
def quick_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training gives the same for the same texts and settings, so it is done once for all tests that need a result."""
    monkeypatch.setattr(verb, "train", lambda texts, where, *settings: remembered(tuple(texts), *settings))


QUICK = pytest.mark.usefixtures("quick_training")


@pytest.fixture
def config(tmp_path: Path) -> PrepareConfig:
    for name in ("a", "b"):
        write(tmp_path, name, [f"{name} {prose(i)}" for i in range(300)])
    return corpus(tmp_path, {"a": {}, "b": {"hold_out": "hash"}}, 60_000)


def test_a_vocabulary_is_trained(config: PrepareConfig, capsys: pytest.CaptureFixture[str]) -> None:
    verb.run(config)
    out, err = capsys.readouterr()
    path = Path(config.tokenizer.path)
    tokenizer = Tokenizer(path)
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.bos, tokenizer.lossless) == (512, 2, 1, True)
    assert f"{path}: made\nSentencePiece, 512 token ids; " in out
    spec = dict(fields(dict(fields(path.read_bytes()))[2]))
    assert spec.get(16, 16) == verb.THREADS == 16, "a fixed number of threads, whatever the machine"
    record = json.loads(tokenizer_files.record_path(path).read_text())
    assert record["sha256"] == tokenizer.digest
    taken = {one["source"]: one for one in record["sample"]}
    assert 30_000 <= taken["a"]["bytes"] < 30_200
    held_out = taken["b"]["left_out"]["held out"]
    assert taken["b"]["documents"] == 300 - held_out
    lines = [line.split() for line in out.splitlines()]
    assert ["a", "50.00", "%", "30,000", f"{taken['a']['bytes']:,}", "300", "none"] in [line[:7] for line in lines]
    assert f"{held_out:,} held out" in out
    assert "training 512 pieces (bpe) on 60." in err and "trained in " in err
    assert {entry.name for entry in path.parent.iterdir()} - {"raw"} == {
        *("tokenizer.model", "tokenizer.model.made.json", ".tokenizer.model.lock")
    }


@QUICK
def test_the_same_again_is_nothing_to_do(config: PrepareConfig, capsys: pytest.CaptureFixture[str]) -> None:
    verb.run(config)
    path = Path(config.tokenizer.path)
    before = path.stat().st_mtime_ns
    capsys.readouterr()
    verb.run(replace(config, work=replace(config.work, workers=3)))
    assert "is there already, nothing to do" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before


def with_source(config: PrepareConfig, **changes: Any) -> PrepareConfig:
    sources = {**config.corpus.sources, "a": replace(config.corpus.sources["a"], **changes)}
    return replace(config, corpus=replace(config.corpus, sources=sources))


CHANGES = {
    "tokenizer.vocab_size was 512, is 600": lambda c: replace(c, tokenizer=replace(c.tokenizer, vocab_size=600)),
    "tokenizer.model_type was 'bpe', is 'unigram'": lambda c: replace(
        c, tokenizer=replace(c.tokenizer, model_type="unigram")
    ),
    "valid_share was 0.3, is 0.1": lambda c: replace(c, corpus=replace(c.corpus, valid_share=0.1)),
    "sources.a.weight was None, is 2.0": lambda c: with_source(c, weight=2.0),
    "sources.b was ": lambda c: replace(c, corpus=replace(c.corpus, sources={"a": c.corpus.sources["a"]})),
    "sources.a.filter.min_chars was 1, is 9": lambda c: with_source(
        c, filter=replace(c.corpus.sources["a"].filter, min_chars=9)
    ),
}


@QUICK
@pytest.mark.parametrize("phrase", CHANGES)
def test_other_settings_are_refused(config: PrepareConfig, phrase: str) -> None:
    verb.run(config)
    before = Path(config.tokenizer.path).read_bytes()
    with pytest.raises(DataError) as caught:
        verb.run(CHANGES[phrase](config))
    assert str(caught.value).startswith(f"E-TKN-05 {config.tokenizer.path}: ")
    assert phrase in str(caught.value) and "Fix: " in str(caught.value)
    assert Path(config.tokenizer.path).read_bytes() == before


@pytest.mark.parametrize("record", [None, "", "[]", "{}", '{"format": 1, "sha256": "00"}'])
def test_a_tokenizer_of_unknown_origin_is_left_alone(config: PrepareConfig, record: str | None) -> None:
    path = sentencepiece_model(Path(config.tokenizer.path))
    if record is not None:
        tokenizer_files.record_path(path).write_text(record)
    before = path.read_bytes()
    with pytest.raises(DataError, match="E-TKN-05") as refused:
        verb.run(config)
    assert (tokenizer_files.record_path(path).name in str(refused.value)) == (
        record in ("", "[]")
    )  # where it is damaged
    assert path.read_bytes() == before


@QUICK
def test_killed_between_record_and_model(config: PrepareConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record alone is no tokenizer; the same command makes it."""
    original = tokenizer_files.replace_file

    def killed(path: Path, content: bytes) -> None:
        if path.suffix == ".model":
            raise KeyboardInterrupt
        original(path, content)

    monkeypatch.setattr(tokenizer_files, "replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        verb.run(config)
    assert tokenizer_files.record_path(Path(config.tokenizer.path)).exists()
    assert not Path(config.tokenizer.path).exists()
    monkeypatch.undo()
    verb.run(config)
    assert Tokenizer(config.tokenizer.path).vocab_size == 512


def test_a_folder_that_cannot_be_written(config: PrepareConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="E-IO-01"):
        verb.run(replace(config, tokenizer=replace(config.tokenizer, path=str(tmp_path / "file" / "x.model"))))


@QUICK
def test_a_full_disk_leaves_nothing(config: PrepareConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokenizer_files, "replace", full)
    with pytest.raises(StorageError, match="No space left"):
        verb.run(config)
    assert not Path(config.tokenizer.path).exists()


def _run(config: PrepareConfig) -> None:
    verb.run(config)


@QUICK
def test_two_at_once_make_one(config: PrepareConfig) -> None:
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_run, args=(config,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert Tokenizer(config.tokenizer.path).vocab_size == 512


def test_sizes_that_do_not_fit(config: PrepareConfig) -> None:
    for size in (10, 50_000):
        with pytest.raises(DataError, match=r"E-PREP-01 .*Fix: .*tokenizer\.vocab_size"):
            verb.run(replace(config, tokenizer=replace(config.tokenizer, vocab_size=size)))
    assert not Path(config.tokenizer.path).exists()


@QUICK
def test_a_source_that_is_too_small_is_named(config: PrepareConfig, capsys: pytest.CaptureFixture[str]) -> None:
    verb.run(replace(config, tokenizer=replace(config.tokenizer, sample_bytes=10**6)))
    assert ": a, b\n" in capsys.readouterr().out


def test_ctrl_c_ends_the_trainer_at_once(tmp_path: Path) -> None:
    """The trainer runs in C++, where Python's own handler would wait for its end."""
    code = (
        "import time; from data_prep.verbs.tokenizer import interruptible\n"
        "with interruptible():\n    print('in', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"in\n"
    begin = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (-signal.SIGINT, b"") and time.monotonic() - begin < 10


def test_ctrl_c_is_pythons_again_afterwards() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with verb.interruptible():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def imported(config: PrepareConfig, origin: Path, name: str = "tokenizer.model") -> PrepareConfig:
    path = Path(config.tokenizer.path).with_name(name)
    return replace(config, tokenizer=replace(config.tokenizer, path=str(path), import_from=str(origin)))


def test_import_of_sentencepiece(config: PrepareConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = sentencepiece_model(tmp_path / "origin.model", model_type="unigram", remove_extra_whitespaces=True)
    for state in ("made", "is there already, nothing to do"):
        verb.run(imported(config, origin))
        out = capsys.readouterr().out
        assert f"{config.tokenizer.path}: {state}\n" in out and "come back changed" in out
    assert Path(config.tokenizer.path).read_bytes() == origin.read_bytes()


def test_import_of_huggingface(config: PrepareConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = saved(byte_level(), tmp_path / "origin.json")
    verb.run(imported(config, origin, "tokenizer.json"))
    assert "Hugging Face, 400 token ids; " in capsys.readouterr().out
    assert (tmp_path / "tokenizer.json").read_bytes() == origin.read_bytes()


@pytest.mark.parametrize("kind", ["sentencepiece", "huggingface"])
def test_a_name_that_says_something_else(config: PrepareConfig, tmp_path: Path, kind: str) -> None:
    if kind == "sentencepiece":
        origin, name, right = sentencepiece_model(tmp_path / "o"), "tokenizer.json", "tokenizer.model"
    else:
        origin, name, right = saved(byte_level(), tmp_path / "o"), "tokenizer.model", "tokenizer.json"
    with pytest.raises(UserError, match="E-TKN-06") as caught:
        verb.run(imported(config, origin, name))
    assert f"write tokenizer.path={tmp_path / right}, for every verb" in str(caught.value)
    assert not (tmp_path / name).exists()


def test_a_folder_gives_its_model_before_its_json(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    saved(llama2(), folder / "tokenizer.json")
    assert import_tokenizer(folder, tmp_path / "a.json")
    sentencepiece_model(folder / "tokenizer.model")
    assert import_tokenizer(folder, tmp_path / "b.model")
    assert (tmp_path / "b.model").read_bytes() == (folder / "tokenizer.model").read_bytes()


def test_no_code_of_a_folder_is_read_or_run(tmp_path: Path) -> None:
    """Its JSON is, and what that says is no special token of the tokenizer is passed over."""
    folder, trap = tmp_path / "evil", tmp_path / "trap"
    folder.mkdir()
    saved(byte_level(), folder / "tokenizer.json")
    code = f"open({str(trap)!r}, 'w')"
    for name in ("tokenization_evil.py", "tokenizer.py", "__init__.py", "setup.py", "sitecustomize.py"):
        (folder / name).write_text(code)
    config = {"auto_map": {"AutoTokenizer": ["tokenization_evil.E", None]}, "tokenizer_class": "E", "eos_token": "x"}
    for name in ("tokenizer_config.json", "config.json", "special_tokens_map.json"):
        (folder / name).write_text(json.dumps(config | {"trust_remote_code": True}))
    assert import_tokenizer(folder, tmp_path / "tokenizer.json")
    assert not trap.exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["evil", "tokenizer", "tokenizer.json"]
    kept = sorted(entry.name for entry in (tmp_path / "tokenizer").iterdir())
    assert kept == ["special_tokens.json", "special_tokens_map.json", "tokenizer_config.json"]
    assert Tokenizer(tmp_path / "tokenizer.json").eod == byte_level().token_to_id("<|endoftext|>")


def test_folders_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(DataError, match=r"E-TKN-01 .*it holds nothing"):
        import_tokenizer(tmp_path / "old", tmp_path / "x.model")
    for name in ("vocab.json", "merges.txt", "a\n\x1b[2Jb"):
        (tmp_path / "old" / name).write_text("{}")
    with pytest.raises(DataError, match=r"E-TKN-01 .*it holds a\\n\\x1b\[2Jb, merges.txt, vocab.json"):
        import_tokenizer(tmp_path / "old", tmp_path / "x.model")
    with pytest.raises(DataError, match=r"E-TKN-01 .*No such file"):
        import_tokenizer(tmp_path / "none", tmp_path / "x.model")


def test_another_tokenizer_is_never_overwritten(tmp_path: Path) -> None:
    one = sentencepiece_model(tmp_path / "one.model")
    other = sentencepiece_model(tmp_path / "other.model", vocab_size=430)
    before = one.read_bytes()
    assert not import_tokenizer(one, one)
    with pytest.raises(DataError, match=r"E-TKN-05 .*one\.model: .*other\.model"):
        import_tokenizer(other, one)
    assert one.read_bytes() == before
    (tmp_path / "dir.model").mkdir()
    with pytest.raises(DataError, match="E-TKN-05"):
        import_tokenizer(one, tmp_path / "dir.model")


def test_no_tokenizer_is_brought(tmp_path: Path) -> None:
    (tmp_path / "bad.model").write_bytes(b"nothing")
    with pytest.raises(DataError, match="E-TKN-02"):
        import_tokenizer(tmp_path / "bad.model", tmp_path / "x.model")
    assert not (tmp_path / "x.model").exists()


def test_a_tokenizer_that_loses_text_without_saying_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = sentencepiece_model(tmp_path / "o.model")
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: "other")
    with pytest.raises(DataError, match=r"E-TKN-08 .*makes 'other' of"):
        import_tokenizer(origin, tmp_path / "x.model")
    assert TEST_TEXT.isascii() is False and not (tmp_path / "x.model").exists()


def test_changed_while_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = sentencepiece_model(tmp_path / "o.model")
    original = Tokenizer.decode

    def decode(self: Tokenizer, ids: list[int]) -> str:
        sentencepiece_model(origin, vocab_size=430)
        return original(self, ids)

    monkeypatch.setattr(Tokenizer, "decode", decode)
    with pytest.raises(DataError, match="E-TKN-11 "):
        import_tokenizer(origin, tmp_path / "x.model")


def test_a_folder_whose_json_knows_more_is_imported_and_found_by_the_next_verb(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    saved(llama2(), folder / "tokenizer.json")
    (folder / "other.model").write_bytes((folder / "tokenizer.json").read_bytes())
    words = ["corpus.sources.text.files=[a.txt]", f"corpus.dir={tmp_path}/made"]
    for origin in (folder, folder / "other.model"):
        tokenizer = load([*words, f"tokenizer.import_from={origin}"]).tokenizer
        assert tokenizer.path == f"{tmp_path}/made/tokenizer.json"
