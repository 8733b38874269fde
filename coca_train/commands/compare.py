"""`python -m coca_train.compare schemes="rope coca alibi kerple_log" [any training override]`: one report.

Trains each scheme in <run.root>/<scheme> (default runs/compare), one after the other, each exactly as
`python -m coca_train position=<scheme> ...` would; the same command goes on where it stopped and skips
what is finished. Then it checks that all saw the same batches and began with the same shared weights,
and writes <run.root>/comparison: report.html (perplexity by window, loss by position, time and memory of
a step), the same as report.md, its tables and figures beside it, and all numbers in results.json.

schemes=    choices of configs/position, with commas or spaces between them. coca:clex is coca with the
            frequencies clex, rope:sliding_window rope with that visibility; run names coca-clex, rope-sliding_window
runs=runs/a,runs/b compares finished runs instead and trains nothing.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coca_train.config.files import choices, config_dir
from coca_train.config.load import Loaded
from coca_train.config.messages import nearest
from coca_train.runtime import dist
from coca_train.runtime.entry import run
from coca_train.runtime.errors import DataError, UserError
from coca_train.schedule import resolve
from coca_train.settings import load

DEFAULT_SCHEMES = "rope,alibi,coca,coca_strict"
DEFAULT_ROOT = "runs/compare"
OURS = ("position=", "run.name=")


@dataclass(frozen=True)
class Request:
    """A command line, sorted. `runs` is set when nothing is to be trained."""

    schemes: list[str]
    runs: list[str]
    root: str
    overrides: list[str]


@dataclass(frozen=True)
class Entry:
    """A scheme of the list: its run's name, and the words of the command line that choose it."""

    name: str
    words: list[str]


def read(argv: list[str]) -> Request:
    """Raises UserError for overrides that this command sets itself, or names given twice."""
    schemes, runs, root, overrides = DEFAULT_SCHEMES, "", DEFAULT_ROOT, []
    for word in argv:
        key, _, value = word.partition("=")
        if key == "schemes":
            schemes = value
        elif key == "runs":
            runs = value
        elif key == "run.root":
            root = value
        elif word.startswith(OURS):
            raise UserError(f"E-CFG-31 command line {word}: compare sets this itself, per scheme. Fix: leave it out")
        elif word != "--debug":
            overrides.append(word)
    request = Request(_names("schemes", schemes, r"[,\s]+"), _names("runs", runs, ","), root, overrides)
    if not (request.schemes if not runs else request.runs):
        raise UserError("E-CFG-31 command line schemes: empty; one or more are needed. Fix: schemes=rope,coca")
    return request


def _names(key: str, text: str, separator: str) -> list[str]:
    names = [name.strip() for name in re.split(separator, text) if name.strip()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"E-CFG-31 command line {key}: {twice[0]} is there twice. Fix: name each once")
    return names


def entry(text: str, overrides: list[str]) -> Entry:
    """Read `scheme` or `scheme:choice`, the choice being frequencies or a visibility. UserError when there is no such.

    A scheme that remembers the segment before needs a stream of text. Unless that is asked for, it gets no
    memory, so that it is trained on the same shuffled windows as the others.
    """
    scheme, *parts = text.split(":")
    _known("schemes", scheme, _offered("position"))
    words = [f"position={scheme}"]
    for part in parts:
        groups = [group for group in ("position/frequencies", "visibility") if part in _offered(group)]
        if not groups:
            _known("schemes", part, [*_offered("position/frequencies"), *_offered("visibility")])
        if any(word.startswith(f"{groups[0]}=") for word in words):
            raise UserError(f"E-CFG-31 command line schemes: {text} chooses {groups[0]} twice. Fix: name one")
        words.append(f"{groups[0]}={part}")
    asked = any(word == "data.order=stream" or word.startswith("position.memory_len=") for word in overrides)
    if not asked and re.search(r"^memory_len:", _offered("position")[scheme].read_text(encoding="utf-8"), re.M):
        words.append("position.memory_len=0")
    return Entry("-".join([scheme, *parts]), words)


def _offered(group: str) -> dict[str, Path]:
    return choices(group, (config_dir(),))


