"""The configuration of a training as the commands take it, with what its start.path and its data.path stand for."""

import hashlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from coca_train import settings
from coca_train.config import load as loading
from coca_train.config.compose import Assembled
from coca_train.config.load import Loaded, assemble, resolve
from coca_train.config.schema import Config
from coca_train.runtime import dist, untrusted_io
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import section
from coca_train.stages import words_of

LONGEST = 100  # characters of a folder's name that is made of what it holds
FROM_START = "from_start"  # the choice of the group `model`


def _derive(
    a: Assembled, groups: Mapping[str, str], typed: Callable[[], dict[str, object]], bf16: bool | None = None
) -> None:
    """Bring the model of start.path for `model=from_start`, or where the command line chooses neither a model nor an
    experiment; the precision of a fine-tuning; the data that are made of data.path; and the name that a run has.

    bf16: whether the machine computes in it, where it is not this one.
    """
    settings.name_from_paths(a, groups, typed)
    if a.choices.get("model") == FROM_START or (a.has_implied_choices and "model" not in groups):
        from coca_train.hub import from_start  # torch, which help and most trainings need not wait for

        from_start.configure_from_weights(a, groups, typed)
    if a.has_implied_choices:  # there is a start.path, and no experiment
        from coca_train.commands import _fine_tuning

        _fine_tuning.set_precision(a, groups, typed(), bf16)
        a.notes.append(_fine_tuning.describe_changes(a, groups, typed))
    if settings.paths_given(a):
        from coca_train.commands import _from_text

        _from_text.derive_data(a, typed)


def remembered(words: list[str], dirs: tuple[Path, ...]) -> list[str]:
    """Return the words, preceded by those that gave a begun run its stages where these say nothing of stages.

    A schedule that was typed once is the run's: its next start goes on with it. What files say of stages may be edited,
    and is read anew.
    """
    if words_of(words):
        return words
    try:
        a = assemble(settings.TRAIN, words, dirs)
        run = section(resolve(a.tree)[0], "run")
        run_dir = Path(str(run["root"]), str(run["name"]))
        record = untrusted_io.read_object(run_dir / "run.json")
        said = words_of(record["schedule"])
        if not any(run_dir.glob("checkpoints/step-*")):
            return words  # it begins anew
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return words  # no run has begun there, or what is wrong is told where it is read
    if said:
        dist.log(f"stages    as this run was begun: {shlex.join(said)}")
    return [*said, *words]


def short(name: str) -> str:
    """Shorten a folder's name to LONGEST characters and a digest, which tells it from others that begin alike."""
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


TRAIN = replace(settings.TRAIN, derive=_derive)


def load(
    overrides: list[str], config_dirs: tuple[Path, ...] = (), launch: bool = True, bf16: bool | None = None
) -> Loaded[Config]:
    """As settings.load. launch: also the rules about this machine and this launch. bf16: whether the machine that is
    meant computes in it; None: this one is meant."""
    root = TRAIN if bf16 is None else replace(TRAIN, derive=partial(_derive, bf16=bf16))
    return loading.load(assemble(root, overrides, config_dirs), launch)
