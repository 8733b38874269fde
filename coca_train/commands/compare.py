"""Train several schemes in the same way, and compare them in one report."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.commands._children import refuse_torchrun, run_child
from coca_train.commands._training import load, short
from coca_train.config.arguments import Arguments
from coca_train.config.choice import EXAMPLES
from coca_train.config.choice import words as variant_words
from coca_train.config.fields import ChoiceOf, Names, Paths
from coca_train.config.files import choices, config_dirs
from coca_train.config.load import Loaded
from coca_train.config.messages import Problem, nearest
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Config
from coca_train.config.verb import FLAGS, Verb
from coca_train.runtime import dist, untrusted_io
from coca_train.runtime.errors import CheckpointError, DataError, UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import TRAIN, folder_flags, is_training_override
from coca_train.stages import resolve

OURS = ("position=", "run.name=")
PART = re.compile(r"(?:^|:)([^:@]*(?:@[^:@]*(?::[^:@]*)?)*)")  # a colon behind an @ is inside an option
USAGE = """\
Train several schemes in the same way, and compare them in one report.

  python -m coca_train compare schemes=rope,coca,alibi,kerple_log
  python -m coca_train compare schemes=coca,coca:clex,rope:sliding_window train.max_steps=2000
  python -m coca_train compare schemes=rope,rope:yarn@factor:8,rope:sinks@window:64
  python -m coca_train compare schemes=rope,coca seeds=3                which differences outlast seeds as well
  python -m coca_train compare runs=runs/a,runs/b                       finished runs; trains nothing

Trains each scheme in <run.root>/<scheme>, one after the other, each exactly as `python -m coca_train position=<scheme>`
would; the same command goes on where it stopped and skips what is finished. Then it checks that all saw the same
batches and began with the same shared weights, and writes <run.root>/comparisons/<what was compared>: report.html
(perplexity by window, loss by position, time and memory of a step), the same as report.md, its tables and figures, and
all numbers in results.json. <run.root>/index.html lists it, with every run, sweep, evaluation and comparison.

Seed 2 and those after it are trained in <scheme>-seed2 and so on, with run.seed and data.seed one higher each: other
initial weights and another order of the data, the same for every scheme. More seeds train only the new ones. The page
has one row a scheme, the mean over its seeds, and says which differences outlast both documents and seeds; with one
seed nothing is known of the latter, with two little. Of runs=..., those that differ in nothing but their seeds are
seeds of one model.

All words but the options below are those of a training (python -m coca_train train --help).
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RootConfig:
    """Where the comparison lies."""

    root: str | None = Field(
        default=None,
        description="folder of the trained runs, and of what compares them; null: runs/compare, of an experiment "
        "runs/compare-<experiment>",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CompareConfig:
    """What is compared."""

    schemes: Annotated[Names, ChoiceOf("position")] = Field(
        default_factory=lambda: ["rope", "alibi", "coca", "coca_strict"],
        description="choices of configs/position, with commas or spaces between them; coca:clex is coca with the "
        "RoPE scaling clex, rope:sliding_window rope with that attention pattern, rope:yarn@factor:8 with options "
        "after an @; their runs are coca-clex, rope-sliding_window, rope-yarn-factor-8",
    )
    runs: Paths = Field(
        default_factory=list, description="finished runs to compare, with commas between them; []: train schemes"
    )
    seeds: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="trainings of each scheme, each with its own seed"
    )
    run: RootConfig = RootConfig()


def _rules(sections: JsonObject, launch: bool) -> list[Problem]:
    problems = []
    for key in ("schemes", "runs"):
        names = sections.get(key, [])
        if twice := sorted({name for name in names if names.count(name) > 1}):
            problems.append(Problem("E-CFG-31", (key,), f"{twice[0]} is there twice", "name each once"))
    if sections.get("runs") and (seeds := sections.get("seeds", 1)) > 1:
        text = f"runs are compared with the seeds they have, and {seeds} of each are trained of schemes only"
        problems.append(Problem("E-CFG-31", ("seeds", "runs"), text, "omit seeds"))
    if sections.get("schemes") == [] and not sections.get("runs"):
        problems.append(Problem("E-CFG-31", ("schemes",), "one or more are needed", "schemes=rope,coca"))
    return problems


COMPARE = Root(
    name="compare",
    schema=CompareConfig,
    check=_rules,
    command="coca_train compare",
    examples="schemes=rope,coca, or an override of a training, e.g. train.max_steps=2000",
    passthrough_groups=TRAIN.groups,
)


