"""The end of a run: its report with its reach, its training, a sample and two pictures; and what to try next."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from coca_train.checkpoint.manifest import FOLDER, folder_name
from coca_train.checkpoint.manifest import NAME as MANIFEST
from coca_train.config.files import choices, config_dirs
from coca_train.config.schema import Config
from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import Engine
from coca_train.evaluation.configuration import CELLS
from coca_train.evaluation.grid import Progress, Store, on_all_ranks
from coca_train.evaluation.perplexity_page import perplexity_text, reach_parts
from coca_train.evaluation.pipeline import facts
from coca_train.evaluation.results import RESULTS, Evaluation
from coca_train.evaluation.trainings import RunReport, loss_curves, reach_curves, read_probes, run_page
from coca_train.evaluation.variants import after_training
from coca_train.evaluation.verdict import lengths, verdicts
from coca_train.models.generation import check_positions, generate
from coca_train.models.transformer import Transformer
from coca_train.report.blocks import Lines
from coca_train.report.render import write_index, write_report
from coca_train.report.render.pictures import picture
from coca_train.runtime import dist
from coca_train.runtime.durable import read_json, write_bytes, write_json, write_text
from coca_train.runtime.errors import ResourceError, StorageError, UserError
from coca_train.runtime.printing import escaped
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import folder_flags, load
from coca_train.tracking.records import read_jsonl
from coca_train.tracking.trackers import Findings
from coca_train.training.reach import SEED, SETTINGS, Reach

OTHER_SCHEMES = ("rope", "coca")  # a scheme to compare with: the first that is another one
COMPARED_SCHEMES = ("rope", "alibi", "coca", "coca_strict")
# What a comparison chooses itself; the rest of the words (data, experiment, steps) makes it the same training.
CHOSEN = ("position=", "position.", "position/", "run.name=", "run.resume=")

DONE = "done.json"
FORMAT = 6  # of a report; those of other formats are written again
Show = Callable[[int, Findings], None]  # shows the findings of the report on a step


class Finished(NamedTuple):
    """A stage that is trained up to `step`. directory: of its report. held_out: files by source. command: that began
    the run."""

    config: Config
    run_dir: Path
    directory: Path
    tokenizer: Tokenizer
    held_out: Mapping[str, IndexedDataset]
    step: int
    command: str

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return what computed the report."""
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
) -> UserError | None:
    """Write the report on the model at `step` and show it; return why there is none. COLLECTIVE. A finished report is
    not written again; a failed one is logged and stops nothing: the model is saved.

    held_out: files by source. stage: the report is on a stage that others follow, and is written to report/<stage>.
    overrides: of the run's command. show: passes the findings to trackers, on rank 0.
    """
    directory = run_dir / "report" / stage
    mark = {"format": FORMAT, "step": step, "eval": _depends_on(config)}
    if dist.broadcast_from_rank0(lambda: is_finished(directory, mark)):
        dist.log(f"The report on step {step} is there already.")
        return None
    command = shlex.join(["python", "-m", "coca_train", *overrides])
    finished = Finished(config, run_dir, directory, tokenizer, held_out, step, command)
    try:
        report, files = _make(finished, runner)
        # Before the mark: a process that was killed before it showed the findings leaves that to the next.
        dist.broadcast_from_rank0(lambda: show(step, findings(report, stage, files)))
        dist.broadcast_from_rank0(lambda: write_json(directory / DONE, mark))
    except UserError as error:
        dist.log(f"WARNING: no report on step {step}: {error}. The same command tries again")
        return error
    return None


