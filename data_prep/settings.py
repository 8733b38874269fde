"""The configuration of `python -m data_prep`: configs/prepare.yaml and the choices of `corpus`."""

from collections.abc import Sequence
from pathlib import Path

from coca_train.config.load import load as load_root
from coca_train.config.root import Root
from data_prep.check import problems
from data_prep.schema import PrepareConfig

PREPARE = Root(
    name="prepare",
    schema=PrepareConfig,
    groups=("corpus",),
    check=problems,
    command="data_prep",
    examples="work.workers=8, or group=choice, e.g. corpus=files",
    place="corpus.dir and corpus.name",
    from_top=("corpus",),
    templates={"corpus.sources": "corpus/_source"},
)


def load(words: Sequence[str], dirs: tuple[Path, ...] = ()) -> PrepareConfig:
    """Compose, check and freeze. words: Hydra overrides, `shard=i/n` for work.shard; dirs: more folders of YAML.

    Raises ConfigError, which names every problem and who set the value.
    """
    return load_with_yaml(words, dirs)[0]


def load_with_yaml(words: Sequence[str], dirs: tuple[Path, ...] = ()) -> tuple[PrepareConfig, str]:
    """The same with its text, as `--cfg job` shows it."""
    loaded = load_root(PREPARE, overrides(words), dirs)
    return loaded.config, loaded.yaml


def overrides(words: Sequence[str]) -> list[str]:
    """The words as Hydra overrides: `shard=3/16` is short for work.shard=3/16."""
    return [f"work.{word}" if word.startswith("shard=") else word for word in words]