@dataclasses.dataclass(frozen=True)
class SchemeRun:
    """A scheme of the list: its run's name, and the words of the command line that choose it."""

    name: str
    words: list[str]

    def with_seed(self, number: int, overrides: list[str], config_dirs: tuple[Path, ...]) -> "SchemeRun":
        """Return the training with its seeds raised; number 1 is the training as it is without seeds."""
        if number == 1:
            return self
        first = load([*overrides, *self.words], config_dirs).config
        known = {"run.seed": first.run.seed, "data.seed": first.data.seed}
        seeds = [f"{option}={seed + number - 1}" for option, seed in known.items()]
        return SchemeRun(f"{self.name}-seed{number}", [*self.words, *seeds])


def entry(text: str, overrides: list[str]) -> SchemeRun:
    """Read `scheme` or `scheme:choice`, the choice being frequencies or an attention pattern, with options as in a grid
    (`rope:yarn@factor:8`). UserError when there is no such.

    A scheme that remembers the segment before needs a stream of text. Unless that is wants_memory for, it gets no
    memory, so that it is trained on the same shuffled windows as the others.
    """
    scheme, *parts = PART.findall(text)
    _known("schemes", scheme, _offered("position"))
    words = [f"position={scheme}"]
    for part in parts:
        choice = part.partition("@")[0]
        groups = [group for group in ("position/rope_scaling", "attention_pattern") if choice in _offered(group)]
        if not groups:
            _known("schemes", choice, [*_offered("position/rope_scaling"), *_offered("attention_pattern")])
        if any(word.startswith(f"{groups[0]}=") for word in words):
            raise UserError(f"E-CFG-31 command line schemes: {text} chooses {groups[0]} twice. Fix: name one")
        try:
            words += variant_words(groups[0], part)
        except ValueError as error:
            raise UserError(
                f"E-CFG-31 command line schemes: {text}: {error}. Fix: e.g. rope:{EXAMPLES[groups[0]]}"
            ) from None
    wants_memory = any(word == "data.order=stream" or word.startswith("position.memory_len=") for word in overrides)
    if not wants_memory and re.search(r"^memory_len:", untrusted_io.read_text(_offered("position")[scheme]), re.M):
        words.append("position.memory_len=0")
    return SchemeRun(re.sub("[:@]", "-", text), words)


def _offered(group: str) -> dict[str, Path]:
    return choices(group, config_dirs())


def _known(key: str, name: str, offered: Iterable[str]) -> None:
    """Raises UserError when there is no such choice."""
    if name not in (names := list(offered)):
        close = nearest(name, names)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the choices are {', '.join(names)}"
        raise UserError(
            f"E-CFG-31 command line {key}: there is no {name!r}; a choice of configs is needed. Fix: {hint}"
        )


def train_all(schemes: list[SchemeRun], root: str, overrides: list[str], config_dirs: tuple[Path, ...]) -> int:
    """Train what is not finished. Returns 0, or the exit code of the first training that failed."""
    refuse_torchrun(": a comparison", "train each scheme with torchrun, then compare them with runs=…")
    jobs = {}
    for item in schemes:
        words = [*overrides, *item.words, f"run.name={item.name}", f"run.root={root}"]
        loaded = load(words, config_dirs)  # every config is checked before the first training starts
        if loaded.config.data.objective.name == "masked_token":
            raise UserError(
                "E-CFG-31 data.objective.name=masked_token: the comparison is made of perplexities, which need a model "
                "that says what comes next. Fix: train each scheme by itself; metrics.jsonl has the held-out losses"
            )
        if not loaded.config.eval.extrapolation.enabled:
            raise UserError(
                "E-CFG-31 eval.extrapolation.enabled=false: the comparison is made of it. Fix: leave it true"
            )
        jobs[item.name] = (words, loaded)
        if "position.memory_len=0" in item.words:
            dist.log(
                f"{item.name}: position.memory_len=0, so that it sees the same shuffled windows as the others "
                "(data.order=stream gives all of them a stream, and it its memory)"
            )
    for number, (name, (words, loaded)) in enumerate(jobs.items(), 1):
        _check_source(Path(root) / name, loaded)
        if finished(Path(root) / name, loaded):
            dist.log(f"[{number}/{len(jobs)}] {name}: finished before")
            continue
        dist.log(f"[{number}/{len(jobs)}] {name}: python -m coca_train {' '.join(words)}")
        code = run_child([sys.executable, "-m", "coca_train", *folder_flags(config_dirs), *words])
        if code:
            changed = f"where it has changed: run.root=<another folder>, or rm -r {Path(root) / name}"
            way = changed if code == CheckpointError.exit_code else "the same command goes on from there"
            dist.log(f"{name} ended with exit code {code}; {way}")
            return code
    return 0


