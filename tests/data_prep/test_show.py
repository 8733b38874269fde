"""What a run was fed at a step is shown from its directory alone, and only when it is proven to be that."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coca_train.commands import main
from coca_train.commands._training_step import row_text
from coca_train.data.loader import Loader
from coca_train.data.mixture import Mixture
from coca_train.data.packing import Edges
from coca_train.data.provenance import Passage, Provenance
from coca_train.data.tokenizer import Tokenizer
from coca_train.settings import load
from coca_train.training.loop import batch_digest
from tests.data_prep.support_corpus import Made, make
from tests.states import begin_record

T, ROWS = 32, 4
TEXTS = [f"Document {i} says: the quick brown fox number {i * 7} jumps. \x1b[2J\n" * (1 + i % 3) for i in range(40)]
PACKINGS = {
    "windows": [],
    "segments": ["data.packing=segments", "data.upsample_from_tokens=40", "data.upsample_factor=2"],
    "documents": ["data.packing=documents", "data.document_mask=true"],
}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus `tiny` in the working directory, so that the run's paths are relative."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path, {"a": Made(train=TEXTS[:25]), "b": Made(train=TEXTS[25:])})
    return tmp_path


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Mixture]]:
    """By packing: a working directory with a corpus and a run, for tests that change nothing; and the run's mixture."""
    prepared = {}
    for packing, overrides in PACKINGS.items():
        folder = tmp_path_factory.mktemp(packing)
        make(folder, {"a": Made(train=TEXTS[:25]), "b": Made(train=TEXTS[25:])})
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            prepared[packing] = folder, train(*overrides)
    return prepared


@pytest.fixture
def run_of(mixtures: dict[str, tuple[Path, Mixture]], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Mixture]:
    """Work where a run of this packing is; its mixture."""

    def enter(packing: str) -> Mixture:
        folder, mixture = mixtures[packing]
        monkeypatch.chdir(folder)
        return mixture

    return enter


