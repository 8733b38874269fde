"""The documented command in real processes, from nothing to the report, interrupted, resumed, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

from coca_train.commands.train import main


def losses(run_dir: Path) -> dict[int, float]:
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {r["step"]: r["loss"] for r in records if "loss" in r}


def weights(run_dir: Path, step: int) -> dict[str, bytes]:
    """Every tensor of a checkpoint, weights and moments, as bytes."""
    state = {}
    for shard in sorted((run_dir / "checkpoints" / f"step-{step:08d}").glob("*.safetensors")):
        with safe_open(shard, framework="np") as file:
            state |= {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return state


def test_from_nothing_to_the_report_and_again(run, tmp_path):
    first = run()
    assert first.returncode == 0, first.stderr
    run_dir = tmp_path / "runs" / "quickstart"
    made = (
        "config.yaml",
        "run.json",
        "metrics.jsonl",
        "loss_curve.png",
        "report/report.html",
        "report/report.md",
        "report/results.json",
        "report/sample.txt",
    )
    assert all((run_dir / name).stat().st_size > 0 for name in made)
    assert "certified coca" in first.stderr
    assert f"Everything lies in {run_dir}" in first.stderr
    assert "Traceback" not in first.stderr + first.stdout
    assert not list(run_dir.rglob("*.lock"))
    curve = losses(run_dir)
    assert list(curve) == list(range(1, 13))
    assert curve[12] < curve[1] - 0.3  # it learns

    again = run()
    assert again.returncode == 0
    assert "from step 12" in again.stderr
    assert losses(run_dir) == curve  # each step once

    text = subprocess.run(
        [sys.executable, "-m", "coca_train.generate", f"run={run_dir}", "prompt=time", "max_new_tokens=5"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert text.startswith("time")


def test_a_terminated_run_resumes_bit_for_bit(run, command, environment, tmp_path):
    whole = run("run.name=whole", "train.max_steps=40", "eval.extrapolation.enabled=false", "eval.sample_tokens=0")
    assert whole.returncode == 0, whole.stderr
    options = ["run.name=cut", "train.max_steps=40", "eval.extrapolation.enabled=false", "eval.sample_tokens=0"]
    process = subprocess.Popen(
        command(*options), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    metrics = tmp_path / "runs" / "cut" / "metrics.jsonl"
    while not metrics.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 75, output
    assert "checkpoint saved" in output
    assert max(losses(metrics.parent)) < 40

    rest = run(*options)
    assert rest.returncode == 0, rest.stderr
    assert losses(metrics.parent) == losses(tmp_path / "runs" / "whole")
    assert weights(metrics.parent, 40) == weights(tmp_path / "runs" / "whole", 40)


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_two_processes_give_the_losses_of_one(run, tmp_path, stage):
    one = run("run.name=one", "eval.extrapolation.enabled=false", "eval.sample_tokens=0")
    two = run("run.name=two", f"engine.zero_stage={stage}", processes=2)
    assert one.returncode == two.returncode == 0, two.stderr
    expected, got = losses(tmp_path / "runs" / "one"), losses(tmp_path / "runs" / "two")
    assert got == pytest.approx(expected, rel=1e-5)
    digests = [
        [
            json.loads(line).get("batch_digest")
            for line in (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("one", "two")
    ]
    assert digests[0] == digests[1]


def test_what_does_not_fit_the_run_is_refused(run, command, corpus, tmp_path, capsys):
    quick = ["train.max_steps=4", "eval.extrapolation.enabled=false", "eval.sample_tokens=0", "engine=local"]

    def said(*overrides: str) -> tuple[int, str]:
        """Exit code and stderr, in this process: starting one takes longer than being refused."""
        code = main(command(*quick, *overrides)[3:])
        return code, capsys.readouterr().err

    assert said()[0] == 0
    run_dir = tmp_path / "runs" / "quickstart"
    cases = {
        "model.n_layers=3": (4, "E-CKP-24", "model.n_layers 2 -> 3"),
        "position=rope": (4, "E-CKP-24", "position.scheme 'coca' -> 'rope'"),
        "data.sources.code.weight=5": (3, "E-TOK-14", "sources.code.weight"),
        "run.resume=never": (4, "E-CKP-02", "holds step 4"),
    }
    for override, (code, error, words) in cases.items():
        found, text = said(override)
        assert (found, text.count(error)) == (code, 1), text
        assert words in text
        assert "Traceback" not in text
    found, text = said(f"data.tokenizer={corpus}/none.model", "run.name=other")
    assert found == 3
    assert "none.model" in text
    assert not (tmp_path / "runs" / "other").exists()

    (run_dir / "run.lock").write_text(json.dumps({"pid": os.getpid(), "token": "x"}))
    held = run(*quick)
    assert held.returncode == 6
    assert "E-RUN-08" in held.stderr
    (run_dir / "run.lock").unlink()

    for shard in run_dir.rglob("*.safetensors"):
        damaged = bytearray(shard.read_bytes())
        damaged[-1] ^= 1
        shard.write_bytes(damaged)
    found, text = said()
    assert found == 4
    assert "E-CKP-01" in text
    assert "does not start at step 0" in text
