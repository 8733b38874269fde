"""The parts of Hydra that its public interface does not offer, all in this one file. Checked with hydra-core 1.3.8.

* `Files`: Hydra composes, but does not tell which files it merged in which order, which messages need to say who set a
  value, and takes one folder of YAML, where `--config-dir` may be given several times.
* `split_sweep`: the points of a sweep, without Hydra's launcher, which would run them all in this process.
"""

from pathlib import Path
from typing import Any

import hydra
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from coca_train.runtime.errors import UserError

CHECKED = "1.3"  # internals may change with any other


def require(version: str) -> None:
    """UserError when this is a version of hydra-core whose internals nobody has looked at."""
    if ".".join(version.split(".")[:2]) != CHECKED:
        raise UserError(
            f"E-CFG-65 hydra-core {version}: coca_train reads parts of Hydra {CHECKED} that other versions may have "
            f"changed. Fix: pip install 'hydra-core=={CHECKED}.*'"
        )


require(hydra.__version__)


class Files:
    """Which files a composition merges. To be used while Hydra is initialized."""

    def __init__(self, more: tuple[Path, ...]) -> None:
        """more: folders besides the one Hydra was initialized with, in the order they are searched."""
        self._loader: Any = GlobalHydra.instance().config_loader()
        for folder in reversed(more):
            self._loader.get_search_path().append("--config-dir", f"file://{folder}", anchor="main")
        self._loader.repository = ConfigRepository(self._loader.get_search_path())

    def merged(self, top: str, overrides: list[str]) -> list[tuple[str, str]]:
        """(file without its ending, package) in the order of merging; Hydra's own files left out."""
        defaults = self._loader.compute_defaults_list(top, overrides, RunMode.RUN).defaults
        return [
            (each.config_path, each.package or "")
            for each in defaults
            if each.config_path and not each.config_path.startswith("hydra/")
        ]


def split_sweep(overrides: list[str]) -> list[list[str]]:
    """The jobs of a sweep, by Hydra's own sweeper: one list of overrides each."""
    parser = OverridesParser.create()
    parsed = [parser.parse_override(raw) for raw in overrides]
    return BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
