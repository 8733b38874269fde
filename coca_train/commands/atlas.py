"""Show what position methods let a small model do with its context, and train a row of your own."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.atlas.methods import METHODS, REFERENCE, VARIANTS, Method
from coca_train.commands._children import refuse_torchrun
from coca_train.commands._training import load
from coca_train.config.arguments import Arguments
from coca_train.config.fields import ChoiceOf, Names
from coca_train.config.files import choices, config_dirs
from coca_train.config.load import Loaded
from coca_train.config.messages import Problem, nearest
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Name, Positive
from coca_train.config.verb import FLAGS, Verb
from coca_train.runtime.errors import UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import TRAIN, is_training_override

ALL = "all"
USAGE = """\
Show what position methods let a small model do with its context, and how far beyond its training: short tasks with
exact answers, learned at 16 to 63 tokens and asked at up to 1,024, by several seeds of every method. Or train a row.

  python -m coca_train atlas                              the page of what is stored; trains nothing
  python -m coca_train atlas scheme=mine                  your scheme's row: its rate, its seeds, its rank
  python -m coca_train atlas scheme=mine --config-dir mypackage/configs   the same of a plugin
  python -m coca_train atlas scheme=rope position.rope_scaling.theta=30 name=rope_30
  python -m coca_train atlas methods=[fire,cope]          rows of the table that are not stored yet
  python -m coca_train atlas again=10                     ten stored trials from nothing, hours: the same?

