"""Times in turns, twins of the same shape, peak memory."""

from dataclasses import replace

import pytest
import torch

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
