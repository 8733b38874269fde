"""LongRoPE's search (Ding et al., arXiv 2402.13753, section 3.3): a factor for every pair, found by evolution.

A candidate is a list of factors between 1 and 1 + s in steps of 0.01 that do not fall from the fastest pair to the
slowest. The first population is PI, NTK-aware and YaRN and what mutations make of them; in each round the best half has
children by mutation (every factor is drawn again with probability 0.3) and by crossover (every factor is that of one of
two parents), and the best of all are the next population. Children are sorted, where the paper draws until none falls.

What is measured is the loss of texts of the target length. Every measured candidate is written down at once, and what
is drawn follows from the seed, the round and those losses: a search that is killed goes on as if it had not been. The
best one is then compared with YaRN on texts that the search did not see.
"""

import hashlib
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import yaml

from coca_train.checkpoint import RunLock
from coca_train.checkpoint.opening import TrainedRun, load_run
from coca_train.config.choice import Selection
from coca_train.evaluation.configuration import ExtendConfig, TextConfig
from coca_train.evaluation.texts import read_once
from coca_train.positions import ROPE_SCALINGS, rotary, scaling_of
from coca_train.positions.rope_scaling import RopeScaling, base_inv_freq, ntk_theta
from coca_train.runtime import dist, durable, untrusted_io
from coca_train.runtime.errors import DataError, StorageError, UserError
from coca_train.statistics.intervals import student
from coca_train.vary import with_inference

STEP = 100  # factors are whole numbers of hundredths
MUTATED, TRIES = 0.3, 20
PASS_TOKENS = 16384  # of a forward pass
SCORES, CHOICE = "scores.jsonl", "position/rope_scaling/searched.yaml"
CONFIDENCE = 0.95
Factors = tuple[int, ...]


class Space(NamedTuple):
    """What is searched: factors of J pairs that bring a window of L tokens to s times as many."""

    n_pairs: int
    theta: float
    original_seq_len: int
    factor: float

    @property
    def largest(self) -> int:
        return round(STEP * (1 + self.factor))

    def seeds(self) -> dict[str, Factors]:
        """Return PI, NTK-aware and YaRN as lists of factors."""
        width = 2 * self.n_pairs
        theta_J = base_inv_freq(self.theta, width)
        ntk_J = base_inv_freq(ntk_theta(self.theta, self.factor, width), width)
        yarn = ROPE_SCALINGS.settings(
            {
                "name": "yarn", "theta": self.theta, "factor": self.factor, "original_seq_len": self.original_seq_len,
                "beta_fast": 32.0, "beta_slow": 1.0, "convention": "code", "temperature": None,
            }
        )  # fmt: skip
        yarn_J = yarn.spectrum(width, 1).inv_freq_J.double()
        stretches = {"PI": [self.factor] * self.n_pairs, "NTK": theta_J / ntk_J, "YaRN": theta_J / yarn_J}
        return {name: self.valid(round(STEP * float(x)) for x in each) for name, each in stretches.items()}

    def valid(self, factors: "Iterator[int] | Sequence[int]") -> Factors:
        """Return the nearest candidate: within bounds, none below the one before."""
        return tuple(sorted(min(max(STEP, each), self.largest) for each in factors))


def mutated(parent: Factors, space: Space, draw: random.Random) -> Factors:
    """Draw some of the factors again."""
    return space.valid([draw.randint(STEP, space.largest) if draw.random() < MUTATED else each for each in parent])


def crossed(one: Factors, other: Factors, space: Space, draw: random.Random) -> Factors:
    """Take every factor from one of two parents."""
    return space.valid([draw.choice(pair) for pair in zip(one, other, strict=True)])


def children(
    parents: Sequence[Factors], n: int, known: set[Factors], space: Space, draw: random.Random
) -> list[Factors]:
    """Return up to n new candidates, half of them mutations and half crossovers."""
    found: list[Factors] = []
    for number in range(n):
        for _ in range(TRIES):
            if number % 2 and len(parents) > 1:
                child = crossed(*draw.sample(parents, 2), space, draw)
            else:
                child = mutated(draw.choice(parents), space, draw)
            if child not in known:
                known.add(child)
                found.append(child)
                break
    return found