def train(*overrides: str) -> Mixture:
    """A run directory runs/r as training leaves it, with the first six steps logged."""
    words = ["data.prepare=none", "data.tokenizer=tiny/tokenizer.model", f"train.seq_len={T}", "run.name=r"]
    words += [f"train.global_batch_size={ROWS}", "train.micro_batch_size=2", "~data.sources.text", "~data.sources.code"]
    words += ["+data.sources.a={path: tiny/a_train, valid_path: null, weight: 3.0, on_exhausted: repeat}"]
    words += ["+data.sources.b={path: tiny/b_train, valid_path: null, weight: 1.0, on_exhausted: repeat}"]
    loaded = load([*words, *overrides])
    tokenizer = Tokenizer(loaded.config.data.tokenizer)
    mixture = Mixture(loaded.config.data, T, None, ROWS, Edges(tokenizer.bos, tokenizer.eod))
    run = Path("runs/r")
    run.mkdir(parents=True)
    begin_record(run, loaded, mixture.fingerprint())
    with Loader(mixture, ROWS, 2, 0, 1, 0, 0) as loader:
        lines = [json.dumps({"step": s, "batch_digest": batch_digest(loader.step(s - 1))}) for s in range(1, 7)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 6, "valid/a": 2.5}\n{"step": 7, "ba')
    return mixture


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["show", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("step", [1, 5, 900])
def test_every_row_with_its_documents_and_text(run_of, ask, packing: str, step: int) -> None:
    mixture = run_of(packing)
    code, out, err = ask("run=runs/r", f"step={step}", "characters=5000")
    assert (code, err) == (0, "")
    head, *rows = re.split(r"^--- ", out, flags=re.MULTILINE)
    logged = (
        "the one in metrics.jsonl" if step < 7 else "metrics.jsonl has no such step: it was not logged, or not trained"
    )
    assert re.fullmatch(rf"runs/r step {step}: 4 rows of 32 tokens, digest [0-9a-f]{{16}} \({logged}\)\n", head)
    assert len(rows) == ROWS
    tokenizer = Tokenizer("tiny/tokenizer.model")
    batch = mixture.samples((step - 1) * ROWS, ROWS)
    for r, shown in enumerate(rows):
        p = mixture.provenance((step - 1) * ROWS + r)
        targets = int((batch.targets_BT[r] >= 0).sum())
        parts = [part for part in p.parts if part.at < T]
        n = "1 document" if len(parts) == 1 else f"{len(parts)} documents"
        assert shown.startswith(f"row {r}: {targets} targets, {p.source}, epoch {p.epoch}, window {p.window}, {n}\n")
        for part in parts:
            first, last = part.token_start - part.document_start, part.token_stop - part.document_start - 1
            name = ("a.jsonl", "b.jsonl.gz")[part.document % 2]
            length = part.document_stop - part.document_start
            line = (
                f"  ⟦document {part.document}, {name}:{part.document + 1}, its tokens {first} .. {last} of {length}⟧\n"
            )
            assert line in shown
        assert shown.count("  ⟦document ") == len(parts)
        text = "".join(line[4:] + "\n" for line in shown.splitlines() if line.startswith("  | "))
        plain_text = tokenizer.decode(batch.tokens_BT[r].tolist()).replace("\x1b", "\\x1b")
        assert re.sub("\n|⟦end of document⟧", "", text) == plain_text.replace("\n", "")
    assert "\x1b" not in out


def test_what_a_packing_adds_is_said(run_of, ask) -> None:
    run_of("segments")
    rows = ask("run=runs/r", "step=1")[1].split("--- ")[1:]
    for row in rows:
        lines = row.splitlines()
        assert (lines[1], lines[-1]) == ("  ⟦added: 1 x token 1⟧", "  ⟦added: 1 x end of document⟧")
        assert row.startswith(f"row {rows.index(row)}: 31 targets")


def test_padding_is_said(run_of, ask) -> None:
    mixture = run_of("documents")
    out = ask("run=runs/r", "step=2")[1].split("--- ")[1:]
    for r, row in enumerate(out):
        p = mixture.provenance(ROWS + r).parts
        left = T - sum(min(part.token_stop - part.token_start, T) for part in p)
        assert (f"⟦added: {left} x end of document⟧" in row) == (left > 0)


def test_a_document_that_is_a_target_only_is_not_printed(run_of) -> None:
    run_of("windows")
    tokenizer = Tokenizer("tiny/tokenizer.model")
    ids = np.array(tokenizer.encode("one two three four"))
    n = len(ids)
    parts = (Passage(0, 5, 100, 100 + n, 90, 100 + n, None), Passage(n, 6, 100 + n, 101 + n, 100 + n, 120 + n, None))
    text = row_text("row 0", ids, Provenance("a", 1, 2, parts), tokenizer, 500)
    assert text == (
        "--- row 0, a, epoch 1, window 2, 1 document\n"
        f"  ⟦document 5, its tokens 10 .. {9 + n} of {10 + n}⟧\n  | one two three four\n"
    )


def test_fewer_rows_and_characters(run_of, ask) -> None:
    run_of("windows")
    code, out, _ = ask("run=runs/r", "step=3", "rows=1", "characters=1")
    assert code == 0 and out.count("--- row") == 1
    assert out.endswith("3 more rows: rows=4 shows all\n")
    assert "more documents⟧" in out or out.count("⟦document") == 1
    assert "rows=4" not in ask("run=runs/r", "step=3", "rows=99")[1]


def test_from_anywhere(workplace: Path, ask, monkeypatch: pytest.MonkeyPatch) -> None:
    train()
    expected = ask("run=runs/r", "step=3")[1].split("\n", 1)[1]
    (workplace / "elsewhere").mkdir()
    monkeypatch.chdir(workplace / "elsewhere")
    assert ask("run=../runs/r", "step=3")[1].split("\n", 1)[1] == expected
    (workplace / "tiny").rename(workplace / "elsewhere" / "tiny")  # the data was moved
    code, _, err = ask("run=../runs/r", "step=3")
    assert code == 3
    assert re.fullmatch(r"E-TOK-01 .*tiny/tokenizer.model: no such file; .* Fix: restore it, or .*folder=...\n", err)
    assert ask("run=../runs/r", "step=3", "folder=.")[1].split("\n", 1)[1] == expected


def test_a_record_without_its_folder_is_read_from_here(workplace: Path, ask) -> None:
    train()
    record = json.loads(Path("runs/r/run.json").read_text())
    del record["folder"]
    Path("runs/r/run.json").write_text(json.dumps(record))
    assert ask("run=runs/r", "step=3")[0] == 0


def test_other_data_is_refused(workplace: Path, ask) -> None:
    train()
    data = bytearray(Path("tiny/a_train.bin").read_bytes())
    data[100] ^= 1
    Path("tiny/a_train.bin").write_bytes(data)
    code, out, err = ask("run=runs/r", "step=3")
    assert (code, out) == (3, "")
    assert re.match(r"E-TOK-14 runs/r: .*: sources.a.bin.sha256 .* Fix: ", err)


def test_another_batch_than_was_logged_is_refused(workplace: Path, ask) -> None:
    train()
    metrics = Path("runs/r/metrics.jsonl")
    whole_lines = metrics.read_text().rpartition("\n")[0]
    metrics.write_text(whole_lines + '\n{"step": 3, "batch_digest": "0123456789abcdef"}\n')
    code, out, err = ask("run=runs/r", "step=3")
    assert (code, out) == (3, "")
    assert re.match(r"E-TOK-14 runs/r step 3: .* [0-9a-f]{16}, .* 0123456789abcdef; ", err)
    assert ask("run=runs/r", "step=4")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["step=1"], "E-CFG-11 run=???: it has no value yet"),
        (["run=runs/r"], "E-CFG-11 step=???: it has no value yet"),
        (["run=runs/r", "step=0"], "E-CFG-05 command line step=0: it needs a whole number > 0"),
        (["run=runs/r", "step=1", "rows=0"], "E-CFG-05 command line rows=0"),
        (["run=runs/r", "step=1", "characters=-1"], "E-CFG-05 command line characters=-1"),
        (["run=runs/r", "step=one"], "E-CFG-04 command line step=one: is text; it needs a whole number > 0"),
        (["run=runs/r", "step=1", "row=3"], "E-CFG-01 command line row=3: unknown key. Fix: did you mean rows?"),
        (["run=nowhere", "step=1"], "E-CFG-15 nowhere/config.yaml"),
    ],
)
def test_wrong_words(run_of, ask, words: list[str], message: str) -> None:
    run_of("windows")
    code, out, err = ask(*words)
    assert (code, out) == (2, "")
    assert err.startswith(message) and "Fix: " in err and err.count("\n") == 1


def test_no_record(workplace: Path, ask) -> None:
    train()
    path = Path("runs/r/run.json")
    path.unlink()
    code, _, err = ask("run=runs/r", "step=1")
    assert code == 2 and err.startswith("E-RUN-21 runs/r: ")
    for record in ("", "[]", "{}", '{"run_id": "a", "fingerprint": 3}'):
        path.write_text(record)
        code, _, err = ask("run=runs/r", "step=1")
        assert code == 4 and err.startswith("E-CKP-23 runs/r/run.json: "), record
