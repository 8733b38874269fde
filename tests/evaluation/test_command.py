"""What a user types: help, short forms, bad input in one line."""

import json
from pathlib import Path

import pytest

from coca_train.commands import evaluate, main
from coca_train.evaluation.subject import default_config


@pytest.fixture
def typed(capsys, tmp_path, books):
    """typed("word", ...): exit code and what stderr says."""

    def call(*words: str) -> tuple[int, str]:
        argv = [*words, f"work.root={tmp_path / 'made'}"]
        if not any(word.startswith("text.files") for word in words):
            argv.append(f"text.files=[{books}]")
        code = main(["evaluate", *argv])
        return code, capsys.readouterr().err

    return call


def test_help_lists_suites_and_options(capsys):
    assert main(["evaluate", "--help"]) == 0
    shown = capsys.readouterr().out
    for words in ("* perplexity", "grid.checkpoints=", "eval.stride=", "torchrun"):
        assert words in shown


@pytest.mark.parametrize("ranks", [3, 8])
def test_any_number_of_ranks_evaluates(monkeypatch, ranks):
    """Nothing is trained: the global batch of a training need not be divisible among them."""
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    assert default_config.__wrapped__().engine.kind == "deepspeed"


def test_docs_are_up_to_date():
    path = Path(__file__).resolve().parents[2] / "docs" / "evaluation_configuration.md"
    assert path.read_text(encoding="utf-8") == evaluate.VERB.markdown(), "run: make docs"


def test_cfg_job_shows_short_forms_written_out(capsys):
    assert main(["evaluate", "--cfg", "job", "checkpoint=runs/a,runs/b"]) == 0
    shown = capsys.readouterr().out
    assert "- runs/a\n  - runs/b\n" in shown
    assert "suite: perplexity" in shown


@pytest.mark.parametrize(
    ("words", "id", "says"),
    [
        (["+eval=preplexity", "checkpoint=x"], "E-CFG-32", "perplexity"),
        (["checkpoint="], "E-EVAL-01", "grid.checkpoints"),
        (["checkpoint=nowhere"], "E-IOP-01", "no such folder"),
        (["checkpoint=a/same,b/same"], "E-EVAL-06", "same"),
        (["checkpoint=a,b", "grid.names=[one]"], "E-EVAL-01", "1 names for 2 checkpoints"),
        (["checkpoint=a,a"], "E-EVAL-01", "a is there twice"),
        (["checkpoint=x", "eval.strid=3"], "E-CFG-01", "eval.stride"),
        (["checkpoint=x", "eval.suite=passkey"], "E-CFG", "eval"),
        (["checkpoint=x", "grid.lengths=[4y]"], "E-CFG", "grid.lengths"),
        (["checkpoint=x", "grid.lengths=[0.5]"], "E-CFG", "grid.lengths"),
        (["checkpoint=x", "grid.lengths=[0.0x]"], "E-CFG", "grid.lengths"),
        (["checkpoint=x", "grid.lengths=[]"], "E-CFG", "grid.lengths"),
        (["checkpoint=x", "work.name=cells"], "E-EVAL-01", "work.name"),
        (["checkpoint=x", "--grid.lengths=3"], "E-CFG-38", "no dashes"),
    ],
)  # fmt: skip
def test_what_is_wrong_before_anything_is_opened(typed, words, id, says):
    code, message = typed(*words)
    assert code != 0
    assert id in message
    assert says in message
    assert "Traceback" not in message
    assert "Fix:" in message


@pytest.mark.parametrize(
    ("words", "id", "says"),
    [
        (["grid.rope_scalings=[yarm]"], "E-CFG-32", "yarn"),
        (["grid.rope_scalings=[yarn@factor]"], "E-EVAL-02", "choice@option:value"),
        (["grid.rope_scalings=[yarn@faktor:4]"], "E-CFG", "faktor"),
        (["grid.attention_patterns=[sinks@window:-3]"], "E-CFG", "window"),
        (["text.files=[nowhere.jsonl]"], "E-RAW-01", "nowhere.jsonl"),
        (["grid.lengths=[4000]"], "E-EVAL-05", "4,000 tokens"),
        (["text.files=[]"], "E-EVAL-04", "text.files="),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_model_in_hand(typed, folders, words, id, says):
    code, message = typed(f"checkpoint={folders('one')}", *words)
    assert code != 0
    assert id in message
    assert says in message
    assert "Traceback" not in message


def test_nothing_but_impossible_cells_is_no_success(typed, folders, tmp_path):
    code, message = typed(f"checkpoint={folders('one')}", "grid.rope_scalings=[clex]", "grid.lengths=[12]")
    assert code != 0
    assert "E-EVAL-07" in message
    assert (tmp_path / "made/perplexity/report.html").exists()
    assert "perplexity/report.html" in (tmp_path / "made/index.html").read_text()


def test_a_model_without_tokenizer(typed, tmp_path, folders):
    import shutil

    bare = shutil.copytree(folders("one"), tmp_path / "bare")
    (bare / "tokenizer.model").unlink()
    code, message = typed(f"checkpoint={bare}")
    assert code != 0
    assert "E-EVAL-03" in message


def test_a_bad_line_in_a_text_names_file_and_line(typed, tmp_path, folders):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"text": "good"}) + "\n{broken\n")
    code, message = typed(f"checkpoint={folders('one')}", f"text.files=[{bad}]")
    assert code != 0
    assert "bad.jsonl:2" in message
