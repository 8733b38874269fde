"""What a finished run leaves behind: its report, with its reach, its training and a sample; and two pictures."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from coca_train.checkpoint.manifest import FOLDER, folder_name
from coca_train.checkpoint.manifest import NAME as MANIFEST
from coca_train.config.schema import Config
from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import Engine
from coca_train.evaluation.configuration import CELLS
from coca_train.evaluation.grid import Progress, Store, on_all_ranks
from coca_train.evaluation.perplexity_page import asked, perplexity_text
from coca_train.evaluation.pipeline import facts
from coca_train.evaluation.results import RESULTS, Evaluation
from coca_train.evaluation.trainings import RunReport, loss_curves, reach_curves, read_probes, run_page
from coca_train.evaluation.variants import after_training
from coca_train.evaluation.verdict import lengths, verdicts
from coca_train.models.generation import check_positions, generate
from coca_train.report.blocks import Lines
from coca_train.report.render import write_index, write_report
from coca_train.report.render.pictures import picture
from coca_train.runtime import dist
from coca_train.runtime.durable import read_json, write_bytes, write_json, write_text
from coca_train.runtime.errors import UserError
from coca_train.tracking.trackers import Findings
from coca_train.tracking.writers import read_jsonl
from coca_train.training.reach import SEED, SETTINGS, Reach

DONE = "done.json"
FORMAT = 6  # of a report; those of other formats are made anew
Show = Callable[[int, Findings], None]  # what the report on a step found


class Finished(NamedTuple):
    """A stage that is trained up to `step`. directory: of its report. held_out: files by source. command: how the run
    was begun."""

    config: Config
    run_dir: Path
    directory: Path
    tokenizer: Tokenizer
    held_out: Mapping[str, IndexedDataset]
    step: int
    command: str

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What computed the report."""
        return facts(SETTINGS.suite, SEED, self.config.engine.device != "cpu")


def final_report(
    config: Config,
    run_dir: Path,
    runner: Engine,
    tokenizer: Tokenizer,
    held_out: Mapping[str, IndexedDataset],
    step: int,
    stage: str = "",
    overrides: Sequence[str] = (),
    show: Show = lambda step, findings: None,
) -> None:
    """Write the report on the model at `step` and show it. COLLECTIVE. A finished report is not made again; one that
    cannot be made is said and fails nothing: the model is saved.

    held_out: files by source. stage: the report is on a stage that others follow, and goes to report/<stage>.
    overrides: of the run's command. show: tells trackers, on rank 0.
    """
    directory = run_dir / "report" / stage
    mark = {"format": FORMAT, "step": step, "eval": _depends_on(config)}
    if dist.on_main(lambda: is_finished(directory, mark)):
        dist.log(f"The report on step {step} is there already.")
        return
    command = shlex.join(["python", "-m", "coca_train", *overrides])
    finished = Finished(config, run_dir, directory, tokenizer, held_out, step, command)
    try:
        report, files = _make(finished, runner)
        # Before the mark: what was not shown because the process was killed is shown by the next.
        dist.on_main(lambda: show(step, findings(report, stage, files)))
        dist.on_main(lambda: write_json(directory / DONE, mark))
    except UserError as error:
        dist.log(f"WARNING: no report on step {step}: {error}. The same command tries again")


