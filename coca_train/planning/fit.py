"""Where a stage does not fit: the smallest change that makes it fit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from coca_train.config.schema import Config

MOST_GPUS = 4096


@dataclass(frozen=True)
class Change:
    """What is set otherwise; None: as it is."""

    micro_batch_size: int | None = None
    activation_checkpointing: bool | None = None
    zero_stage: int | None = None
    n_gpus: int | None = None

    def typed(self, stage: str = "") -> str:
        """As it would be typed. stage: for this stage alone."""
        place = f"stages.{stage}." if stage else ""
        words = {
            f"{place}train.micro_batch_size": self.micro_batch_size,
            f"{place}engine.activation_checkpointing": "true" if self.activation_checkpointing else None,
            f"{place}engine.zero_stage": self.zero_stage,
            "gpus": self.n_gpus,
        }
        return " ".join(f"{key}={value}" for key, value in words.items() if value is not None)

    def applied(self, config: Config) -> Config:
        """The configuration with it."""
        train, engine = config.train, config.engine
        if self.micro_batch_size is not None:
            train = replace(train, micro_batch_size=self.micro_batch_size)
        if self.activation_checkpointing is not None:
            engine = replace(engine, activation_checkpointing=self.activation_checkpointing)
        if self.zero_stage is not None:
            engine = replace(engine, zero_stage=self.zero_stage)
        return replace(config, train=train, engine=engine)


def smallest_change(config: Config, n_gpus: int, fits: Callable[[Config, int], bool]) -> Change | None:
    """The first that fits: changes of one kind before changes of two, in each the order of DESIGN: a smaller micro
    batch, activation checkpointing, a higher ZeRO stage, more GPUs. None: nothing does, or only more than MOST_GPUS.

    None of them changes what is learned: the global batch stays as it is.
    """
    for change in sorted(_changes(config, n_gpus), key=_size):
        if fits(change.applied(config), change.n_gpus or n_gpus):
            return change
    return None


def _size(change: Change) -> tuple[object, ...]:
    """Kinds of change, then which kinds, then how far each goes."""
    kinds = (change.n_gpus, change.zero_stage, change.activation_checkpointing, change.micro_batch_size)
    changed = [kind is not None for kind in kinds]
    return sum(changed), changed, change.n_gpus or 0, change.zero_stage or 0, -(change.micro_batch_size or 0)


def _changes(config: Config, n_gpus: int) -> Iterator[Change]:
    """Every combination; nothing that is set already, and only what divides the global batch."""
    train, engine = config.train, config.engine
    gpus: list[int | None] = [None]
    zero: list[int | None] = [None]
    if engine.kind == "deepspeed":
        doubled = [n_gpus * 2**k for k in range(1, 13)]
        gpus += [n for n in doubled if n <= MOST_GPUS and train.global_batch_size % n == 0]
        zero += list(range(engine.zero_stage + 1, 4))
    checkpointing = [None] if engine.activation_checkpointing else [None, True]
    for n in gpus:
        rows = train.global_batch_size // (n or n_gpus)
        micro = [m for m in range(1, train.micro_batch_size) if rows % m == 0]
        sizes: list[int | None] = [*([None] if rows % train.micro_batch_size == 0 else []), *micro]
        for z in zero:
            for recompute in checkpointing:
                for m in sizes:
                    if (m, recompute, z, n) != (None, None, None, None):
                        yield Change(m, recompute, z, n)
