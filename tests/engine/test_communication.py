"""What a step sends: counted, by ZeRO stage and option; every option reaches DeepSpeed; what bf16 on the way costs."""

from typing import Any

import pytest
import torch

from coca_train.engine.base import DTYPES
from coca_train.runtime import dist
from tests.cases import slow_unless
from tests.engine.scenarios import GLOBAL_BATCH, TinyGPT, batches, build, init
from tests.engine.test_equality import relative
from tests.faults.fork_server import ForkServer, values

COUNT, TRAIN = "tests.engine.collectives:a_step", "tests.engine.scenarios:train"
OWNER = {"gradient_reduction": "owner"}

# By option: collective and dtype -> elements a parameter, in a step of one micro batch a rank.
WEIGHTS = {"allgather_base bfloat16": 1}
SENT: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "ZeRO 1": ({"zero_stage": 1}, {"allreduce float32": 1, **WEIGHTS}),
    "ZeRO 2": ({"zero_stage": 2}, {"allreduce float32": 1, **WEIGHTS}),
    "ZeRO 2, owner": ({"zero_stage": 2, **OWNER}, {"reduce float32": 1, **WEIGHTS}),
    "ZeRO 2, owner, bf16": (
        {"zero_stage": 2, "communication_dtype": "bf16", **OWNER},
        {"reduce bfloat16": 1, **WEIGHTS},
    ),
    "ZeRO 3": ({"zero_stage": 3, "persistence_threshold": 0}, {"reduce_scatter_base float32": 1, **WEIGHTS}),
    "ZeRO 3, bf16": (
        {"zero_stage": 3, "persistence_threshold": 0, "communication_dtype": "bf16"},
        {"reduce_scatter_base bfloat16": 1, **WEIGHTS},
    ),
}


@pytest.mark.parametrize("name", slow_unless(["ZeRO 1", "ZeRO 2, owner", "ZeRO 3, bf16"], SENT))
def test_what_a_step_sends(server: ForkServer, name: str) -> None:
    changes, expected = SENT[name]
    for sent in values(server.run(COUNT, {"changes": changes | {"dtype": "bf16"}, "micro": 4}, ranks=2)):
        print(f"\n{name}: {sent}")
        assert {key: round(elements, 2) for key, (_, elements) in sent.items()} == expected  # but for padding


def test_every_micro_batch_is_sent_in_zero_2(server: ForkServer) -> None:
    """ZeRO 1 adds them up first: so micro batches should fill the memory where ZeRO 2 is to send least."""
    for stage, times in ((1, 1), (2, 4)):
        job = {"changes": {"zero_stage": stage}, "micro": 1}
        for sent in values(server.run(COUNT, job, ranks=2)):
            assert sent["allreduce float32"][1] == pytest.approx(times, abs=0.01)


# Small buckets: a part of several ranks in one, a part in several.
SMALL = {"bucket_size": 1000}
OPTIONS: dict[str, dict[str, Any]] = {
    "ZeRO 1, owner": {"zero_stage": 1, **OWNER, **SMALL},
    "ZeRO 2, owner": {"zero_stage": 2, **OWNER, **SMALL},
    "ZeRO 2, owner, at the end": {"zero_stage": 2, "overlap_communication": False, **OWNER, **SMALL},
    "ZeRO 3, cut small": {"zero_stage": 3, "persistence_threshold": 0, "prefetch_size": 100, **SMALL},
    "ZeRO 3, whole": {"zero_stage": 3, "persistence_threshold": 10**6, "overlap_communication": False},
}


@pytest.fixture(scope="module")
def reference(server: ForkServer) -> dict[str, Any]:
    return values(server.run(TRAIN, {"steps": 6, "kind": "local"}))[0]


@pytest.mark.parametrize(
    ("name", "ranks"), slow_unless([("ZeRO 2, owner", 4)], [(n, r) for n in OPTIONS for r in (2, 4)])
)
def test_options_change_no_number(server: ForkServer, reference: dict, name: str, ranks: int) -> None:
    for result in values(server.run(TRAIN, {"steps": 6, **OPTIONS[name]}, ranks=ranks)):
        assert relative(result["losses"], reference["losses"]) < 1e-5
        assert relative(result["norms"], reference["norms"]) < 1e-5


def test_sizes_of_zero_3_change_no_bit(server: ForkServer) -> None:
    """When weights travel is all they decide: so a run that is older than them goes on as it was."""
    job = {"steps": 3, "zero_stage": 3}
    small = {"persistence_threshold": 0, "prefetch_size": 0}
    digests = [
        values(server.run(TRAIN, job | sizes, ranks=2))[0]["digest"] for sizes in (small, {}, OPTIONS["ZeRO 3, whole"])
    ]
    assert len(set(digests)) == 1


