"""Two processes: the numbers of one; and memory that runs out on one of them stops neither the other nor the grid."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
FAILS = """
import os, sys
from coca_train.commands import main
from coca_train.runtime.errors import DataError
from coca_train.evaluation.suites import perplexity
measure = perplexity.Evaluator.measure
def small(settings, subject, point, material, around):
    if point == 24 and os.environ["RANK"] == "1":
        raise {error}
    return measure(settings, subject, point, material, around)
perplexity.Evaluator.measure = small
sys.exit(main(["evaluate", *sys.argv[1:]]))
"""


@pytest.fixture
def started(tmp_path, folders, books):
    """started(processes, script, words of torchrun): the results of an evaluation in processes of its own."""

    def run(processes: int, script: str = "", launcher: Sequence[str] = (), more: Sequence[str] = ()) -> list[dict]:
        name = f"made{processes}"
        words = [f"checkpoint={folders('one')}", f"text.files=[{books}]", "grid.lengths=[12,24,48]", "eval.stride=7"]
        words += [*more, f"work.root={tmp_path}", f"work.name={name}", "work.device=cpu", "work.micro_batch_tokens=96"]
        launch = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(processes),
            *launcher,
        ]
        (tmp_path / "script.py").write_text(script)
        target = [str(tmp_path / "script.py")] if script else ["-m", "coca_train", "evaluate"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        subprocess.run([*launch, *target, *words], cwd=tmp_path, env=environment, check=True, timeout=300)
        cells = json.loads((tmp_path / name / "results.json").read_text())["cells"]
        for file in (tmp_path / "cells").rglob("*.json"):
            file.unlink()
        return cells

    return run


def test_two_ranks_give_what_one_gives(started):
    alone, together = started(1), started(2)
    assert len(alone) == len(together) == 3
    for one, two in zip(alone, together, strict=True):
        assert one["status"] == two["status"] == "done"
        for key in ("perplexity", "n_tokens", "ci_low", "loss_by_position", "loss_high"):
            assert two["result"]["sources"]["books"][key] == pytest.approx(
                one["result"]["sources"]["books"][key], rel=1e-6
            )


def test_two_ranks_share_each_window(started):
    """Of 12, 24 and 48 tokens, and shorter ones at the ends of documents, which do not divide evenly; a third rank and
    a fourth have windows of their own."""
    more = ["work.sequence_parallel=2", "eval.document_tokens=whole", "eval.min_document_tokens=20"]
    alone, together = started(1, more=more[1:]), started(4, more=more)
    for one, two in zip(alone, together, strict=True):
        assert one["status"] == two["status"] == "done"
        for key in ("perplexity", "n_tokens", "ci_low", "loss_by_position", "loss_high"):
            assert two["result"]["sources"]["books"][key] == pytest.approx(
                one["result"]["sources"]["books"][key], rel=1e-5
            )


def test_one_rank_short_of_memory(started):
    cells = {cell["point"]: cell for cell in started(2, FAILS.replace("{error}", "MemoryError"))}
    assert [cells[point]["status"] for point in (12, 24, 48)] == ["done", "out_of_memory", "done"]
    assert "rank 1" in cells[24]["reason"]


def test_data_that_one_rank_cannot_read_is_told_in_the_same_words_by_all(started, tmp_path):
    """Exit code 3 on both, not a lost peer on the other."""
    logs = tmp_path / "logs"
    words = ["--log-dir", str(logs), "--redirects", "3"]
    with pytest.raises(subprocess.CalledProcessError):
        started(2, FAILS.replace("{error}", 'DataError("E-TOK-16 this block is gone")'), words)
    told = [next(logs.rglob(f"*/{rank}/stderr.log")).read_text() for rank in (0, 1)]
    assert "E-TOK-16 this block is gone" in told[0] and "another rank" not in told[0] + told[1], told
