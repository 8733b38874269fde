"""The probe measures what it says, and training goes on bit for bit as without it."""

import json
import math
import re
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from coca_train.data.dataset import IndexedDataset
from coca_train.evaluation.trainings import reach_curves, read_probes
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.settings import load
from coca_train.tracking.records import read_jsonl
from coca_train.training import reach as probing
from coca_train.training.ending import final_report
from coca_train.training.reach import Probe
from tests.cases import slow_unless
from tests.data.conftest import write
from tests.faults import real
from tests.faults.fork_server import ForkServer, values
from tests.stages.support import Runs, leave_out

WINDOW, VOCAB = 16, 50
SHAPE = ["model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.d_ff=64", "model.init_std=0.3"]
ASKED = [
    "eval.extrapolation.every_steps=10",
    "eval.extrapolation.multiples=[2]",
    "eval.extrapolation.probe_documents=1",
]


def probe_of(position: str, monkeypatch, tmp_path, documents) -> tuple[Any, Probe]:
    """documents: by source, the tokens of each."""
    words = [f"position={position}", f"train.seq_len={WINDOW}", *SHAPE, *ASKED]
    config = load([*words, "eval.extrapolation.rope_scalings=[plain,dynamic_ntk]"]).config
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=VOCAB, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=1)

    @contextmanager
    def eval_module():
        model.eval()
        yield model
        model.train()

    files = {name: IndexedDataset(write(tmp_path / name, texts)) for name, texts in documents.items()}
    tokenizer = SimpleNamespace(decode=str, bos=None, digest="str")
    return model, Probe(config, cast(Any, SimpleNamespace(eval_module=eval_module)), cast(Any, tokenizer), files, 0)


@pytest.mark.parametrize("position", ["rope", "coca", "alibi"])
def test_losses_are_those_of_plain_forwards_and_the_model_is_as_before(position, monkeypatch, tmp_path):
    documents = np.random.default_rng(0).integers(0, VOCAB, (2, 2 * WINDOW + 1))
    model, probe = probe_of(position, monkeypatch, tmp_path, {"text": [documents[0]], "code": [documents[1]]})
    before, random = (model.position, model.attention_pattern, model.training), torch.get_rng_state()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    record = probe(10)
    assert (model.position, model.attention_pattern, model.training) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    tokens = torch.from_numpy(documents)
    with torch.no_grad():
        model.eval()
        whole = float(model(tokens[:, :-1], tokens[:, 1:])) / (4 * WINDOW)
        halves = [float(model(tokens[:, a : a + WINDOW], tokens[:, a + 1 : a + WINDOW + 1])) for a in (0, WINDOW)]
    assert record["probe/plain/32"] == pytest.approx(whole, rel=1e-5)
    assert record["probe/plain/16"] == pytest.approx(sum(halves) / (4 * WINDOW), rel=1e-5)
    assert record["probe/training_window"] == 16
    if position != "alibi":
        assert record["probe/dynamic_ntk/16"] == record["probe/plain/16"]
        assert abs(record["probe/dynamic_ntk/32"] - record["probe/plain/32"]) > 1e-3


def test_cost_is_measured_and_stated_once(monkeypatch, tmp_path, capsys):
    _, probe = probe_of("rope", monkeypatch, tmp_path, {})
    monkeypatch.setattr(probe, "_measure", lambda step: {})
    clock = iter([14.0, 16.0, 30.0, 33.0])  # begin and end of two probes, at steps 4 and 8
    probe.began = 10.0
    monkeypatch.setattr(probing.time, "perf_counter", lambda: next(clock))
    assert probe(4) == {"probe/seconds": 2.0, "probe/share": 2 / 6}
    assert probe(8) == {"probe/seconds": 3.0, "probe/share": 5 / 23}
    # 4 s for 4 steps, 10 s for the 10 steps between two probes
    assert re.findall(r"[\d.]+", capsys.readouterr().err) == ["2.0", "10", "16.7"]


def test_nothing_to_score_is_said_once_and_no_record(monkeypatch, tmp_path, capsys):
    _, probe = probe_of("rope", monkeypatch, tmp_path, {"text": [range(WINDOW - 1)]})
    assert [probe(10), probe(20)] == [{}, {}]
    line = "WARNING: no extrapolation probe: E-EVAL-05 text: no document has 16 tokens"
    assert capsys.readouterr().err.count(line) == 1


