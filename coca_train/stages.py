"""The stage schedule: each stage complete, with its place in the run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coca_train.config.inheritance import stage_config
from coca_train.config.schema import Config, LoraConfig
from coca_train.config.sizes import micro_batch_size
from coca_train.settings import TRAIN


@dataclass(frozen=True)
class Stage:
    """One stage, complete: nothing is left to inherit.

    config: every section as it holds in this stage. first_step: optimizer steps of all stages before. max_steps: its
    own length [optimizer steps]. first_sample: where in its data the stage begins [sequences]. lora: of the adapters;
    None: matrices are trained in full.
    """

    name: str
    config: Config
    trainable: tuple[str, ...]
    keeps_optimizer: bool
    first_step: int
    max_steps: int
    first_sample: int
    lora: LoraConfig | None = None

    @property
    def last_step(self) -> int:
        """Step of the run after which the stage is done."""
        return self.first_step + self.max_steps


def resolve(config: Config, n_devices: int | None = None) -> tuple[Stage, ...]:
    """Return the stages of a run, in order. A stage continues its data where an earlier one with the same data stopped.

    n_devices: of a launch, whose micro batches are fitted to them; None: micro batches as configured.
    """
    stages: list[Stage] = []
    for name, own in config.stages.items():
        complete, _ = stage_config(TRAIN, config, name)  # nothing to refuse: it was checked when it was loaded
        complete = complete if n_devices is None else fitted(complete, n_devices)
        # Data that two stages share is gone through once: the second begins where the first stopped.
        before = [stage for stage in stages if _order(stage.config) == _order(complete)]
        stages.append(
            Stage(
                name,
                complete,
                tuple(own.trainable),
                own.optimizer == "keep",
                stages[-1].last_step if stages else 0,
                complete.train.max_steps,
                sum(stage.max_steps * stage.config.train.global_batch_size for stage in before),
                own.lora if own.lora.rank is not None else None,
            )
        )
    return tuple(stages)


def fitted(config: Config, n_devices: int) -> Config:
    """Return the configuration with the micro batch that its global batch has on so many devices."""
    micro = micro_batch_size(config.train, config.engine, n_devices)
    return replace(config, train=replace(config.train, micro_batch_size=micro))


def words_of(overrides: Sequence[str]) -> list[str]:
    """Return those words of a command line that are about stages."""
    return [word for word in overrides if re.match(r"[+~]*stages\b", word)]


def stage_at(stages: tuple[Stage, ...], step: int) -> Stage:
    """Return the stage that made the weights at a step of the run; the first one for its beginning."""
    return next((stage for stage in stages if step <= stage.last_step), stages[-1])


def _order(config: Config) -> tuple[object, ...]:
    """All that decides which tokens sample number i is."""
    data, train = config.data, config.train
    sources = {name: (source.path, source.weight, source.on_exhausted) for name, source in data.sources.items()}
    packing = (data.packing, data.upsample_from_tokens, data.upsample_factor, train.seq_len)
    # Shuffled windows are numbered whatever the batch is. A stream is read in as many rows as a batch has, and
    # each goes on at a place of its own.
    rows = train.global_batch_size if data.order == "stream" else None
    return sources, data.seed, data.order, rows, packing