def is_finished(directory: Path, mark: Mapping[str, Any]) -> bool:
    """Whether the report in a folder is what `mark` says of it: format, step, settings."""
    try:
        there = read_json(directory / DONE)
        return all(there[key] == value for key, value in mark.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _depends_on(config: Config) -> dict[str, Any]:
    """Settings that make another report: those of probes during the training do not."""
    settings = asdict(config.eval)
    del settings["extrapolation"]["every_steps"], settings["extrapolation"]["probe_documents"]
    return settings


def findings(report: RunReport, stage: str, files: Mapping[str, Path]) -> Findings:
    """For trackers: the verdicts and the sample in words, how far it reads as numbers [tokens]. files: of the report,
    by their place in its folder."""
    figures = {Path(place).stem: path for place, path in files.items() if re.fullmatch(r"figures/.*\.png", place)}
    if report.evaluation is None:
        said, numbers = [], {}
    else:
        parts = asked(report.evaluation)
        said, numbers = verdicts(report.evaluation, parts), lengths(report.evaluation, parts)
    texts = {"verdict": "\n".join(f"{each.label}: {each.line}" for each in said), "sample": report.sample}
    return Findings(
        stage, figures, {name: text for name, text in texts.items() if text}, numbers, files.get("report.html")
    )


def _make(finished: Finished, runner: Engine) -> tuple[RunReport, Mapping[str, Path]]:
    """Everything but the mark that it is done; and its files by their place in the folder."""
    options, evaluation, sample = finished.config.eval, None, ""
    with_sample = bool(options.sample_prompt and options.sample_tokens)
    if options.extrapolation.enabled or with_sample:
        with runner.eval_module() as module:
            evaluation = evaluate(finished, module) if options.extrapolation.enabled else None
            if with_sample:
                dist.log(f"report    sample text, {options.sample_tokens} tokens")
                sample = write_sample(finished, module)
    dist.log("report    page and pictures")
    report = RunReport(
        title=f"{finished.config.run.name} ({finished.config.position.scheme}) after {finished.step:,} steps",
        records=dist.on_main(lambda: read_jsonl(finished.run_dir / "metrics.jsonl")),
        evaluation=evaluation,
        sample=sample,
        facts=finished.facts,
        command=finished.command,
    )
    written = dist.on_main(lambda: _write(report, finished))
    _show(report)
    return report, written


def evaluate(finished: Finished, module: Any) -> Evaluation | None:
    """Perplexity far beyond the training window; None where nothing can be measured, which is said."""
    config, options = finished.config, finished.config.eval.extrapolation
    checkpoint = finished.run_dir / FOLDER / folder_name(finished.step)
    dist.log("report    how far the context reaches")
    progress = Progress(config.tracking.progress_bar)
    try:
        windows = sorted(multiple * config.train.seq_len for multiple in options.multiples)
        reach = Reach(
            config, finished.tokenizer, finished.held_out, windows, after_training(config), options.max_documents
        )
        subject, cells = reach.measure(
            module,
            progress,
            Store(finished.directory / CELLS),  # a report that was killed goes on where it stopped
            path=str(finished.run_dir),
            step=finished.step,
            weights=dist.on_main(lambda: read_json(checkpoint / MANIFEST)["digest"]),
        )
    except UserError as error:
        dist.log(f"WARNING: no report of the finished run: {error}")
        return None
    finally:
        progress.close()
    return Evaluation(
        suite=SETTINGS.suite,
        name=config.run.name,
        settings=asdict(SETTINGS),
        subjects=(subject,),
        points=reach.windows,
        cells=tuple(cells),
        facts=finished.facts,
        command=finished.command,
    )


def write_sample(finished: Finished, module: Any) -> str:
    """The prompt and what the model goes on with; "" where learned positions or memory end before, which is said."""
    tokenizer, options = finished.tokenizer, finished.config.eval
    prompt, n_tokens = tokenizer.encode(options.sample_prompt), options.sample_tokens
    try:
        check_positions(module, len(prompt), n_tokens)
        samples, reason = on_all_ranks(lambda: generate(module, prompt, n_tokens, eod=tokenizer.eod))
    except ValueError as error:
        samples, reason = [], str(error)
    if reason:
        dist.log(f"WARNING: no sample, eval.sample_tokens={n_tokens}: {reason}")
        return ""
    text = options.sample_prompt + tokenizer.decode(samples[0])
    dist.on_main(lambda: write_text(finished.directory / "sample.txt", text + "\n"))
    return text


def _write(report: RunReport, finished: Finished) -> dict[str, Path]:
    """The page in all its forms, whose paths it returns, and the two pictures that stand beside the run's files."""
    draw(loss_curves(report.records), finished, "loss_curve")
    if probes := read_probes(report.records):
        draw(reach_curves(probes)[0], finished, "reach")
    results = finished.directory / RESULTS
    if report.evaluation is None:
        results.unlink(missing_ok=True)  # of an earlier step
    else:
        write_json(results, report.evaluation.to_json())
    written = write_report(run_page(report), finished.directory)
    write_index(finished.run_dir.parent)
    return written


def draw(block: Lines, finished: Finished, name: str) -> None:
    """A picture that stands by itself."""
    titled = replace(block, title=f"{finished.config.run.name}: {block.title}")
    write_bytes(finished.run_dir / f"{name}.png", picture(titled)["png"])


def _show(report: RunReport) -> None:
    """The report for the terminal: the table, what is missing, the reach while it trained, the sample."""
    if report.evaluation is not None:
        dist.log("\n" + perplexity_text(report.evaluation))
    if report.sample:
        dist.log(f"\nSample (greedy):\n{report.sample}\n")
