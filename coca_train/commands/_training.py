"""The configuration of a training as the commands take it, with what its start.path and its data.path stand for."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coca_train import settings
from coca_train.config import load as loading
from coca_train.config.compose import Assembled
from coca_train.config.interpolate import resolve
from coca_train.config.load import Loaded, assemble
from coca_train.runtime import dist, outside
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import section
from coca_train.schedule import words_of

FROM_START = "from_start"  # the choice of the group `model`


def _bring(a: Assembled, groups: Mapping[str, str], typed: Callable[[], dict[str, Any]]) -> None:
    """Bring the model of start.path for `model=from_start`, or where the command line names neither a model nor an
    experiment; the data that are made of data.path; and the name that a run has from both."""
    settings.name_from_paths(a, groups, typed)
    names_it = any(word.startswith("start.path=") for word in a.overrides)
    if a.choices.get("model") == FROM_START or (names_it and not {"model", "experiment"} & groups.keys()):
        from coca_train.hub.from_start import bring  # torch, which help and most trainings need not wait for

        bring(a, groups, typed)
    if settings.paths_given(a):
        from coca_train.commands import _from_text

        _from_text.bring(a, typed)


def remembered(words: list[str], dirs: tuple[Path, ...]) -> list[str]:
    """The words, and of a run that has begun those that gave it its stages, where these say nothing of stages.

    A schedule that was typed once is the run's: its next start goes on with it. What files say of stages may be edited,
    and is read anew.
    """
    if words_of(words):
        return words
    try:
        a = assemble(settings.TRAIN, words, dirs)
        run = section(resolve(a.tree)[0], "run")
        run_dir = Path(str(run["root"]), str(run["name"]))
        record = outside.read_object(run_dir / "run.json")
        said = words_of(record.get("schedule", record["overrides"]))
        if not any(run_dir.glob("checkpoints/step-*")):
            return words  # it begins anew
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return words  # no run has begun there, or what is wrong is told where it is read
    if said:
        dist.log(f"stages    as this run was begun: {shlex.join(said)}")
    return [*said, *words]


TRAIN = replace(settings.TRAIN, brings=_bring)


def load(overrides: list[str], config_dirs: tuple[Path, ...] = (), launch: bool = True) -> Loaded:
    """As settings.load. launch: also the rules about this machine and this launch."""
    return loading.load(assemble(TRAIN, overrides, config_dirs), launch)
