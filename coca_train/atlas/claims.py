"""What papers claim of their methods, as differences of rows of the atlas: does it hold at this size?

A claim is about what is kept beyond the training window. It is tried by the difference of two rows' scores, or of two
such differences (whether NTK does more for CoCA than for RoPE). Two intervals: over seeds alone, about these tasks; and
over tasks and seeds, what other tasks of this kind would have shown. Of all claims together, also of those that wait
for a row, any is called held or contradicted falsely in at most 5 % of draws (Bonferroni).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from coca_train.atlas.methods import title_of
from coca_train.statistics.answers import WRONG
from coca_train.statistics.intervals import Bounds
from coca_train.statistics.ranks import Priors, TaskDifference, fit_priors, over_seeds

FOUND = ("nearest", "recall")  # tasks that look a word up
STATE = ("running", "flip_flop", "brackets")  # tasks that keep a state
COCA, AFTER = "CoCA, 2309.08646", "after CoCA 2.3"
NTK = (2, 4, 8)  # α of CoCA's tables

Verdict = Literal["holds", "holds on these tasks", "the opposite", "the opposite on these tasks", "undecided"]


class Claim(NamedTuple):
    """plus, minus: rows; of several the mean. than: of the same difference of these rows, plus and minus, which is
    subtracted. tasks: what the claim is about; (): all. source: paper, arXiv id, section."""

    words: str
    source: str
    plus: tuple[str, ...]
    minus: tuple[str, ...]
    than: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    tasks: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """Everything that it is tried on."""
        return (*self.plus, *self.minus, *(row for each in self.than or () for row in each))


class Tried(NamedTuple):
    """A claim and what was seen. bounds: over tasks and seeds; on_these: over seeds alone. better, worse: tasks in
    which the difference outlasts seeds, all tasks of this claim judged together."""

    claim: Claim
    bounds: Bounds
    on_these: Bounds
    better: tuple[str, ...]
    worse: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """What the intervals say of the claim: on these tasks, and where both agree, on such tasks; nothing of one
        seed."""
        if math.isfinite(self.on_these.low) and self.on_these.low > 0:
            return "holds" if self.bounds.low > 0 else "holds on these tasks"
        if math.isfinite(self.on_these.high) and self.on_these.high < 0:
            return "the opposite" if self.bounds.high < 0 else "the opposite on these tasks"
        return "undecided"


def _ntk(method: str) -> tuple[str, ...]:
    return tuple(f"{method}_ntk{alpha}" for alpha in NTK)


def _better(one: str, other: str, source: str, tasks: tuple[str, ...] = ()) -> Claim:
    about = {FOUND: " where words are looked up", STATE: " in counts and states"}.get(tasks, "")
    words = f"{title_of(one)} extrapolates better than {title_of(other)}{about}"
    return Claim(words, source, (one,), (other,), tasks=tasks)


CLAIMS = (
    _better("coca", "rope", f"{COCA}, 5.1 and 5.2"),
    Claim("with dynamic NTK (α 2, 4, 8) CoCA extrapolates better than RoPE", f"{COCA}, B.3", _ntk("coca"),
          _ntk("rope")),
    Claim("dynamic NTK (α 2, 4, 8) does more for CoCA than for RoPE", f"{COCA}, B.3", _ntk("coca"), ("coca",),
          than=(_ntk("rope"), ("rope",))),
    Claim("with dynamic NTK (α 2, 4, 8) CoCA extrapolates better than ALiBi where words are looked up", f"{COCA}, 5.2",
          _ntk("coca"), ("alibi",), tasks=FOUND),
    Claim("with dynamic NTK (α 2, 4, 8) CoCA extrapolates better than strict CoCA where words are looked up",
          f"{COCA}, 5.3", _ntk("coca"), _ntk("coca_strict"), tasks=FOUND),
    Claim("queries and keys that are nearly collinear extrapolate better: RoPE with angle penalty", f"ours, {AFTER}",
          ("rope_aligned",), ("rope",)),
    Claim("collinear queries and keys extrapolate better: strict CoCA against RoPE", f"{COCA}, 2.3", ("coca_strict",),
          ("rope",)),
    Claim("dynamic NTK (α 2, 4, 8) does more for RoPE with angle penalty than for RoPE", f"ours, {AFTER}",
          _ntk("rope_aligned"), ("rope_aligned",), than=(_ntk("rope"), ("rope",))),
    _better("pope", "rope", "PoPE, 2509.10534"),
    _better("rope_ntk1", "rope", "YaRN, 2309.00071, 3.3"),
    _better("rope_yarn", "rope_pi", "YaRN, 2309.00071, 3.4"),
    _better("rope_dynamic_yarn", "rope_yarn", "ours, after YaRN 3.3"),
    _better("rope_rerope", "rope", "ReRoPE, kexue.fm/archives/9708"),
    _better("rope_self_extend", "rope", "Self-Extend, 2401.01325"),
    _better("rope_dual_chunk", "rope", "DCA, 2402.17463"),
    _better("rope_lambda_mask", "rope", "LM-Infinite, 2308.16137"),
    _better("alibi", "rope", "ALiBi, 2108.12409"),
    _better("xpos", "rope", "xPos, 2212.10554"),
    _better("nope", "rope", "NoPE, 2305.19466"),
    _better("nope", "alibi", "NoPE, 2305.19466"),
    _better("fire", "rope", "FIRE, 2310.04418"),
    _better("kerple_log", "alibi", "KERPLE, 2205.09921"),
    _better("cope", "rope", "CoPE, 2405.18719", STATE),
    _better("path", "rope", "PaTH, 2505.16381", STATE),
    _better("fox", "rope", "FoX, 2503.02130"),
    _better("stick_breaking", "rope", "stick-breaking, 2410.17980"),
    _better("random", "rope", "random positions, 2305.16843"),
    _better("rnope_swa", "rope", "RNoPE-SWA, 2501.18795"),
    _better("swan", "rope", "SWAN, 2504.08719"),
    _better("fope", "rope", "FoPE, 2412.17739"),
    _better("ssmax", "rope", "Scalable-Softmax, 2501.19399"),
)  # fmt: skip


def tried(scores: Mapping[str, np.ndarray], tasks: Sequence[str], claims: Sequence[Claim] = CLAIMS) -> list[Tried]:
    """Return the claims of which every row is there, judged together with those that wait for a row: they are no less
    certain when it comes. scores: by row, of every seed and task (S, K), NaN where there is none."""
    there = [claim for claim in claims if scores.keys() >= set(claim.rows)]
    y_MSK = np.array(list(scores.values()))

    @cache
    def priors(about: tuple[int, ...]) -> Priors:
        return fit_priors(y_MSK[:, :, list(about)])

    return [_tried(claim, scores, tasks, priors, len(claims)) for claim in there]


def _tried(
    claim: Claim,
    scores: Mapping[str, np.ndarray],
    tasks: Sequence[str],
    priors: Callable[[tuple[int, ...]], Priors],
    n_claims: int,
) -> Tried:
    def mean(rows: Sequence[str]) -> np.ndarray:
        return np.mean([scores[row] for row in rows], axis=0)

    about = tuple(k for k, task in enumerate(tasks) if not claim.tasks or task in claim.tasks)
    n_pairs = 1 if claim.than is None else 2  # the variance of a difference of differences is that of two
    one_SK, other_SK = mean(claim.plus), mean(claim.minus)
    if claim.than is not None:
        one_SK, other_SK = one_SK + mean(claim.than[1]), other_SK + mean(claim.than[0])
    one_SK, other_SK = one_SK[:, about], other_SK[:, about]
    difference, confidence = TaskDifference(one_SK, other_SK, priors(about).times(n_pairs)), 1 - WRONG / n_claims
    each = [
        over_seeds(d_S, 1 - WRONG / max(1, len(about)), priors((k,)).on_these.times(n_pairs))
        for k, d_S in zip(about, (one_SK - other_SK).T, strict=True)
    ]
    return Tried(
        claim,
        difference.interval(confidence),
        difference.on_these_tasks(confidence),
        tuple(tasks[k] for k, found in zip(about, each, strict=True) if found.low > 0),
        tuple(tasks[k] for k, found in zip(about, each, strict=True) if found.high < 0),
    )
