"""Held-out text of a run: damage is told before a step is done, and validations are of one text from first to last."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from coca_train.data import dataset
from coca_train.runtime.errors import DataError
from coca_train.tracking.records import read_jsonl
from coca_train.tracking.writers import MetricsWriter
from tests.data.test_blocks import flip
from tests.faults import real
from tests.stages.support import Runs, leave_out, schedule, stage

OFTEN = ["eval.every_steps=1", "train.max_steps=3", "checkpoint.save_every_steps=2"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> list[str]:
    return real.prepare(tmp_path_factory.mktemp("held"))


@pytest.fixture
def folder(prepared, tmp_path) -> Path:
    """A copy of the data, to be damaged."""
    source = Path(prepared[0].removeprefix("data.dir="))
    return Path(shutil.copytree(source, tmp_path / "data"))


@pytest.fixture
def runs(folder, tmp_path, monkeypatch) -> Runs:
    leave_out(monkeypatch.setattr)
    return Runs(tmp_path, [f"data.dir={folder}", f"data.tokenizer={folder}/tokenizer.model"], monkeypatch)


def validations(run_dir: Path) -> dict[int, Any]:
    records = [r for r in read_jsonl(run_dir / "metrics.jsonl") if "valid/text" in r]
    return {r["step"]: (r["valid/text"], r["valid/code"]) for r in records}


def test_validations_of_a_resumed_run_are_those_of_one_that_was_not(runs, folder, capsys):
    whole = validations(runs.train("whole", *OFTEN))
    assert list(whole) == [1, 2, 3]
    runs.train("cut", *OFTEN, crash_at=3)
    assert validations(runs.train("cut", *OFTEN)) == whole
    # Damage while a run goes on changes none of its validations; the next start says it.
    log, bits = MetricsWriter.log, []

    def damaging(self, step, record):
        log(self, step, record)
        if not bits:
            bits.append(flip(folder / "text_valid.bin", 40))

    with runs.monkeypatch.context() as patch:
        patch.setattr(MetricsWriter, "log", damaging)
        during = runs.train("during", *OFTEN)
    assert validations(during) == whole
    with pytest.raises(DataError, match=r"E-TOK-14 .*during: .*text_valid.*bin\.sha256"):
        runs.train("during", *OFTEN)


def test_a_damaged_file_is_refused_before_there_is_a_run(runs, folder, tmp_path):
    file = folder / "code_valid.bin"
    (folder / "code_valid.sums").write_bytes(dataset.block_sum(file.read_bytes()))
    flip(file, 40)
    with pytest.raises(DataError, match=r"E-TOK-08 .*code_valid.bin block 0"):
        runs.train("r")
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"E-TOK-04 .*code_valid.bin"):
        runs.train("r", "data.verify_blocks=false")
    file.unlink()
    with pytest.raises(DataError, match=r"E-TOK-01 [^E]*code_valid.bin"):
        runs.train("r")
    assert not (tmp_path / "r").exists()


def test_a_stage_with_data_of_its_own(runs, folder):
    own = "max_steps: 2, data: {sources: {code: {valid_path: ${data.dir}/text_valid}}}"
    words = [*schedule(stage("a", "max_steps: 2"), stage("b", own)), *OFTEN]
    runs.train("r", *words, crash_at=3)
    # What a stage that is done was validated on is read no more.
    flip(folder / "code_valid.bin", 40)
    runs.train("r", *words, crash_at=3)
    flip(folder / "text_valid.bin", 40)
    with pytest.raises(DataError, match=r"E-TOK-14 .*stage b: .*of code, .*stages.b.data.sources.code.valid_path=null"):
        runs.train("r", *words)
    fixes = ["stages.b.data.sources.code.valid_path=null", "data.sources.text.valid_path=null"]
    runs.train("r", *words, *fixes)
