"""A schedule that is edited between two launches: the future may change, what has run may not."""

import re
from pathlib import Path
from typing import Any

import pytest

from coca_train import checkpoint
from coca_train.runtime.errors import CheckpointError, DataError, UserError
from coca_train.settings import load_saved
from tests.stages.support import Runs, damage, logged, newest, record, remove, saved, schedule, stage, state

A, B, C = stage("a", "max_steps: 2"), stage("b", "max_steps: 2"), stage("c", "max_steps: 2")


def test_what_has_not_begun_may_be_edited(runs: Runs) -> None:
    """Launched, killed in a; then b is another stage and c is new: as if the schedule had always been that."""
    edited = stage("b", "max_steps: 3, optim: {lr: 0.02}, trainable: ['blocks.*']")
    whole = runs.train("whole", *schedule(A, edited, C))
    runs.train("r", *schedule(A, B), crash_at=1)
    runs.train("r", *schedule(A, B), crash_at=2)
    run = runs.train("r", *schedule(A, edited, C))
    assert state(run, 7) == state(whole, 7)
    assert logged(run, "lr") == logged(whole, "lr")
    assert list(load_saved(run).config.stages) == ["a", "b", "c"]


def test_a_finished_run_is_extended(runs: Runs) -> None:
    """A stage behind it; then the last stage made longer."""
    whole = runs.train("whole", *schedule(A, B))
    run = runs.train("r", *schedule(A))
    runs.train("r", *schedule(A, B))
    assert state(run, 4) == state(whole, 4)
    assert [one["name"] for one in record(run)["stages"]] == ["a", "b"]
    longer = runs.train("r", *schedule(A, B), "stages.b.max_steps=3")
    assert logged(longer, "step") == [1, 2, 3, 4, 5]


