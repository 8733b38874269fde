"""An evaluation from its configuration to its report."""

import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path

import torch

from coca_train import __version__
from coca_train.checkpoint.record import versions
from coca_train.config.load import saved_settings
from coca_train.engine import process
from coca_train.evaluation.configuration import CELLS, EvaluateConfig
from coca_train.evaluation.grid import Store, kept_in_reports, run_grid
from coca_train.evaluation.results import RESULTS, Evaluation, Measured, Point, group_seeds
from coca_train.evaluation.subject import Setup, default_config
from coca_train.evaluation.suite import suite_of
from coca_train.evaluation.texts import read_once
from coca_train.hub.weights import open_source
from coca_train.report.blocks import ANSWERED, Table
from coca_train.report.render import write_index, write_report
from coca_train.report.render.plain import terminal_text, verdict_text
from coca_train.runtime import dist
from coca_train.runtime.durable import write_json
from coca_train.runtime.errors import UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.runtime.watchdog import Watchdog


def evaluate(config: EvaluateConfig, command: str) -> Path:
    """Measure the grid, write results.json and the report; the folder they are in. COLLECTIVE.

    Raises UserError and its kin for everything a user can mend, before the first cell is measured where possible;
    E-EVAL-07, when all is written, if not a single cell has a result.
    """
    root, work = Path(config.work.root), config.work
    with Watchdog(work.timeout_s):
        process.start(replace(default_config().engine, kind="local", device=work.device, timeout_s=work.timeout_s))
        # Names and points come before the first model is opened, so that mistakes in them show in seconds.
        names = subject_names(config)
        tokens = lengths(config)
        points = suite_of(config.eval).points(tokens)
        setup = setup_of(config, points, config.grid.checkpoints, enough=by_multiples(config))
        at, kept = ", ".join(map(str, points)), root / CELLS
        dist.log(f"{config.eval.suite}: {', '.join(names)} at {at}; cells are kept in {kept}")
        store = Store(kept, also=kept_in_reports(map(Path, config.grid.checkpoints)))
        subjects, cells = run_grid(config, names, tokens, setup, store)
        evaluation = Evaluation(
            suite=config.eval.suite,
            name=work.name or config.eval.suite,
            settings=asdict(config.eval),
            subjects=tuple(subjects),
            points=points,
            cells=tuple(cells),
            facts=facts(config.eval.suite, work.seed, work.device != "cpu"),
            command=command,
            seeds=seeds_of(subjects),
        )
        directory = root / evaluation.name
        dist.broadcast_from_rank0(lambda: _write(config, evaluation, directory))
        process.stop()
    # Only now that the report is written: it has the reasons.
    if not any(cell.status == "done" for cell in cells):
        raise UserError(
            f"E-EVAL-07 eval={evaluation.name}: no cell could be measured: {evaluation.absences()[0]}. "
            f"Fix: ask for something else; {directory / 'report.html'} has all reasons"
        )
    return directory


def setup_of(config: EvaluateConfig, points: tuple[Point, ...], checkpoints: Sequence[str], enough: bool) -> Setup:
    """Return what all cells share. enough: whether nobody asked for these very lengths (`Setup`)."""
    return Setup(
        points=points,
        texts=read_once(config.text, checkpoints),
        max_documents=config.text.max_documents,
        seed=config.work.seed,
        micro_batch_tokens=config.work.micro_batch_tokens,
        enough=enough,
    )


def _write(config: EvaluateConfig, evaluation: Evaluation[JsonObject], directory: Path) -> None:
    """Write the files; and in the terminal the finding, the answers, the page's first table, its summary, what is
    missing."""
    write_json(directory / RESULTS, evaluation.to_json())
    page = suite_of(config.eval).page(evaluation)
    write_report(page, directory)
    # The folder of evaluations, and those of the runs that were measured.
    runs = [Path(subject.path).parent for subject in evaluation.subjects if subject.kind == "run"]
    for folder in dict.fromkeys([directory.parent, *runs]):
        write_index(folder)
    if page.finding:
        dist.log(f"\n{' '.join(page.finding)}")
    tables = [block for section in page.sections for block in section.blocks if isinstance(block, Table)]
    answers = [table for table in tables if table.name == ANSWERED]
    if page.verdicts and not answers:
        dist.log(f"\n{verdict_text(page.verdicts)}")
    for table in [*answers, *[table for table in tables if table.name != ANSWERED][:1]]:
        dist.log(f"\n{terminal_text(table)}")
    for line in [*page.summary, *(f"not measured: {line}" for line in evaluation.absences())]:
        dist.log(line)


def seeds_of(subjects: Sequence[Measured]) -> dict[str, dict[str, str]]:
    """Return by model, its runs and their seeds: of one training, after as many steps."""
    runs = {each.name: each for each in subjects if each.kind == "run"}
    settings = {
        name: {**saved_settings(Path(run.path) / "config.yaml"), "step": run.step} for name, run in runs.items()
    }
    return group_seeds(settings, [each.name for each in subjects if each.name not in runs])


def subject_names(config: EvaluateConfig) -> list[str]:
    """Return what the report calls the checkpoints. UserError E-EVAL-06 when two would be called the same."""
    names = config.grid.names or [Path(path).resolve().name for path in config.grid.checkpoints]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"E-EVAL-06 grid.checkpoints: two folders are called {twice[0]}; the report needs names that differ. "
            "Fix: grid.names=[one,two]"
        )
    return names


def by_multiples(config: EvaluateConfig) -> bool:
    """Return whether lengths are multiples of a training window."""
    return any(length.endswith("x") for length in config.grid.lengths)


def lengths(config: EvaluateConfig) -> tuple[int, ...]:
    """Return the lengths [tokens], ascending; multiples are of the shortest training window among the checkpoints."""
    shortest = 0
    if by_multiples(config):
        windows = []
        for path in config.grid.checkpoints:
            with open_source(path) as source:
                windows.append(source.architecture.seq_len)
        shortest = min(windows)
    in_tokens = [max(1, int(Fraction(n[:-1]) * shortest)) if n.endswith("x") else int(n) for n in config.grid.lengths]
    return tuple(sorted(set(in_tokens)))


def facts(suite: str, seed: int, on_gpu: bool) -> tuple[tuple[str, str], ...]:
    """Return the label and value of what an evaluation was computed with. on_gpu: where there is one."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() and on_gpu else ""
    commit = versions().get("commit", "unknown")[:12]
    return (
        ("suite", suite),
        ("made with", f"coca_train {__version__}, torch {torch.__version__}, commit {commit}"),
        ("computed on", gpu or f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"),
        ("processes", str(dist.world_size())),
        ("seed", str(seed)),
    )
