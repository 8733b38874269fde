"""A run whose processes share sequences is the run of one: losses, validation, probes, report; and it goes on in any
layout."""

import json
from pathlib import Path

import pytest

from coca_train.tracking.records import read_jsonl

pytestmark = pytest.mark.slow
PROBED = ["eval.extrapolation.every_steps=6", "eval.extrapolation.probe_documents=1", "data.document_mask=true"]
EXACT = {"batch_digest", "lr", "skipped_steps"}


def records(run_dir: Path) -> dict[int, dict]:
    """Of every step what does not depend on the clock."""
    by_step: dict[int, dict] = {}
    for record in read_jsonl(run_dir / "metrics.jsonl"):
        by_step.setdefault(record["step"], {}).update(record)
    kept = ("loss", "lr", "grad_norm", "batch_digest", "skipped_steps", "valid/", "probe/")
    timed = ("probe/seconds", "probe/share")
    return {
        step: {key: value for key, value in record.items() if key.startswith(kept) and key not in timed}
        for step, record in by_step.items()
    }


def compare(ours: Path, theirs: Path) -> None:
    mine, other = records(ours), records(theirs)
    assert mine.keys() == other.keys()
    for step, expected in other.items():
        assert mine[step].keys() == expected.keys()
        for key, value in expected.items():
            # Twelve steps at a learning rate of 0.01: differences of 1e-7 in a step grow.
            assert mine[step][key] == (value if key in EXACT else pytest.approx(value, rel=2e-4)), (step, key)
    cells = [
        json.loads((run_dir / "report" / "results.json").read_text(encoding="utf-8"))["cells"]
        for run_dir in (ours, theirs)
    ]
    for got, wanted in zip(*cells, strict=True):
        assert (got["point"], got["status"]) == (wanted["point"], "done")
        for source, scores in wanted["result"]["sources"].items():
            assert got["result"]["sources"][source]["n_tokens"] == scores["n_tokens"]
            assert got["result"]["sources"][source]["perplexity"] == pytest.approx(scores["perplexity"], rel=1e-3)


@pytest.mark.parametrize(("stage", "ranks", "size"), [(1, 2, 2), (3, 4, 2)])
def test_the_whole_run(run, tmp_path, stage, ranks, size) -> None:
    assert run("run.name=one", *PROBED).code == 0
    shared = [f"engine.zero_stage={stage}", f"engine.sequence_parallel={size}", "engine.mlp_tile=8"]
    done = run("run.name=shared", *PROBED, *shared, ranks=ranks)
    assert done.code == 0, done.text
    assert f"{ranks} process(es), {size} to a sequence" in done.text
    compare(tmp_path / "runs" / "shared", tmp_path / "runs" / "one")


def test_it_goes_on_in_any_layout(run, tmp_path) -> None:
    """1, 2 and 4 ranks to a sequence in turn, against one all the way."""
    constant = [*PROBED, "optim.schedule=constant"]
    assert run("run.name=one", *constant).code == 0
    stops = ["eval.extrapolation.enabled=false", "eval.sample_tokens=0"]
    for steps, ranks, size, stage in ((4, 2, 2, 1), (8, 4, 4, 3), (10, 2, 1, 2), (12, 4, 2, 3)):
        words = [f"engine.sequence_parallel={size}", f"engine.zero_stage={stage}", f"train.max_steps={steps}"]
        done = run("run.name=shared", *constant, *words, *(stops if steps < 12 else []), ranks=ranks)
        assert done.code == 0, done.text
    theirs = records(tmp_path / "runs" / "one")
    for step, record in records(tmp_path / "runs" / "shared").items():
        assert record["batch_digest"] == theirs[step]["batch_digest"]
        assert record["loss"] == pytest.approx(theirs[step]["loss"], rel=2e-4)
