"""Times in turns, twins of the same shape, peak memory."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from coca_train.config.schema import LayersConfig, LayerTypeConfig
from coca_train.evaluation.measures import speed
from tests.models.conftest import LLAMA, NEOX, PLAIN, build

ROPE = {"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": PLAIN}
COCA = {"scheme": "coca", "rotary_pct": 1.0, "variant": "slack", "t_width": "half", "rope_scaling": PLAIN}
CPU = torch.device("cpu")


def test_competitors_take_turns_after_a_warm_up_that_does_not_count(monkeypatch):
    calls, now = [], [0.0]

    def job(name, first, later):
        def once():
            now[0] += later if name in calls else first
            calls.append(name)

        return once

    monkeypatch.setattr(speed.time, "perf_counter", lambda: now[0])
    seconds = speed.in_turns({"a": job("a", 100, 2), "b": job("b", 50, 4)}, 3, CPU)
    assert calls == ["a", "b"] * 4
    assert seconds == {"a": [2, 2, 2], "b": [4, 4, 4]}


def test_a_twin_shares_what_fits_and_has_plain_attention():
    model = build(LLAMA, ROPE, {"name": "sliding_window", "window": 4})
    other = speed.twin(model, "rope")
    assert all(a is b for a, b in zip(model.parameters(), other.parameters(), strict=True))
    tokens_BT = torch.arange(20)[None]
    torch.testing.assert_close(other(tokens_BT), build(LLAMA, ROPE)(tokens_BT))
    assert (other(tokens_BT) - model(tokens_BT)).abs().max() > 1e-3


def test_a_twin_of_coca_has_whole_keys_of_its_own():
    model = build(LLAMA, COCA).to(torch.bfloat16).eval()
    other = speed.twin(model, "nope")
    for name, parameter in other.named_parameters():
        assert (parameter is dict(model.named_parameters())[name]) == (not name.endswith("attention.k.weight"))
        assert parameter.dtype == torch.bfloat16
    assert not other.training
    assert other(torch.arange(9)[None]).isfinite().all()


def test_a_twin_keeps_tied_embeddings_tied():
    model = build(replace(NEOX, tie_embeddings=True), COCA)
    other = speed.twin(model, "rope")
    assert other.head.weight is model.head.weight is other.embed.weight


def test_training_goes_through_all_parameters_and_leaves_nothing_behind(monkeypatch):
    model = build(NEOX, ROPE).eval()
    seen = []
    monkeypatch.setattr(
        model, "zero_grad", lambda set_to_none: seen.extend(p.grad is not None for p in model.parameters())
    )
    with torch.no_grad():
        speed.turn(model, "training", 12, 1, 1)()
    assert seen and all(seen)
    assert not model.training
    monkeypatch.undo()
    speed.turn(model, "training", 12, 1, 1)()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("work", ["prefill", "decode"])
def test_what_is_read_and_decoded(work, monkeypatch):
    model, read = build(NEOX, ROPE).eval(), []
    hidden = model.hidden

    def watched(tokens_BT, *, length, cache):
        read.append((tokens_BT.shape[1], length, cache.length))
        return hidden(tokens_BT, length=length, cache=cache)

    monkeypatch.setattr(model, "hidden", watched)
    turn = speed.turn(model, work, 12, 3, 2)
    for _ in range(3):  # a warm-up and two rounds
        turn()
    if work == "prefill":
        assert read == [(12, 12, 0)] * 3
    else:
        assert read == [(12, 21, 0), *((1, 21, held) for held in range(12, 21))]


def test_a_process_that_was_killed_ran_out_of_memory(monkeypatch):
    model = build(NEOX, ROPE)
    ended = SimpleNamespace(returncode=-9, stdout="", stderr="")
    monkeypatch.setattr(speed.subprocess, "run", lambda *a, **k: ended)
    with pytest.raises(MemoryError, match="prefill of 64 tokens"):
        speed.peak_bytes(model, ["prefill"], 64)
    ended.returncode, ended.stderr = 1, "Traceback: wrong"
    with pytest.raises(RuntimeError, match="wrong"):
        speed.peak_bytes(model, ["prefill"], 64)


def test_a_process_of_its_own_builds_a_model_with_layers_of_several_kinds(monkeypatch, tmp_path):
    monkeypatch.setattr(speed, "RESET", tmp_path / "clear_refs")
    built, turn = [], speed.turn
    monkeypatch.setattr(speed, "turn", lambda model, *a: built.append(model) or turn(model, *a))
    layers = LayersConfig(pattern=["default", "far"], types={"far": LayerTypeConfig(position={"scheme": "nope"})})
    model = build(NEOX, ROPE, layers=layers)
    assert list(speed._child(json.loads(json.dumps(speed._child_task(model, ["prefill"], 16))))) == ["prefill"]
    assert built[0].layers == layers
    assert built[0].config == NEOX


@pytest.mark.slow
def test_peak_memory_of_the_reference_grows_with_the_square_and_of_plain_attention_with_the_length():
    eager, plain = build(NEOX, ROPE, attention="eager").eval(), build(NEOX, ROPE).eval()
    peaks = {
        name: [speed.peak_bytes(model, ["prefill"], n)["prefill"] for n in (2048, 4096)]
        for name, model in (("eager", eager), ("plain", plain))
    }
    heads = NEOX.n_heads
    assert peaks["eager"][1] > heads * 4096**2 * 4  # the matrix of scores, float32
    assert peaks["eager"][1] / peaks["eager"][0] > 3
    assert peaks["plain"][1] / peaks["plain"][0] < 2.6
