"""The smallest change that fits."""

from dataclasses import replace
from typing import Any

from coca_train.planning.cost import KINDS, Change, smallest_change, typed
from tests.planning.conftest import TINY, configure

MICRO, RECOMPUTED, ZERO, SHARED, _ = KINDS
CONFIG = configure(*TINY, "position=rope", "train.micro_batch_size=8", "train.global_batch_size=64")


def change(fits: Any, **engine: Any) -> Change | None:
    config = replace(CONFIG, engine=replace(CONFIG.engine, **engine))
    return smallest_change(config, 4, fits)


def test_a_smaller_micro_batch_comes_first_and_no_smaller_than_needed() -> None:
    assert change(lambda c, n: c.train.micro_batch_size <= 4) == {MICRO: 4}
    assert change(lambda c, n: c.train.micro_batch_size <= 3) == {MICRO: 2}  # 3 does not divide 16


def test_then_checkpointing_then_zero_then_gpus() -> None:
    assert change(lambda c, n: c.engine.activation_checkpointing == "full") == {RECOMPUTED: "full"}
    assert change(lambda c, n: c.engine.zero_stage >= 2) == {ZERO: 2}
    assert change(lambda c, n: c.engine.sequence_parallel >= 2) == {SHARED: 2}
    assert change(lambda c, n: n >= 8) == {"gpus": 8}
    assert change(lambda c, n: n >= 16) == {"gpus": 16}  # 64 rows, 4 each: a micro batch of 8 is one of 4 there


def test_one_change_comes_before_two() -> None:
    assert change(lambda c, n: n > 4 or (c.engine.activation_checkpointing == "full" and c.engine.zero_stage == 2)) == {
        "gpus": 8
    }


def test_two_changes_where_one_does_not_do() -> None:
    smallest = change(lambda c, n: c.engine.activation_checkpointing == "full" and c.train.micro_batch_size == 2)
    assert smallest == {MICRO: 2, RECOMPUTED: "full"}
    assert smallest and typed(smallest) == "train.micro_batch_size=2 engine.activation_checkpointing=full"
    smallest = change(lambda c, n: n == 8 and c.engine.zero_stage == 3)
    assert smallest and typed(smallest) == "engine.zero_stage=3 gpus=8"


def test_what_is_set_already_is_no_change_and_nothing_may_do() -> None:
    assert change(lambda c, n: False) is None
    assert change(lambda c, n: c.engine.zero_stage > 3) is None
    process_counts: list[int] = []

    def refuse(config: Any, n: int) -> bool:
        process_counts.append(n)
        n_readers = n // config.engine.sequence_parallel
        assert config.train.global_batch_size == 64 and 64 % (n_readers * config.train.micro_batch_size) == 0
        return False

    assert change(refuse, kind="local") is None
    assert set(process_counts) == {4}  # one process, no ZeRO
    assert change(refuse) is None
    assert set(process_counts) == {4 * 2**k for k in range(8)}  # a sequence each, or an eighth: eight heads


def test_heads_that_are_mixed_are_not_shared() -> None:
    mixed = configure(*TINY, "position=dape", "train.micro_batch_size=1", "train.global_batch_size=4")
    assert smallest_change(mixed, 4, lambda c, n: c.engine.sequence_parallel > 1) is None


def test_every_change_changes_something() -> None:
    seen: list[tuple[Any, int]] = []
    config = replace(CONFIG, engine=replace(CONFIG.engine, zero_stage=2, activation_checkpointing="full"))
    assert smallest_change(config, 4, lambda c, n: bool(seen.append((c, n)))) is None
    assert (config, 4) not in seen and len({(c.train, c.engine, n) for c, n in seen}) == len(seen)
    assert {c.engine.zero_stage for c, _ in seen} == {2, 3} and all(
        c.engine.activation_checkpointing == "full" for c, _ in seen
    )


def test_as_many_gpus_as_there_may_be_and_no_more() -> None:
    config = replace(CONFIG, train=replace(CONFIG.train, global_batch_size=2**15))
    assert smallest_change(config, 4, lambda c, n: n > 2000) == {"gpus": 2048}
    assert smallest_change(config, 4, lambda c, n: n > 4000) == {"gpus": 4096}
    assert smallest_change(config, 4, lambda c, n: n > 5000) is None
    odd = replace(CONFIG, train=replace(CONFIG.train, global_batch_size=24, micro_batch_size=2))
    # 24 sequences do not go into 16 shares, but into 8 of two GPUs each.
    assert smallest_change(odd, 4, lambda c, n: n > 8) == {SHARED: 2, "gpus": 16}


def test_a_change_for_one_stage_is_typed_for_it() -> None:
    change: Change = {MICRO: 2, RECOMPUTED: "full", ZERO: 3, "gpus": 64}
    assert typed(change, "all") == (
        "stages.all.train.micro_batch_size=2 stages.all.engine.activation_checkpointing=full "
        "stages.all.engine.zero_stage=3 gpus=64"
    )
