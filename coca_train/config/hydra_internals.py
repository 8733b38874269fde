"""All uses of Hydra's internals. Checked with hydra-core 1.3.8.

* `merge_files`: Hydra's compose does not tell which files it merged in which order, takes a single folder of YAML, and
  reads its own settings, which takes most of the time.
* `split_sweep`: the points of a sweep, without Hydra's launcher, which would run them in this process.
"""

import math
import warnings
from pathlib import Path
from typing import NamedTuple

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

from coca_train.config.places import parse_nodes
from coca_train.runtime.errors import UserError

MOST_POINTS = 1000


class Merged(NamedTuple):
    """files: (file without its ending, package) in the order of merging. choices: config group -> option."""

    tree: DictConfig
    choices: dict[str, str | None]
    files: list[tuple[str, str]]


class _Checked(ConfigRepository):
    """Checks each file before Hydra opens it."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        path = Path(source.path if source else "", f"{config_path}.yaml")
        if path.exists():
            parse_nodes(path)
        return super().load_config(config_path)


def merge_files(dirs: tuple[Path, ...], name: str, overrides: list[str]) -> Merged:
    """Merge a file with all that its defaults list and `overrides` (choices in Hydra's notation) name.

    dirs: folders of YAML, in the order they are searched.
    """
    # The `with` restores Hydra's global state, so that a program with a Hydra of its own can load our configurations.
    with initialize_config_dir(version_base="1.3", config_dir=str(dirs[0]), job_name="coca_train"):
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        for folder in reversed(dirs[1:]):
            loader.get_search_path().append("--config-dir", f"file://{folder}", anchor=SearchPathQuery(provider="main"))
        loader.repository = _Checked(loader.get_search_path())
        parsed, repository = loader._parse_overrides_and_create_caching_repo(name, overrides)
        with warnings.catch_warnings(action="ignore"):  # a choice that is merged alone may lack `_self_`
            defaults = create_defaults_list(repository, name, parsed, prepend_hydra=False, skip_missing=False)
        tree = loader._compose_config_from_defaults_list(defaults.defaults, repository)
    files = [(each.config_path, each.package or "") for each in defaults.defaults if each.config_path]
    return Merged(tree, dict(defaults.overrides.known_choices), files)


def _n_values(override: Override) -> int:
    """Count the values of a sweep over an override, without expanding it."""
    if not override.is_sweep_override():
        return 1
    sweep = override.value()
    if isinstance(sweep, RangeSweep):
        start, stop, step = sweep.start or 0, sweep.stop, sweep.step
        return max(0, math.ceil((stop - start) / step)) if stop is not None and step else 1
    return len(getattr(sweep, "list", ())) or 1


def split_sweep(overrides: list[str]) -> list[list[str]]:
    """Return the jobs of a sweep, split by Hydra's own sweeper: one list of overrides each."""
    parser = OverridesParser.create()
    parsed = [parser.parse_override(raw) for raw in overrides]
    if (n := math.prod(map(_n_values, parsed))) > MOST_POINTS:
        raise UserError(
            f"E-CFG-76 --multirun: {n:,} combinations, each a run of its own; at most {MOST_POINTS:,} are swept at a "
            "time. Fix: fewer values"
        )
    return BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
