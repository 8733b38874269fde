"""The configuration of a training: its sections, the modules that type some of them, its rules. Imports no torch.

config/ has the machinery and knows no scheme; this module passes it the registries.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coca_train.attention import ATTENTION_PATTERNS, PatternSettings
from coca_train.attention import rules as _rules  # noqa: F401 (they register themselves)
from coca_train.config import load as loading
from coca_train.config.check import TRAINING
from coca_train.config.choice import option_problems
from coca_train.config.compose import Assembled
from coca_train.config.fields import fields_of
from coca_train.config.files import choices, config_dir
from coca_train.config.load import Loaded, assemble
from coca_train.config.messages import Problem
from coca_train.config.places import place_of
from coca_train.config.root import Root
from coca_train.config.schema import Config, EvalConfig, TrainConfig
from coca_train.positions import ROPE_SCALINGS, SCHEMES, SchemeSettings
from coca_train.runtime.trees import section

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

FINE_TUNING = "_fine_tuning"  # a part of configs/experiment
TOKENIZERS = ("tokenizer.model", "tokenizer.json")  # names that the file of a tokenizer has
HELD_OUT = "held_out"  # folder of a run, with its held-out text by source


@TRAINING.rule("eval", "position", "attention_pattern", "train")
def tried_options(
    eval: EvalConfig, position: SchemeSettings, attention_pattern: PatternSettings, train: TrainConfig
) -> Iterator[Problem]:
    """Check the options of the variants that a training tries on its own weights, `dynamic_ntk@alpha:4`, before it
    starts."""
    sections: dict[str, object] = {"position": asdict(position), "attention_pattern": asdict(attention_pattern)}
    sections["train"] = asdict(train)
    tried = {"attention_patterns": "attention_pattern"}
    if hasattr(position, "rope_scaling"):  # a scheme without them tries none
        tried |= {"rope_scalings": "position/rope_scaling"}
    for key, group in tried.items():
        option, offered = f"eval.extrapolation.{key}", choices(group, (config_dir(),))
        for text in getattr(eval.extrapolation, key):
            if "@" in text and text.partition("@")[0] in offered:
                yield from option_problems(TRAIN, option, deepcopy(sections), group, text)


def imply_fine_tuning(groups: Mapping[str, str], values: Sequence["Override"]) -> dict[str, str]:
    """Choose fine-tuning's values for start.path without an experiment: the quickstart's rates ruin trained weights."""
    path = None
    for override in values:
        key, value = override.key_or_group, override.value()
        if key == "start.path":
            path = value
        elif key == "start" and isinstance(value, dict):
            path = value.get("path", path)
    return {"experiment": FINE_TUNING} if path and "experiment" not in groups else {}


def name_from_paths(a: Assembled, groups: Mapping[str, str], typed: Callable[[], dict[str, object]]) -> None:
    """Name a run after the weights that it starts from and the folder of its texts, where no experiment names it; the
    command line takes precedence.

    The name consists of the folders' names and a digest of their paths as they are written: other folders of these
    names, and the run that lies in the folder, have other names. Nothing is read, so that the run is found again when
    the folder is gone.
    """
    if not place_of("run.name", a.places).startswith("configs/train.yaml:"):
        return  # an experiment's own
    if not paths_given(a):
        return  # resolving takes time
    values = typed()
    written_paths = [section(values, name).get("path") for name in ("start", "data")]
    paths = [os.path.normpath(path) for path in written_paths if isinstance(path, str) and path]
    if paths:
        names = (re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(os.path.abspath(path))) for path in paths)
        base = "-".join(name.strip("-._")[: 80 // len(paths)] or "start" for name in names)
        digest = hashlib.sha256("\0".join(paths).encode(errors="surrogateescape")).hexdigest()[:8]
        section(a.tree, "run")["name"] = f"{base}-{digest}"
        a.places["run.name"] = "start.path" if written_paths[0] else "data.path"


def paths_given(a: Assembled) -> bool:
    """Return whether start.path or data.path may be set."""
    sections = (section(a.tree, name) for name in ("start", "data"))
    return any("path" in word for word in a.overrides) or any(one.get("path") is not None for one in sections)


# Here, and not in config/, scheme and machinery meet: config imports nothing above itself, so what types `position` is
# passed to it as a registry, and the rules about positions as rules.
TRAIN: Root[Config] = Root(
    name="train",
    schema=Config,
    groups=(
        "model",
        "position",
        "position/rope_scaling",
        "attention_pattern",
        "layers",
        "data",
        "optim",
        "stages",
        "engine",
        "tracking",
        "eval",
        "experiment",
    ),
    check=TRAINING.check,
    command="coca_train",
    examples="train.max_steps=100, or group=choice, e.g. position=coca",
    place="run.root and run.name",
    implied_choices=imply_fine_tuning,
    derive=name_from_paths,
    optional_groups=("experiment",),
    global_groups=("experiment",),
    registries={"position": SCHEMES, "position.rope_scaling": ROPE_SCALINGS, "attention_pattern": ATTENTION_PATTERNS},
    swept=True,
)


def load(overrides: list[str], config_dirs: tuple[Path, ...] = (), launch: bool = True) -> Loaded[Config]:
    """Compose, check and freeze the configuration of a training from its command line.

    config_dirs: further folders with experiments and group choices. launch: also the rules about this machine and this
    launch. Raises ConfigError, which names every problem and who set the value.
    """
    return loading.load(assemble(TRAIN, overrides, config_dirs), launch)


def load_saved(run_dir: str | Path) -> Loaded[Config]:
    """Load the configuration of a run directory, through the same checks as a new one. Its tokenizer is the copy in the
    directory, as is held-out text that is gone from its original place: a copy of a run is complete."""
    folder = Path(run_dir).resolve()
    loaded = loading.load_saved(TRAIN, Path(run_dir) / "config.yaml")
    data = loaded.config.data
    if (tokenizer := own_tokenizer(folder)) is not None:
        data = replace(data, tokenizer=str(tokenizer))
    kept = {
        name: replace(source, valid_path=str(folder / HELD_OUT / name))
        for name, source in data.sources.items()
        if source.valid_path is not None
        and not Path(f"{source.valid_path}.idx").is_file()
        and (folder / HELD_OUT / f"{name}.idx").is_file()
    }
    data = replace(data, sources=data.sources | kept)
    return replace(loaded, config=replace(loaded.config, data=data))


def own_tokenizer(run_dir: Path) -> Path | None:
    """Return the tokenizer that a run directory keeps; None: it keeps none yet."""
    return next((file for name in TOKENIZERS if (file := run_dir / name).is_file()), None)


def is_training_override(word: str) -> bool:
    """Return whether a word of another command can be an override of a training: an option inside a section, or a
    group's choice."""
    key = word.partition("=")[0].lstrip("+~")
    return "." in key or "/" in key or key in {*fields_of(TRAIN.schema), *TRAIN.groups}


def folder_flags(config_dirs: Iterable[Path]) -> list[str]:
    """Return the words that name these folders on a command line."""
    return [word for folder in config_dirs for word in ("--config-dir", str(folder))]
