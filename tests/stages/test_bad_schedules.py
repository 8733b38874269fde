"""What is refused before the first step of the first stage, however late in the schedule it lies."""

import sys
from pathlib import Path

import pytest

from coca_train.checkpoint.opening import load_run
from coca_train.config import check
from coca_train.runtime.errors import UserError
from tests.fixes import first, fix_of
from tests.stages.support import Runs, manifest, schedule, stage, weights

A, B = stage("a", "max_steps: 1"), stage("b", "max_steps: 1")
LORA, MLP = "lora: {rank: 2}", "['blocks.*.mlp.*']"
STOP = "data: {sources: {text: {on_exhausted: stop}}}"


def nothing_done(run: Path) -> bool:
    metrics = run / "metrics.jsonl"
    return not (run / "checkpoints").exists() and not (metrics.exists() and metrics.read_text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([A, B, stage("c", "max_steps: 1, trainable: ['blocks.*.attn.k']")], "E-STG-14 .*'blocks.*.attn.k'"),
        ([A, stage("b", f"max_steps: 2000, {STOP}")], r"E-MIX-01 stage b: needs 8,000 windows, .*stages.b.max_steps"),
        (
            [stage("a", f"max_steps: 100, {STOP}"), stage("b", f"max_steps: 900, {STOP}")],
            "E-MIX-01 stage b: needs 4,000",
        ),
        ([A, B, "start.path=nowhere"], "E-CKP-26 start.path=nowhere: no run directory"),
        (
            ["position=learned", A, stage("b", "max_steps: 1, train: {seq_len: 48}")],
            "E-POS-04 stage b: .*seq_len=48 .*24 positions",
        ),
        ([A, stage("b", "max_steps: 1, position: {rope_scaling: {name: clex}}")], "E-STG-15 stage b: .*None -> "),
        (
            [A, stage("b", "max_steps: 1, data: {sources: {text: {path: nowhere}}}")],
            r"E-TOK-01 data: 2 of 9 files are missing [^+]*nowhere\.bin",
        ),
        ([stage("a", "max_steps: 1, optimizer: keep")], "E-STG-02 "),
        (
            [A, stage("b", f"max_steps: 1, {LORA}, trainable: ['embed.*', '*norm*']")],
            "E-STG-16 .*embed.*no weight matr",
        ),
        ([A, stage("b", f"max_steps: 1, lora: {{rank: 33}}, trainable: {MLP}")], r"E-STG-17 .*=33: .*mlp.* side of 32"),
        ([A, stage("b", "max_steps: 1, lora: {rank: 0}")], r"E-CFG-05 .*stages.b.lora.rank=0: it needs .* > 0"),
        ([A, stage("b", "max_steps: 1, lora: {rank: 2, alpha: 0}")], r"E-CFG-05 .*stages.b.lora.alpha=0"),
        ([A, stage("b", f"max_steps: 1, {LORA}, optimizer: keep")], r"E-STG-19 .*stages.b.optimizer=keep"),
        ([stage("a", f"max_steps: 1, {LORA}"), stage("b", "optimizer: keep")], r"E-STG-19 .*stages.b.optimizer=keep"),
    ],
    ids=[
        "pattern",
        "too short",
        "too short together",
        "no start",
        "learned",
        "clex",
        "no data",
        "keep first",
        "no matrix",
        "rank",
        "rank 0",
        "alpha 0",
        "keep adapted",
        "keep behind adapted",
    ],
)
def test_refused_before_anything_is_done(runs: Runs, words: list[str], message: str) -> None:
    others = [word for word in words if not word.startswith("+stages")]
    with pytest.raises(UserError, match=message):
        runs.train("r", *schedule(*[word for word in words if word.startswith("+stages")]), *others)
    assert nothing_done(runs.folder / "r")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["position=learned", *schedule(A, stage("b", "max_steps: 1, train: {seq_len: 48}"))], "E-POS-04"),
        (schedule(A, stage("b", f"max_steps: 1, {LORA}, trainable: ['embed.*', '*norm*']")), "E-STG-16"),
    ],
)
def test_what_its_message_says_to_type_is_accepted(runs: Runs, words: list[str], code: str) -> None:
    with pytest.raises(UserError, match=f"^{code} ") as raised:
        runs.train("r", *words)
    word = first(fix_of(raised.value).replace("<name>", "b"))[0]
    assert "=" in word
    runs.train("r", *words, word)


def test_without_peft_a_stage_with_adapters_is_refused(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the door; a run that is there is read without it."""
    run = runs.train("made", *schedule(stage("a", f"max_steps: 1, {LORA}")))
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"E-STG-18 .*stages\.b\.lora\.rank=2: .*pip install peft"):
        runs.train("r", *schedule(A, stage("b", f"max_steps: 1, {LORA}")))
    assert nothing_done(runs.folder / "r")
    load_run(run, "cpu")


def test_start_from_another_model_or_an_unfinished_run_is_refused(runs: Runs) -> None:
    source = runs.train("source", *schedule(A), "model.d_ff=40")
    with pytest.raises(UserError, match=r"E-STA-02 .*source: .*model\.d_ff is 40, .*Fix: model\.d_ff=40"):
        runs.train("r", *schedule(A, B), f"start.path={source}")
    assert nothing_done(runs.folder / "r")
    (runs.folder / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match=r"E-CKP-26 .*/empty"):
        runs.train("r", *schedule(A, B), f"start.path={runs.folder}/empty")


def test_a_start_is_needed_once(runs: Runs) -> None:
    """When the run has weights of its own, it goes on without those it began with."""
    source = runs.train("source", *schedule(A))
    words = [*schedule(A, B), f"start.path={source}"]
    whole = runs.train("whole", *words)
    assert weights(whole, 1) != weights(source, 1) and manifest(whole, 1)["counters"]["adam_step"] == 1
    run = runs.train("r", *words, crash_at=2)
    source.rename(runs.folder / "gone")
    runs.train("r", *words)
    assert weights(run, 2) == weights(whole, 2)
    with pytest.raises(UserError, match=r"E-CKP-24 .*start\.path .*source' -> None"):
        runs.train("r", *schedule(A, B))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_weights_of_another_run_are_not_rounded_where_they_are_not_trained(runs: Runs, dtype: str) -> None:
    """Across stages and resumes; those that are trained are not rounded to begin with either."""
    source = runs.train("source", *schedule(stage("a", "max_steps: 2")))
    k, v = "blocks.*.attention.k.*", "blocks.*.attention.v.*"
    stages = schedule(stage("k", f"max_steps: 2, trainable: ['{k}']"), stage("v", f"max_steps: 2, trainable: ['{v}']"))
    words = [
        *stages,
        f"start.path={source}",
        "optim.lr=1e-30",
        "optim.min_lr=0",
        "optim.warmup_init_lr=0",
        "optim.weight_decay=0",
    ]
    runs.train("r", *words, "checkpoint.save_every_steps=1", dtype=dtype, crash_at=2)
    runs.train("r", *words, "checkpoint.save_every_steps=1", dtype=dtype, crash_at=4)
    run = runs.train("r", *words, dtype=dtype)
    assert weights(run, 2) == weights(source, 2)
    assert weights(run, 4) == weights(source, 2)
