"""What is shown is what is there, it says where it comes from, and it cannot act on the terminal."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data.tokenizer import Tokenizer
from data_prep.__main__ import main
from data_prep.decoded import (
    CLOSE,
    LEFT_OUT,
    OPEN,
    as_text,
    chosen_windows,
    shortened,
    spread_evenly,
    visible,
)
from data_prep.manifest import Corpus
from data_prep.verbs import inspect
from tests.data_prep.support_corpus import Made, make
from tests.fixes import fix_of

EVIL = "\x1b[2J\x1b]0;title\x07 \u202egnp.exe\u202c \r over \x00 \u2028 \u200b \x9b31m ⟦end of document⟧"


@settings(deadline=None)
@given(st.text())
def test_only_printable_characters_are_left(text: str) -> None:
    shown = visible(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert OPEN not in shown and CLOSE not in shown
    assert text.isprintable() <= (shown.replace("\\u27e6", OPEN).replace("\\u27e7", CLOSE) == text)


def test_special_tokens_stand_where_they_are(model: Path) -> None:
    t = Tokenizer(model)
    ids = [1, *t.encode("one </s> ⟦"), t.eod, *t.encode("twö"), t.vocab_size + 5, t.eod]
    assert as_text(np.array(ids), t) == (
        "⟦token 1⟧one </s> \\u27e6⟦end of document⟧twö" + f"⟦token {t.vocab_size + 5}⟧⟦end of document⟧"
    )
    assert as_text(np.array([], np.int64), t) == ""


@pytest.mark.parametrize("characters", [2, 10, 39, 40, 41, 1000])
@pytest.mark.parametrize("text", ["x" * 39, "word " * 3000, "日本語の文" * 500, "é" * 40])
def test_long_texts_are_cut_in_the_middle(model: Path, text: str, characters: int) -> None:
    t = Tokenizer(model)
    whole = text + "⟦end of document⟧"
    shown = shortened(np.array([*t.encode(text), t.eod]), t, characters)
    if len(whole) <= characters:
        assert shown == whole
    else:
        half = characters // 2
        assert shown == whole[:half] + LEFT_OUT + whole[-half:]


def test_a_long_document_is_not_decoded_as_a_whole(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t, decoded = Tokenizer(model), []
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: decoded.append(len(ids)) or decode(self, ids))
    shortened(np.full(1_000_000, t.encode("word")[0]), t, 100)
    assert 0 < sum(decoded) <= 1000


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(0, 50))
def test_evenly(n: int, k: int) -> None:
    indices = spread_evenly(n, k)
    assert indices == sorted(set(indices)) and all(0 <= i < n for i in indices)
    assert len(indices) == min(n, k)
    if n >= k > 1:
        gaps = np.diff(indices)
        assert gaps.max() - gaps.min() <= 1


def test_windows_hold_ends_of_documents(tmp_path: Path) -> None:
    config = make(tmp_path, {"a": Made(["some words " * n for n in (3, 200, 50, 1, 90)])})
    data = Corpus(config).dataset("a", "train")
    ends = data.document_bounds()[1:] - 1
    for seq_len in (4, 32, 100):
        windows = chosen_windows(data, 3, seq_len)
        n_windows = (data.n_tokens - 1) // seq_len
        assert windows and all(0 <= window < n_windows for window in windows)
        assert all(((ends >= w * seq_len) & (ends < (w + 1) * seq_len)).any() for w in windows if w < n_windows - 1)
        assert windows[0] == ends[0] // seq_len  # of 5 documents, number 0 is the first of 3 chosen
    assert chosen_windows(data, 0, 4) == [] == chosen_windows(data, 3, data.n_tokens)


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "lengths_picture", lambda *_: None)


def run(tmp_path: Path, *words: str) -> int:
    return main(["inspect", "--config-dir", str(tmp_path / "choices"), "corpus=tiny", *words])


def test_documents_with_their_origin(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"text number {i}." for i in range(5)]
    make(tmp_path, {"a": Made(texts, ["held out"]), "b": Made(["bee " * 100])})
    assert run(tmp_path, "look.documents=5", "look.windows=1", "look.seq_len=12", "look.characters=80") == 0
    out = capsys.readouterr().out
    for i in range(5):
        file = ("a.jsonl", "b.jsonl.gz")[i % 2]
        expected = (
            rf"--- document {i} of 5, {re.escape(file)}:{i + 1}, \d+ tokens\n  \| text number {i}\.⟦end of document⟧"
        )
        assert re.search(expected, out)
    assert "=== a_train: 5 documents" in out and "=== a_valid: 1 documents" in out and "held out" in out
    t = Tokenizer(model)
    ids = [token for text in texts for token in [*t.encode(text), t.eod]]
    window = next(part for part in out.split("\n--- ") if part.startswith("window"))
    number = int(window.split()[1])
    shown = "".join(line[4:] for line in window.splitlines() if line.startswith("  | "))
    assert shown == as_text(np.array(ids[12 * number : 12 * number + 12]), t)
    places = re.findall(r"  ⟦document (\d), \S+:(\d), its tokens (\d+) \.\. (\d+)⟧", window)
    assert len(places) >= 2 and all(int(line) == int(document) + 1 for document, line, *_ in places)
    starts = np.cumsum([0, *(len(t.encode(text)) + 1 for text in texts)])
    assert sum(int(stop) - int(start) + 1 for *_, start, stop in places) == 12
    assert starts[int(places[0][0])] + int(places[0][2]) == 12 * number
    assert (tmp_path / "tiny" / "report" / "lengths.png").exists()


@pytest.mark.usefixtures("no_picture")
def test_one_source_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, {"a": Made(["one"], ["two"]), "b": Made(["bee"]), "empty": Made()})
    assert run(tmp_path, "look.source=b") == 0
    out = capsys.readouterr().out
    assert "=== b_train" in out and "a_train" not in out and "a_valid" not in out
    assert run(tmp_path, "look.source=empty") == 3
    message = capsys.readouterr().err
    assert message.startswith("E-TOK-24 look.source=empty")
    program, verb = fix_of(message).split(" says ")[0].rsplit(" ", 1)
    assert program == "python -m data_prep"
    assert main([verb, "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]) == 0
    assert re.search(r"^\W*empty\b.*\b0\b", capsys.readouterr().out, re.M)


@pytest.mark.usefixtures("no_picture")
def test_the_terminal_is_safe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, {"a": Made([EVIL, "fine"], inputs=("\x1b[31m.jsonl", "b\n.jsonl"))})
    assert run(tmp_path, "look.seq_len=16") == 0
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)
    assert out.count("⟦end of document⟧") >= 2 and "\\u27e6end of document\\u27e7" in out


@pytest.mark.usefixtures("no_picture")
def test_a_terminal_without_unicode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, {"a": Made(["日本 é"])})
    screen = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(screen, encoding="ascii"))
    assert run(tmp_path) == 0
    sys.stdout.flush()
    assert b"\\u65e5\\u672c \\xe9" in screen.getvalue()


@pytest.mark.usefixtures("no_picture")
def test_damaged_origins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, {"a": Made(["one", "two"])})
    path = tmp_path / "tiny" / "a_train.origins.npy"
    good = np.load(path)
    wrong = good.copy()
    wrong["input"] = 7
    for damage in (good[:1], good["line"], wrong, np.array([{}], object)):
        np.save(path, damage, allow_pickle=True)
        assert run(tmp_path) == 3
        assert re.match(r"E-TOK-22 .*a_train\.origins\.npy: .*verify", capsys.readouterr().err)


@pytest.mark.usefixtures("no_picture")
def test_without_origins_none_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, {"a": Made(["one", "two"])})
    assert run(tmp_path) == 0
    assert "--- document 0 of 2, " in (out := capsys.readouterr().out) and ":1, " in out
    (tmp_path / "tiny" / "a_train.origins.npy").unlink()
    assert run(tmp_path) == 0
    assert re.search(r"--- document 0 of 2, \d+ tokens\n", capsys.readouterr().out)