def is_finished(directory: Path, mark: Mapping[str, object]) -> bool:
    """Whether the report in a folder is what `mark` says of it: format, step, settings."""
    try:
        there = read_json(directory / DONE)
        return all(there[key] == value for key, value in mark.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _depends_on(config: Config) -> JsonObject:
    """Return the settings that a report depends on: those of probes during the training are not among them."""
    settings = asdict(config.eval)
    del settings["extrapolation"]["every_steps"], settings["extrapolation"]["probe_documents"]
    return settings


def findings(report: RunReport, stage: str, files: Mapping[str, Path]) -> Findings:
    """Return for trackers the verdicts and the sample in words, and the lengths as numbers [tokens]. files: of the
    report, by their place in its folder."""
    figures = {Path(place).stem: path for place, path in files.items() if re.fullmatch(r"figures/.*\.png", place)}
    if report.evaluation is None:
        said, numbers = [], {}
    else:
        parts = reach_parts(report.evaluation)
        said, numbers = verdicts(report.evaluation, parts), lengths(report.evaluation, parts)
    texts = {"verdict": "\n".join(f"{each.label}: {each.line}" for each in said), "sample": report.sample}
    return Findings(
        stage, figures, {name: text for name, text in texts.items() if text}, numbers, files.get("report.html")
    )


def _make(finished: Finished, runner: Engine) -> tuple[RunReport, Mapping[str, Path]]:
    """Compute and write everything except the mark that the report is done; return the report and its files by their
    place in the folder."""
    options, evaluation, sample = finished.config.eval, None, ""
    if not _predicts(finished.config):
        dist.log("report    no perplexity and no sample: data.objective.name=masked_token")
    with_perplexity = _predicts(finished.config) and options.extrapolation.enabled
    with_sample = _predicts(finished.config) and bool(options.sample_prompt and options.sample_tokens)
    if with_perplexity or with_sample:
        with runner.eval_module() as module:
            assert isinstance(module, Transformer)
            evaluation = evaluate(finished, module) if with_perplexity else None
            if with_sample:
                dist.log(f"report    sample text, {options.sample_tokens} tokens")
                sample = write_sample(finished, module)
    dist.log("report    page and pictures")
    report = RunReport(
        title=f"{finished.config.run.name} ({finished.config.position.scheme}) after {finished.step:,} steps",
        records=dist.broadcast_from_rank0(lambda: read_jsonl(finished.run_dir / "metrics.jsonl")),
        evaluation=evaluation,
        sample=sample,
        facts=finished.facts,
        command=finished.command,
    )
    written = dist.broadcast_from_rank0(lambda: _write(report, finished))
    _show(report)
    return report, written


def _predicts(config: Config) -> bool:
    """Whether the model says what follows a text: else there are no perplexity of it and no sample."""
    return config.data.objective.name == "next_token"


def evaluate(finished: Finished, module: Transformer) -> Evaluation | None:
    """Measure perplexity far beyond the training window; None where nothing can be measured, which is logged."""
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
            Store(finished.directory / CELLS),  # a report that was killed continues where it stopped
            path=str(finished.run_dir),
            step=finished.step,
            weights=dist.broadcast_from_rank0(lambda: read_json(checkpoint / MANIFEST)["digest"]),
        )
    except (StorageError, ResourceError):
        raise  # another try may succeed
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


def write_sample(finished: Finished, module: Transformer) -> str:
    """Generate text after the configured prompt and write both; "" where learned positions or memory are too short,
    which is logged."""
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
    dist.broadcast_from_rank0(lambda: write_text(finished.directory / "sample.txt", text + "\n"))
    return text


def _write(report: RunReport, finished: Finished) -> dict[str, Path]:
    """Write the page in all its forms, whose paths it returns, and two pictures into the run directory."""
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
    """Draw a picture with the run's name in its title."""
    titled = replace(block, title=f"{finished.config.run.name}: {block.title}")
    write_bytes(finished.run_dir / f"{name}.png", picture(titled)["png"])


def _show(report: RunReport) -> None:
    """Log the report: the table, what is missing, the reach while it trained, the sample."""
    if report.evaluation is not None:
        dist.log("\n" + perplexity_text(report.evaluation))
    if report.sample:
        dist.log(f"\nSample (greedy):\n{escaped(report.sample)}\n")  # a model may say anything


