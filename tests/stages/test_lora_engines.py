"""LoRA stages on DeepSpeed: stopped and resumed bit for bit, frozen weights exact, all engines alike."""

import json
from pathlib import Path

import pytest

from coca_train.models.lora import is_adapter
from tests.cases import slow_unless
from tests.faults import real
from tests.faults.fork_server import ForkServer
from tests.faults.runs import Launches
from tests.stages.support import logged, manifest, schedule, stage, state, weights

QKV = "blocks.*.attention.[qkv].*"
WORDS = [
    "position=rope", "optim.warmup_steps=0", "optim.lr=0.01", "eval.max_tokens=48", "eval.every_steps=100",
    *schedule(
        stage("full", "max_steps: 1"),
        stage("adapted", f"max_steps: 3, trainable: ['{QKV}', '*norm*'], lora: {{rank: 4, alpha: 8}}"),
        stage("last", "max_steps: 1"),
    ),
]  # fmt: skip
BORDER, END = 4, 5


@pytest.fixture(scope="module")
def launches(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Launches:
    folder = tmp_path_factory.mktemp("lora")
    return Launches(server, [*real.TINY, *WORDS, *real.prepare(folder)], folder / "runs")


LAYOUTS = [("fp32", 0), ("fp32", 1), ("fp32", 2), ("fp32", 3), ("bf16", 1), ("bf16", 2), ("bf16", 3)]
EVERY = [(dtype, zero, ranks) for dtype, zero in LAYOUTS for ranks in (1, 2)]
QUICK = [("bf16", 3, 2)]


@pytest.mark.parametrize(("dtype", "zero", "ranks"), slow_unless(QUICK, EVERY))
def test_stopped_within_the_stage_it_goes_on_as_if_it_had_not(
    launches: Launches, dtype: str, zero: int, ranks: int
) -> None:
    name, words = f"{dtype}-{zero}-{ranks}", [f"engine.dtype={dtype}", f"engine.zero_stage={zero}"]
    whole = launches.train(f"whole-{name}", *words, ranks=ranks)
    launches.stopped(f"cut-{name}", 3, *words, ranks=ranks)
    cut = launches.train(f"cut-{name}", *words, ranks=ranks)
    for step in (1, BORDER, END):
        assert state(cut, step) == state(whole, step)
    assert logged(cut, "loss") == logged(whole, "loss")
    first, second = weights(whole, 1), weights(whole, BORDER)
    in_full = {key for key in first if "norm" in key or key.endswith(("q.bias", "k.bias", "v.bias"))}
    assert {key for key in first if first[key] != second[key]} == in_full
    trained = in_full | {key for key in second if is_adapter(key)}
    assert manifest(whole, BORDER)["trainable"] == sorted(trained)
    moments = {key.partition("/")[2] for key in state(whole, BORDER) if not key.startswith("model/")}
    assert moments == trained


def validations(run_dir: Path) -> list[float]:
    """The loss on held-out text at the end of each stage."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [record["valid/text"] for record in records if "valid/text" in record]


def test_all_engines_learn_and_evaluate_the_same(launches: Launches) -> None:
    local = launches.train("local", "engine=local", "engine.dtype=fp32")
    for zero in (0, 3):
        sharded = launches.train(f"zero-{zero}", "engine.dtype=fp32", f"engine.zero_stage={zero}")
        pairs = zip(logged(sharded, "loss"), logged(local, "loss"), strict=True)
        assert max(abs(a - b) / b for a, b in pairs) < 1e-5
        pairs = zip(validations(sharded), validations(local), strict=True)
        assert max(abs(a - b) / b for a, b in pairs) < 1e-5
    full, adapted, _ = validations(local)
    assert abs(full - adapted) > 1e-3
