"""The parts of Hydra that its public interface does not offer, all in this one file. Checked with hydra-core 1.3.8.

* `Files`: Hydra composes, but does not tell which files it merged in which order, which messages need to say who set a
  value; it takes one folder of YAML, where `--config-dir` may be given several times; it reads its own settings; and an
  experiment's values win over a choice that was typed.
* `split_sweep`: the points of a sweep, without Hydra's launcher, which would run them all in this process.
"""

import math
from collections.abc import Callable, Collection
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra.core.default_element import GroupDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import RangeSweep
from omegaconf import DictConfig

from coca_train.config.files import stamp
from coca_train.config.places import nodes
from coca_train.runtime.errors import UserError

MOST_POINTS = 1000
CHECKED = "1.3"  # internals may change with any other


def require(version: str) -> None:
    """UserError when this is a version of hydra-core whose internals nobody has looked at."""
    if ".".join(version.split(".")[:2]) != CHECKED:
        raise UserError(
            f"E-CFG-65 hydra-core {version}: coca_train reads parts of Hydra {CHECKED} that other versions may have "
            f"changed. Fix: pip install 'hydra-core=={CHECKED}.*'"
        )


require(hydra.__version__)


class Merged(NamedTuple):
    """files: (file without its ending, package) in the order of merging. choices: config group -> option."""

    tree: DictConfig
    choices: dict[str, str | None]
    files: list[tuple[str, str]]


_PARSED: dict[Path, tuple[tuple[int, int], Any]] = {}


class _Parsed(ConfigRepository):
    """Reads a file again only when it has changed: half of the time of a composition goes into parsing.

    sections: dotted, which files that set options from the top say nothing of, where `gives_way` says so of their name.
    """

    sections: Collection[str] = ()
    gives_way: Callable[[str], bool] = staticmethod(lambda name: False)

    def load_config(self, config_path: str) -> Any:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        path = Path(source.path if source else "", f"{config_path}.yaml")
        if not path.exists():
            return super().load_config(config_path)
        nodes(path)  # what is no file, or too much of one, is refused before Hydra opens it
        state = stamp(path)
        if path not in _PARSED or _PARSED[path][0] != state:
            _PARSED[path] = state, super().load_config(config_path)
        loaded = deepcopy(_PARSED[path][1])  # merging takes nodes over as they are, and changes them
        if self.sections and loaded.header["package"] == "_global_" and self.gives_way(config_path):
            _leave_out(loaded, self.sections)
        return loaded


def _leave_out(loaded: Any, sections: Collection[str]) -> None:
    """Take the values of these sections out of a file, and the choices that it makes inside them."""
    for section in sections:
        *above, name = section.split(".")
        node = loaded.config
        for part in above:
            node = node._get_node(part) if isinstance(node, DictConfig) else None
        if isinstance(node, DictConfig) and name in node:
            del node[name]
    inside = tuple(f"{section.replace('.', '/')}/" for section in sections)
    loaded.defaults_list = [
        each
        for each in loaded.defaults_list
        if not (isinstance(each, GroupDefault) and each.override and str(each.group).lstrip("/").startswith(inside))
    ]


class Files:
    """The files that a composition merges, without those in which Hydra configures itself: they take most of the time.

    To be used while Hydra is initialized.
    """

    def __init__(self, more: tuple[Path, ...], sections: Collection[str], gives_way: Callable[[str], bool]) -> None:
        """more: folders besides the one Hydra was initialized with, in the order they are searched. sections,
        gives_way: of `_Parsed`."""
        self._loader: Any = GlobalHydra.instance().config_loader()
        for folder in reversed(more):
            self._loader.get_search_path().append("--config-dir", f"file://{folder}", anchor="main")
        self._loader.repository = repository = _Parsed(self._loader.get_search_path())
        repository.sections, repository.gives_way = sections, gives_way

    def listed(self, top: str, overrides: list[str]) -> list[tuple[str, str]]:
        """What would be merged, as in `Merged.files`."""
        return _named(self._defaults(top, overrides)[0])

    def merged(self, top: str, overrides: list[str]) -> Merged:
        defaults, repository = self._defaults(top, overrides)
        tree = self._loader._compose_config_from_defaults_list(defaults.defaults, repository)
        return Merged(tree, dict(defaults.overrides.known_choices), _named(defaults))

    def _defaults(self, top: str, overrides: list[str]) -> tuple[DefaultsList, Any]:
        parsed, repository = self._loader._parse_overrides_and_create_caching_repo(top, overrides)
        return create_defaults_list(repository, top, parsed, prepend_hydra=False, skip_missing=False), repository


def _named(defaults: DefaultsList) -> list[tuple[str, str]]:
    return [(each.config_path, each.package or "") for each in defaults.defaults if each.config_path]


def _n_values(override: Any) -> int:
    """How many a sweep over an override has, without making them."""
    if not override.is_sweep_override():
        return 1
    sweep = override.value()
    if isinstance(sweep, RangeSweep):
        start, stop, step = sweep.start or 0, sweep.stop, sweep.step
        return max(0, math.ceil((stop - start) / step)) if stop is not None and step else 1
    return len(getattr(sweep, "list", ())) or 1


def split_sweep(overrides: list[str]) -> list[list[str]]:
    """The jobs of a sweep, by Hydra's own sweeper: one list of overrides each."""
    parser = OverridesParser.create()
    parsed = [parser.parse_override(raw) for raw in overrides]
    if (n := math.prod(map(_n_values, parsed))) > MOST_POINTS:
        raise UserError(
            f"E-CFG-76 --multirun: {n:,} combinations, each a run of its own; at most {MOST_POINTS:,} are swept at a "
            "time. Fix: fewer values"
        )
    return BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
