"""What a study of the atlas asks: the words of its trainings and evaluations, and trials from what they left."""

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coca_train.atlas.methods import Method, Variant, variants_of
from coca_train.atlas.trials import LEARNED, Answers, Trial, protocol_of
from coca_train.checkpoint.record import versions
from coca_train.config.schema import Config
from coca_train.data.diagnostics import TASKS
from coca_train.evaluation.comparison import parameter_shapes
from coca_train.evaluation.results import RESULTS, AnyRow, Evaluation
from coca_train.hub.weights import open_source
from coca_train.runtime import machine
from coca_train.runtime.durable import read_json
from coca_train.runtime.untrusted_io import JsonObject, read_object
from coca_train.tracking.records import read_jsonl

EXPERIMENT = "+experiment=atlas"
SWEEP_SEED = 1_000_000  # of the sweeps of rates, which no trial has
AXES = ("rope_scalings", "attention_patterns", "logit_scales")
VALID = "valid/"

# One thread and one set of instructions: sums in one order, so that a trial comes out the same on a processor of the
# same make.
EXACT = {
    "OMP_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
}


class Study(NamedTuple):
    """What all trials share. lengths [tokens], the first the trained one. words: of every training, config: what they
    come to without those of a method."""

    lengths: tuple[int, ...]
    n_cases: int
    rates: tuple[float, ...]
    sweep_steps: int
    words: tuple[str, ...]
    config: Config

    @property
    def tasks(self) -> list[str]:
        return [name for name in self.config.data.sources if name in TASKS]

    @property
    def protocol(self) -> str:
        """The digest of what all its trials share."""
        own = {"lengths": self.lengths, "n_cases": self.n_cases, "rates": self.rates, "sweep_steps": self.sweep_steps}
        return protocol_of(self.config, own)


def training_words(study: Study, method: Method, seed: int, rate: float) -> list[str]:
    """Return the words of a training but for its run's name and folder."""
    optim = study.config.optim
    words = [EXPERIMENT, *study.words, *method.words, f"run.seed={seed}", f"data.seed={seed}"]
    if rate != 1:
        words.append(f"optim.lr={optim.lr * rate!r}")
        words += [] if optim.muon.lr is None else [f"optim.muon.lr={optim.muon.lr * rate!r}"]
    return [*words, "eval.extrapolation.enabled=false", "tracking.progress_bar=false"]


def evaluations(study: Study, method: Method) -> dict[str, list[str]]:
    """Return by axis the words of the evaluations of a training, but for its checkpoint and folder."""
    shared = [
        "+eval=diagnostics",
        f"eval.n_cases={study.n_cases}",
        f"eval.tasks=[{','.join(study.tasks)}]",
        f"grid.lengths=[{','.join(map(str, study.lengths))}]",
        "work.progress_bar=false",
    ]
    tried = {axis: [each.choice for each in variants_of(method.name) if each.axis == axis] for axis in AXES}
    asked = {
        axis: [*shared, f"grid.{axis}=[{','.join(['trained', *choices])}]"]
        for axis, choices in tried.items()
        if choices
    }
    return asked or {AXES[0]: shared}


