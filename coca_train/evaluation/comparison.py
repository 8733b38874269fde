"""Check that finished runs can be compared fairly, by what they recorded, and merge their evaluations."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from coca_train.checkpoint.recovery import newest
from coca_train.checkpoint.weights import Stored
from coca_train.config.load import saved_settings
from coca_train.evaluation.measures.perplexity import ByText
from coca_train.evaluation.perplexity_page import sources_of
from coca_train.evaluation.results import RESULTS, Evaluation, Point
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import read_json
from coca_train.runtime.errors import DataError, UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.tracking.records import read_jsonl

LAST_SHARE = 0.1  # of the logged steps, for the training loss shown
MAY_DIFFER = ("position", "attention_pattern", "run")
FILES = ("config.yaml", "run.json", "metrics.jsonl")

Seeds = Mapping[str, Mapping[str, str]]  # by model, its runs and the seed of each


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """What a finished run recorded about itself."""

    directory: Path
    settings: JsonObject  # config.yaml
    init_digests: dict[str, str]  # of the initial weights, by name
    shapes: dict[str, tuple[int, ...]]  # of the parameters, by name
    records: list[JsonObject]  # metrics.jsonl
    evaluation: Evaluation[ByText]  # of its report

    @property
    def batch_digests(self) -> dict[int, str]:
        """Of the global batches, by logged step."""
        return {r["step"]: r["batch_digest"] for r in self.records if "batch_digest" in r}


def read_run(directory: Path) -> FinishedRun:
    """Read what a finished run recorded. Raises UserError (unfinished, not a run) or DataError (damaged); both name the
    file."""
    present = {name: (directory / name).is_file() for name in FILES}
    present["checkpoints/step-*"] = any((directory / "checkpoints").glob("step-*"))
    present[f"report/{RESULTS}"] = (directory / "report" / RESULTS).is_file()
    missing = [name for name, there in present.items() if not there]
    if missing == [f"report/{RESULTS}"] and (directory / "report" / "done.json").is_file():
        data = saved_settings(directory / "config.yaml").get("data")
        if isinstance(data, dict) and (data.get("objective") or {}).get("name") == "masked_token":
            raise UserError(
                f"E-RUN-22 {directory}: predicts hidden tokens, and a comparison is made of perplexities. Fix: compare "
                "the held-out losses of metrics.jsonl"
            )
        raise UserError(
            f"E-RUN-22 {directory}: finished without perplexities by window, which a comparison is made of; its "
            "eval.extrapolation was off, or there was no text, or another version of coca_train wrote its report. "
            "Fix: eval.extrapolation.enabled=true, and start its command again"
        )
    if missing:
        raise UserError(f"E-RUN-22 {directory}: no {missing[0]}; a finished run is needed. Fix: train it first")
    evaluation = _read_evaluation(directory / "report" / RESULTS)
    try:
        return FinishedRun(
            directory=directory,
            settings=saved_settings(directory / "config.yaml"),
            init_digests=dict(untrusted_io.read_object(directory / "run.json")["init_digests"]),
            shapes=parameter_shapes(directory),
            records=read_jsonl(directory / "metrics.jsonl"),
            evaluation=evaluation,
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        what = str(error).splitlines()[0] if str(error) else ""
        raise DataError(
            f"E-RUN-24 {directory}: its record cannot be read ({type(error).__name__}: {what}); a comparison needs "
            f"{', '.join(FILES)} and a checkpoint. Fix: restore the files, or train the run again"
        ) from error


def _read_evaluation(path: Path) -> Evaluation[ByText]:
    try:
        evaluation = Evaluation.from_json(read_json(path))
        for text in (text for cell in evaluation.cells if cell.result for text in cell.result["sources"].values()):
            _ = text["by_document"], text["predictions"]  # what models are compared by
        return evaluation
    except OSError as error:
        raise DataError(
            f"E-REPORT-02 report {path}: cannot be read ({error.strerror or error}). Fix: restore it, or start the "
            "run's own command again where it is missing"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"E-REPORT-02 report {path}: not an evaluation of this version of coca_train "
            f"({type(error).__name__}: {error}). Fix: delete it and done.json next to it, and start the run's own "
            "command again, which writes the report"
        ) from error


def parameter_shapes(run_dir: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a run's parameters, from the headers of its newest checkpoint."""
    last = newest(run_dir, None)
    if last is None:
        raise ValueError("none of its checkpoints has a manifest that can be trusted")
    with Stored(last, verified=()) as stored:
        return {name.removeprefix("model/"): shape for name, shape in stored.spec.items() if name.startswith("model/")}