def _known(key: str, name: str, offered: Iterable[str]) -> None:
    """Raises UserError when there is no such choice."""
    if name not in (names := list(offered)):
        close = nearest(name, names)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the choices are {', '.join(names)}"
        raise UserError(
            f"E-CFG-31 command line {key}: there is no {name!r}; a choice of configs is needed. Fix: {hint}"
        )


def train_all(request: Request) -> int:
    """Train what is not finished; 0, or the exit code of the first training that failed."""
    if "RANK" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "E-RUN-23 command line: a comparison starts its trainings itself, it cannot run under torchrun. "
            "Fix: train each scheme with torchrun, then compare them with runs=…"
        )
    jobs = {}
    for item in (entry(scheme, request.overrides) for scheme in request.schemes):
        words = [*request.overrides, *item.words, f"run.name={item.name}", f"run.root={request.root}"]
        loaded = load(words)  # every config is checked before the first training starts
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
        if finished(Path(request.root) / name, loaded):
            dist.log(f"[{number}/{len(jobs)}] {name}: finished before")
            continue
        dist.log(f"[{number}/{len(jobs)}] {name}: python -m coca_train {' '.join(words)}")
        code = run_child([sys.executable, "-m", "coca_train", *words])
        if code:
            dist.log(f"{name} ended with exit code {code}; the same command goes on from there")
            return code
    return 0


def finished(run_dir: Path, loaded: Loaded) -> bool:
    """Whether this very configuration has been trained to its last step and its report."""
    from coca_train.training.ending import FORMAT, is_finished

    config = run_dir / "config.yaml"
    if not config.exists() or config.read_text(encoding="utf-8") != loaded.yaml:
        return False
    return is_finished(run_dir / "report", {"format": FORMAT, "step": resolve(loaded.config)[-1].last_step})


def run_child(command: list[str]) -> int:
    """Run to the end, passing SIGTERM on, so that the child saves; its exit code."""
    child = subprocess.Popen(command)
    before = signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    try:
        while True:
            try:
                code = child.wait()
                return code if code >= 0 else 128 - code  # killed by a signal, as a shell reports it
            except KeyboardInterrupt:  # the terminal has told the child too; it saves and ends
                continue
    finally:
        signal.signal(signal.SIGTERM, before)


def compare(run_dirs: dict[str, Path], directory: Path, command: str) -> None:
    """Check that the runs can be compared, then write the report and the numbers into `directory`."""
    from coca_train.evaluation.comparison import checks, facts_of, read_run, together
    from coca_train.evaluation.pages.comparison import comparison_page, training_table
    from coca_train.evaluation.pages.perplexity import perplexity_text
    from coca_train.evaluation.results import RESULTS
    from coca_train.report.render import write_report
    from coca_train.report.render.terminal import terminal_text
    from coca_train.runtime.durable import write_json

    runs = {name: read_run(run_dir) for name, run_dir in run_dirs.items()}
    verified, problems = checks(runs)
    for line in verified:
        dist.log(f"checked   {line}")
    if problems:
        raise DataError(
            f"E-CMP-01 {'; '.join(problems)}; a comparison needs them to be the same. Fix: train these runs anew"
        )
    evaluation, facts = together(runs, command), {name: facts_of(run) for name, run in runs.items()}
    write_json(directory / RESULTS, {"checks": verified, "runs": facts, "evaluation": evaluation.to_json()})
    paths = write_report(comparison_page(evaluation, facts, verified), directory)
    print(f"\n{perplexity_text(evaluation)}\n{terminal_text(training_table(facts))}")
    dist.log(f"Report: {paths['report.html']} (tables and figures beside it)")


def _main(argv: list[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    request = read(argv)
    directory, command = Path(request.root) / "comparison", shlex.join(["python", "-m", "coca_train.compare", *argv])
    if request.runs:
        names = [Path(run).name for run in request.runs]
        if len(set(names)) < len(names):
            raise UserError(
                f"E-RUN-22 command line runs={','.join(request.runs)}: the last parts of the paths name the runs and "
                "must differ. Fix: rename one of the directories"
            )
        compare({Path(run).name: Path(run) for run in request.runs}, directory, command)
        return 0
    code = train_all(request)
    if code:
        return code
    names = [entry(scheme, request.overrides).name for scheme in request.schemes]
    compare({name: Path(request.root) / name for name in names}, directory, command)
    return 0


if __name__ == "__main__":
    sys.exit(run(_main))
