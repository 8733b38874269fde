"""A trial: one training of a method with one seed, and what it answered; a small JSON file that is kept.

Trials of one protocol can be compared: the same sizes, tokens, order of the data, lengths and examples. What is
particular to a trial is in it: the words of its method, its seed, the rate that the sweep chose, digests of what it
began with, saw and became.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from coca_train.config.schema import Config
from coca_train.data.diagnostics import TASKS
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import write_json
from coca_train.runtime.errors import DataError
from coca_train.runtime.untrusted_io import JsonObject

FORMAT = 1
STORED = Path(__file__).parent / "trials"  # the study's, which come with the package
LEARNED = 0.9  # a task is learned, and still works, where this share of its answers is right
GUESSED = 0.5  # a task in which guessing has more than this right beyond the training window has no score
NOT_OF_DATA = ("dir", "tokenizer", "sources", "seed", "placement", "prefetch_steps", "verify_blocks")
VARYING = ("tokens_per_s", "seconds", "made_with", "made_at", "source")  # what a repetition may have another of
SWEEP = "rates"  # of the file of a method's sweep, in place of a seed


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Of one task, by length: tokens of answers that are right, and all; the chance that a guess is right."""

    right: Sequence[int]
    asked: Sequence[int]
    chance: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is kept of a training, of its weights under one variant.

    row: its row of the atlas; method: the one that was trained. rate: times the protocol's learning rates. protocol,
    source, start, batches, weights: digests of what all trials share, of the position scheme's code and settings, of
    each initial parameter, of the last batch logged, of the trained weights. lengths [tokens]; tasks: by name, of the
    lengths that could be measured. learned: the tasks of which the weights, as they were trained, answer LEARNED at
    the trained length. absent: why longer lengths could not be measured. valid_losses [nats per token]: held out at
    the trained lengths, by step and task. tokens_per_s: of a training step (study.speed). seconds: of all steps of
    the training. made_at: when, ISO 8601.
    """

    row: str
    method: str
    words: Sequence[str]
    seed: int
    rate: float
    protocol: str
    source: str
    start: Mapping[str, str]
    batches: str
    weights: str
    lengths: Sequence[int]
    tasks: Mapping[str, Answers]
    learned: Sequence[str]
    absent: str
    valid_losses: Mapping[int, Mapping[str, float | None]]
    n_parameters: int
    tokens_per_s: float
    seconds: float
    made_with: Mapping[str, str]
    made_at: str = ""

    @property
    def processor(self) -> str:
        """The CPU's model that it was trained on."""
        return self.made_with.get("processor", "unknown")

    def share(self, task: str, length: int) -> float:
        """Return the share of right answers; 0 where the model cannot read so far."""
        of_task, at = self.tasks[task], self.lengths.index(length)
        return of_task.right[at] / of_task.asked[at] if at < len(of_task.asked) else 0.0

    def has_learned(self, task: str) -> bool:
        return task in self.learned

    def works_to(self, task: str) -> int:
        """Return the longest length up to which, as at all before, the share is that of a learned task; 0: none."""
        longest = 0
        for length in self.lengths:
            if self.share(task, length) < LEARNED:
                break
            longest = length
        return longest

    def score(self, task: str) -> float:
        """Return how much is left beyond the training window: the mean over the longer lengths of the share of right
        answers, scaled so that guessing, or no answer, is 0 and all right is 1; below 0 it is worse than guessing. NaN
        where the task is not learned."""
        if not self.has_learned(task):
            return float("nan")
        chance = self.tasks[task].chance
        guessed = [chance[at] if at < len(chance) else 0.0 for at in range(len(self.lengths))]
        beyond = [
            (self.share(task, length) - guess) / (1 - guess)
            for length, guess in list(zip(self.lengths, guessed, strict=True))[1:]
        ]
        return float(np.mean(beyond))

    @cached_property
    def result(self) -> JsonObject:
        """What a repetition must give again: everything but its time and what it was made with."""
        known = {key: value for key, value in asdict(self).items() if key not in VARYING}
        return json.loads(json.dumps(known))


def chances(trials: Iterable[Trial], task: str) -> Sequence[float]:
    """Return by length the share of answers of a task that guessing gets right."""
    return max((trial.tasks[task].chance for trial in trials), key=len)


def scored(trials: Collection[Trial]) -> list[str]:
    """Return the tasks that have scores: where guessing is often right, hardly anything is left to be better in."""
    return [task for task in next(iter(trials)).tasks if max(chances(trials, task)[1:], default=0.0) <= GUESSED]