def check_comparable(runs: Mapping[str, FinishedRun], seeds: Seeds) -> tuple[list[str], list[str]]:
    """Return what was verified to be the same for one seed of every model, and what is not, in words."""
    line, wrong = same_seeds(runs, seeds)
    found = [same_text(runs)] + [(line, wrong)] * (wrong or len(runs) > len(seeds))
    for seed in dict.fromkeys(seed for known in seeds.values() for seed in known.values()):
        same = {run: runs[run] for known in seeds.values() for run in known if known[run] == seed}
        of = f" (seed {seed})" if len(runs) > len(same) else ""
        each = (same_settings(same), same_batches(same), same_initial_weights(same))
        found += [(f"{line}{of}", wrong) for line, wrong in each]
    verified, problems = ([line for line, wrong in found if wrong == kind] for kind in (False, True))
    return verified, problems


def same_seeds(runs: Mapping[str, FinishedRun], seeds: Seeds) -> tuple[str, bool]:
    """Check that every model has the same seeds, and that those of a model are trainings of their own: one that is
    there twice would make seeds look alike."""
    first_model, first = next(iter(seeds.items()))
    for model, known in seeds.items():
        if set(known.values()) != set(first.values()):
            trained = [
                f"{name} with {', '.join(each.values())}" for name, each in ((first_model, first), (model, known))
            ]
            return f"seeds: {' and '.join(trained)} are not the same", True
        seen: dict[str, str] = {}
        for run in known:
            begun = json.dumps([runs[run].init_digests, runs[run].batch_digests], sort_keys=True)
            if begun in seen:
                return f"seeds: {seen[begun]} and {run} are the same training of {model}", True
            seen[begun] = run
    return f"seeds: each model with {', '.join(first.values())}", False


def same_settings(runs: Mapping[str, FinishedRun]) -> tuple[str, bool]:
    """Compare every setting but position scheme, attention pattern and the run's name; the seed of the weights too."""
    trees = {}
    for name, run in runs.items():
        seed = run.settings.get("run", {}).get("seed")
        trees[name] = {key: value for key, value in run.settings.items() if key not in MAY_DIFFER} | {"seed": seed}
    first_name, first = next(iter(trees.items()))
    for name, tree in trees.items():
        for section in first.keys() | tree.keys():
            if first.get(section) != tree.get(section):
                return f"settings: section {section} of {first_name} and {name} differ", True
    seen = {json.dumps(run.settings.get("attention_pattern"), sort_keys=True) for run in runs.values()}
    exceptions = "the position scheme" + (" and the attention pattern" if len(seen) > 1 else "")
    return f"settings: the same for {', '.join(trees)}, but for {exceptions}", False


def same_batches(runs: Mapping[str, FinishedRun]) -> tuple[str, bool]:
    """Compare the digests of the global batches at every step that was logged, and the number of steps."""
    digests = {name: run.batch_digests for name, run in runs.items()}
    first_name, first = next(iter(digests.items()))
    if not first:
        return f"data order: {first_name} recorded no batch digests", True
    for name, mine in digests.items():
        if not mine or max(mine) != max(first):
            return f"data order: {first_name} and {name} ended at different steps", True
        for step in mine.keys() & first.keys():  # a resumed run logs its first step too
            if mine[step] != first[step]:
                return f"data order: {first_name} and {name} saw other batches at step {step}", True
    common = set.intersection(*(set(mine) for mine in digests.values()))
    return f"data order: identical batches at all {len(common)} common logged steps, the last one {max(first)}", False