def test_every_option_reaches_deepspeed(server: ForkServer) -> None:
    asked = {"bucket_size": 2000, "communication_dtype": "bf16", "prefetch_size": 300, "persistence_threshold": 40}
    two = values(server.run(f"{__name__}:inside", {"zero_stage": 2, **OWNER, **asked}))[0]
    assert two == {"communication": "bfloat16", "bucket": 2000, "overlap": True, "all_reduce": False}
    three = values(server.run(f"{__name__}:inside", {"zero_stage": 3, **asked}))[0]
    sizes = {"prefetch": 300, "persistence": 40, "whole": 2 * (3 * 18 + 37)}  # a norm and two biases of each block
    assert three == {"communication": "bfloat16", "bucket": 2000, "overlap": True} | sizes


def test_what_is_left_to_us(server: ForkServer) -> None:
    """From d_model, 18 here: 0.9 x 18 x 18 elements ahead, and 180 whole."""
    for stage, overlap in ((1, False), (2, True)):
        found = values(server.run(f"{__name__}:inside", {"zero_stage": stage}))[0]
        expected = {"communication": "float32", "bucket": 1_000_000, "overlap": overlap, "all_reduce": True}
        assert found == expected
    found = values(server.run(f"{__name__}:inside", {"zero_stage": 3}))[0]
    assert (found["prefetch"], found["persistence"], found["overlap"]) == (291, 180, True)
    fp16 = values(server.run(f"{__name__}:inside", {"zero_stage": 2, "dtype": "fp16"}))[0]
    assert fp16["communication"] == "float16"


def inside(**changes: Any) -> dict[str, Any]:
    """In a forked rank: what DeepSpeed's optimizer runs with."""
    built = build(**changes)
    optimizer = built._engine.optimizer
    found = {"communication": str(optimizer.communication_data_type).removeprefix("torch.")}
    found |= {"bucket": optimizer.reduce_bucket_size}
    if built.zero_stage == 3:
        ahead = optimizer.parameter_offload
        found |= {"prefetch": optimizer.prefetch_elements, "persistence": ahead.param_numel_persistence_threshold}
        found |= {"whole": sum(p.ds_numel for p in ahead.persistent_parameters)}
        found |= {"overlap": built._engine.zero_overlap_comm()}
    else:
        found |= {"overlap": optimizer.overlap_comm, "all_reduce": optimizer.use_multi_rank_bucket_allreduce}
    built.close()
    return found


# Relative error of the mean gradient over ranks, against float64 sums of what each rank computed; the docs' table.
ERRORS = [("fp32", "fp32", 2e-7), ("fp32", "bf16", 5e-3), ("bf16", "fp32", 2e-7), ("bf16", "bf16", 5e-3)]


@pytest.mark.parametrize(
    ("dtype", "sent", "bound", "stage", "ranks"),
    slow_unless(
        [(*ERRORS[2], 2, 2), (*ERRORS[3], 2, 4)],
        [(*e, stage, ranks) for e in ERRORS for stage in (1, 2, 3) for ranks in (2, 4)],
    ),
)
def test_what_bf16_on_the_way_costs(
    server: ForkServer, dtype: str, sent: str, bound: float, stage: int, ranks: int
) -> None:
    job = {"dtype": dtype, "communication_dtype": sent, "zero_stage": stage}
    errors = values(server.run(f"{__name__}:gradient_error", job | OWNER, ranks=ranks))
    print(f"\nZeRO {stage}, {dtype} sent as {sent}, {ranks} ranks: {errors[0]:.1e}")
    assert errors[0] < bound
    assert (errors[0] > 1e-4) == (sent == "bf16")


def gradient_error(**changes: Any) -> float:
    """In a forked rank: relative error (L2, all parameters) of the first step's gradient."""
    from deepspeed.utils import safe_get_full_grad

    micro = GLOBAL_BATCH // dist.world_size()
    built = build(micro=micro, **changes)
    whole = []
    step = built._step

    def looking() -> Any:
        parameters = [built._parameters[name] for name in built.trainable]
        whole.append(torch.cat([safe_get_full_grad(p).flatten().double() for p in parameters]))
        return step()

    built._step = looking
    built.train_step(batches(0, micro), 1e-3)
    # What this rank computed, once more by plain torch: the same operations, so the same bits.
    module, batch = TinyGPT(), batches(0, micro)[0]
    for name, parameter in module.named_parameters():
        init(name, parameter.data)
        parameter.data = parameter.data.to(DTYPES[changes["dtype"]])
    tokens = torch.tensor(float((batch.targets_BT != -100).sum()), dtype=torch.float64)
    torch.distributed.all_reduce(tokens)
    nll = module(batch.tokens_BT, batch.targets_BT, batch.pos_BT, None)
    (nll * (dist.world_size() / tokens).float()).backward()
    named = dict(module.named_parameters())
    exact = torch.cat([named[name].grad.flatten().double() for name in built.trainable]) / dist.world_size()
    torch.distributed.all_reduce(exact)
    built.close()
    return float((whole[0] - exact).norm() / exact.norm())
