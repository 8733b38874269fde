"""Trainings of the atlas that are missing, one process each, several at once, and the trials that they leave."""

import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coca_train.atlas.methods import METHODS, REFERENCE, THETA, VARIANTS, Method, title_of, variants_of
from coca_train.atlas.page import page
from coca_train.atlas.repeats import Repeat, verdict
from coca_train.atlas.study import (
    EXACT,
    SWEEP_SEED,
    Study,
    best_rate,
    evaluations,
    last_losses,
    mean_loss,
    read_trials,
    training_words,
)
from coca_train.atlas.trials import (
    STORED,
    SWEEP,
    Sweep,
    Trial,
    file_name,
    of_protocol,
    others,
    read_all,
    read_sweep,
    write,
    write_sweep,
)
from coca_train.checkpoint.lock import RunLock
from coca_train.checkpoint.record import made_with, source_key
from coca_train.commands._children import Job, run_jobs
from coca_train.commands._training import load
from coca_train.config.load import Loaded
from coca_train.config.messages import nearest
from coca_train.evaluation.configuration import quoted
from coca_train.report.render import write_report
from coca_train.runtime import dist, durable, machine
from coca_train.runtime.errors import CheckpointError, DataError, DivergedError, StorageError, UserError
from coca_train.settings import folder_flags
from coca_train.tracking.records import read_jsonl

if TYPE_CHECKING:
    from coca_train.commands.atlas import AtlasConfig


OF_PROTOCOL = ("lengths", "n_cases", "rates", "sweep_steps")  # options that make another one


@dataclass(frozen=True)
class Work:
    """A training to be done. rate: times the learning rates. steps: None, as the experiment says."""

    method: Method
    seed: int
    rate: float
    steps: int | None


