"""Damage of every kind is found, said in one line, and answered with the newest checkpoint that verifies."""

import json
import math
import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from coca_train import checkpoint
from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import ShardReader, ShardWriter
from coca_train.runtime.errors import CheckpointError, DataError, DivergedError, LockedError
from tests import states
from tests.faults.fake import FakeEngine, holds, meta, save
from tests.fixes import first, fix_of

NEWEST, OLDER = "step-00000020", "step-00000010"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save(tmp_path, 10)
    save(tmp_path, 20)
    return tmp_path


def shard(run: Path, step: str = NEWEST) -> Path:
    return run / "checkpoints" / step / "state-00000-of-00001.safetensors"


def expect_fallback(run: Path, capfd: pytest.CaptureFixture[str], *words: str) -> None:
    assert holds(checkpoint.find(run, "run-1"), 10)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("RECOVERY:")]
    assert len(lines) == 1
    assert all(word in lines[0] for word in (NEWEST, *words)), lines


def test_round_trip_is_exact_and_silent(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert holds(checkpoint.find(run, "run-1", clean=True), 20)
    assert capfd.readouterr().err == ""


def test_nothing_there_is_not_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert checkpoint.find(tmp_path, "run-1", clean=True) is None
    assert capfd.readouterr().err == ""


def test_every_bit_matters(run: Path) -> None:
    """One flipped bit in every file: at 300 places, and at every byte of the shard's header."""
    places = random.Random(0)
    for path in sorted((run / "checkpoints" / NEWEST).iterdir()):
        whole = path.read_bytes()
        offsets = [places.randrange(len(whole)) for _ in range(150)] + list(range(8))
        for offset in offsets:
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << places.randrange(8)
            path.write_bytes(damaged)
            newest = checkpoint.find(run, "run-1")
            assert newest is not None and newest.step == 10, (path.name, offset)
        path.write_bytes(whole)
    assert holds(checkpoint.find(run, "run-1"), 20)


def test_truncation(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    size = shard(run).stat().st_size
    for length in (0, 1, 8, 100, size - 1):
        content = shard(run).read_bytes()
        os.truncate(shard(run), length)
        expect_fallback(run, capfd, "E-CKP-05", str(length), str(size))
        shard(run).write_bytes(content)


def edit(change: Callable[[dict], None], sign: bool = True) -> Callable[[Path], None]:
    """Damage that edits the manifest, with a right digest or (sign=False) the old one."""

    def apply(run: Path) -> None:
        path = run / "checkpoints" / NEWEST / manifest.NAME
        body = json.loads(path.read_text())
        change(body)
        path.write_bytes(manifest.encode(body) if sign else json.dumps(body).encode())

    return apply


def swap_shard(run: Path) -> None:
    shutil.copy(shard(run, OLDER), shard(run))


def extra_file(run: Path) -> None:
    (run / "checkpoints" / NEWEST / "state-00001-of-00002.safetensors").write_bytes(b"x")


def whole_other_step(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / NEWEST)
    shutil.copytree(run / "checkpoints" / OLDER, run / "checkpoints" / NEWEST)


def other_run(run: Path) -> None:
    other = run / "other"
    other.mkdir()
    save(other, 20, run_id="run-2")
    shutil.rmtree(run / "checkpoints" / NEWEST)
    shutil.move(other / "checkpoints" / NEWEST, run / "checkpoints" / NEWEST)


def as_link(run: Path) -> None:
    os.rename(run / "checkpoints" / NEWEST, run / "elsewhere")
    os.symlink(run / "elsewhere", run / "checkpoints" / NEWEST)


def as_file(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / NEWEST)
    (run / "checkpoints" / NEWEST).write_text("step")


def shard_is_link(run: Path) -> None:
    os.rename(shard(run), run / "away")
    os.symlink(run / "away", shard(run))


def moved(path: Path) -> Path:
    path.unlink()
    return path


def without_a_tensor(run: Path) -> None:
    """Everything agrees, and one tensor of the state is not there."""
    path = shard(run)
    with closing(ShardReader(path)) as reader:
        tensors = {name: reader.values(name, 0, math.prod(shape)).view(shape) for name, shape in reader.spec().items()}
    path.unlink()
    del tensors[max(tensors)]
    writer = ShardWriter(path, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, {})
    for name, tensor in tensors.items():
        writer.write(name, tensor)
    record = writer.finish()
    writer.close()
    edit(lambda body: body["files"][0].update(record))(run)


DAMAGE = {
    "a tensor that is nowhere": (without_a_tensor, "E-CKP-08 the tensors that were saved"),
    "shard swapped": (swap_shard, "E-CKP-06 it says step 10"),
    "shard missing": (lambda run: shard(run).unlink(), "E-CKP-03"),
    "shard is a link": (shard_is_link, "E-CKP-05"),
    "extra file": (extra_file, "E-CKP-04"),
    "manifest missing": (lambda run: (run / "checkpoints" / NEWEST / manifest.NAME).unlink(), "E-CKP-07"),
    "manifest empty": (lambda run: (run / "checkpoints" / NEWEST / manifest.NAME).write_text(""), "E-CKP-08"),
    "manifest not JSON": (
        lambda run: (run / "checkpoints" / NEWEST / manifest.NAME).write_text("{" * 9999),
        "E-CKP-08",
    ),
    "manifest a list": (lambda run: (run / "checkpoints" / NEWEST / manifest.NAME).write_text("[1]"), "E-CKP-08"),
    "manifest edited": (edit(lambda body: body["counters"].update(adam_step=1), sign=False), "E-CKP-08"),
    "newer format": (edit(lambda body: body.update(format=manifest.FORMAT + 1)), "E-CKP-09"),
    "unknown key": (edit(lambda body: body.update(pickle="x")), "E-CKP-09"),
    "a step that is a word": (edit(lambda body: body.update(step="x")), "E-CKP-08 step"),
    "a step below zero": (edit(lambda body: body.update(step=-1)), "E-CKP-08 step"),
    "a number of files": (edit(lambda body: body.update(files=5)), "E-CKP-08 files"),
    "files that are numbers": (edit(lambda body: body.update(files=[1])), "E-CKP-08 files"),
    "a list of counters": (edit(lambda body: body.update(counters=[])), "E-CKP-08 counters"),
    "no progress": (edit(lambda body: body.update(progress=None)), "E-CKP-08 progress"),
    "a number of parameters": (edit(lambda body: body.update(trainable=3)), "E-CKP-08 trainable"),
    "adapters that are a word": (edit(lambda body: body.update(lora="x")), "E-CKP-08 lora"),
    "manifest nested": (
        lambda run: (run / "checkpoints" / NEWEST / manifest.NAME).write_text('{"a":' * 9999 + "1" + "}" * 9999),
        "E-CKP-08 deeper",
    ),
    "manifest a pipe": (
        lambda run: os.mkfifo(moved(run / "checkpoints" / NEWEST / manifest.NAME)),
        "E-CKP-08 pipe",
    ),
    "name leads outside": (edit(lambda body: body["files"][0].update(name="../../x")), "E-CKP-03"),
    "other step's manifest": (edit(lambda body: body.update(step=10)), "E-CKP-13"),
    "whole folder of another step": (whole_other_step, "E-CKP-13"),
    "folder of another run": (other_run, "E-CKP-16 run-2 run-1"),
    "folder is a link": (as_link, "E-CKP-20"),
    "folder is a file": (as_file, "E-CKP-20"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_falls_back(run: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    damage, words = DAMAGE[name]
    damage(run)
    expect_fallback(run, capfd, *words.split())


def test_all_damaged_never_starts_at_zero(run: Path) -> None:
    swap_shard(run)
    os.truncate(shard(run, OLDER), 9)
    with pytest.raises(CheckpointError, match=r"E-CKP-01 .*step-00000020: E-CKP-06.*step-00000010: E-CKP-05") as caught:
        checkpoint.find(run, "run-1")
    assert caught.value.exit_code == 4 and "\n" not in str(caught.value)


LATEST = ["", "step-00000010", "step-99999999", "/etc/passwd", "../../../etc/passwd", "step-00000020/../..", "\0" * 40,
          "x" * 10_000, "step-00000020\nstep-00000010", "STEP-00000020"]  # fmt: skip


@pytest.mark.parametrize("text", LATEST)
def test_latest_is_only_a_hint(run: Path, capfd: pytest.CaptureFixture[str], text: str) -> None:
    (run / "checkpoints" / "latest").write_text(text)
    assert holds(checkpoint.find(run, "run-1"), 20)
    assert "RECOVERY:" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["missing", "link", "folder", "pipe"])
def test_latest_may_be_anything(run: Path, kind: str) -> None:
    latest = run / "checkpoints" / "latest"
    latest.unlink()
    {
        "missing": lambda: None,
        "link": lambda: os.symlink("/dev/zero", latest),
        "folder": latest.mkdir,
        "pipe": lambda: os.mkfifo(latest),
    }[kind]()
    assert holds(checkpoint.find(run, "run-1"), 20)


def test_leftovers_are_swept_once_and_reported(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = run / "checkpoints"
    (root / ".tmp-step-00000030-abcd1234").mkdir()
    (root / ".tmp-step-00000030-abcd1234" / "state-00000-of-00001.safetensors").write_bytes(b"half")
    shutil.copytree(root / OLDER, root / ".trash-step-00000005-0")
    os.symlink("/etc", root / ".tmp-step-00000040-link")
    assert holds(checkpoint.find(run, "run-1"), 20) and (root / ".trash-step-00000005-0").exists()
    assert capfd.readouterr().err == ""
    assert holds(checkpoint.find(run, "run-1", clean=True), 20)
    assert capfd.readouterr().err.count("RECOVERY:") == 1
    assert sorted(os.listdir(root)) == ["latest", OLDER, NEWEST] and os.path.exists("/etc/hostname")


@pytest.mark.parametrize(
    ("identity", "error", "code"),
    [({"model": "x"}, CheckpointError, "E-CKP-14"), ({"data": "x"}, DataError, "E-CKP-22")],
)
def test_another_model_or_other_data_is_refused(run: Path, identity: dict, error: type, code: str) -> None:
    with pytest.raises(error, match=code):
        checkpoint.load(checkpoint.find(run), FakeEngine(0), meta(**identity))


def test_other_precision_trained_set_or_shapes_are_refused(run: Path) -> None:
    newest = checkpoint.find(run)
    for attribute, value, code in [("trainable", ["scale"], "E-CKP-15"), ("dtype", "bf16", "E-CKP-12")]:
        engine = FakeEngine(0)
        setattr(engine, attribute, value)
        with pytest.raises(CheckpointError, match=code) as raised:
            checkpoint.load(newest, engine, meta())
    (word,) = first(fix_of(raised.value))
    engine.dtype = word.removeprefix("engine.dtype=")
    checkpoint.load(newest, engine, meta())
    engine = FakeEngine(0)
    engine.state["model/norm.weight"] = torch.zeros(6)
    with pytest.raises(CheckpointError, match=r"E-CKP-14 .*norm.weight: saved \(5,\), model \(6,\)"):
        checkpoint.load(newest, engine, meta())


def test_damage_between_find_and_load_is_found(run: Path) -> None:
    newest = checkpoint.find(run)
    swap_shard(run)
    with pytest.raises(CheckpointError, match="E-CKP-06"):
        checkpoint.load(newest, FakeEngine(0), meta())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model/scale", "exp_avg/embed.weight"])
def test_poisoned_state_is_never_published(run: Path, name: str, bad: float) -> None:
    engine = FakeEngine(30)
    engine.state[name].view(-1)[-1] = bad
    with pytest.raises(DivergedError, match=f"E-CKP-18 step 30: {name}"):
        save(run, 30, engine)
    assert sorted(os.listdir(run / "checkpoints")) == ["latest", OLDER, NEWEST]


def test_retention_keeps_verified_ones_only(tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path, step)
    os.truncate(shard(tmp_path, "step-00000005"), 3)
    assert checkpoint.prune(tmp_path, 2, "run-1", always=range(1, 4)) == []
    assert checkpoint.prune(tmp_path, 2, "run-1") == ["step-00000002", "step-00000001"]
    assert holds(checkpoint.find(tmp_path), 4)
    save(tmp_path, 5)  # replaces the damaged one
    assert checkpoint.prune(tmp_path, 2, "run-1") == ["step-00000003"]
    assert holds(checkpoint.find(tmp_path), 5)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["latest", "step-00000004", "step-00000005"]


def test_saving_a_verified_step_again_changes_nothing(run: Path) -> None:
    before = shard(run).stat()
    assert save(run, 20) is None
    assert shard(run).stat().st_ino == before.st_ino


def test_full_disk_is_said_before_anything_is_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 100, 9, 9, 0, 0, 0, 0, 255)))
    error = save(run, 30)
    assert error is not None and "E-RUN-09" in error and "No space" not in error
    assert "needs 16.8 MB" in error and "0.0 MB free" in error
    assert holds(checkpoint.find(run, "run-1"), 20)


def test_a_run_taken_over_cannot_publish(run: Path) -> None:
    with checkpoint.RunLock(run) as lock:
        card = json.loads((run / "run.lock").read_text())
        (run / "run.lock").write_text(json.dumps(card | {"token": "another", "pid": 4242}))
        with pytest.raises(LockedError, match=r"E-RUN-08 .*4242"):
            states.save(run, 30, cast(Any, FakeEngine(30)), meta(30), lock)
    assert sorted(os.listdir(run / "checkpoints")) == ["latest", OLDER, NEWEST]


def test_weights_alone(run: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self, extra: bool = False) -> None:
            super().__init__()
            for name, tensor in FakeEngine(0).state.items():
                if name.startswith("model/") and "." not in name:
                    self.register_parameter(name.removeprefix("model/"), torch.nn.Parameter(torch.zeros_like(tensor)))
            self.embed, self.norm = torch.nn.Embedding(7, 5), torch.nn.LayerNorm(5, bias=extra)

    net = Net()
    checkpoint.load_weights(checkpoint.find(run), net)
    assert torch.equal(net.embed.weight, FakeEngine(20).state["model/embed.weight"])
    with pytest.raises(CheckpointError, match=r"E-CKP-14 .*norm.bias"):
        checkpoint.load_weights(checkpoint.find(run), Net(extra=True))
