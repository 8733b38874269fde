"""The search for the factors that extend a trained model's context (LongRoPE, arXiv 2402.13753, section 3.3; LongRoPE2,
arXiv 2502.20082), by evolution: a factor for every pair.

In each round the best half has children by mutation (every factor is drawn again with probability 0.3) and by crossover
(every factor is that of one of two parents), and the best of all are the next population. Children are sorted, where
the papers draw until none falls. What a candidate is, and what comes first, says factor_spaces.py; what it is judged
by, factor_objectives.py: LongRoPE by the loss of texts, LongRoPE2 by that of needles hidden in them.

Every measured candidate is written down at once, and what is drawn follows from the seed, the round and those losses: a
search that is killed goes on as if it had not been. The best one is then compared with YaRN by both losses, on texts
that the search did not see.
"""

import hashlib
import json
import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from coca_train.checkpoint import RunLock
from coca_train.checkpoint.opening import TrainedRun, load_run
from coca_train.config.choice import Selection
from coca_train.evaluation.configuration import ExtendConfig
from coca_train.evaluation.factor_objectives import (
    Judge,
    NoRoomError,
    needle_rows,
    read_documents,
    text_rows,
    tokenizer_of,
)
from coca_train.evaluation.factor_spaces import SPACES, Candidate, Space
from coca_train.models.generation import require_causal
from coca_train.positions import rotary, scaling_of
from coca_train.positions.rope_scaling import RopeScaling
from coca_train.runtime import dist, durable, untrusted_io
from coca_train.runtime.errors import StorageError, UserError
from coca_train.statistics.intervals import student

SCORES, CHOICE = "scores.jsonl", "position/rope_scaling/searched.yaml"
CONFIDENCE = 0.95
TITLES = {"longrope": "LongRoPE", "longrope2": "LongRoPE2"}
OBJECTIVES = {"longrope": "texts", "longrope2": "needles"}  # what a method judges by


class Scores:
    """The losses of all candidates so far [nats/token], in a file with a line for each."""

    def __init__(self, path: Path, asked: dict[str, object]) -> None:
        """Read what is there. Raises UserError E-EXT-02 where it is of another search, StorageError E-EXT-03."""
        self._path, self.known = path, dict[Candidate, float]()
        first = json.dumps(asked, sort_keys=True).encode()
        try:
            lines = list(untrusted_io.lines(path)) if os.path.lexists(path) else []
            if lines and lines[0].strip() != first:
                raise UserError(
                    f"E-EXT-02 {path}: is of another search (another run, method, text, length or option). "
                    "Fix: to=<another folder>"
                )
            for line in lines[1:]:
                if (entry := _entry(line)) is not None:  # a last line that a crash has cut is measured again
                    self.known[entry[0]] = entry[1]
            durable.replace(path, b"".join([first + b"\n", *(_line(*each) for each in self.known.items())]))
        except OSError as error:
            raise _storage(path, error) from error

    def add(self, candidate: Candidate, nll: float) -> None:
        """Write a candidate down, on the disk before this returns."""
        self.known[candidate] = nll
        try:
            with open(self._path, "ab") as file:
                file.write(_line(candidate, nll))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _storage(self._path, error) from error


def _storage(path: Path, error: OSError) -> StorageError:
    return StorageError(f"E-EXT-03 {path}: cannot be read or written ({error.strerror}). Fix: to=<a folder that can>")


def _line(candidate: Candidate, nll: float) -> bytes:
    return json.dumps({**candidate._asdict(), "nll": nll}).encode() + b"\n"


def _entry(line: bytes) -> tuple[Candidate, float] | None:
    try:
        entry = untrusted_io.from_json(line)
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    critical, factors, nll = (entry.get(key) for key in ("critical", "factors", "nll"))
    if not isinstance(critical, int) or not isinstance(factors, list) or not isinstance(nll, float):
        return None
    return (Candidate(critical, tuple(factors)), nll) if all(type(each) is int for each in factors) else None


def search(given: ExtendConfig) -> Path:
    """Search, going on where an earlier search in the folder stopped; return the file of the choice that it wrote.

    Raises UserError E-EXT-01 for a run without frequencies or a length within its window, E-EXT-06 for one without room
    for a needle, DataError E-EVAL-05 without text that is long enough, and what loading a run raises.
    """
    run = load_run(given.run, given.device)
    require_causal(run.model, f"run={given.run}")
    space = _space(run, given)
    judges, others = _judges(run, given)
    to = Path(given.to or Path(given.run) / f"{given.method}-{given.length}")
    try:
        durable.make_folders(to)
    except OSError as error:
        raise _storage(to, error) from error
    with RunLock(to, "to"):
        judge, confirming = (each[OBJECTIVES[given.method]] for each in (judges, others))
        scores = Scores(to / SCORES, _asked(run, given, [judge, confirming]))
        dist.log(
            f"search    {space.n_pairs} pairs, {given.rounds} rounds of {given.population} candidates, judged by "
            f"{OBJECTIVES[given.method]}: {judge.n_documents} documents of {given.length:,} tokens; "
            f"{len(scores.known)} candidates measured before. Kept in {to}"
        )
        best = evolve(space, judge, scores, given)
        file = to / CHOICE
        durable.make_folders(file.parent)
        choice = {"name": "longrope", "theta": space.theta, **space.options(best)}
        title = f"# {TITLES[given.method]}, searched for {given.length} tokens on {Path(given.run).name}\n"
        durable.replace(file, (title + yaml.safe_dump(choice, sort_keys=False)).encode())
        _report(scores, best, space, given, others)
    dist.log(
        f"Done. {file}\n  python -m coca_train evaluate --config-dir {to} checkpoint={given.run} "
        f"grid.rope_scalings=[trained,searched] grid.lengths=[{given.length}]"
    )
    return file