def _check_source(run_dir: Path, loaded: Loaded[Config]) -> None:
    """Raises UserError for a run whose position scheme was another one under the same name: a stub that was filled in
    since, say."""
    from coca_train.checkpoint.record import NAME, made_with, source_key

    key = source_key(loaded.config.position.scheme)
    if not (run_dir / NAME).is_file():
        return
    before = json.loads(untrusted_io.read_text(run_dir / NAME)).get("versions", {}).get(key)
    if before is not None and before != made_with(loaded)[key]:
        raise UserError(
            f"E-CKP-30 {run_dir}: the {key} has changed since this run began, and its weights are of the code of then. "
            f"Fix: rm -r {run_dir}"
        )


def finished(run_dir: Path, loaded: Loaded[Config]) -> bool:
    """Return whether this very configuration has been trained to its last step and its report."""
    from coca_train.training.ending import FORMAT, is_finished

    config = run_dir / "config.yaml"
    # By the text: whatever option has changed, it is another training.
    if not config.exists() or untrusted_io.read_text(config) != loaded.record:
        return False
    return is_finished(run_dir / "report", {"format": FORMAT, "step": resolve(loaded.config)[-1].last_step})


def place(root: Path, models: Sequence[str]) -> Path:
    """Return the folder of a comparison, named by what was compared, so that another one does not overwrite it."""
    return root / "comparisons" / short("-vs-".join(models))


def compare(run_dirs: dict[str, Path], root: Path, command: str) -> None:
    """Check that the runs can be compared, then write the report and the numbers into a folder below `root`."""
    from coca_train.evaluation.comparison import check_comparable, merge_evaluations, read_run, training_facts
    from coca_train.evaluation.perplexity_page import perplexity_text
    from coca_train.evaluation.results import RESULTS, group_seeds
    from coca_train.evaluation.trainings import comparison_page, training_table
    from coca_train.report.render import write_index, write_report
    from coca_train.report.render.plain import terminal_text
    from coca_train.runtime.durable import write_json

    runs = {name: read_run(run_dir) for name, run_dir in run_dirs.items()}
    seeds = group_seeds({name: run.settings for name, run in runs.items()})
    verified, problems = check_comparable(runs, seeds)
    for line in verified:
        dist.log(f"checked   {line}")
    if problems:
        raise DataError(
            f"E-CMP-01 {'; '.join(problems)}; a comparison needs them to be the same. Fix: train these runs anew"
        )
    evaluation = merge_evaluations(runs, seeds, command)
    facts = {name: training_facts(run) for name, run in runs.items()}
    page = comparison_page(evaluation, facts, verified)
    said = {"checks": verified, "runs": facts, "summary": list(page.summary)}
    directory = place(root, list(seeds))
    write_json(directory / RESULTS, {**said, "evaluation": evaluation.to_json()})
    paths = write_report(page, directory)
    write_index(root)
    print(f"\n{perplexity_text(evaluation)}", *page.summary, sep="\n")
    print(f"\n{terminal_text(training_table(facts, evaluation.seeds))}")
    dist.log(f"Report: {paths['report.html']} (tables and figures beside it)")


def _root(overrides: list[str]) -> str:
    """Runs of several experiments do not go on with each other's checkpoints."""
    chosen = [word.partition("=")[2] for word in overrides if word.lstrip("+").startswith("experiment=")]
    return "-".join(["runs/compare", *chosen])


def _compare(loaded: Loaded[CompareConfig], arguments: Arguments) -> int:
    given: CompareConfig = loaded.config
    overrides = arguments.overrides
    root = Path(given.run.root or _root(overrides))
    command = arguments.again(COMPARE.command)
    if refused := [word for word in overrides if word.startswith(OURS)]:
        text = "compare sets this itself, per scheme"
        raise UserError(f"E-CFG-31 command line {refused[0]}: {text}. Fix: omit it")
    if given.runs:
        names = [Path(run).name for run in given.runs]
        if len(set(names)) < len(names):
            raise UserError(
                f"E-RUN-22 command line runs={','.join(given.runs)}: the last parts of the paths name the runs and "
                "must differ. Fix: rename one of the directories"
            )
        compare({Path(run).name: Path(run) for run in given.runs}, root, command)
        return 0
    listed = [entry(scheme, overrides) for scheme in given.schemes]
    # All schemes with one seed, then all with the next: what is there when it is stopped can be compared.
    numbers = range(1, given.seeds + 1)
    schemes = [each.with_seed(number, overrides, arguments.config_dirs) for number in numbers for each in listed]
    if code := train_all(schemes, str(root), overrides, arguments.config_dirs):
        return code
    compare({scheme.name: root / scheme.name for scheme in schemes}, root, command)
    return 0


VERB = Verb(
    COMPARE,
    USAGE,
    _compare,
    flags=(*FLAGS, "--config-dir"),
    resumes_from="from the last checkpoint",
    is_for_training=is_training_override,
)
