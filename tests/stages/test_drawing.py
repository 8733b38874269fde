"""Initial weights are drawn where a run begins with them, and nowhere else."""

from collections.abc import Container
from typing import Any

import pytest
from torch import nn

from coca_train.hub import initial_weights
from coca_train.training import stage as training_stage
from tests.stages.support import Runs, schedule, stage, weights


def test_nothing_is_drawn_that_is_overwritten(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a resume, and where the next stage begins."""
    words = [*schedule(stage("a", "max_steps: 2"), stage("b", "max_steps: 2")), "checkpoint.save_every_steps=1"]
    whole = weights(runs.train("whole", *words), 4)
    runs.train("r", *words, crash_at=2)
    monkeypatch.setattr(training_stage, "init_parameter", lambda *given, **more: pytest.fail("a weight was drawn"))
    assert weights(runs.train("r", *words), 4) == whole


def test_digests_are_those_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all ranks together, in the order of the model."""

    class Outline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 5) for _ in range(4))

    outline, world = Outline(), 3

    def digests(model: Any, seed: int, names: Container[str]) -> dict[str, str]:
        assert seed == 7
        wanted = {name: parameter for name, parameter in model.named_parameters() if name in names}
        return {name: f"digest of {name} {tuple(parameter.shape)}" for name, parameter in wanted.items()}

    monkeypatch.setattr(initial_weights, "init_digests", digests)
    monkeypatch.setattr(initial_weights.dist, "world_size", lambda: world)
    parts: list[dict[str, str]] = []
    for rank in range(world):
        monkeypatch.setattr(initial_weights.dist, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(initial_weights.dist, "all_gather_object", lambda own: parts.append(own) or [own])
        with pytest.raises(KeyError):  # the other ranks' are missing
            initial_weights.initial_digests(outline, 7)
    assert sum(map(len, parts)) == 8 and max(map(len, parts)) == 3
    monkeypatch.setattr(initial_weights.dist, "all_gather_object", lambda own: parts)
    assert list(initial_weights.initial_digests(outline, 7).items()) == list(
        digests(outline, 7, dict(outline.named_parameters())).items()
    )
