"""A real engine in a process of its own: what it holds once it is made, by the interpreter's own book."""

import gc
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from coca_train import engine
from coca_train.config.schema import LoraConfig
from coca_train.models.lora import named_parameters
from coca_train.models.transformer import build_model
from coca_train.runtime import dist
from tests.planning.conftest import TINY, configure


def held(trainable: list[str], rank: int | None = None, **settings: Any) -> dict[str, int]:
    """Bytes of all tensors that an engine has made, and the parameters it counts. rank: of adapters."""
    config = configure(*TINY, "position=rope")
    config = replace(config, engine=replace(config.engine, **settings))
    engine.start(config.engine)
    gc.freeze()  # what is there already is none of the engine's
    built = engine.build(
        config.engine,
        config.optim,
        partial(build_model, config, 320, trainable, None if rank is None else LoraConfig(rank=rank, alpha=16.0)),
        _fill,
        trainable=trainable,
        micro_batch_size=2,
        accumulation=16 // dist.world_size(),
    )
    n_bytes = sum(storage.nbytes() for storage in _alive().values())
    sizes = {name: getattr(p, "ds_numel", p.numel()) for name, p in named_parameters(built.model)}
    built.close()
    return {"bytes": n_bytes, "all": sum(sizes.values()), "trained": sum(sizes[name] for name in built.trainable)}


def _fill(name: str, tensor: torch.Tensor) -> None:
    tensor.zero_()


def _alive() -> dict[int, torch.UntypedStorage]:
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors if not each.is_meta}
