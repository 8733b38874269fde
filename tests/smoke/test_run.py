"""The documented command, from nothing to the report, interrupted, resumed, refused.

One launch begins with nothing, as a user's does: `python -m coca_train`; torchrun in test-all. The others are forked.
"""

import json
import os
from pathlib import Path

import pytest
from safetensors import safe_open

from coca_train.commands import main
from coca_train.settings import load_saved
from tests.stages.support import leave_out


def records(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def losses(run_dir: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in records(run_dir) if "loss" in record}


def digests(run_dir: Path) -> list[str | None]:
    return [record.get("batch_digest") for record in records(run_dir)]


def weights(run_dir: Path, step: int) -> dict[str, bytes]:
    """Every tensor of a checkpoint, weights and moments, as bytes."""
    state = {}
    for shard in sorted((run_dir / "checkpoints" / f"step-{step:08d}").glob("*.safetensors")):
        with safe_open(shard, framework="np") as file:
            state |= {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return state


def test_from_nothing_to_the_report_and_again(cold, run, server, tmp_path):
    first = cold()
    assert first.returncode == 0, first.stderr
    run_dir = tmp_path / "runs" / "quickstart"
    written = (
        "config.yaml",
        "run.json",
        "metrics.jsonl",
        "loss_curve.png",
        "report/report.html",
        "report/report.md",
        "report/results.json",
        "report/sample.txt",
    )
    assert all((run_dir / name).stat().st_size > 0 for name in written)
    assert "certified coca" in first.stderr
    assert f"Everything lies in {run_dir}" in first.stderr
    assert "Traceback" not in first.stderr + first.stdout
    assert not list(run_dir.rglob("*.lock"))
    curve = losses(run_dir)
    assert list(curve) == list(range(1, 13))
    assert curve[12] < curve[1] - 0.3  # it learns

    again = run()
    assert again.code == 0
    assert "from step 12" in again.err
    assert losses(run_dir) == curve  # each step once

    generate = ["coca_train", "generate", f"run={run_dir}", "prompt=time", "max_new_tokens=5"]
    text = server.command(generate)[0]
    assert text.code == 0
    assert text.out.startswith("time")


SHORT = ["eval.extrapolation.enabled=false", "eval.sample_tokens=0"]


def test_a_terminated_run_resumes_bit_for_bit(run, tmp_path):
    whole = run("run.name=whole", *SHORT, bare=True)
    assert whole.code == 0, whole.err
    run_dir = tmp_path / "runs" / "cut"
    sigterm = {"root": str(run_dir), "named": "write metrics.jsonl", "at": 4, "mode": "term"}
    cut = run("run.name=cut", *SHORT, bare=True, inject=sigterm)
    assert cut.code == 75, cut.text
    assert "checkpoint saved" in cut.text
    assert max(losses(run_dir)) < 12

    rest = run("run.name=cut", *SHORT, bare=True)
    assert rest.code == 0, rest.err
    assert losses(run_dir) == losses(tmp_path / "runs" / "whole")
    assert weights(run_dir, 12) == weights(tmp_path / "runs" / "whole", 12)


def test_two_processes_give_the_losses_of_one(run, tmp_path):
    few = ["train.max_steps=4", *SHORT]
    assert run("run.name=one", *few, bare=True).code == 0
    one = tmp_path / "runs" / "one"
    for stage in (1, 3):
        ended = run(f"run.name=zero-{stage}", f"engine.zero_stage={stage}", *few, bare=True, ranks=2)
        assert ended.code == 0, ended.err
        two = tmp_path / "runs" / f"zero-{stage}"
        assert losses(two) == pytest.approx(losses(one), rel=1e-5)
        assert digests(two) == digests(one)


@pytest.mark.slow
def test_torchrun_starts_what_the_fork_server_starts(run, cold, tmp_path):
    forked = run("run.name=forked", "engine.zero_stage=3", *SHORT, ranks=2)
    torchrun = cold("run.name=torchrun", "engine.zero_stage=3", *SHORT, processes=2)
    assert forked.code == torchrun.returncode == 0, torchrun.stderr
    assert losses(tmp_path / "runs" / "torchrun") == losses(tmp_path / "runs" / "forked")


def test_what_does_not_fit_the_run_is_refused(words, corpus, tmp_path, capsys, monkeypatch):
    leave_out(monkeypatch.setattr)
    quick = ["train.max_steps=4", *SHORT, "engine=local"]

    def outcome(*overrides: str) -> tuple[int, str]:
        """Exit code and stderr, in this process: starting one takes longer than being refused."""
        code = main([*words, *quick, *overrides])
        return code, capsys.readouterr().err

    assert outcome()[0] == 0
    run_dir = tmp_path / "runs" / "quickstart"
    cases = {
        "model.n_layers=3": (4, "E-CKP-24", "model.n_layers 2 -> 3"),
        "position=rope": (4, "E-CKP-24", "position.scheme 'coca' -> 'rope'"),
        "data.sources.code.weight=5": (3, "E-TOK-14", "sources.code.weight"),
        "run.resume=never": (4, "E-CKP-02", "holds step 4"),
    }
    for override, (code, error, what) in cases.items():
        exit_code, text = outcome(override)
        assert (exit_code, text.count(error)) == (code, 1), text
        assert what in text
        assert "Traceback" not in text
    exit_code, text = outcome(f"data.tokenizer={corpus}/none.model", "run.name=other")
    assert exit_code == 3
    assert "none.model" in text
    assert not (tmp_path / "runs" / "other").exists()

    assert outcome("run.resume=must", "run.root=elsewhere/deeper")[0] == 4
    assert not Path("elsewhere").exists()

    # What describes the run is in its checkpoints too; of its records those stay that can be read.
    record = (run_dir / "run.json").read_text()
    (run_dir / "run.json").unlink()
    (run_dir / "config.yaml").write_text("")
    (run_dir / "metrics.jsonl").write_bytes((run_dir / "metrics.jsonl").read_bytes().replace(b"\n", b"\0", 1))
    exit_code, text = outcome("run.resume=never")
    assert exit_code == 4 and text.count("RECOVERY") == 2
    assert (run_dir / "run.json").read_text() == record and load_saved(run_dir).config.train.max_steps == 4
    exit_code, text = outcome()
    assert exit_code == 0 and text.count("RECOVERY") == 1 and "records can be read" in text
    assert [step for step in losses(run_dir)] == [3, 4]
    assert (run_dir / "run.json").read_text() == record

    (run_dir / "run.lock").write_text(json.dumps({"pid": os.getpid(), "token": "x"}))
    exit_code, text = outcome()
    assert exit_code == 6
    assert "E-RUN-08" in text
    (run_dir / "run.lock").unlink()

    for shard in run_dir.rglob("*.safetensors"):
        damaged = bytearray(shard.read_bytes())
        damaged[-1] ^= 1
        shard.write_bytes(damaged)
    exit_code, text = outcome()
    assert exit_code == 4
    assert "E-CKP-01" in text
    assert "does not start at step 0" in text