def others(trials: Iterable[Trial]) -> list[str]:
    """Return what keeps trials from being compared, in words: of one seed, other batches, or another start of a
    parameter that both have."""
    found, batches, starts = [], dict[int, Trial](), dict[tuple[int, str], tuple[str, str]]()
    for trial in trials:
        first = batches.setdefault(trial.seed, trial)
        if trial.batches != first.batches:
            found.append(f"{trial.row} seed {trial.seed} saw other batches than {first.row}")
        for name, digest in trial.start.items():
            row, known = starts.setdefault((trial.seed, name), (trial.row, digest))
            if digest != known:
                found.append(f"{trial.row} seed {trial.seed} began with another {name.split()[0]} than {row}")
                break
    return found


def write(trial: Trial, folder: Path) -> Path:
    """Write a trial into its file, whole or not at all; return it."""
    path = folder / file_name(trial.row, trial.seed)
    write_json(path, {"format": FORMAT, **asdict(trial)})
    return path


def file_name(row: str, seed: int | str) -> str:
    return f"{row}.{seed}.json"


def read(path: Path) -> Trial:
    """Read a trial. Raises DataError E-ATL-02 for a file that is none."""
    try:
        data = untrusted_io.read_object(path)
        if data.pop("format") != FORMAT:
            raise ValueError("another format")
        return _check(TypeAdapter(Trial).validate_python(data, strict=False))
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, error) from error


def _check(trial: Trial) -> Trial:
    """Raises ValueError for a trial whose parts do not fit together."""
    for task, each in trial.tasks.items():
        n = len(each.asked)
        if task not in TASKS or not len(each.right) == len(each.chance) == n <= len(trial.lengths):
            raise ValueError(f"answers of {task} that do not fit {len(trial.lengths)} lengths")
        if not all(0 <= right <= asked and asked > 0 for right, asked in zip(each.right, each.asked, strict=True)):
            raise ValueError(f"answers of {task} that cannot be")
        if not all(0 <= chance < 1 for chance in each.chance):
            raise ValueError(f"chances of {task} that cannot be")
    if not trial.tasks or not trial.lengths or not set(trial.learned) <= set(trial.tasks):
        raise ValueError("no tasks, no lengths, or tasks learned that were not asked")
    return trial


def read_all(folder: Path) -> list[Trial]:
    """Return the trials of a folder, of whatever protocol; files with other names are no trials."""
    return [read(path) for path in sorted(folder.glob("*.*.json")) if path.name.split(".")[-2].isdecimal()]


def of_protocol(trials: Iterable[Trial], protocol: str) -> dict[tuple[str, int], Trial]:
    """Return the trials of a protocol by row and seed; of two the last."""
    return {(trial.row, trial.seed): trial for trial in trials if trial.protocol == protocol}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A method's sweep of learning rates. losses: by rate, held out, by task [nats per token]; nothing of a rate that
    diverged."""

    protocol: str
    words: Sequence[str]
    source: str
    losses: Mapping[float, Mapping[str, float | None]]

    def is_of(self, protocol: str, words: Sequence[str]) -> bool:
        return self.protocol == protocol and list(self.words) == list(words)


def write_sweep(sweep: Sweep, path: Path) -> None:
    losses = {repr(rate): dict(loss) for rate, loss in sorted(sweep.losses.items())}
    write_json(path, {"format": FORMAT, **asdict(sweep), "losses": losses})


def read_sweep(path: Path) -> Sweep | None:
    """Return a sweep; None where there is no file. Raises DataError E-ATL-02 for a file that is none."""
    if not path.is_file():
        return None
    try:
        data = untrusted_io.read_object(path)
        if data.pop("format") != FORMAT:
            raise ValueError("another format")
        return TypeAdapter(Sweep).validate_python(data, strict=False)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataError:
    what = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
    return DataError(
        f"E-ATL-02 {path}: is not a trial of this version ({what}). Fix: move it to another folder; what is then "
        "missing is trained by the command that made it"
    )


def protocol_of(config: Config, settings: Mapping[str, object]) -> str:
    """Return the digest of what all trials share: whatever differs from its default in the sections that decide what
    is learned, so that an option that comes later changes none. What the corpus is, batches tell (`others`).

    config: of a training without the words of a method. settings: the study's own, such as its lengths.
    """
    data = {key: value for key, value in _chosen(config.data).items() if key not in NOT_OF_DATA}
    shared = {
        "settings": dict(settings),
        "model": _chosen(config.model),
        "optim": _chosen(config.optim),
        "train": _chosen(config.train),
        "dtype": config.engine.dtype,
        "data": data,
        "sources": {name: source.weight for name, source in config.data.sources.items()},
        "validation": config.eval.max_tokens,
    }
    return hashlib.sha256(json.dumps(shared, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _chosen(section: Any) -> JsonObject:
    """Return the options of a section that differ from their defaults."""
    values = ((each, getattr(section, each.name)) for each in fields(section))
    chosen = {each.name: value for each, value in values if value != _default(each)}
    return {name: _chosen(value) if is_dataclass(value) else value for name, value in chosen.items()}


def _default(option: Field) -> object:
    value = option.default
    value = getattr(value, "default", value)  # pydantic's description around it
    return value() if callable(value) else value