def test_memory_that_runs_out_is_said_once_and_no_record(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    model, probe = probe_of("rope", monkeypatch, tmp_path, {"text": [range(2 * WINDOW + 1)]})
    with monkeypatch.context() as patch:
        patch.setattr(model.head, "nll", full)
        assert [probe(10), probe(20)] == [{}, {}]
    assert capsys.readouterr().err.count("WARNING: no extrapolation probe: ") == 1
    assert probe(30)["probe/plain/32"] > 0


def recorded(step: int, **losses: float) -> dict[str, Any]:
    """windows: w512=3.0."""
    return {"step": step, "probe/training_window": 512.0, "probe/seconds": 1.0} | {
        f"probe/plain/{window[1:]}": loss for window, loss in losses.items()
    }


PROBES = [
    {"step": 50, "loss": 3.0},
    recorded(100, w512=6.0, w1024=6.0, w2048=6.0, w4096=6.0),
    recorded(200, w512=4.0, w1024=4.1, w2048=4.5, w4096=9.0),
    recorded(300, w512=3.0, w1024=3.04, w2048=3.06, w4096=8.0),
    recorded(400, w512=2.9, w1024=2.8, w2048=2.94, w4096=math.inf),
]


def test_the_picture_and_the_page(tmp_path):
    config = load(["eval.extrapolation.enabled=false", "eval.sample_tokens=0"]).config

    def report(step):
        final_report(config, tmp_path, cast(Any, None), cast(Any, None), {}, step)

    report(1)
    assert not (tmp_path / "reach.png").exists()
    assert "Reach during training" not in (tmp_path / "report" / "report.html").read_text()
    lines = [json.dumps(record).replace("Infinity", "null") for record in PROBES]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    report(400)
    assert (tmp_path / "reach.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "report" / "report.md").read_text()
    assert "figures/reach-plain.png" in page
    (own,) = (
        line for line in (tmp_path / "report/tables/reach-plain.csv").read_text().splitlines() if "training" in line
    )
    assert own.split(",")[-2].startswith("18.17")  # exp(2.9), at step 400


def test_curves_by_window_leave_out_what_was_not_scored():
    probes = read_probes([recorded(1, w512=3.0, w1024=4.0), recorded(2, w512=2.0)])
    (picture,) = reach_curves(probes)
    assert [line.label for line in picture.lines] == ["512 (training window)", "1,024"]
    assert [line.x for line in picture.lines] == [(1.0, 2.0), (1.0,)]
    assert picture.lines[0].y == pytest.approx((math.exp(3), math.exp(2)))
    assert [line.x for line in reach_curves(probes[:1])[0].lines] == [(1.0,), (1.0,)]  # one probe is drawn too


PROBED = [
    "position/rope_scaling=clex", "eval.extrapolation.rope_scalings=[clex]", "eval.extrapolation.multiples=[1,2]",
    "eval.extrapolation.attention_patterns=[]", "checkpoint.save_every_steps=5", "train.max_steps=5",
]  # fmt: skip


def drawn(without: Path, probed: Path) -> None:
    assert (without / "reach.png").exists() is False
    assert (probed / "reach.png").stat().st_size > 10_000


def same_end(without: Path, probed: Path) -> None:
    """Weights, moments and losses, to the last bit; the learned frequencies are among the weights."""
    assert real.final_state(without) == real.final_state(probed)
    records = [json.loads(line) for line in (probed / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "probe/clex/48" in record] == [2, 4]


@pytest.mark.parametrize("dtype", slow_unless(["bf16"], ["bf16", "fp32"]))
def test_training_with_probes_ends_bit_for_bit_as_without(corpus, tmp_path, monkeypatch, dtype):
    leave_out(lambda where, name, value: name == "draw" or monkeypatch.setattr(where, name, value))
    runs = Runs(tmp_path, corpus, monkeypatch)
    ended = [runs.train(f"e{n}", *PROBED, f"eval.extrapolation.every_steps={n}", dtype=dtype) for n in (0, 2)]
    same_end(*ended)
    drawn(*ended)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "dtype"), slow_unless([(2, "fp32"), (3, "bf16")], [(1, "bf16"), (2, "fp32"), (3, "fp32"), (3, "bf16")])
)
def test_on_two_processes_too(server: ForkServer, corpus, tmp_path, stage, dtype):
    words = [
        *real.TINY,
        *corpus,
        *PROBED,
        f"engine.zero_stage={stage}",
        f"engine.dtype={dtype}",
        f"run.root={tmp_path}",
    ]
    for n in (0, 2):
        probing_every = [f"eval.extrapolation.every_steps={n}", f"run.name=e{n}"]
        values(server.run("tests.stages.support:run", {"overrides": [*words, *probing_every]}, ranks=2))
    same_end(tmp_path / "e0", tmp_path / "e2")


def test_a_run_cut_between_probes_has_the_records_of_one_that_was_not(corpus, tmp_path, monkeypatch):
    leave_out(monkeypatch.setattr)
    runs = Runs(tmp_path, corpus, monkeypatch)
    words = [*PROBED, "eval.extrapolation.every_steps=2", "checkpoint.save_every_steps=3"]
    whole = runs.train("whole", *words)
    runs.train("cut", *words, crash_at=4)
    cut = runs.train("cut", *words)
    losses = [[p.losses for p in read_probes(read_jsonl(run / "metrics.jsonl"))] for run in (whole, cut)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