class Scores:
    """The losses of all candidates so far [nats/token], in a file with a line for each."""

    def __init__(self, path: Path, asked: dict[str, object]) -> None:
        """Read what is there. Raises UserError E-EXT-02 where it is of another search, StorageError E-EXT-03."""
        self._path, self.known = path, dict[Factors, float]()
        first = json.dumps(asked, sort_keys=True).encode()
        try:
            lines = list(untrusted_io.lines(path)) if os.path.lexists(path) else []
            if lines and lines[0].strip() != first:
                raise UserError(
                    f"E-EXT-02 {path}: is of another search (another run, text, length or option). "
                    "Fix: to=<another folder>"
                )
            for line in lines[1:]:
                if (entry := _entry(line)) is not None:  # a last line that a crash has cut is measured again
                    self.known[entry[0]] = entry[1]
            whole = [{"factors": list(each), "nll": nll} for each, nll in self.known.items()]
            durable.replace(path, first + b"\n" + b"".join(json.dumps(each).encode() + b"\n" for each in whole))
        except OSError as error:
            raise _storage(path, error) from error

    def add(self, factors: Factors, nll: float) -> None:
        """Write a candidate down, on the disk before this returns."""
        self.known[factors] = nll
        try:
            with open(self._path, "ab") as file:
                file.write(json.dumps({"factors": list(factors), "nll": nll}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _storage(self._path, error) from error


def _storage(path: Path, error: OSError) -> StorageError:
    return StorageError(f"E-EXT-03 {path}: cannot be read or written ({error.strerror}). Fix: to=<a folder that can>")


def _entry(line: bytes) -> tuple[Factors, float] | None:
    try:
        entry = untrusted_io.from_json(line)
    except ValueError:
        return None
    factors, nll = (entry.get("factors"), entry.get("nll")) if isinstance(entry, dict) else (None, None)
    if not isinstance(factors, list) or not all(type(each) is int for each in factors) or not isinstance(nll, float):
        return None
    return tuple(factors), nll


class Judge:
    """Measures candidates on documents of the target length, cut to it."""

    def __init__(self, run: TrainedRun, space: Space, documents: Sequence[np.ndarray], length: int) -> None:
        self._run, self._space, self._length = run, space, length
        self._tokens_BT = torch.from_numpy(np.stack([each[: length + 1] for each in documents]))

    @property
    def n_documents(self) -> int:
        return len(self._tokens_BT)

    @torch.no_grad()
    def losses(self, scaling: Selection) -> np.ndarray:
        """Return the loss of each document [nats/token]."""
        model, device = self._run.model, next(self._run.model.parameters()).device
        rows = max(1, PASS_TOKENS // self._length)
        with model.restored():
            model.set_position(with_inference(self._run.loaded.config, rope_scaling=scaling).position)
            parts = [
                model.losses(part[:, :-1].to(device), part[:, 1:].to(device), length=self._length)
                .double()
                .mean(1)
                .cpu()
                for part in self._tokens_BT.split(rows)
            ]
        return torch.cat(parts).numpy()

    def selection(self, factors: Factors) -> Selection:
        """Return the scaling with these factors beyond the training window."""
        return Selection("longrope", self.options(factors))

    def options(self, factors: Factors) -> dict[str, object]:
        space = self._space
        return {
            "factor": space.factor, "original_seq_len": space.original_seq_len, "short_factor": None,
            "long_factor": [each / STEP for each in factors], "temperature": None,
        }  # fmt: skip


def search(given: ExtendConfig) -> Path:
    """Search, going on where an earlier search in the folder stopped; return the file of the choice that it wrote.

    Raises UserError E-EXT-01 for a run without frequencies or a length within its window, DataError E-EVAL-05 without
    text that is long enough, and what loading a run raises.
    """
    run = load_run(given.run, given.device)
    space = _space(run, given)
    found, kept = _documents(run, given)
    to = Path(given.to or Path(given.run) / f"longrope-{given.length}")
    judge, confirming = Judge(run, space, found, given.length), Judge(run, space, kept, given.length)
    try:
        durable.make_folders(to)
    except OSError as error:
        raise _storage(to, error) from error
    with RunLock(to):
        return _search(
            run, space, judge, confirming, Scores(to / SCORES, _asked(run, given, [*found, *kept])), given, to
        )


def _search(
    run: TrainedRun, space: Space, judge: "Judge", confirming: "Judge", scores: Scores, given: ExtendConfig, to: Path
) -> Path:
    seeds = space.seeds()
    dist.log(
        f"search    {space.n_pairs} pairs, {given.rounds} rounds of {given.population} candidates, {judge.n_documents} "
        f"documents of {given.length:,} tokens; {len(scores.known)} candidates measured before. Kept in {to}"
    )
    best = evolve(space, judge, scores, given)
    file = to / CHOICE
    durable.make_folders(file.parent)
    choice = {"name": "longrope", "theta": space.theta, **judge.options(best)}
    title = f"# LongRoPE, searched for {given.length} tokens on {Path(given.run).name}\n"
    durable.replace(file, (title + yaml.safe_dump(choice, sort_keys=False)).encode())
    _report(scores, seeds, best, confirming, space)
    dist.log(
        f"Done. {file}\n  python -m coca_train evaluate --config-dir {to} checkpoint={given.run} "
        f"grid.rope_scalings=[trained,searched] grid.lengths=[{given.length}]"
    )
    return file


def evolve(space: Space, judge: Judge, scores: Scores, given: ExtendConfig) -> Factors:
    """Return the best candidate after all rounds: a pure function of the seed and the losses."""
    began, n_before = time.monotonic(), len(scores.known)

    def measured(candidates: Sequence[Factors]) -> None:
        for factors in candidates:
            if factors not in scores.known:
                scores.add(factors, float(judge.losses(judge.selection(factors)).mean()))
                if len(scores.known) == n_before + 3:  # the first one warms up
                    each = (time.monotonic() - began) / 3
                    n_all = given.population + given.rounds * (given.population // 2)
                    dist.log(f"search    a candidate takes {each:.2g} s, all at most {each * n_all / 60:.0f} min")

    seeds = list(dict.fromkeys(space.seeds().values()))
    known, draw = set(seeds), random.Random(f"{given.seed} 0")
    population = [*seeds, *children(seeds, given.population - len(seeds), known, space, draw)]
    measured(population)
    for number in range(1, given.rounds + 1):
        draw = random.Random(f"{given.seed} {number}")
        population.sort(key=lambda factors: (scores.known[factors], factors))
        parents = population[: max(2, given.population // 2)]
        new = children(parents, given.population // 2, known, space, draw)
        measured(new)
        population = [*parents, *new]
        best = min(scores.known[factors] for factors in population)
        dist.log(f"round {number} of {given.rounds}: perplexity {math.exp(best):.4g}")
    return min(population, key=lambda factors: (scores.known[factors], factors))


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
    return Space(run.model.position.rotary_dim // 2, scaling.theta, original, given.length / original)


def _documents(run: TrainedRun, given: ExtendConfig) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return documents of the target length: those that candidates are measured on, and as many others."""
    text = TextConfig(
        files=list(given.files), text_field=given.text_field, corpus=None, sources=[], begin="none",
        max_documents=2 * given.documents,
    )  # fmt: skip
    if run.tokenizer is None:
        raise UserError(f"E-TKN-01 {given.run}: has no tokenizer, and texts are needed. Fix: import it with tokenizer=")
    encoded = [
        np.asarray(run.tokenizer.encode(each), dtype=np.int64)
        for texts in read_once(text, [given.run])().values()
        for each in texts
    ]
    long = [each for each in encoded if len(each) > given.length]
    if len(long) < 2:
        longest = max((len(each) for each in encoded), default=0)
        raise DataError(
            f"E-EVAL-05 text: {len(long)} documents have more than {given.length:,} tokens (the longest has "
            f"{longest:,}), and a search needs two: one to search on and one to confirm. Fix: files=[<longer texts>], "
            "or a smaller length"
        )
    n = min(2 * given.documents, len(long))
    chosen = [long[i * len(long) // n] for i in range(n)]
    return chosen[::2], chosen[1::2]


def _asked(run: TrainedRun, given: ExtendConfig, documents: Sequence[np.ndarray]) -> dict[str, object]:
    """Return all that the losses and what is drawn depend on."""
    weights = hashlib.sha256()
    for name, parameter in run.model.named_parameters():
        weights.update(name.encode() + parameter.detach().float().cpu().numpy().tobytes())
    texts = hashlib.sha256(b"".join(each[: given.length + 1].tobytes() for each in documents))
    return {
        "format": 1, "weights": weights.hexdigest()[:16], "texts": texts.hexdigest()[:16], "length": given.length,
        "population": given.population, "seed": given.seed,
    }  # fmt: skip


def _report(scores: Scores, seeds: dict[str, Factors], best: Factors, confirming: Judge, space: Space) -> None:
    """Log what the search came to, on its own texts and on others."""
    for name, factors in {**seeds, "searched": best}.items():
        whose = name if factors == best else f"factors of {name}"
        dist.log(f"  {whose:<16} perplexity {math.exp(scores.known[factors]):.4g} on the texts of the search")
    with_temperature = Selection("yarn", {"factor": space.factor, "original_seq_len": space.original_seq_len})
    ours, yarn = confirming.losses(confirming.selection(best)), confirming.losses(with_temperature)
    less = ours - yarn
    text = f"on {len(less)} other texts: searched {math.exp(ours.mean()):.4g}, YaRN {math.exp(yarn.mean()):.4g}"
    if len(less) > 1:
        half = student(CONFIDENCE, len(less) - 1) * float(less.std(ddof=1)) / math.sqrt(len(less))
        low, high = less.mean() - half, less.mean() + half
        text += f"; {less.mean():+.4f} nats/token against YaRN (95 %: {low:+.4f} to {high:+.4f})"
    dist.log(text)
