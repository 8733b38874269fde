"""One of several ranks of DeepSpeed that has no others: what it would send, and what its update moves."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as torch_dist

from coca_train import engine
from coca_train.data.batch import Batch
from coca_train.models.transformer import build_model
from coca_train.planning.count import COMMUNICATION, OPTIMIZER, Count
from coca_train.planning.meta_step import count_operations
from tests.planning.conftest import configure

SHAPE = ("model=llama_tiny", "model.vocab_size=512", "model.n_layers=2", "model.d_model=512", "model.n_heads=4",
         "model.n_kv_heads=4", "model.d_ff=1024", "train.seq_len=32", "train.micro_batch_size=1",
         "position=rope")  # fmt: skip
BUSY = 1e-3  # bytes a parameter below which a collective is of a few numbers


def sent(words: list[str], n_ranks: int, n_micro_batches: int, released: bool = False) -> dict[str, Any]:
    """Of rank 0, by the collective's name: bytes a parameter and whether it runs in the backward pass; and bytes a
    parameter of the update. released: ZeRO 3 keeps nothing gathered, as of models that are larger than it keeps."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(n_ranks), "DS_ACCELERATOR": "cpu"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch_dist.init_process_group("fake", rank=0, world_size=n_ranks, store=FakeStore())
    import deepspeed
    import deepspeed.comm.comm
    import deepspeed.ops
    from deepspeed.comm.torch import TorchBackend

    deepspeed.ops.__compatible_ops__ = {}  # no C++ is built, as in engine/deepspeed.py
    deepspeed.init_distributed = lambda *_, **__: None
    deepspeed.comm.comm.cdb = TorchBackend("gloo", None, None)
    if released:
        from coca_train.engine import deepspeed as deepspeed_engine

        deepspeed_engine.settings_of = _releasing(deepspeed_engine.settings_of)
    config = configure(*SHAPE, *words, f"train.global_batch_size={n_ranks * n_micro_batches}")
    built = engine.build(
        config.engine,
        config.optim,
        partial(build_model, config, 512),
        lambda name, tensor: tensor.normal_(std=0.02),
        trainable=["*"],
        micro_batch_size=1,
        accumulation=n_micro_batches,
    )
    tokens_BT = torch.randint(512, (1, 32))
    batches = [Batch(tokens_BT, tokens_BT, torch.arange(32)[None], None)] * n_micro_batches
    for _ in range(2):
        built.train_step(batches, 0.0)
    model: Any = built.model
    count = Count(["cpu"], outside=OPTIMIZER)
    with count_operations(model, count, "cpu"), count:
        built.train_step(batches, 0.0)
    n = sum(torch.Size(getattr(p, "ds_shape", p.shape)).numel() for p in model.parameters())
    collectives: dict[str, float] = {}
    for each in count.operations:
        if each.part == COMMUNICATION:
            largest = max((*each.reads, *each.writes))
            collectives[each.name] = collectives.get(each.name, 0.0) + largest / n
    moved = sum(each.nbytes for each in count.operations if each.part == OPTIMIZER) / n
    return {"sent": {name: x for name, x in collectives.items() if x > BUSY}, "update": moved}


def _releasing(settings_of: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def changed(*given: Any) -> dict[str, Any]:
        settings = settings_of(*given)
        settings["zero_optimization"] |= {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
        return settings

    return changed
