"""`python -m coca_train position=transformer_xl data.order=stream`: resumed at any world size, it is the same run."""

import json
import shutil
from pathlib import Path

import pytest

from coca_train.checkpoint.opening import load_run
from coca_train.settings import load
from tests.faults import real
from tests.faults.fork_server import ForkServer
from tests.faults.runs import Launches

STREAM = ["position=transformer_xl", "data.order=stream", "checkpoint.keep=9", "train.max_steps=6"]
STEPS, FROM = 6, 3


class Runs(Launches):
    """An uninterrupted run of two ranks, and copies of it as they were at step 3."""

    def interrupted(self, name: str) -> Path:
        """A copy of the run that knows nothing of what came after step 3."""
        run_dir = self.folder / name
        shutil.copytree(self.folder / "whole", run_dir)
        for folder in run_dir.glob("checkpoints/step-*"):
            if int(folder.name[5:]) > FROM:
                shutil.rmtree(folder)
        (run_dir / "checkpoints" / "latest").write_text(f"step-{FROM:08d}\n")
        lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line).get("step", 0) <= FROM]
        (run_dir / "metrics.jsonl").write_text("".join(kept))
        shutil.rmtree(run_dir / "report")
        return run_dir


@pytest.fixture(scope="module")
def runs(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("recurrent")
    runs = Runs(server, [*real.TINY, *STREAM, *real.prepare(folder)], folder / "runs")
    runs.train("whole", ranks=2)
    return runs


def test_resumed_is_uninterrupted(runs: Runs) -> None:
    whole = real.final_state(runs.folder / "whole")
    assert whole[0] == STEPS and len(whole[2]) == STEPS
    again = runs.interrupted("again")
    ended = runs.launch(name="again")
    assert [rank.code for rank in ended] == [0, 0], ended[0].text
    assert f"from step {FROM}" in ended[0].text
    assert real.final_state(again) == whole


def test_one_rank_goes_on_where_two_left_off(runs: Runs) -> None:
    two = real.final_state(runs.folder / "whole")[2]
    runs.interrupted("one")
    one = real.final_state(runs.train("one"))[2]
    assert [batch for _, (_, batch) in one] == [batch for _, (_, batch) in two]
    assert all(abs(a - b) < 1e-3 * b for (_, (a, _)), (_, (b, _)) in zip(one, two, strict=True))  # bf16


def test_without_its_memory_it_would_be_another_run(runs: Runs) -> None:
    without = runs.train("short", "position.memory_len=0", ranks=2)
    losses, whole = ([loss for _, (loss, _) in real.final_state(run)[2]] for run in (without, runs.folder / "whole"))
    assert losses[0] == whole[0] and losses[1:] != whole[1:]


def test_another_batch_size_is_another_order(runs: Runs) -> None:
    runs.interrupted("wider")
    ended = runs.launch("train.global_batch_size=8", name="wider")
    assert ended[0].code != 0 and "E-TOK-14" in ended[0].text and "order.global_batch_size 4 -> 8" in ended[0].text


def test_a_saved_run_is_read_without_its_memory(runs: Runs) -> None:
    """What generates and evaluates takes the weights out of a checkpoint, and leaves the rest."""
    run = load_run(str(runs.folder / "whole"), "cpu")
    assert run.model.position.memory_len == 24
    assert all(bool(parameter.isfinite().all()) for parameter in run.model.parameters())


def test_without_a_memory_any_order_will_do() -> None:
    for words in ([], ["data.order=stream"], ["data.order=stream", "data.document_mask=true"]):
        assert load(["position=transformer_xl", "position.memory_len=0", *words]).config.position.memory_len == 0
