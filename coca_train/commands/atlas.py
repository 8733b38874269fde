"""Show what position methods let a small model do with its context, and train a row of your own"""

import hashlib
import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.atlas.methods import METHODS, VARIANTS, Method, variants_of
from coca_train.commands._children import Job, refuse_torchrun, run_jobs
from coca_train.commands._training import load
from coca_train.config.arguments import Arguments
from coca_train.config.fields import ChoiceOf, Names
from coca_train.config.files import choices, config_dirs
from coca_train.config.load import Loaded
from coca_train.config.messages import Problem, nearest
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Name, Positive
from coca_train.config.verb import FLAGS, Verb
from coca_train.runtime import dist, machine
from coca_train.runtime.errors import CheckpointError, DataError, DivergedError, UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import TRAIN, folder_flags, is_training_override
from coca_train.tracking.records import read_jsonl

if TYPE_CHECKING:
    from coca_train.atlas.study import Study
    from coca_train.atlas.trials import Trial

ALL = "all"
USAGE = """\
Show what position methods let a small model do with its context, and how far beyond its training: short tasks with
exact answers, learned at 16 to 63 tokens and asked at up to 1,024, by several seeds of every method. Or train a row.

  python -m coca_train atlas                              the page of what is stored; trains nothing
  python -m coca_train atlas scheme=mine                  your scheme's row: its rate, its seeds, its rank
  python -m coca_train atlas scheme=rope position.theta=100 name=rope_100
  python -m coca_train atlas methods=[rope,coca] seeds=3  rows of the table that are not stored yet
  python -m coca_train atlas again=10                     ten stored trials from nothing: are they the same?

A row is trained as +experiment=atlas says: one sweep of learning rates on a seed that is used for nothing else, then
every seed with the best of them. Each finished trial is a small file of <root>/trials, and the same command goes on
with what is missing. All words but the options below are those of a training; those that change what all rows share
(train.max_steps=...) make another protocol, in which nothing is stored yet.
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
    root: str = Field(default="runs/atlas", description="folder of trainings, trials and page")
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
    from coca_train.atlas.study import EXPERIMENT, Study

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
    runner = _Runner(study, config, arguments.config_dirs)
    if config.again:
        return runner.repeat(config.again)
    methods = _chosen(config, own)
    code = runner.train(methods) if methods else 0
    return code or runner.show(arguments.again(ATLAS.command))


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
                f"E-CFG-32 command line scheme={config.scheme}: configs/position has no such choice. Fix: {hint}"
            )
        listed = next((each for each in METHODS if each.name == config.scheme), None)
        if listed is not None and not own and config.name in (None, listed.name):
            return list(dict.fromkeys([*chosen, listed]))
        name = config.name or config.scheme
        if any(each.name == name for each in (*METHODS, *VARIANTS)):
            raise UserError(
                f"E-CFG-31 command line name={name}: is a row of the table, with other words. Fix: name=<another>"
            )
        chosen.append(Method(name, name, (f"position={config.scheme}", *own)))
    return chosen


@plain(frozen=True)
class _Work:
    """A training to be done. rate: times the learning rates. steps: None, as the experiment says."""

    method: Method
    seed: int
    rate: float
    steps: int | None


class _Runner:
    """Trains what is missing, and keeps trials."""

    def __init__(self, study: "Study", config: AtlasConfig, config_dirs: tuple[Path, ...]) -> None:
        from coca_train.atlas.trials import STORED, read_all

        self.study, self.config, self.config_dirs = study, config, config_dirs
        self.root = Path(config.root)
        self.kept = Path(config.trials) if config.trials else self.root / "trials"
        self.at_once = config.jobs or machine.cores()
        self.stored = read_all([STORED], study.protocol)
        self.trials = self.stored | read_all([self.kept], study.protocol)
        self.began, self.n_done, self.n_all = time.monotonic(), 0, 0

    def train(self, methods: Sequence[Method]) -> int:
        """Train every method's sweep and seeds where they are missing; the exit code."""
        from coca_train.atlas.study import SWEEP_SEED, best_rate

        seeds = range(1, self.config.seeds + 1)
        missing = [(method, seed) for seed in seeds for method in methods if not self._has(method, seed)]
        waiting = [each for each in methods if any(each == method for method, _ in missing)]
        sweeps = [
            _Work(method, SWEEP_SEED, rate, self.study.sweep_steps)
            for method in waiting
            for rate in dict.fromkeys(self.study.rates)
            if rate not in self._swept(method)
        ]
        self.n_all = len(sweeps) + len(missing)
        if code := self._run(sweeps, lambda work, seconds: self._keep_rate(work), self._keep_diverged):
            return code
        best = {method.name: best_rate(self._swept(method)) for method in waiting}
        return self._run([_Work(method, seed, best[method.name], None) for method, seed in missing], self._keep_trials)

    def repeat(self, n: int) -> int:
        """Train stored trials from nothing, and say which come out the same; exit code 4 where one does not."""
        methods = {each.name: each for each in METHODS}
        drawn = sorted(key for key in self.trials if key[0] in methods and self._has(methods[key[0]], key[1]))
        if not drawn:
            raise UserError("E-ATL-03 atlas again: nothing is stored of this protocol. Fix: train rows first")
        work = []
        # Drawn by what is stored: the same command goes on with the same ones.
        for row, seed in random.Random(f"{drawn}").sample(drawn, min(n, len(drawn))):
            work.append(_Work(methods[row], seed, self.trials[row, seed].rate, None))
        self.root = self.root / "again"
        self.n_all, other = len(work), set[str]()

        def compare(done: _Work, seconds: float) -> None:
            for trial in self._read(done, seconds):
                before = self.trials.get((trial.row, trial.seed))
                if before is None:
                    continue
                same = trial.result == before.result
                apart = [abs(trial.share(t, n) - before.share(t, n)) for t in trial.tasks for n in trial.lengths]
                said = "the same bits" if same else f"other: shares by up to {max(apart):.3f}"
                dist.log(f"{self._counted(done)}: {trial.row}: {said}")
                if not same:
                    other.add(f"{trial.method} seed {trial.seed}")

        if code := self._run(work, compare):
            return code
        if other:
            dist.log(f"{len(other)} of {len(work)} have other results: {', '.join(sorted(other))}")
        shutil.rmtree(self.root)
        return CheckpointError.exit_code if other else 0

    def show(self, command: str) -> int:
        """Write the page of all trials, and say its finding."""
        from coca_train.atlas.page import page
        from coca_train.atlas.trials import others
        from coca_train.report.render import write_report

        if not self.trials:
            raise UserError(
                f"E-ATL-01 atlas: neither the package nor {self.kept} has a trial of this protocol. Fix: "
                "methods=[rope,coca], which trains them"
            )
        shown = list(self._current().values())
        if apart := others(shown):
            raise DataError(
                f"E-ATL-04 atlas: {'; '.join(apart[:3])}; rows are compared with the same batches and starts. Fix: "
                f"remove the trials in {self.kept} that were made with other data or another version"
            )
        document = page(shown, command)
        paths = write_report(document, self.root)
        print(*document.finding, sep="\n")
        dist.log(f"Report: {paths['report.html']} ")
        return 0

    def _has(self, method: Method, seed: int) -> bool:
        """Return whether there is a trial by these words, and of a row of one's own also by this code."""
        trial = self.trials.get((method.name, seed))
        if trial is None or list(trial.words) != list(method.words):
            return False
        if any((each.name, seed) not in self.trials for each in variants_of(method.name)):
            return False
        return method in METHODS or trial.source == self._source(method)

    def _current(self) -> "dict[tuple[str, int], Trial]":
        """Return the trials that can be shown: of each row those with the words and the rate of the last one made, and
        of rows of one's own with its code."""
        listed = {each.name for each in (*METHODS, *VARIANTS)}

        def made_of(trial: "Trial") -> tuple[object, ...]:
            return list(trial.words), trial.rate, "" if trial.row in listed else trial.source

        last: dict[str, Trial] = {}
        for trial in sorted(self.trials.values(), key=lambda each: each.made_at):
            last[trial.row] = trial
        alike = {key: each for key, each in self.trials.items() if made_of(each) == made_of(last[each.row])}
        for row, seed in self.trials.keys() - alike.keys():
            dist.log(f"{row} seed {seed}: left out, it was trained with other words, code or rate than the row's last")
        return alike

    def _source(self, method: Method) -> str:
        """Return the digest of the code of its scheme."""
        from coca_train.checkpoint.record import made_with, source_key

        loaded = self._loaded(_Work(method, 1, 1.0, None))
        return made_with(loaded)[source_key(loaded.config.position.scheme)]

    def _words(self, work: _Work) -> list[str]:
        from coca_train.atlas.study import training_words

        steps = [] if work.steps is None else [f"train.max_steps={work.steps}"]
        return [*training_words(self.study, work.method, work.seed, work.rate), *steps]

    def _loaded(self, work: _Work) -> Loaded:
        return load(self._words(work), self.config_dirs)

    def _run_dir(self, work: _Work) -> Path:
        # By everything that makes it: another protocol, other words or other code is another folder.
        made_of = f"{self.study.protocol} {self._words(work)} {self._source(work.method)}"
        name = f"{work.method.name}-{work.seed}-{work.rate:g}-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"
        return self.root / "runs" / name

    def _evaluations(self, work: _Work) -> dict[str, Path]:
        from coca_train.atlas.study import evaluations

        folder = self._run_dir(work)
        return {axis: folder / "atlas" / axis for axis in evaluations(self.study, work.method)}

    def _job(self, work: _Work) -> Job:
        from coca_train.atlas.study import evaluations
        from coca_train.evaluation.configuration import quoted

        folder = self._run_dir(work)
        program = [sys.executable, "-m", "coca_train"]
        flags = folder_flags(self.config_dirs)
        root = f"run.root={quoted(str(folder.parent))}"
        commands = [[*program, *flags, *self._words(work), f"run.name={folder.name}", root]]
        if work.steps is None:
            for axis, words in evaluations(self.study, work.method).items():
                place = [f"grid.checkpoints=[{quoted(str(folder))}]", f"work.root={quoted(str(folder / 'atlas'))}"]
                place.append(f"work.name={axis}")
                commands.append([*program, "evaluate", *flags, *words, *place])
        return Job(folder.name, commands, self.root / "logs" / f"{folder.name}.log")

    def _run(
        self,
        works: Sequence[_Work],
        keep: Callable[[_Work, float], None],
        lost: Callable[[_Work], None] = lambda work: None,
    ) -> int:
        """Do the work. lost: called where a training diverged. Returns the exit code."""
        if not works:
            return 0
        for work in works:  # every configuration is checked before the first training starts
            self._loaded(work)
        from coca_train.atlas.study import EXACT

        by_name = {self._run_dir(work).name: work for work in works}
        jobs = [self._job(work) for work in by_name.values()]

        def done(job: Job, seconds: float) -> None:
            self.n_done += 1
            keep(by_name[job.name], seconds)

        def diverged(job: Job) -> None:
            self.n_done += 1
            work = by_name[job.name]
            dist.log(f"{self._counted(work)}, rate {work.rate:g}: diverged")
            lost(work)

        ended = {DivergedError.exit_code: diverged}
        code, failed = run_jobs(jobs, self.at_once, EXACT, done, self._watch, ended)
        if failed is not None:
            dist.log(f"{failed.name} ended with exit code {code}; {failed.log} says why. The same command goes on.")
        return code

    def _watch(self, running: Sequence[Job]) -> None:
        """Say how far everything is."""
        minutes = (time.monotonic() - self.began) / 60
        at = []
        for job in running:
            records = read_jsonl(self.root / "runs" / job.name / "metrics.jsonl", damaged=True)
            step = max((record["step"] for record in records), default=0)
            at.append(f"{job.name.rpartition('-')[0]} at step {step:,}")
        left = f", about {minutes / self.n_done * (self.n_all - self.n_done):.0f} left" if self.n_done else ""
        dist.log(f"{minutes:.0f} min{left}: {self.n_done} of {self.n_all} trainings done; {'; '.join(at)}")

    def _counted(self, work: _Work) -> str:
        return f"[{self.n_done}/{self.n_all}] {work.method.name} seed {work.seed}"

    # ---- what is kept

    def _read(self, work: _Work, seconds: float) -> "list[Trial]":
        from coca_train.atlas.study import read_trials

        run = self._run_dir(work)
        return read_trials(self.study, run, self._evaluations(work), work.method, work.seed, work.rate, seconds)

    def _keep_trials(self, work: _Work, seconds: float) -> None:
        from coca_train.atlas.trials import write

        own, *variants = self._read(work, seconds)
        for trial in (*variants, own):  # its own last: where that is, all are
            write(trial, self.kept)
            self.trials[trial.row, trial.seed] = trial
        n = sum(map(own.has_learned, own.tasks))
        dist.log(f"{self._counted(work)}: learned {n} of {len(own.tasks)} tasks, {seconds:.0f} s")

    def _sweep_file(self, method: Method, folder: Path) -> Path:
        from coca_train.atlas.trials import SWEEP, file_name

        return folder / file_name(method.name, SWEEP)

    def _swept(self, method: Method) -> dict[float, Mapping[str, float | None]]:
        """Return the held-out losses of the sweep by rate, as far as it has come."""
        from coca_train.atlas.trials import STORED, read_sweep

        for folder in (self.kept, STORED):
            sweep = read_sweep(self._sweep_file(method, folder))
            if sweep is None or not sweep.is_of(self.study.protocol, method.words):
                continue
            if method in METHODS or sweep.source == self._source(method):
                return dict(sweep.losses)
        return {}

    def _keep_rate(self, work: _Work) -> None:
        from coca_train.atlas.study import mean_loss, valid_loss

        loss = valid_loss(read_jsonl(self._run_dir(work) / "metrics.jsonl"))
        self._keep_loss(work, loss)
        rate = f"{work.method.name}, rate {work.rate:g}"
        dist.log(f"[{self.n_done}/{self.n_all}] {rate}: held-out loss {mean_loss(loss):.3f}")

    def _keep_diverged(self, work: _Work) -> None:
        self._keep_loss(work, {})

    def _keep_loss(self, work: _Work, loss: Mapping[str, float | None]) -> None:
        from coca_train.atlas.trials import Sweep, write_sweep

        losses = {**self._swept(work.method), work.rate: loss}
        source = self._source(work.method)
        sweep = Sweep(protocol=self.study.protocol, words=work.method.words, source=source, losses=losses)
        write_sweep(sweep, self._sweep_file(work.method, self.kept))


VERB = Verb(
    ATLAS,
    USAGE,
    _atlas,
    foot=FOOT,
    flags=(*FLAGS, "--config-dir"),
    resumes_from="with what is missing; finished trials are kept",
    is_for_training=is_training_override,
)
