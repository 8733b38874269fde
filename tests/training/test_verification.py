"""What `verify run=` finds in the directory of a run, and what it restores."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from coca_train.checkpoint.manifest import Meta
from coca_train.checkpoint.record import texts_of
from coca_train.commands import main
from coca_train.runtime.entry import run as run_command
from coca_train.settings import load
from tests import states
from tests.faults.fake import FakeEngine
from tests.states import begin_record
from tests.tracking.support import metrics_writer

Damage = Callable[[Path], object]
NAMES = ("config.yaml", "run.json", "metrics.jsonl")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two checkpoints, with what describes the run and its records."""
    loaded, run_dir = load([]), tmp_path / "r"
    run_dir.mkdir()
    record = begin_record(run_dir, loaded, {"data": "same"})
    writer = metrics_writer(run_dir)
    for step in (10, 20):
        writer.log(step, {"loss": 1.0})
        meta = Meta(record["run_id"], "m", {}, {}, None, texts_of(record, loaded.record), writer.written())
        assert states.save(run_dir, step, cast(Any, FakeEngine(step)), meta) is None
    writer.close()
    return run_dir


def verify(run_dir: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run_command(main, ["verify", f"run={run_dir}"])
    captured = capfd.readouterr()
    return code, captured.out + captured.err


def contents(run_dir: Path) -> dict[str, bytes]:
    return {name: (run_dir / name).read_bytes() for name in NAMES}


def test_a_whole_run(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    code, text = verify(run, capfd)
    assert code == 0 and text.count("every digest right") == 2 and "RECOVERY" not in text
    assert contents(run) == before and not (run / "run.lock").exists()


LOST: dict[str, tuple[str, Damage]] = {
    "run.json missing": ("run.json", os.unlink),
    "run.json empty": ("run.json", lambda path: path.write_text("")),
    "run.json of nothing": ("run.json", lambda path: path.write_text('{"format": 4}')),
    "config.yaml missing": ("config.yaml", os.unlink),
    "config.yaml empty": ("config.yaml", lambda path: path.write_text("")),
    "config.yaml cut": ("config.yaml", lambda path: path.write_text(path.read_text() + "[")),
}


@pytest.mark.parametrize("what", LOST)
def test_what_describes_a_run_is_restored(run: Path, capfd: pytest.CaptureFixture[str], what: str) -> None:
    before, (name, damage) = contents(run), LOST[what]
    damage(run / name)
    code, text = verify(run, capfd)
    assert code == 0 and f"RECOVERY: {run / name}" in text and "step-00000020" in text
    assert contents(run) == before


def test_damage_that_stays(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A shard has no second copy; metrics.jsonl keeps what can be read."""
    shard = next((run / "checkpoints" / "step-00000010").glob("state-*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    (run / "metrics.jsonl").write_bytes(b"\0\n" + (run / "metrics.jsonl").read_bytes().partition(b"\n")[2])
    code, text = verify(run, capfd)
    assert code == 4 and "E-CKP-01" in text and "step-00000010: E-CKP-06" in text
    assert "1 records can be read" in text
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [20]


def test_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, text = verify(tmp_path, capfd)
    assert code == 2 and "E-RUN-21" in text


def test_another_version_of_a_record_stays(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = json.loads((run / "run.json").read_text()) | {"format": 3}
    (run / "run.json").write_text(json.dumps(record))
    assert verify(run, capfd)[0] == 0
    assert json.loads((run / "run.json").read_text()) == record