def test_a_checkpoint_too_many_goes_when_the_run_goes_on(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill came between the last save and its deletions."""
    words = ["train.max_steps=3", "checkpoint.save_every_steps=1"]
    with monkeypatch.context() as unkilled:
        unkilled.setattr(checkpoint, "prune", lambda *_: [])
        run = runs.train("r", *words)
    assert saved(run) == [1, 2, 3]
    runs.train("r", *words)
    assert saved(run) == [2, 3]


REFUSED = [
    ([A, stage("b", "max_steps: 2, trainable: ['blocks.*']")], "stage b: .*stages.b.trainable ['*'] -> ['blocks.*']"),
    ([A, stage("b", "max_steps: 2, train: {seq_len: 48}")], "the data .*seq_len 24 -> 48"),
    ([A, stage("b", "max_steps: 2, optimizer: keep")], "stage b: .*stages.b.optimizer 'fresh' -> 'keep'"),
    ([A, stage("b", "max_steps: 2, position: {rope_scaling: {name: ntk, factor: 2}}")], "position.rope_scaling.name"),
    ([A, stage("b", "max_steps: 2, optim: {name: muon}")], "stage b: .*optim.name 'adamw' -> 'muon'"),
    ([stage("a", "max_steps: 2, optim: {lr: 0.02}"), B], "stage a: .*optim.lr 0.001 -> 0.02.*Fix: undo the change"),
    ([stage("a", "max_steps: 3"), B], "stage a: .*train.max_steps 2 -> 3"),
    ([stage("a", "max_steps: 2, data: {seed: 7}"), B], "stage a: the data is not .*order.seed 1234 -> 7"),
    ([stage("a", "max_steps: 2, data: {packing: segments}"), B], "stage a: the data is not .*packing"),
    ([stage("first", "max_steps: 2"), B], "the stages a, b have begun, .* schedule is first, b now"),
    ([B, A], "the stages a, b have begun, .* schedule is b, a now"),
    ([A], "the stages a, b have begun, .* schedule is a now"),
    ([C, A, B], "the schedule is c, a, b now"),
    ([A, B, "run.seed=5"], "stage a: .*run.seed 1234 -> 5"),
]


def words_of(text: str) -> str:
    """A pattern in which only .* is special."""
    return ".*".join(re.escape(part) for part in text.split(".*"))


def test_what_has_run_is_refused_with_what_changed(runs: Runs) -> None:
    """One run, killed in b; the directory is as it was after each refusal."""
    run = runs.train("r", *schedule(A, B), "checkpoint.save_every_steps=1", crash_at=4)
    assert newest(run) == 3
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.lock"}
    for edited, what in REFUSED:
        with pytest.raises(UserError, match=words_of(what)) as caught:
            runs.train("r", *schedule(*edited))
        assert str(caught.value).startswith("E-TOK-14" if "the data" in what else "E-CKP-24")
        assert isinstance(caught.value, DataError if "the data" in what else CheckpointError)
    assert {path: path.read_bytes() for path in before} == before
    runs.train("r", *schedule(A, stage("b", "max_steps: 2, optim: {lr: 0.02}"), C))  # at work: announced
    assert logged(run, "step") == [1, 2, 3, 4, 5, 6]
    assert logged(run, "lr")[2:4] == [0.001, 0.02]


def test_a_stage_cannot_end_before_what_it_has_reached(runs: Runs) -> None:
    """It would be taken for a step of the next stage."""
    a = stage("a", "max_steps: 5")
    run = runs.train("r", *schedule(a, B), crash_at=4)
    assert saved(run) == [3]
    before = (run / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match=r"E-CKP-21 .*step 3, .*stage a, .*step 2"):
        runs.train("r", *schedule(A, B))
    assert (run / "config.yaml").read_bytes() == before
    runs.train("r", *schedule(stage("a", "max_steps: 3"), B))
    assert logged(run, "step") == [1, 2, 3, 4, 5]


def test_another_beginning_in_the_data_is_refused(runs: Runs) -> None:
    """A path of stage a alone is edited: b would not go on behind it, but begin anew."""
    run = runs.train("r", *schedule(A, B), "checkpoint.save_every_steps=1", crash_at=4)
    moved = runs.folder / "moved"
    moved.mkdir()
    source = Path(load_saved(run).config.data.sources["text"].path)
    for path in source.parent.glob("text_train*"):
        (moved / path.name).write_bytes(path.read_bytes())
    path = f"stages.a.data={{sources: {{text: {{path: {moved}/text_train}}}}}}"
    with pytest.raises(CheckpointError, match=r"E-CKP-24 .*stages\.b\.first_sample 8 -> 0"):
        runs.train("r", *schedule(A, B), path)
    whole = runs.train("whole", *schedule(A, B))
    for_all = [
        f"data.sources.text.path={moved}/text_train",
        "data.prefetch_steps=1",
        "stages.b.data={prefetch_steps: 0}",
    ]
    runs.train("r", *schedule(A, B), *for_all)
    assert logged(run, "batch_digest") == logged(whole, "batch_digest")
    assert state(run, 4) == state(whole, 4)


def test_data_of_a_finished_stage_that_was_changed_on_disk_is_refused(runs: Runs) -> None:
    other = runs.folder / "other"
    other.mkdir()
    run = runs.train("source", *schedule(A))
    for path in Path(load_saved(run).config.data.sources["text"].path).parent.glob("code_train*"):
        (other / path.name).write_bytes(path.read_bytes())
    a = stage("a", f"max_steps: 2, data: {{sources: {{code: {{path: {other}/code_train}}}}}}")
    runs.train("r", *schedule(a, B), "checkpoint.save_every_steps=1", crash_at=4)
    data = bytearray((other / "code_train.bin").read_bytes())
    data[2] ^= 1
    (other / "code_train.bin").write_bytes(data)
    with pytest.raises(DataError, match=r"E-TOK-14 .*stage a: the data .*sources\.code\.bin"):
        runs.train("r", *schedule(a, B))


def test_a_border_that_was_damaged_is_made_again(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest checkpoint is the border's: back to the one before, which is in the stage before."""
    words = [*schedule(A, B, C), "checkpoint.save_every_steps=1"]
    whole = runs.train("whole", *words)
    run = runs.train("r", *words, crash_at=5)
    assert saved(run) == [2, 3, 4]
    damage(run, 4)
    capsys.readouterr()
    runs.train("r", *words)
    err = capsys.readouterr().err
    assert "RECOVERY: step 3" in err and "passed over step-00000004" in err
    assert state(run, 4) == state(whole, 4) and state(run, 6) == state(whole, 6)
    assert logged(run, "step") == [1, 2, 3, 4, 5, 6]
    for step in (4, 5, 6):
        remove(run, step)
    damage(run, 2)
    with pytest.raises(CheckpointError, match=r"E-CKP-01 .*none of 1 checkpoints"):
        runs.train("r", *words)


def test_a_border_that_is_damaged_at_once_stops_the_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its save and before the next stage begins from it."""
    from coca_train.training import stage as stage_run

    words = [*schedule(A, B), "checkpoint.save_every_steps=1"]

    def broken(config: Any, run_dir: Path, *rest: Any) -> None:
        damage(run_dir, 2)

    with monkeypatch.context() as patch:
        patch.setattr(stage_run, "final_report", broken)
        with pytest.raises(CheckpointError, match=r"E-CKP-27 .*stage a, step 2"):
            runs.train("r", *words)
    run = runs.train("r", *words)
    assert state(run, 4) == state(runs.train("whole", *words), 4)
