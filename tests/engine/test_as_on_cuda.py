"""The projections that a GPU computes, on a CPU, with every way to shard weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torch import Tensor, nn

from coca_train.models.qkv_projection import can_join, project
from coca_train.runtime.device import pretend_device
from tests.cases import slow_unless
from tests.faults import real
from tests.faults.fork_server import ForkServer
from tests.faults.runs import Launches
from tests.stages.support import logged, run

WORDS = (  # more tokens than three for each feature of the input: or Q, K and V are no single product
    *("train.seq_len=48", "train.max_steps=3", "model.n_layers=4", "optim.warmup_steps=0"),
    "checkpoint.save_every_steps=100",
)


def run_as_on_cuda(overrides: list[str]) -> None:
    """One forked rank of the command line. Raises AssertionError where weights were joined that others than their own
    layer are not lent."""

    def on_cuda(x_BTC: Tensor, layers: Sequence[nn.Module], widths: Any, joined_weights: Any = None) -> Any:
        with pretend_device("cuda"):
            return project(x_BTC, layers, widths, joined_weights)

    with (
        mock.patch("coca_train.models.layers.project", on_cuda),
        mock.patch("coca_train.models.qkv_projection.can_join", side_effect=can_join) as asked,
    ):
        run(overrides)
    assert asked.called != ("engine.zero_stage=3" in overrides)


@pytest.mark.parametrize(("zero", "ranks"), slow_unless([(3, 1)], [(0, 1), (1, 2), (2, 1), (3, 1), (3, 2)]))
def test_a_training_is_what_it_is_on_a_cpu(server: ForkServer, tmp_path: Path, zero: int, ranks: int) -> None:
    words = [*real.TINY, *WORDS, *real.prepare(tmp_path)]
    plain = Launches(server, words, tmp_path / "plain").train("r")
    target = "tests.engine.test_as_on_cuda:run_as_on_cuda"
    there = Launches(server, words, tmp_path / "there", target).train("r", f"engine.zero_stage={zero}", ranks=ranks)
    assert logged(there, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-5)