def same_initial_weights(runs: Mapping[str, FinishedRun]) -> tuple[str, bool]:
    """Check that parameters that all runs have in one shape began with the same values."""
    digests = {name: run.init_digests for name, run in runs.items()}
    first_name, first = next(iter(digests.items()))
    everywhere = [name for name in first if all(name in other for other in digests.values())]
    # Of another shape is another parameter: with t_width=half CoCA's key projection has half the rows.
    shared = [name for name in everywhere if len({run.shapes.get(name) for run in runs.values()}) == 1]
    for parameter in shared:
        for run, mine in digests.items():
            if mine[parameter] != first[parameter]:
                return f"initial weights: {parameter} of {first_name} and {run} differ", True
    total = len({name for other in digests.values() for name in other})
    own = sorted({module_of(name) for other in digests.values() for name in other if name not in shared})
    rest = f"; not shared, because of another shape or only in some: {', '.join(own)}" if own else ""
    return f"initial weights: identical for {len(shared)} of {total} parameters{rest}", not shared


def module_of(parameter: str) -> str:
    """Return what a parameter belongs to, in a word: its module (blocks.0.attention.k.weight: k), or `position`."""
    parts = parameter.split(".")
    return "position" if "position" in parts else parts[-2]


def same_text(runs: Mapping[str, FinishedRun]) -> tuple[str, bool]:
    """Compare windows, definition, and how much of each text was scored; a window without a result must have a
    reason."""
    first_name, first = next(iter(runs.items()))
    seen: dict[tuple[str, Point], tuple[object, ...]] = {}
    for name, run in runs.items():
        mine, theirs = run.evaluation, first.evaluation
        if (mine.points, mine.settings, sources_of(mine)) != (theirs.points, theirs.settings, sources_of(theirs)):
            return f"held-out text: {first_name} and {name} were scored on other windows or texts", True
        for cell in mine.cells:
            for source, text in cell.result["sources"].items() if cell.result else ():
                scored = (text["n_documents"], text["n_tokens"], text["n_bytes"], text["predictions"])
                if seen.setdefault((source, cell.point), scored) != scored:
                    return f"held-out text: {name} and those before it were scored on other tokens", True
        for subject in mine.subjects:
            for variant, point in product(subject.variants, mine.points):
                if mine.find(subject.name, variant, point) is None:
                    return f"held-out text: {name} has no result for {variant} at window {point}", True
    return "held-out text: the same windows, stride, documents and tokens", False


def merge_evaluations(runs: Mapping[str, FinishedRun], seeds: Seeds, command: str) -> Evaluation[ByText]:
    """Return the evaluations of comparable runs as one, each run under its name in the comparison."""
    first = next(iter(runs.values())).evaluation
    return replace(
        first,
        name=", ".join(runs),
        subjects=tuple(replace(s, name=name) for name, run in runs.items() for s in run.evaluation.subjects),
        cells=tuple(replace(c, subject=name) for name, run in runs.items() for c in run.evaluation.cells),
        command=command,
        seeds=seeds,
    )


def training_facts(run: FinishedRun) -> JsonObject:
    """Return numbers of a training.

    parameters; loss: mean over the last tenth of the logged steps [nats per token]; valid/*: the last;
    tokens_per_s: median over the logged steps; ms_per_step: the same as time of an optimizer step;
    peak_memory_mib: the largest, of rank 0. None for what was not recorded.
    """
    losses = [r["loss"] for r in run.records if r.get("loss") is not None]
    speeds = sorted(r["tokens_per_s"] for r in run.records if r.get("tokens_per_s") is not None)
    peaks = [r["peak_memory_mib"] for r in run.records if r.get("peak_memory_mib") is not None]
    last = losses[-max(1, round(len(losses) * LAST_SHARE)) :]
    train = run.settings["train"]
    speed = speeds[len(speeds) // 2] if speeds else None
    facts: JsonObject = {
        "run_dir": str(run.directory),
        "parameters": sum(math.prod(shape) for shape in run.shapes.values()),
        "loss": sum(last) / len(last) if last else None,
        "tokens_per_s": speed,
        "ms_per_step": 1000 * train["seq_len"] * train["global_batch_size"] / speed if speed else None,
        "peak_memory_mib": max(peaks, default=None),
    }
    for record in run.records:
        facts |= {key: value for key, value in record.items() if key.startswith("valid/")}
    return facts