class Runner:
    """Trains what is missing, and keeps trials."""

    def __init__(self, study: Study, config: "AtlasConfig", config_dirs: tuple[Path, ...]) -> None:
        self.study, self.config, self.config_dirs = study, config, config_dirs
        self.root = Path(config.root)
        self.kept = Path(config.trials) if config.trials else self.root / "trials"
        self.at_once = config.jobs or machine.cores()
        own = read_all(self.kept)
        self.trials = of_protocol([*read_all(STORED), *own], study.protocol)
        self.of_others = [trial for trial in own if trial.protocol != study.protocol]
        self.began, self.n_done, self.n_all = time.monotonic(), 0, 0
        self.sources: dict[str, str] = {}  # by method
        self.works: dict[str, Work] = {}  # by the names of their runs
        self.ended = 0  # steps of the trainings that have ended
        self.ahead = 0  # steps of all trainings
        self.first: tuple[float, int] | None = None  # when steps were counted first, and how many there were

    def train(self, methods: Sequence[Method]) -> int:
        """Train every method's sweep and seeds where they are missing; the exit code."""
        seeds = range(1, self.config.seeds + 1)
        missing = [(method, seed) for seed in seeds for method in methods if not self._has(method, seed)]
        waiting = [each for each in methods if any(each == method for method, _ in missing)]
        sweeps = [
            Work(method, SWEEP_SEED, rate, self.study.sweep_steps)
            for method in waiting
            for rate in dict.fromkeys(self.study.rates)
            if rate not in self._swept(method)
        ]
        seeds_of = [Work(method, seed, 1.0, None) for method, seed in missing]  # at rates that sweeps will tell
        self.n_all, self.ahead = len(sweeps) + len(missing), sum(map(self._steps, [*sweeps, *seeds_of]))
        for work in [*sweeps, *seeds_of]:  # every configuration is checked before the first training starts
            self._loaded(work)
        if missing:
            self._keep_other_protocols(missing)
            self._check_place("root", self.root)
            self._check_place("trials", self.kept)
        self._say_what_is_done(methods, missing)
        if code := self._run(sweeps, self._keep_rate, self._keep_diverged):
            return code
        best = {method.name: best_rate(self._swept(method)) for method in waiting}
        for name, rate in best.items():
            dist.log(f"{name}: the seeds are trained with rate {rate:g}, the best of {list(self.study.rates)}")
        return self._run([Work(method, seed, best[method.name], None) for method, seed in missing], self._keep_trials)

    def repeat(self, n: int) -> int:
        """Train stored trials from nothing, and say whether they come out as they were stored (verdict); exit code 4
        where they do not."""
        methods = {each.name: each for each in METHODS}
        drawn = sorted(key for key in self.trials if key[0] in methods and self._has(methods[key[0]], key[1]))
        if not drawn:
            raise UserError(
                "E-ATL-03 atlas again: of the rows of the table, which are drawn from, none has a trial of this "
                "protocol. Fix: train some first: methods=[rope,coca] in place of again"
            )
        work = []
        # Drawn by what is stored: the same command goes on with the same ones.
        for row, seed in random.Random(f"{drawn}").sample(drawn, min(n, len(drawn))):
            work.append(Work(methods[row], seed, self.trials[row, seed].rate, None))
        self.root = self.root / "again"
        self.n_all, self.ahead, repeats = len(work), sum(map(self._steps, work)), list[Repeat]()

        def compare(done: Work) -> None:
            again = {trial.row: trial for trial in self._read(done)}
            stored = {row: self.trials[row, done.seed] for row in again if (row, done.seed) in self.trials}
            repeats.append(Repeat(stored, again))
            dist.log(f"{self._counted(done)}: {repeats[-1]}")

        if code := self._run(work, compare):
            return code
        said, as_stored = verdict(repeats, machine.processor())
        print(*said, sep="\n")
        if as_stored:
            shutil.rmtree(self.root)
        return 0 if as_stored else CheckpointError.exit_code

    def show(self, command: str, methods: Sequence[Method]) -> int:
        """Write the page of all trials, and say its finding and where some methods are in it."""
        if not self.trials:
            words = self._words_of_protocol()
            raise UserError(
                f"E-ATL-01 atlas: neither the package nor {self.kept} has a trial of the protocol of {words}. Fix: "
                "omit these words to see what is stored, or train rows: methods=[rope,coca]"
            )
        if self.of_others:
            dist.log(f"trials of another protocol in {self.kept}, left out: {len(self.of_others)}")
        if self.config.trials and not self.kept.is_dir():
            dist.log(f"trials={self.kept}: there is no such folder; the page is of the stored trials")
        shown = list(self._current().values())
        if apart := others(shown):
            raise DataError(
                f"E-ATL-04 atlas: {'; '.join(apart[:3])}; rows are compared with the same batches and starts. Fix: "
                f"remove the trials in {self.kept} that were made with other data or another version"
            )
        document = page(shown, self.study.rates, command, [each.name for each in methods], self.config.reference)
        print(*document.finding, *document.summary, sep="\n", flush=True)  # pictures take some seconds
        paths = write_report(document, self.root)
        dist.log(f"Report: {paths['report.html']}")
        return 0

    def check_reference(self, methods: Sequence[Method]) -> None:
        """Raise UserError E-CFG-32 where the row that others are compared with is neither stored nor to be trained."""
        if not self.trials and not methods:
            return  # there is no page
        to_be = {each.name for method in methods for each in (method, *variants_of(method.name))}
        rows = sorted({trial.row for trial in self.trials.values()} | to_be | {REFERENCE})
        if (asked := self.config.reference) in rows:
            return
        trained_by = {each.name: each.name for each in METHODS} | {each.name: each.of for each in VARIANTS}
        what = "there is no such row"
        if asked in trained_by:
            what, fix = "it has no trial of this protocol", f"methods=[{trained_by[asked]}], which trains it"
        elif close := [row for row in rows if title_of(row) == asked] or nearest(asked, rows):
            fix = f"did you mean {' or '.join(close)}?"
        else:
            fix = f"one of {', '.join(rows)}"
        raise UserError(f"E-CFG-32 command line reference={asked}: {what}. Fix: {fix}")

    def _words_of_protocol(self) -> str:
        """Return the words that may make another protocol than the stored trials have."""
        usual = type(self.config)()
        values = {name: getattr(self.config, name) for name in OF_PROTOCOL}
        words = [f"{name}={value}" for name, value in values.items() if value != getattr(usual, name)]
        return " ".join([*words, *self.study.words]).replace(", ", ",") or "these files of configuration"

    def _keep_other_protocols(self, missing: Sequence[tuple[Method, int]]) -> None:
        """Raise UserError E-ATL-05 where a training would replace trials of another protocol."""
        to_be = {(each.name, seed) for method, seed in missing for each in (method, *variants_of(method.name))}
        files = [self._file(each) for each in self.of_others if (each.row, each.seed) in to_be]
        for method in dict.fromkeys(method for method, _ in missing):
            sweep = read_sweep(file := self._sweep_file(method, self.kept))
            files += [file] if sweep is not None and sweep.protocol != self.study.protocol else []
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            raise UserError(
                f"E-ATL-05 {files[0]}{more}: of another protocol (another version, other {', '.join(OF_PROTOCOL)}, or "
                "other options that all trainings share), and would be replaced. "
                f"Fix: {'trials' if self.config.trials else 'root'}=<another folder>"
            )

    def _file(self, trial: Trial) -> Path:
        return self.kept / file_name(trial.row, trial.seed)

    @staticmethod
    def _check_place(option: str, folder: Path) -> None:
        """Raise StorageError E-ATL-06 where no file can be made, before there is work that could not be kept."""
        try:
            durable.make_folders(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise StorageError(
                f"E-ATL-06 {option}={folder}: cannot be written ({error.strerror}). Fix: {option}=<another folder>"
            ) from error

    def _has(self, method: Method, seed: int) -> bool:
        """Return whether there is a trial by these words, and of a row of one's own also of this code and these
        settings."""
        trial = self.trials.get((method.name, seed))
        if trial is None or list(trial.words) != list(method.words):
            return False
        if any((each.name, seed) not in self.trials for each in variants_of(method.name)):
            return False
        return method in METHODS or trial.source == self._source(method)

    def _current(self) -> dict[tuple[str, int], Trial]:
        """Return the trials that can be shown: of each row those with the words and the rate of the last one made, and
        of rows of one's own with its code and settings."""
        listed = {each.name for each in (*METHODS, *VARIANTS)}

        def made_of(trial: Trial) -> tuple[object, ...]:
            return list(trial.words), trial.rate, "" if trial.row in listed else trial.source

        last: dict[str, Trial] = {}
        for trial in sorted(self.trials.values(), key=lambda each: each.made_at):
            last[trial.row] = trial
        alike = {key: each for key, each in self.trials.items() if made_of(each) == made_of(last[each.row])}
        for row, seed in self.trials.keys() - alike.keys():
            dist.log(
                f"{row} seed {seed}: left out, it was trained with other options, code or rate than the row's last"
            )
        return alike

    def _source(self, method: Method) -> str:
        """Return a digest of the code of its scheme, and of all settings that files of configuration give it."""
        if method.name not in self.sources:
            loaded = self._loaded(Work(method, 1, 1.0, None))
            code, config = made_with(loaded)[source_key(loaded.config.position.scheme)], loaded.config
            settings = [asdict(config.position), asdict(config.layers), asdict(config.attention_pattern)]
            whole = f"{code} {json.dumps(settings, sort_keys=True, default=str)}"
            self.sources[method.name] = hashlib.sha256(whole.encode()).hexdigest()[:12]
        return self.sources[method.name]

    def _words(self, work: Work) -> list[str]:
        steps = [] if work.steps is None else [f"train.max_steps={work.steps}"]
        return [*training_words(self.study, work.method, work.seed, work.rate), *steps]

    def _loaded(self, work: Work) -> Loaded:
        return load(self._words(work), self.config_dirs)

    def _run_dir(self, work: Work) -> Path:
        # By everything that makes it: another protocol, other words or other code is another folder.
        made_of = f"{self.study.protocol} {self._words(work)} {self._source(work.method)}"
        name = f"{work.method.name}-{work.seed}-{work.rate:g}-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"
        return self.root / "runs" / name

    def _evaluations(self, work: Work) -> dict[str, Path]:
        folder = self._run_dir(work)
        return {axis: folder / "atlas" / axis for axis in evaluations(self.study, work.method)}

    def _job(self, work: Work) -> Job:
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
        works: Sequence[Work],
        keep: Callable[[Work], None],
        lost: Callable[[Work], None] = lambda work: None,
    ) -> int:
        """Do the work. lost: called where a training diverged. Returns the exit code."""
        if not works:
            return 0
        self.works = by_name = {self._run_dir(work).name: work for work in works}
        jobs = [self._job(work) for work in by_name.values()]
        if begun := [self._called(work) for work in works if self._run_dir(work).is_dir()]:
            dist.log(f"continuing {', '.join(begun)}")

        def done(job: Job) -> None:
            self._count(by_name[job.name])
            keep(by_name[job.name])

        def diverged(job: Job) -> None:
            work = by_name[job.name]
            self._count(work)
            dist.log(f"{self._counted(work)}: diverged")
            lost(work)

        ended = {DivergedError.exit_code: diverged}
        with RunLock(self.root, "root"):  # a second command would start the same trainings
            code, failed = run_jobs(jobs, self.at_once, EXACT, done, self._watch, ended)
        if failed is not None:
            dist.log(f"{failed.name} ended with exit code {code}; {failed.log} says why. The same command goes on.")
        elif code:
            dist.log("Stopped; what is done is kept, and the same command goes on with what is missing.")
        return code

    def _watch(self, running: Sequence[Job]) -> None:
        """Say how far everything is."""
        steps = {}
        for job in running:
            records = read_jsonl(self.root / "runs" / job.name / "metrics.jsonl", damaged=True)
            steps[self._called(self.works[job.name])] = max((record["step"] for record in records), default=0)
        now, done = time.monotonic(), self.ended + sum(steps.values())
        self.first = self.first or (now, done)
        left, passed = "", done - self.first[1]
        if passed > 0:  # since it was counted first: what is gone on with has steps of before
            left = f", about {(now - self.first[0]) / 60 / passed * (self.ahead - done):.0f} min left"
        at = "".join(f"; {name} at step {step:,}" for name, step in steps.items())
        dist.log(f"{(now - self.began) / 60:.0f} min{left}: {self.n_done} of {self.n_all} trainings done{at}")

    def _say_what_is_done(self, methods: Sequence[Method], missing: Sequence[tuple[Method, int]]) -> None:
        """Say how much is to be trained, and what takes the place of trials that are there."""
        for method in methods:
            of_it = [seed for each, seed in missing if each == method and (method.name, seed) in self.trials]
            if of_it:
                dist.log(
                    f"{method.name}: {len(of_it)} of its trials in {self.kept} were made with other options or other "
                    "code; they are trained again, and replaced. To keep them: name=<another>"
                )
            if method not in METHODS and not any("theta=" in word for word in method.words):
                self._say_which_base(method)
        if not self.n_all:
            dist.log("Nothing is missing: nothing is trained.")
            return
        dist.log(
            f"{self.n_all} training{'s' * (self.n_all > 1)}, {self.at_once} at once; a line comes every minute, and "
            "after a stop the same command goes on"
        )

    def _say_which_base(self, method: Method) -> None:
        """Say of a row of one's own that its rotations have another base than those of the table."""
        scaling = getattr(self._loaded(Work(method, 1, 1.0, None)).config.position, "rope_scaling", None)
        base = getattr(scaling, "theta", THETA)
        if base != THETA:
            dist.log(
                f"{method.name}: its rotations have base {base:,.0f}, those of the table {THETA}. To have the same: "
                f"position.rope_scaling.theta={THETA}"
            )

    def _steps(self, work: Work) -> int:
        return work.steps or self.study.config.train.max_steps

    def _count(self, work: Work) -> None:
        self.n_done += 1
        self.ended += self._steps(work)

    def _counted(self, work: Work) -> str:
        return f"[{self.n_done}/{self.n_all}] {self._called(work)}"

    @staticmethod
    def _called(work: Work) -> str:
        return f"{work.method.name} {f'rate {work.rate:g}' if work.seed == SWEEP_SEED else f'seed {work.seed}'}"

    # ---- what is kept

    def _read(self, work: Work) -> list[Trial]:
        run = self._run_dir(work)
        source = self._source(work.method)
        return read_trials(self.study, run, self._evaluations(work), work.method, work.seed, work.rate, source)

    def _keep_trials(self, work: Work) -> None:
        own, *variants = self._read(work)
        for trial in (*variants, own):  # its own last: where that is, all are
            write(trial, self.kept)
            self.trials[trial.row, trial.seed] = trial
        n = sum(map(own.has_learned, own.tasks))
        dist.log(f"{self._counted(work)}: learned {n} of {len(own.tasks)} tasks, {own.seconds:.0f} s")

    def _sweep_file(self, method: Method, folder: Path) -> Path:
        return folder / file_name(method.name, SWEEP)

    def _swept(self, method: Method) -> dict[float, Mapping[str, float | None]]:
        """Return the held-out losses of the sweep by rate, as far as it has come."""
        for folder in (self.kept, STORED):
            sweep = read_sweep(self._sweep_file(method, folder))
            if sweep is None or not sweep.is_of(self.study.protocol, method.words):
                continue
            if method in METHODS or sweep.source == self._source(method):
                return dict(sweep.losses)
        return {}

    def _keep_rate(self, work: Work) -> None:
        loss = last_losses(read_jsonl(self._run_dir(work) / "metrics.jsonl"))
        self._keep_loss(work, loss)
        dist.log(f"{self._counted(work)}: held-out loss {mean_loss(loss):.3f}")

    def _keep_diverged(self, work: Work) -> None:
        self._keep_loss(work, {})

    def _keep_loss(self, work: Work, loss: Mapping[str, float | None]) -> None:
        losses = {**self._swept(work.method), work.rate: loss}
        source = self._source(work.method)
        sweep = Sweep(protocol=self.study.protocol, words=work.method.words, source=source, losses=losses)
        write_sweep(sweep, self._sweep_file(work.method, self.kept))