def evolve(space: Space, judge: Judge, scores: Scores, given: ExtendConfig) -> Candidate:
    """Return the best candidate after all rounds: a pure function of the seed and the losses."""
    began, n_before = time.monotonic(), len(scores.known)

    def measured(candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            if candidate not in scores.known:
                scores.add(candidate, float(judge.losses(Selection("longrope", space.options(candidate))).mean()))
                if len(scores.known) == n_before + 3:  # the first one warms up
                    each = (time.monotonic() - began) / 3
                    n_all = given.population + given.rounds * (given.population // 2)
                    minutes = math.ceil(each * n_all / 60)
                    dist.log(f"search    a candidate takes {each:.2g} s, all at most {minutes} min")

    population = space.start(given.population, random.Random(f"{given.seed} 0"))
    known = set(population)
    measured(population)
    for number in range(1, given.rounds + 1):
        draw = random.Random(f"{given.seed} {number}")
        population.sort(key=lambda candidate: (scores.known[candidate], candidate))
        parents = population[: max(2, given.population // 2)]
        new = space.children(parents, given.population // 2, known, draw)
        measured(new)
        population = [*parents, *new]
        best = min(scores.known[candidate] for candidate in population)
        dist.log(f"round {number} of {given.rounds}: perplexity {math.exp(best):.4g}")
    return min(population, key=lambda candidate: (scores.known[candidate], candidate))


def _space(run: TrainedRun, given: ExtendConfig) -> Space:
    config = run.loaded.config
    scaling = scaling_of(config.position)
    if not isinstance(run.model.position, rotary.Frequencies) or not isinstance(scaling, RopeScaling):
        raise UserError(
            f"E-EXT-01 run={given.run}: {config.position.scheme} has no frequencies, and a factor is searched for "
            "each. Fix: give a run of a rotary scheme"
        )
    if scaling.name != "plain":
        raise UserError(
            f"E-EXT-01 run={given.run} position.rope_scaling.name={scaling.name}: factors are searched for frequencies "
            "that were trained as they are, plain. Fix: give a run of plain frequencies"
        )
    if given.length <= config.train.seq_len:
        raise UserError(
            f"E-EXT-01 length={given.length}: is within the training window of {config.train.seq_len}, so there is "
            f"nothing to search. Fix: length={4 * config.train.seq_len}, for example"
        )
    original = config.train.seq_len
    return SPACES[given.method](run.model.position.rotary_dim // 2, scaling.theta, original, given.length / original)


def _judges(run: TrainedRun, given: ExtendConfig) -> tuple[dict[str, Judge], dict[str, Judge]]:
    """Return by objective what candidates are measured by, and what confirms the result, on other documents: a search
    that is not by needles has none where its length has no room for them."""
    encode, both = tokenizer_of(run, given).encode, []
    for documents in read_documents(run, given):
        judges = {"texts": Judge(run, text_rows(documents, given.length))}
        try:
            judges["needles"] = Judge(run, needle_rows(documents, encode, given.needle, given.length, given.seed))
        except NoRoomError:
            if OBJECTIVES[given.method] == "needles":
                raise
        both.append(judges)
    return both[0], both[1]


def _asked(run: TrainedRun, given: ExtendConfig, judges: Sequence[Judge]) -> dict[str, object]:
    """Return all that the losses and what is drawn depend on."""
    weights, texts = hashlib.sha256(), hashlib.sha256()
    for name, parameter in run.model.named_parameters():
        weights.update(name.encode() + parameter.detach().float().cpu().numpy().tobytes())
    for judge in judges:
        texts.update(b"".join(each.numpy().tobytes() for each in judge.rows))
    return {
        "format": 2, "method": given.method, "weights": weights.hexdigest()[:16], "texts": texts.hexdigest()[:16],
        "length": given.length, "population": given.population, "seed": given.seed,
    }  # fmt: skip


def _report(scores: Scores, best: Candidate, space: Space, given: ExtendConfig, others: Mapping[str, Judge]) -> None:
    """Log what the search came to, on its own texts and on others."""
    for name, candidate in {**space.seeds(), "searched": best}.items():
        whose = name if candidate == best else f"factors of {name}"
        nll = scores.known[candidate]
        dist.log(f"  {whose:<16} perplexity {math.exp(nll):.4g} on the {OBJECTIVES[given.method]} of the search")
    if len(space.criticals) > 1:
        dist.log(f"critical pair {best.critical}, of {space.criticals[0]} to {space.criticals[-1]}")
    with_temperature = Selection("yarn", {"factor": space.factor, "original_seq_len": space.original_seq_len})
    for objective, judge in others.items():
        ours, yarn = (judge.losses(each) for each in (Selection("longrope", space.options(best)), with_temperature))
        less = ours - yarn
        where = f"needles in {len(less)} other texts" if objective == "needles" else f"{len(less)} other texts"
        text = f"on {where}: searched {math.exp(ours.mean()):.4g}, YaRN {math.exp(yarn.mean()):.4g}"
        if len(less) > 1:
            half = student(CONFIDENCE, len(less) - 1) * float(less.std(ddof=1)) / math.sqrt(len(less))
            low, high = less.mean() - half, less.mean() + half
            text += f"; {less.mean():+.4f} nats/token against YaRN (95 %: {low:+.4f} to {high:+.4f})"
        dist.log(text)
    if "needles" not in others:
        dist.log(f"not compared by needles: {given.length:,} tokens have no room for one")
