"""What a process of a training holds does not grow with its steps and saves."""

import os
from pathlib import Path

import pytest

from tests.faults import real
from tests.faults.fork_server import ForkServer, values

STEPS, SAVES = 300, 10
SETTLED = 100  # steps; caches fill before
GROWTH_MIB = 2.0  # where it was measured: 0.2 to 0.7 in 300 steps, most of it in the first hundred


def run(overrides: list[str]) -> list[tuple[int, float, int]]:
    """In a forked rank: step, resident memory [MiB] and open files after each save."""
    from coca_train.training.saving import Saver
    from tests.stages.support import run

    save, seen = Saver.__call__, list[tuple[int, float, int]]()

    def save_(self: Saver, step: int, due: bool, wait: bool) -> bool:
        # Looked at where none is being written: its thread has a file open.
        good = save(self, step, due, wait)
        if not self.saves.in_flight:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append((step, pages * os.sysconf("SC_PAGESIZE") / 2**20, len(os.listdir("/proc/self/fd"))))
        return good

    Saver.__call__ = save_
    run(overrides)
    return seen


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("zero", [1, 3])
def test_memory_and_files_stay_what_they_are(server: ForkServer, tmp_path: Path, zero: int) -> None:
    words = [
        *real.TINY, *real.prepare(tmp_path), "engine.dtype=bf16", f"engine.zero_stage={zero}", f"run.root={tmp_path}",
        f"train.max_steps={STEPS}", f"checkpoint.save_every_steps={SAVES}", "tracking.log_every_steps=10",
        "eval.every_steps=20", "engine.timeout_s=240",
    ]  # fmt: skip
    for rank in values(server.run("tests.faults.test_memory:run", {"overrides": words}, ranks=2, timeout_s=3000)):
        memory = {step: mib for step, mib, _ in rank}
        print(f"\nZeRO {zero}: resident memory {memory[SETTLED]:.2f} MiB at {SETTLED}, {memory[STEPS]:.2f} at {STEPS}")
        assert memory[STEPS] - memory[SETTLED] < GROWTH_MIB, memory
        assert len({files for step, _, files in rank if step >= SETTLED}) == 1
