"""The stage schedule: what the config leaves out is inherited from `train`."""

from dataclasses import dataclass

from coca_train.config.schema import Config


@dataclass(frozen=True)
class Stage:
    """One stage, complete: nothing is left to inherit."""

    name: str
    trainable: tuple[str, ...]
    max_steps: int


def resolve(config: Config) -> tuple[Stage, ...]:
    """The stages of a run, in order."""
    return tuple(
        Stage(name, tuple(stage.trainable), stage.max_steps or config.train.max_steps)
        for name, stage in config.stages.items()
    )
