"""`python -m coca_train.compare schemes=rope,alibi,coca,coca_strict [any training override]`: one picture, one table.

Trains each scheme in <run.root>/<scheme> (default runs/compare), one after the other, each exactly as
`python -m coca_train position=<scheme> ...` would; the same command goes on where it stopped and skips
what is finished. Then it checks that all saw the same batches and began with the same shared weights,
and writes comparison.{png,md,json}.

runs=runs/a,runs/b compares finished runs instead and trains nothing.
"""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from coca_train import cli, dist
from coca_train.config.errors import DataError, UserError
from coca_train.config.load import Loaded, load
from coca_train.stages import resolve

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
    request = Request(_names("schemes", schemes), _names("runs", runs), root, overrides)
    if not (request.schemes if not runs else request.runs):
        raise UserError("E-CFG-31 command line schemes: empty; one or more are needed. Fix: schemes=rope,coca")
    return request


def _names(key: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"E-CFG-31 command line {key}: {twice[0]} is there twice. Fix: name each once")
    return names


def train_all(request: Request) -> int:
    """Train what is not finished; 0, or the exit code of the first training that failed."""
    jobs = {}
    for scheme in request.schemes:  # every config is checked before the first training starts
        words = [*request.overrides, f"position={scheme}", f"run.name={scheme}", f"run.root={request.root}"]
        loaded = load(words)
        if not loaded.config.eval.extrapolation.enabled:
            raise UserError(
                "E-CFG-31 eval.extrapolation.enabled=false: the comparison is made of these reports. Fix: leave it true"
            )
        jobs[scheme] = (words, loaded)
    for number, (scheme, (words, loaded)) in enumerate(jobs.items(), 1):
        if finished(Path(request.root) / scheme, loaded):
            dist.log(f"[{number}/{len(jobs)}] {scheme}: finished before")
            continue
        dist.log(f"[{number}/{len(jobs)}] {scheme}: python -m coca_train {' '.join(words)}")
        code = run_child([sys.executable, "-m", "coca_train", *words])
        if code:
            dist.log(f"{scheme} ended with exit code {code}; the same command goes on from there")
            return code
    return 0


def finished(run_dir: Path, loaded: Loaded) -> bool:
    """Whether this very configuration has been trained to its last step and its report."""
    config, done = run_dir / "config.yaml", run_dir / "report" / "done.json"
    if not done.exists() or not config.exists() or config.read_text(encoding="utf-8") != loaded.yaml:
        return False
    return json.loads(done.read_text(encoding="utf-8"))["step"] == sum(
        stage.max_steps for stage in resolve(loaded.config)
    )


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


def compare(run_dirs: dict[str, Path], directory: Path) -> None:
    """Check that the runs can be compared, then table, picture, JSON and Markdown in `directory`."""
    from coca_train.report.comparison import checks, facts_of
    from coca_train.report.pages import read_extrapolation, write_comparison

    results = {}
    for name, run_dir in run_dirs.items():
        path = run_dir / "report" / "extrapolation.json"
        if not path.exists():
            raise UserError(
                f"E-RUN-22 {run_dir}: no extrapolation report; a finished run is needed. Fix: train it first"
            )
        results[name] = read_extrapolation(path)
    verified, problems = checks(run_dirs, results)
    for line in verified:
        dist.log(f"checked   {line}")
    if problems:
        raise DataError(
            f"E-CMP-01 {'; '.join(problems)}; a comparison needs them to be the same. Fix: train these runs anew"
        )
    facts = {name: facts_of(run_dir) for name, run_dir in run_dirs.items()}
    table, paths = write_comparison(results, facts, directory, verified)
    print("\n" + table)
    dist.log(f"picture   {paths['png']}\ntable     {paths['md']}\nnumbers   {paths['json']}")


def _main(argv: list[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    request = read(argv)
    if request.runs:
        names = [Path(run).name for run in request.runs]
        if len(set(names)) < len(names):
            raise UserError(
                f"E-RUN-22 command line runs={','.join(request.runs)}: the last parts of the paths name the runs and "
                "must differ. Fix: rename one of the directories"
            )
        compare({Path(run).name: Path(run) for run in request.runs}, Path(request.root))
        return 0
    code = train_all(request)
    if code:
        return code
    compare({scheme: Path(request.root) / scheme for scheme in request.schemes}, Path(request.root))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(_main))
