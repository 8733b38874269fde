"""Training engines: DeepSpeed, and plain torch as the reference."""

from collections.abc import Callable, Sequence

from torch import nn

from coca_train.config.schema import EngineConfig, OptimConfig
from coca_train.engine.base import Engine, InitParameter, StepResult
from coca_train.engine.process import join_sequence_group, start, stop
from coca_train.engine.recurrence import RecurrentEngine, SegmentMemorySize
from coca_train.models.transformer import Transformer

__all__ = ["Engine", "SegmentMemorySize", "StepResult", "build", "start", "stop"]


def build(
    config: EngineConfig,
    optim: OptimConfig,
    model_fn: Callable[[], nn.Module],
    init: InitParameter | None,
    *,
    trainable: Sequence[str],
    micro_batch_size: int,
    accumulation: int,
    memory: SegmentMemorySize | None = None,
) -> Engine:
    """COLLECTIVE. Build the configured engine over a fresh model.

    model_fn builds the module (its own initial values are not used); init(name, tensor) fills one full
    parameter in place and must depend on the name only, so that all engines start from the same weights, whichever rank
    draws them; None: a state is loaded next, and nothing is drawn.
    trainable: shell patterns over parameter names. accumulation: micro batches per rank and step. memory: of a model
    that remembers the segment before; None: it remembers nothing.
    """
    start(config)  # before deepspeed is imported
    share = join_sequence_group(config.sequence_parallel)

    def make_model() -> nn.Module:
        model = model_fn()
        if share is not None:
            assert isinstance(model, Transformer), "only a model of ours can cut a sequence"
            model.sequence = share
        return model

    if config.kind == "local":
        from coca_train.engine.local import LocalEngine

        engine: Engine = LocalEngine(config, optim, make_model, init, trainable)
    else:
        from coca_train.engine.deepspeed import DeepSpeedEngine

        engine = DeepSpeedEngine(config, optim, make_model, init, trainable, micro_batch_size, accumulation)
    return engine if memory is None else RecurrentEngine(engine, micro_batch_size * accumulation, memory)
