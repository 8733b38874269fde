"""Training with a memory: resumed = uninterrupted bit for bit, the same on every engine, world size and micro batch."""

from pathlib import Path
from typing import Any

import pytest

from tests.cases import slow_unless
from tests.faults.fork_server import ForkServer, values

RUN = "tests.recurrence.scenarios:train"
HALF, END = 5, 9  # rows wrap at steps 4, 5, 6 and 8: on both sides of the checkpoint
LONGER = 10  # memory_len beyond the segment of 6: at HALF, rows have 10, 6 and 10 positions


@pytest.fixture(scope="module")
def reference(server: ForkServer) -> dict[str, Any]:
    return values(server.run(RUN, {"steps": END, "kind": "local", "memory_len": LONGER}))[0]


def relative(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


LAYOUTS = [("local", 0, "fp32", 1), ("local", 0, "bf16", 1)]
LAYOUTS += [("deepspeed", stage, dtype, 2) for dtype in ("fp32", "bf16") for stage in (1, 2, 3)]
QUICK = [LAYOUTS[0], LAYOUTS[7]]


@pytest.mark.parametrize(("kind", "stage", "dtype", "ranks"), slow_unless(QUICK, LAYOUTS))
def test_resumed_is_uninterrupted(
    server: ForkServer, tmp_path: Path, kind: str, stage: int, dtype: str, ranks: int
) -> None:
    job = {"steps": END, "kind": kind, "zero_stage": stage, "dtype": dtype, "memory_len": LONGER, "micro": 4}
    whole = values(server.run(RUN, job | {"save": str(tmp_path), "save_at": HALF}, ranks=ranks))[0]
    resumed = values(server.run(RUN, job | {"load": str(tmp_path)}, ranks=ranks))[0]
    assert resumed["loaded"] == whole["saved"]
    assert resumed["losses"] == whole["losses"][HALF:]
    assert resumed["lengths"] == whole["lengths"][HALF:]
    assert resumed["digest"] == whole["digest"]
    assert {6, 10} == set(whole["lengths"][HALF - 1])  # rows with all and with part of the memory were saved


@pytest.mark.parametrize(("old", "new"), slow_unless([(1, 2)], [(1, 2), (2, 1), (4, 1), (1, 4)]))
def test_another_world_size_takes_the_same_memory(server: ForkServer, tmp_path: Path, old: int, new: int) -> None:
    """Bit for bit what was saved; then the same within rounding: the sums go in another order."""
    job = {"steps": END, "memory_len": LONGER}
    whole = values(server.run(RUN, job | {"save": str(tmp_path), "save_at": HALF}, ranks=old))[0]
    resumed = values(server.run(RUN, job | {"load": str(tmp_path)}, ranks=new))[0]
    assert resumed["loaded"] == whole["saved"]
    assert resumed["lengths"] == whole["lengths"][HALF:]
    assert relative(resumed["losses"], whole["losses"][HALF:]) <= 4.8e-7


EVERY = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (3, 2), (3, 4)]


CHECKPOINTED = {"settings": ["engine.activation_checkpointing=full"]}
LOCAL = [({"kind": "local"} | change, 1) for change in ({"micro": 8}, {"micro": 1}, CHECKPOINTED)]
SHARDED = [({"zero_stage": 3, "micro": 4} | CHECKPOINTED, 2)]
ENGINES = [({"zero_stage": stage}, ranks) for stage, ranks in EVERY]


@pytest.mark.parametrize(("change", "ranks"), slow_unless([*LOCAL, *SHARDED], [*LOCAL, *SHARDED, *ENGINES]))
def test_engines_ranks_micro_batches_and_checkpointing_agree(
    server: ForkServer, reference: dict[str, Any], change: dict[str, Any], ranks: int
) -> None:
    result = values(server.run(RUN, {"steps": END, "memory_len": LONGER} | change, ranks=ranks))[0]
    assert relative(result["losses"], reference["losses"]) < 1e-5
    assert result["lengths"] == reference["lengths"]


def test_a_memory_matters_and_is_dropped_where_a_row_begins_anew(server: ForkServer, reference: dict[str, Any]) -> None:
    """Without a past (step 0) the loss is that of no memory; then it differs. Rows wrap after 4, 5 and 6 steps."""
    without = values(server.run(RUN, {"steps": END, "kind": "local", "memory_len": 0}))[0]
    assert relative(without["losses"][:1], reference["losses"][:1]) < 1e-6
    assert all(relative([a], [b]) > 1e-4 for a, b in zip(without["losses"][1:], reference["losses"][1:], strict=True))
    full = [LONGER] * 8
    expected = [[6 if step % (4 + row % 3) == 0 else full[row] for row in range(8)] for step in range(END)]
    assert reference["lengths"] == expected


@pytest.mark.parametrize(("kind", "ranks"), [("local", 1), ("deepspeed", 2)])
def test_a_skipped_step_leaves_no_memory(server: ForkServer, kind: str, ranks: int) -> None:
    """NaN on one rank: no rank remembers, nothing that is not finite stays, and training goes on."""
    job = {"steps": END, "kind": kind, "poison": {"step": 2, "rank": ranks - 1}}
    for result in values(server.run(RUN, job, ranks=ranks)):
        assert result["skips"] == [step == 2 for step in range(END)]
        assert result["lengths"][1] == [6] * 8 and result["lengths"][2] == [0] * 8 and result["lengths"][3] == [6] * 8
        assert result["finite"] and None not in result["losses"][3:]
