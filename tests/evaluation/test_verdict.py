"""The verdict on models made to have a known reach, and its words."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coca_train.evaluation import suites
from coca_train.evaluation.measures.reach import LEAST, Bounds, Evidence, Part
from coca_train.evaluation.results import Evaluation
from coca_train.evaluation.subject import Subject
from coca_train.evaluation.suites import perplexity
from coca_train.evaluation.texts import Texts
from coca_train.evaluation.verdict import lengths, unknown, verdict, verdicts
from tests.evaluation.grids import cell, evaluation, measured, settings, setup
from tests.measures.conftest import FakeModel, fake_variant

WINDOW, LENGTHS, SYMBOLS = 128, (128, 256, 512, 1024, 2048), 4000
KNOWN, UNKNOWN = 0.1, 8.0  # [nats]


class Copier(FakeModel):
    """Knows what follows a symbol that it saw before, at most `reach` tokens back; nothing beyond its `end`."""

    def __init__(self, reach: int = 10**6, end: int = 10**6) -> None:
        super().__init__()
        self.reach, self.end = reach, end

    def losses(self, tokens_BT: Tensor, targets_BT: Tensor, pos_BT=None, doc_BT=None, length=None, wanted=None):
        nll_BT = torch.full(tokens_BT.shape, UNKNOWN)
        for row_T, targets_T, nll_T in zip(tokens_BT, targets_BT, nll_BT, strict=True):
            last: dict[int, int] = {}
            for t, (token, target) in enumerate(zip(row_T.tolist(), targets_T.tolist(), strict=True)):
                if t - last.get(token, -(10**9)) < self.reach and row_T[last[token] + 1] == target:
                    nll_T[t] = KNOWN
                last[token] = t
                if t >= self.end:
                    nll_T[t] = 2 * UNKNOWN
        return torch.cat([nll_BT[:, begin:end] for begin, end in wanted or [(0, nll_BT.shape[1])]], dim=1)


def recalls(n: int, seed: int) -> np.ndarray:
    """Pairs of a symbol and what follows it, half of them seen before, at a distance of 2 to 2,000 tokens."""
    rng, pairs = np.random.default_rng(seed), [(1, 2)]
    while 2 * len(pairs) < n:
        back = int(2 ** rng.uniform(0, 10))
        new = tuple(rng.integers(10, SYMBOLS, 2).tolist())
        pairs.append(pairs[-back] if back <= len(pairs) and rng.random() < 0.5 else new)
    return np.array(pairs).ravel()[:n]


def read(model: Copier, n_documents: int = LEAST, **changes: Any) -> Evaluation:
    """Suite perplexity on such texts, cell by cell."""
    options = settings("perplexity", **changes)
    who = Subject(
        facts=measured("copier", window=WINDOW), path="", model=model, tokenizer=None,  # type: ignore[arg-type]
        variants={"plain": fake_variant()},
    )  # fmt: skip
    documents = [recalls(LENGTHS[-1] + 1, seed) for seed in range(n_documents)]
    texts = Texts.__new__(Texts)
    object.__setattr__(texts, "documents", {"text": documents})
    material = perplexity.Material(options, texts, LENGTHS, WINDOW, WINDOW, 0)
    # A document's own size is not asked for here.
    material.sizes.update({cut: {"text": 1} for cut in (LENGTHS[-1], None)})
    cells = []
    for length in reversed(LENGTHS):
        part = perplexity.measure(options, who, length, material, setup(LENGTHS, micro_batch_tokens=10**6))
        cells.append(cell("copier", "plain", length, perplexity.combine(options, length, material, [part])))
    return evaluation("perplexity", {"holds_within": 0.01}, [who.facts], LENGTHS, cells)


@pytest.mark.parametrize(
    ("model", "words", "parts"),
    [
        (Copier(reach=512), "reads to 512 tokens (4× its window)", ("at least 2,048", "512")),
        (Copier(end=1024), "reads to 1,024 tokens (8× its window)", ("1,024", "1,024")),
        (Copier(), "reads to at least 2,048 tokens (16× its window)", ("at least 2,048",) * 2),
        (Copier(reach=1), "reads nowhere, not even inside its window of 128 tokens", ("at least 2,048", None)),
    ],
    ids=["a window of 512", "an end at 1,024", "a copy head", "deaf"],
)
def test_models_of_a_known_reach_get_it(model: Copier, words: str, parts: tuple[str, ...]) -> None:
    found = read(model)
    (said,) = verdicts(found, perplexity.asked(found))
    assert said.line == words
    for (_, part), wanted in zip(said.parts, parts, strict=True):
        assert wanted is None or part == wanted


def test_fifteen_documents_are_no_verdict() -> None:
    found = read(Copier(), n_documents=15)
    (said,) = verdicts(found, perplexity.asked(found))
    assert (said.state, said.line) == ("unknown", "no verdict: 5 of 20 documents missing")


def seen(length: int, passed: bool, n: int = LEAST) -> Evidence:
    return Evidence(length, Bounds(0.0, 0.0, 0.0, n), passed)


def test_the_least_of_what_was_asked() -> None:
    holds = Part("holds", "documents", (seen(256, True), seen(512, True), seen(1024, False)), granted=128)
    uses = Part("uses", "documents", (seen(128, True), seen(256, True), seen(512, False)))
    said = verdict("one", 128, [holds, uses])
    assert said.line == "reads to 256 tokens (2× its window)" and said.state == "reads"
    assert said.parts == (("holds", "512"), ("uses", "256"))
    # Where one part says nowhere, what another would say does not matter.
    few, nothing = Part("finds", "prompts", (seen(128, True, n=3),)), Part("works with", "prompts", (seen(64, False),))
    assert verdict("one", 128, [holds, few]).line == "no verdict: 17 of 20 prompts missing"
    assert verdict("one", 128, [few, nothing]).state == "none"


def test_of_several_seeds_those_are_counted_that_fail_in_the_part_that_is_named() -> None:
    def of_seed(finds: bool, works: bool) -> list[Part]:
        return [Part("finds", "prompts", (seen(64, finds),)), Part("works with", "prompts", (seen(64, works),))]

    def line(*seeds: list[Part]) -> str:
        runs = [f"one-seed{k}" for k in range(len(seeds))]
        cells = [cell(run, "plain", 64, {"any": 1}) for run in runs]
        whole = evaluation("reach", {}, [measured(run, window=128) for run in runs], (64,), cells)
        known = replace(whole, seeds={"one": {run: run[-1] for run in runs}})
        (said,) = verdicts(known, {(run, "plain"): parts for run, parts in zip(runs, seeds, strict=True)})
        return said.line.partition("finds too little at 64 tokens already, inside its window of 128 ")[2]

    assert line(of_seed(False, True), of_seed(True, False), of_seed(True, True)) == (
        "with 1 of 3 seeds; seeds: none / none / 64"
    )
    assert line(of_seed(False, False), of_seed(True, False)) == "with 1 of 2 seeds; seeds: none / none"
    assert line(of_seed(False, True), of_seed(False, False)) == "with each of 2 seeds"


def test_a_seed_that_could_not_be_measured_is_one_of_its_models_seeds() -> None:
    uses, runs = Part("uses", "documents", (seen(64, True), seen(128, False))), ("one", "one-seed2")
    fails = Part("uses", "documents", (seen(64, False),))

    def line(*known: Part) -> str:
        measurable = dict(zip(runs, known, strict=False))
        cells = [
            cell(run, "plain", 64, {"any": 1}) if run in measurable else cell(run, "plain", 64, status="out_of_memory")
            for run in runs
        ]
        whole = evaluation("perplexity", {}, [measured(run, window=128) for run in runs], (64,), cells)
        whole = replace(whole, seeds={"one": {run: str(k) for k, run in enumerate(runs)}})
        asked = {
            row.name: [measurable.get(row.subject.name) or unknown(uses, row.cells.values())] for row in whole.rows()
        }
        (said,) = verdicts(whole, asked)
        return said.line

    assert line(uses, uses) == "reads to 64 tokens (0.5× its window) with each of 2 seeds"
    assert line(uses) == "no verdict: out of memory"
    # What another seed would say does not matter where one reads nowhere: the model reads as far as its least.
    nowhere = "reads nowhere, not even inside its window of 128 tokens with 1 of 2 seeds; seeds: none / unknown"
    assert line(fails) == nowhere


def test_a_seed_that_fails_somewhere_fails_whatever_else_is_not_known_of_it() -> None:
    few, fails = Part("uses", "documents", (seen(64, True, n=3),)), Part("finds", "prompts", (seen(64, False),))
    fine = [Part("uses", "documents", (seen(64, True),)), Part("finds", "prompts", (seen(64, True),))]
    models = [measured(run, window=128) for run in ("one", "one-seed2")]
    cells = [cell(model.name, "plain", 64, {"any": 1}) for model in models]
    whole = replace(evaluation("reach", {}, models, (64,), cells), seeds={"one": {"one": "1", "one-seed2": "2"}})
    (said,) = verdicts(whole, {("one", "plain"): [few, fails], ("one-seed2", "plain"): fine})
    assert said.state == "none" and said.line.endswith("with 1 of 2 seeds; seeds: none / 64")


@pytest.mark.parametrize(
    ("name", "shortest", "line"),
    [
        ("uses", 64, "reads nowhere, not even inside its window of 128 tokens"),
        ("uses", 128, "reads nowhere, not even inside its window of 128 tokens"),
        ("uses", 256, "gains nothing that is sure at 256 tokens already, beyond its window of 128"),
        ("finds", 128, "finds too little at 128 tokens already, inside its window of 128"),
        ("finds", 256, "finds too little at 256 tokens already, beyond its window of 128"),
        ("works with", 64, "works with too little at 64 tokens already, inside its window of 128"),
        ("works with", 256, "works with too little at 256 tokens already, beyond its window of 128"),
    ],
)
def test_what_fails_at_its_shortest_length_says_which_and_where(name: Any, shortest: int, line: str) -> None:
    """Prompts that are not answered leave open whether a text is used, and what was not asked inside the window is not
    said of it."""
    fails = Part(name, "prompts", (seen(shortest, False), seen(512, False)))
    used = Part("uses", "documents", (seen(32, True), seen(128, True)))
    said = verdict("one", 128, [fails] if name == "uses" else [used, fails])
    nowhere = line.startswith("reads nowhere")
    assert said.line == (line if nowhere else f"reads to no length in all that was asked: {line}")
    assert said.state == "none"
    assert (name, f"not even {shortest}") in said.parts


def test_longer_texts_than_there_are_enough_of_leave_the_verdict_on_shorter_ones() -> None:
    uses = Part("uses", "documents", (seen(128, True), seen(256, True), seen(512, True, n=12)))
    finds = Part("finds", "prompts", (seen(128, True), seen(256, True), seen(512, True)))
    said = verdict("one", 128, [uses, finds])
    assert said.line == "reads to at least 256 tokens (2× its window; no verdict beyond: 8 of 20 documents missing)"
    assert said.parts == (
        ("uses", "at least 256 (no verdict beyond: 8 of 20 documents missing)"),
        ("finds", "at least 512"),
    )
    # What fails below is the end of it, whatever is missing beyond.
    fails = Part("finds", "prompts", (seen(128, True), seen(256, False)))
    assert verdict("one", 128, [uses, fails]).line == "reads to 128 tokens (1× its window)"


def test_what_could_not_be_measured_ends_a_reach_and_says_why() -> None:
    """Nobody may hope for more of a model without the positions; what could be asked nowhere is unknown."""
    uses = Part("uses", "documents", (seen(64, True), seen(128, True)), stopped="learned has 128 positions")
    said = verdict("one", 128, [uses])
    assert said.line == "reads to 128 tokens (1× its window; no verdict beyond: learned has 128 positions)"
    assert said.parts == (("uses", "128 (no verdict beyond: learned has 128 positions)"),)
    nowhere = Part("finds", "prompts", (), stopped="learned has 128 positions")
    said = verdict("one", 128, [uses, nowhere])
    assert (said.state, said.line) == ("unknown", "no verdict: learned has 128 positions")
    assert said.parts[1] == ("finds", "unknown: learned has 128 positions")
    few = Part("uses", "documents", (seen(64, True), seen(128, True, n=12)), stopped="no document has 256 tokens")
    line = "reads to at least 64 tokens (0.5× its window; no verdict beyond: 8 of 20 documents missing)"
    assert verdict("one", 128, [few]).line == line
    failed = Part("uses", "documents", (seen(64, True), seen(128, False)), stopped="out of memory")
    assert verdict("one", 128, [failed]).line == "reads to 64 tokens (0.5× its window)"


@pytest.mark.parametrize(
    ("reach", "times"), [(64, "0.5"), (1664, "13"), (12_672, "99"), (12_750, "100"), (131_072, "1,024")]
)
def test_multiples_are_written_as_people_do(reach: int, times: str) -> None:
    part = Part("uses", "documents", (seen(reach, True), seen(2 * reach, False)))
    assert verdict("one", 128, [part]).line == f"reads to {reach:,} tokens ({times}× its window)"


@pytest.mark.parametrize(("window", "state"), [(256, "reads"), (128, "reads"), (512, "partly")])
def test_less_than_its_window_is_another_state(window: int, state: str) -> None:
    part = Part("uses", "documents", (seen(128, True), seen(256, True), seen(512, False)))
    assert verdict("one", window, [part]).state == state


def test_lengths_for_trackers() -> None:
    holds = Part("holds", "documents", (seen(256, True), seen(512, False)), granted=128)
    uses = Part("uses", "documents", (seen(128, True), seen(256, True, n=3)))
    few, nothing = Part("finds", "prompts", (seen(128, True, n=3),)), Part("works with", "prompts", (seen(64, False),))
    cells = [cell("one", name, 128, {}) for name in ("own", "ntk", "yarn", "linear")]
    grid = evaluation("reach", {}, [measured("one", ("own", "ntk", "yarn", "linear"))], (128,), cells)
    asked = {("one", "own"): [holds, uses], ("one", "ntk"): [holds, few], ("one", "yarn"): [few, nothing]}
    assert lengths(grid, asked) == {
        "holds/own": 256.0,
        "uses/own": 128.0,
        "reads/own": 128.0,
        "holds/ntk": 256.0,
        "works_with/yarn": 0.0,
        "reads/yarn": 0.0,
    }


@pytest.mark.parametrize("suite", ["perplexity", "passkey", "recall", "ruler"])
def test_who_ran_out_of_memory_everywhere_has_no_verdict_and_says_so(suite: str) -> None:
    point = "needle@64" if suite == "ruler" else 64
    cells = [cell("one", "plain", point, status="out_of_memory")]
    grid = evaluation(suite, {}, [measured("one", window=128)], (point,), cells)
    (said,) = verdicts(grid, suites.suite_module(suite).asked(grid))
    assert (said.state, said.line) == ("unknown", "no verdict: out of memory")


@pytest.mark.parametrize("suite", ["anomaly", "speed"])
def test_suites_that_say_nothing_of_reach(suite: str) -> None:
    assert suites.suite_module(suite).asked(None) == {}