def read_trials(
    study: Study,
    run: Path,
    folders: Mapping[str, Path],
    method: Method,
    seed: int,
    rate: float,
    source: str,
) -> list[Trial]:
    """Return the trial of a training, and those of other rows from its weights. folders: of its evaluations, by name.
    source: the digest of what its row is made of."""
    record, records = read_object(run / "run.json"), read_jsonl(run / "metrics.jsonl")
    shapes = parameter_shapes(run)
    start = {
        f"{name} {'x'.join(map(str, shapes[name]))}": digest[:12] for name, digest in record["init_digests"].items()
    }
    shared = {
        "method": method.name,
        "seed": seed,
        "rate": rate,
        "protocol": study.protocol,
        "source": source,
        "start": start,
        "batches": [each["batch_digest"] for each in records if "batch_digest" in each][-1],
        "weights": weights_digest(run),
        "valid_losses": valid_losses(records),
        "n_parameters": sum(math.prod(shape) for shape in shapes.values()),
        "tokens_per_s": round(speed(records)),
        "seconds": round(training_time(records, study.config.train.global_batch_size * study.config.train.seq_len)),
        "made_with": {**versions(), "processor": machine.processor()},
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    found = {name: Evaluation.from_json(read_json(folder / RESULTS)) for name, folder in folders.items()}
    trials = []
    for axis, evaluation in found.items():
        rows = {row.variant: row for row in evaluation.rows()}
        own, *others = evaluation.subjects[0].variants
        if not trials:
            shared["learned"] = _learned(study, rows.get(own))
            trials.append(_trial(method.name, method.words, rows.get(own), study, shared))
        for variant, label in zip(_of_axis(method, axis), others, strict=True):
            words = [*method.words, f"grid.{axis}=[{variant.choice}]"]
            trials.append(_trial(variant.name, words, rows.get(label), study, shared))
    return trials


def _learned(study: Study, row: AnyRow | None) -> list[str]:
    """Return the tasks that a model has learned. row: of its weights as they were trained."""
    tasks = row.results[study.lengths[0]]["tasks"] if row is not None and study.lengths[0] in row.results else {}
    return [
        task
        for task in study.tasks
        if task in tasks and sum(tasks[task]["right"]) >= LEARNED * sum(tasks[task]["asked"])
    ]


def _of_axis(method: Method, axis: str) -> list[Variant]:
    return [each for each in variants_of(method.name) if each.axis == axis]


def _trial(name: str, words: Sequence[str], row: AnyRow | None, study: Study, shared: JsonObject) -> Trial:
    """Return the trial of a row of an evaluation. row: None where nothing of it could be measured."""
    results = dict(row.results) if row is not None else {}
    measured = list(takewhile(lambda length: length in results, study.lengths))
    tasks = {
        task: Answers(
            right=[sum(results[length]["tasks"][task]["right"]) for length in measured],
            asked=[sum(results[length]["tasks"][task]["asked"]) for length in measured],
            chance=[results[length]["tasks"][task]["chance"] for length in measured],
        )
        for task in study.tasks
    }
    absent = (
        "" if row is None or len(measured) == len(study.lengths) else row.cells[study.lengths[len(measured)]].absence
    )
    return Trial(row=name, words=words, lengths=study.lengths, tasks=tasks, absent=absent, **shared)


def valid_losses(records: Sequence[JsonObject]) -> dict[int, dict[str, float | None]]:
    """Return the held-out losses by step and task [nats per token], None where one was not finite. records: of
    metrics.jsonl."""
    return {
        record["step"]: losses
        for record in records
        if (losses := {key.removeprefix(VALID): value for key, value in record.items() if key.startswith(VALID)})
    }


def last_losses(records: Sequence[JsonObject]) -> dict[str, float | None]:
    """Return the last held-out loss of each task."""
    return {task: loss for losses in valid_losses(records).values() for task, loss in losses.items()}


def speed(records: Sequence[JsonObject]) -> float:
    """Return the tokens per second that a tenth of what a training logged surpasses; 0: nothing is logged. The median
    would be that of the machine's other work, which can only slow it down. records: of metrics.jsonl."""
    each = [record["tokens_per_s"] for record in records if "tokens_per_s" in record]
    return float(np.quantile(each, 0.9)) if each else 0.0


def training_time(records: Sequence[JsonObject], tokens_per_step: int) -> float:
    """Return how long the steps of a training took [s], those before a resumption included. records: of
    metrics.jsonl."""
    seconds, before = 0.0, 0
    for record in records:
        if speed_now := record.get("tokens_per_s"):
            seconds += (record["step"] - before) * tokens_per_step / speed_now
            before = record["step"]
    return seconds


def weights_digest(run: Path) -> str:
    """Return a digest of all trained weights of a run."""
    whole = hashlib.sha256()
    with open_source(str(run)) as source:
        for name in source.names:
            whole.update(name.encode())
            whole.update(source.read(name).contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def mean_loss(losses: Mapping[str, float | None]) -> float:
    """Return the mean over tasks; infinite where one was not finite, or the training diverged."""
    known = [math.inf if loss is None else loss for loss in losses.values()]
    return statistics.fmean(known) if known else math.inf


def best_rate(losses: Mapping[float, Mapping[str, float | None]]) -> float:
    """Return the rate with the lowest held-out loss, the mean over tasks; the lowest of equal ones. losses: by rate."""
    means = {rate: mean_loss(each) for rate, each in losses.items()}
    return min(means, key=lambda rate: (means[rate], rate))