# ---- what to try next


def print_summary(config: Config, run_dir: Path, words: Sequence[str], folders: Sequence[Path]) -> None:
    """Log which files the run wrote and what to try next. words, folders: of the command line, see `next_commands`."""
    files, commands = written_files(config, run_dir), next_commands(config, run_dir, words, folders)
    dist.log(f"Done. Everything lies in {run_dir}:\n{files}Try next:\n" + "\n".join(f"  {each}" for each in commands))


def written_files(config: Config, run_dir: Path) -> str:
    """Return a line for each file of a finished run."""
    *before, _ = config.stages
    goes_on = "with a larger train.max_steps" if not before else "with one more stage in the schedule"
    project = config.tracking.wandb_project
    offline = f"wandb sync {shlex.quote(str(run_dir))}/wandb/offline-run-*"
    trackers = {
        "tensorboard": f"curves, figures and settings: tensorboard --logdir {shlex.quote(config.run.root)}",
        "wandb": offline if config.tracking.wandb == "offline" else f"the run is in the project {project} of wandb",
    }
    what = "how far the context reaches" if _predicts(config) else "how the losses fell"
    files = {
        "loss_curve.png": "training and validation loss",
        "reach.png": "perplexity beyond the training window, by training step",
        "report/report.html": f"{what}, in a browser (report.md, tables and figures beside it)",
        **{f"report/{stage}": f"the report on stage {stage}" for stage in before},
        "metrics.jsonl": "every logged step and validation",
        **trackers,
        "config.yaml": "every setting",
        "checkpoints": f"the model; the same command {goes_on} goes on",
    }
    return "".join(f"  {name:26s} {what}\n" for name, what in files.items() if (run_dir / name).exists())


def next_commands(config: Config, run_dir: Path, words: Sequence[str], folders: Sequence[Path] = ()) -> list[str]:
    """Return commands to try on a finished run. A run that began from other weights is not compared with other schemes.

    words: overrides that the run was started with, folders: its --config-dir. Both are repeated where something is
    trained.
    """
    flags = folder_flags(folders)
    same = [word for word in words if not word.lstrip("+~").startswith(CHOSEN)]
    if config.start.path is not None or len(config.stages) > 1:
        others = [["export", f"run={run_dir}", f"to={run_dir}-hf"]] if _predicts(config) else []
    else:
        other = next(scheme for scheme in OTHER_SCHEMES if scheme != config.position.scheme)
        chosen = [f"position={other}", f"run.name={other}"]
        own = [config.position.scheme] if config.position.scheme in choices("position", config_dirs()) else []
        compared = dict.fromkeys([*COMPARED_SCHEMES, *own])
        others = [[*flags, *same, *chosen]]
        if _predicts(config):
            others.append(["compare", f"schemes={','.join(compared)}", *flags, *same])
        # An experiment may set what another scheme does not have.
        # The command line prepares the data of a folder of texts, above this layer: it has already composed.
        others = others if config.data.path is not None or _composes([*same, *chosen], folders) else []
    held_out = any(source.valid_path for source in config.data.sources.values())
    before = "" if config.start.path is None else f"{config.start.path},"  # what the training was for is a comparison
    if _predicts(config):
        shown = [["generate", f"run={run_dir}", f"prompt={config.eval.sample_prompt or 'The'}"]]
        shown += [["evaluate", f"checkpoint={before}{run_dir}"]] if held_out else []
    else:
        shown = [["show", f"run={run_dir}", "step=1"]]
    commands = [
        *shown,
        *others,
        ["--help"],
    ]
    return [shlex.join(["python", "-m", "coca_train", *command]) for command in commands]


def _composes(words: list[str], folders: Sequence[Path]) -> bool:
    try:
        load(words, tuple(folders), launch=False)
    except UserError:
        return False
    return True