A row is trained as +experiment=atlas says: one sweep of learning rates on a seed that is used for nothing else, then
every seed with the best of them; eight trainings, most of an hour on two cores. Where your scheme rotates, add
position.rope_scaling.theta=100, the base of the rows of the table. Each finished trial is a small file of
<root>/trials, and the same command goes on with what is missing. All words but the options below are those of a
training; those that change what all rows share (train.max_steps=...) make another protocol, in which nothing is stored
yet.
"""
FOOT = "The page: <root>/report.html. See docs/atlas.md"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AtlasConfig:
    """What is trained, and where."""

    methods: Names = Field(
        default_factory=list, description="rows of the table to train where trials are missing, with commas between "
        f"them, or {ALL}: {', '.join(each.name for each in METHODS)}",
    )  # fmt: skip
    scheme: Annotated[str, ChoiceOf("position")] | None = Field(
        default=None, description="a choice of configs/position or of a plugin: a row of its own"
    )
    name: Name | None = Field(default=None, description="what that row is called; null: as the scheme")
    seeds: Annotated[int, Field(ge=1, le=100)] = Field(default=5, description="trainings of each row")
    rates: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)] = Field(
        default=[0.5, 1.0, 2.0],
        description="learning rates that the sweep of a row tries, times those of the experiment",
    )
    sweep_steps: Positive = Field(default=1500, description="optimizer steps of a training of the sweep")
    n_cases: Positive = Field(default=50, description="examples of each task and length")
    lengths: Annotated[list[Annotated[int, Field(ge=16)]], Field(min_length=2)] = Field(
        default=[63, 128, 256, 512, 1024],
        description="lengths that are asked, the first the longest trained one [tokens]",
    )
    reference: Name = Field(default=REFERENCE, description="row that the others are compared with on the page")
    root: Annotated[str, Field(min_length=1)] = Field(
        default="runs/atlas", description="folder of trainings, trials and page"
    )
    trials: str | None = Field(default=None, description="folder of the trials; null: <root>/trials")
    jobs: Positive | None = Field(
        default=None, description="trainings at once, each on a core; null: as many as there are cores"
    )
    again: Annotated[int, Field(ge=0)] = Field(
        default=0, description="stored trials, drawn at random, to train from nothing and compare"
    )


def _rules(sections: JsonObject, launch: bool) -> list[Problem]:
    problems, known = [], [each.name for each in METHODS]
    for name in sections.get("methods", []):
        if name not in (*known, ALL):
            close = nearest(name, known)
            fix = f"did you mean {' or '.join(close)}?" if close else f"one of {', '.join(known)}"
            problems.append(Problem("E-CFG-32", ("methods",), f"there is no row {name} in the table", fix))
    if sections.get("name") and not sections.get("scheme"):
        problems.append(Problem("E-CFG-31", ("name",), "is that of a row of your own", "add scheme=<choice>"))
    if sections.get("again") and (sections.get("methods") or sections.get("scheme")):
        problems.append(Problem("E-CFG-31", ("again",), "takes stored trials only", "omit methods and scheme"))
    lengths = sections.get("lengths", [])
    if any(one >= other for one, other in pairwise(lengths)):
        text = "each is to be longer than the one before"
        problems.append(Problem("E-CFG-31", ("lengths",), text, "write lengths=[63,128,256], for example"))
    return problems


ATLAS = Root(
    name="atlas",
    schema=AtlasConfig,
    check=_rules,
    command="coca_train atlas",
    examples="scheme=mine, or an override of a training, e.g. position.width=8",
    passthrough_groups=TRAIN.groups,
)


def _atlas(loaded: Loaded[AtlasConfig], arguments: Arguments) -> int:
    from coca_train.atlas.study import EXPERIMENT, Study  # torch, which help need not wait for
    from coca_train.commands._atlas_trainings import Runner

    config: AtlasConfig = loaded.config
    refuse_torchrun(": the atlas", "start it without torchrun; jobs=<n> trains n at once")
    own, shared = _split(arguments.overrides, config)
    study = Study(
        lengths=tuple(config.lengths),
        n_cases=config.n_cases,
        rates=tuple(config.rates),
        sweep_steps=config.sweep_steps,
        words=tuple(shared),
        config=load([EXPERIMENT, *shared], arguments.config_dirs).config,
    )
    if not study.tasks:
        raise UserError(
            f"E-CFG-31 data: {', '.join(study.config.data.sources)} are no diagnostics, which the atlas asks. Fix: "
            "omit what chooses other data"
        )
    if not config.lengths[0] <= study.config.train.seq_len < config.lengths[1]:
        raise UserError(
            f"E-CFG-31 lengths={config.lengths} train.seq_len={study.config.train.seq_len}: the first length is to be "
            "within the training window, the others beyond. Fix: omit train.seq_len, or choose other lengths"
        )
    runner = Runner(study, config, arguments.config_dirs)
    if config.again:
        return runner.repeat(config.again)
    methods = _chosen(config, own)
    runner.check_reference(methods)
    code = runner.train(methods) if methods else 0
    return code or runner.show(arguments.again(ATLAS.command), methods)


def _split(words: Sequence[str], config: AtlasConfig) -> tuple[list[str], list[str]]:
    """Return the words that make a row, and those that all trainings share."""
    of_row = ("position.", "position/", "attention_pattern", "layers", "data.placement")
    of_row += ("model.logit_scale", "model.score_scale")
    own = [word for word in words if word.lstrip("+~").startswith(of_row)]
    for word in words:
        if word.lstrip("+~").startswith(("position=", "run.", "data.seed", "experiment=")):
            raise UserError(
                f"E-CFG-31 command line {word}: the atlas sets this itself. Fix: omit it, or scheme=<choice> for a row"
            )
    if own and config.scheme is None:
        raise UserError(f"E-CFG-31 command line {own[0]}: is of a row of your own. Fix: add scheme=<choice>")
    return own, [word for word in words if word not in own]


def _chosen(config: AtlasConfig, own: Sequence[str]) -> list[Method]:
    chosen = [each for each in METHODS if each.name in config.methods or ALL in config.methods]
    if config.scheme is not None:
        offered = list(choices("position", config_dirs()))
        if config.scheme not in offered:
            close = nearest(config.scheme, offered)
            hint = f"did you mean {' or '.join(close)}?" if close else f"the choices are {', '.join(offered)}"
            raise UserError(
                f"E-CFG-32 command line scheme={config.scheme}: configs/position has no such choice. Fix: {hint}; of "
                "a plugin: --config-dir <its folder of configs>"
            )
        name = config.name or config.scheme
        listed = next((each for each in METHODS if each.name == name), None)
        if listed is not None and sorted([f"position={config.scheme}", *own]) in (
            sorted(listed.words),
            [f"position={listed.name}"],
        ):
            if not own and listed.words[1:]:
                print(f"{listed.name}: the row of the table, with {' '.join(listed.words[1:])}")
            return list(dict.fromkeys([*chosen, listed]))
        if any(each.name == name for each in (*METHODS, *VARIANTS)):
            raise UserError(
                f"E-CFG-31 command line name={name}: that row of the table has other options. Fix: name=<another>"
            )
        chosen.append(Method(name, name, (f"position={config.scheme}", *own)))
    return chosen


VERB = Verb(
    ATLAS,
    USAGE,
    _atlas,
    foot=FOOT,
    flags=(*FLAGS, "--config-dir"),
    resumes_from="with what is missing; finished trials are kept",
    is_for_training=is_training_override,
)
