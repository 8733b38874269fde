"""What is said of models made to have a known reach, its words, and the table of answers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coca_train.evaluation.results import Evaluation
from coca_train.evaluation.subject import Subject
from coca_train.evaluation.suites import SUITES, perplexity
from coca_train.evaluation.texts import Texts
from coca_train.evaluation.verdict import (
    HOLDS_WITHIN,
    USES_GAIN,
    Evidence,
    Judged,
    Part,
    answers_table,
    clauses,
    holds,
    judge_rows,
    lengths,
    multiple,
    unmeasured,
    uses,
    verdict,
    verdicts,
    words,
)
from coca_train.report.blocks import ANSWERED, Verdict
from coca_train.statistics.answers import LEAST, Answer, Outcome
from coca_train.statistics.intervals import Bounds
from tests.evaluation.grids import cell, evaluation, measured, settings, setup
from tests.measures.conftest import FakeModel, fake_variant

WINDOW, LENGTHS, SYMBOLS = 128, (128, 256, 512, 1024, 2048), 4000
KNOWN, UNKNOWN = 0.1, 8.0  # [nats]
N_DOCUMENTS = 160  # that others are drawn from


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
        part = perplexity.Evaluator(options).measure(who, length, material, setup(LENGTHS, micro_batch_tokens=10**6))
        cells.append(cell("copier", "plain", length, perplexity.Evaluator(options).combine(length, material, part)))
    return evaluation("perplexity", {"holds_within": 0.01}, [who.facts], LENGTHS, cells)


@pytest.mark.parametrize(
    ("model", "parts", "state"),
    [
        (Copier(reach=512), ("2,048", "512, not 1,024"), "reads"),
        (Copier(end=1024), ("1,024, not 2,048",) * 2, "reads"),
        (Copier(), ("2,048", "2,048"), "reads"),
    ],
    ids=["a window of 512", "an end at 1,024", "a copy head"],
)
def test_models_of_a_known_reach_get_it(model: Copier, parts: tuple[str, str], state: str) -> None:
    found = read(model)
    (said,) = verdicts(found, perplexity.Evaluator(None).reach_parts(found))
    assert said.parts == (("holds", parts[0]), ("uses", parts[1])) and said.state == state


def test_what_32_tokens_predict_no_better_than_8_is_too_little_trained() -> None:
    found = read(Copier(reach=1))
    (said,) = verdicts(found, perplexity.Evaluator(None).reach_parts(found))
    assert said.state == "unknown" and "too little trained" in said.line and not said.parts
    page = perplexity.Evaluator(settings("perplexity")).page(found)
    assert len(page.finding) == 1 and "too little trained" in page.finding[0]


def test_fifteen_documents_answer_nothing() -> None:
    found = read(Copier(), n_documents=15)
    ((asked, used),) = perplexity.Evaluator(None).reach_parts(found).values()
    assert not used.known and asked.sure == WINDOW
    assert {seen.answer.more for seen in (*asked.unsettled, *used.unsettled)} == {5}
    (said,) = verdicts(found, perplexity.Evaluator(None).reach_parts(found))
    assert said.state == "unknown" and "5 more documents" in dict(said.parts)["uses"]


NOWHERE = Bounds(0.0, 0.0, 0.0, LEAST)
OUTCOMES: dict[str, Outcome] = {"y": "yes", "n": "no", "o": "open"}


def seen(length: int, sign: str, more: int | None = 0, bounds: Bounds = NOWHERE) -> Evidence:
    return Evidence(length, Answer(OUTCOMES[sign], bounds, more))


def part(name: Any, answers: dict[int, str], more: int | None = 0, **fields: Any) -> Part:
    """answers: by length, y, n or o. more: of the open ones."""
    of = "documents" if name in ("holds", "uses") else "prompts"
    evidence = tuple(seen(n, sign, more if sign == "o" else 0) for n, sign in answers.items())
    return Part(name, of, evidence, **fields)


def of_seeds(*seeds: Sequence[Part], window: int = 128) -> Judged:
    """A model whose seeds have these parts."""
    (row,) = evaluation(
        "reach", {}, [measured("one", window=window)], (64,), [cell("one", "plain", 64, {"any": 1})]
    ).rows()
    return Judged("one", row, list(seeds))


@pytest.mark.parametrize(
    ("answers", "more", "said", "clause"),
    [
        ({64: "y", 128: "y"}, 0, "128", "last 128 tokens"),
        ({64: "y", 128: "n"}, 0, "64, not 128", "64 tokens, not 128"),
        ({64: "n", 128: "y"}, 0, "not even 64", "no use of 64 tokens"),
        ({64: "y", 128: "o"}, 30, "64, undecided at 128 (about 30 ", "undecided at 128"),
        ({64: "y", 128: "o", 256: "o", 512: "n"}, 0, "64, undecided up to 256", "undecided up to 256"),
        ({64: "o", 128: "y"}, None, "undecided up to 128 (", "use its last 64"),
        ({64: "y", 128: "n", 256: "o"}, 30, "64, not 128", "not 128"),
    ],
)
def test_what_is_said_of_a_part(answers: dict[int, str], more: int | None, said: str, clause: str) -> None:
    asked = part("uses", answers, more)
    assert words([asked]).startswith(said)
    assert clause in clauses(of_seeds([asked]))


def test_a_verdict_joins_what_is_said_of_each_part() -> None:
    asked = [part("holds", {256: "y", 512: "n"}, granted=128), part("uses", {128: "y", 256: "n"})]
    said = verdict(of_seeds(asked))
    assert said.parts == (("holds", "256, not 512"), ("uses", "128, not 256"))
    assert said.line == "; ".join(clauses(of_seeds(asked), only=name) for name in ("holds", "uses"))
    assert clauses(of_seeds(asked), only="finds") == ""


def test_a_model_that_holds_nothing_but_its_training_window_is_not_said_to_hold_it() -> None:
    within = part("holds", {256: "n"}, granted=128)
    assert "training window" in clauses(of_seeds([within])) and "128" not in clauses(of_seeds([within]))
    assert words([within]) == "128, not 256"


@pytest.mark.parametrize(
    ("finds", "works", "state"),
    [
        ({64: "y", 128: "y"}, {128: "y", 256: "n"}, "reads"),
        ({64: "y", 128: "y"}, {64: "y", 128: "o"}, "partly"),
        ({64: "y", 128: "y"}, {64: "y", 128: "n"}, "partly"),
        ({64: "y", 128: "y"}, {64: "o", 128: "o"}, "unknown"),
        ({64: "y", 128: "y"}, {64: "o", 128: "n"}, "unknown"),
        ({64: "n"}, {64: "y", 128: "y"}, "none"),
        ({64: "n"}, {64: "o"}, "none"),  # whatever is not known of the others
    ],
)
def test_the_sign_is_that_of_the_least_part(finds: dict[int, str], works: dict[int, str], state: str) -> None:
    assert verdict(of_seeds([part("finds", finds), part("works with", works)])).state == state


def test_of_several_seeds_the_least_is_what_the_model_is_sure_of() -> None:
    far, fails, near = {64: "y", 128: "y", 256: "y"}, {64: "y", 128: "y", 256: "n"}, {64: "y", 128: "o"}
    assert words([part("uses", far), part("uses", far)]).endswith(" 2 seeds")
    assert words([part("uses", far), part("uses", near)]) == "64, undecided at 128, seeds 256 / 64"
    assert words([part("uses", far), part("uses", fails)]) == "128, not 256, seeds 256 / 128"
    nowhere = [[part("uses", far)], [part("uses", {64: "n"})], [part("uses", far)]]
    said = verdict(of_seeds(*nowhere))
    assert said.state == "none" and dict(said.parts)["uses"].startswith("not even 64")
    assert "makes no use" in said.line


def test_a_seed_that_could_not_be_measured_is_one_of_its_models_seeds() -> None:
    runs = ("one", "one-seed2")

    def said(*known: Part) -> Verdict:
        measurable = dict(zip(runs, known, strict=False))
        cells = [
            cell(run, "plain", 64, {"any": 1}) if run in measurable else cell(run, "plain", 64, status="out_of_memory")
            for run in runs
        ]
        whole = evaluation("perplexity", {}, [measured(run, window=128) for run in runs], (64,), cells)
        whole = replace(whole, seeds={"one": {run: str(k) for k, run in enumerate(runs)}})
        asked = {
            row.name: [measurable.get(row.subject.name) or unmeasured(uses, row.cells.values())] for row in whole.rows()
        }
        (verdict,) = verdicts(whole, asked)
        return verdict

    uses = part("uses", {64: "y", 128: "n"})
    assert dict(said(uses, uses).parts)["uses"].startswith("64, not 128, ")
    # Nothing is sure of a model of which one seed says nothing, but where another fails it does.
    assert said(part("uses", {64: "y"})).state == "unknown" and "out of memory" in said(part("uses", {64: "y"})).line
    assert said(part("uses", {64: "n"})).state == "none"


def test_seeds_of_an_evaluation_are_one_verdict() -> None:
    runs = ("rope", "rope-seed2", "alibi")
    subjects = [replace(measured(run, window=128), scheme=run.partition("-")[0]) for run in runs]
    whole = evaluation("reach", {}, subjects, (64,), [cell(run, "plain", 64, {"any": 1}) for run in runs])
    whole = replace(whole, seeds={"rope": {"rope": "1", "rope-seed2": "2"}, "alibi": {"alibi": "1"}})
    far, near = [part("uses", {64: "y", 128: "y"})], [part("uses", {64: "y", 128: "n"})]
    asked = {("rope", "plain"): far, ("rope-seed2", "plain"): near, ("alibi", "plain"): far}
    rope, alibi = verdicts(whole, asked)
    assert (rope.label, rope.parts) == ("RoPE", (("uses", "64, not 128, seeds 128 / 64"),))
    assert (alibi.label, alibi.parts) == ("ALiBi", (("uses", "128"),))
    assert [len(each.seeds) for each in judge_rows(whole, asked)] == [2, 1]


def test_what_could_not_be_measured_is_open_and_says_why() -> None:
    """Nobody may hope for more of a model without the positions; what could be asked nowhere is unknown."""
    why = "learned has 128 positions"
    stopped = part("uses", {64: "y", 128: "y"}, stopped=why)
    assert words([stopped]) == f"128, beyond: {why}" and f"beyond: {why}" in clauses(of_seeds([stopped]))
    nowhere = part("finds", {}, stopped=why)
    said = verdict(of_seeds([stopped, nowhere]))
    assert said.state == "unknown" and said.parts[1] == ("finds", f"undecided: {why}")
    assert f"undecided, {why}" in said.line
    # Where it failed before, what lies beyond does not matter.
    assert words([part("uses", {64: "y", 128: "n"}, stopped="out of memory")]) == "64, not 128"


@pytest.mark.parametrize(
    ("length", "times"), [(64, "0.5×"), (1664, "13×"), (12_672, "99×"), (12_750, "100×"), (131_072, "1,024×")]
)
def test_multiples_are_written_as_people_do(length: int, times: str) -> None:
    assert multiple(length, 128) == times


@pytest.mark.parametrize(("window", "state"), [(256, "reads"), (128, "reads"), (512, "partly")])
def test_less_than_its_window_is_another_state(window: int, state: str) -> None:
    asked = part("uses", {128: "y", 256: "y", 512: "n"})
    assert verdict(of_seeds([asked], window=window)).state == state


def grid_of(*variants: str, points: Sequence[int] = (128,)) -> Evaluation:
    """A model under these variants, something of which was measured."""
    cells = [cell("one", name, n, {"any": 1}) for name in variants for n in points]
    return evaluation("reach", {}, [measured("one", variants, window=128)], points, cells)


def test_lengths_for_trackers() -> None:
    holds, uses = part("holds", {256: "y", 512: "n"}, granted=128), part("uses", {128: "y", 256: "o"})
    few, nothing = part("finds", {128: "o"}), part("works with", {64: "n"})
    asked = {("one", "own"): [holds, uses], ("one", "ntk"): [holds, few], ("one", "yarn"): [few, nothing]}
    assert lengths(grid_of("own", "ntk", "yarn", "linear"), asked) == {
        "holds/own": 256.0,
        "uses/own": 128.0,
        "holds/ntk": 256.0,
        "works_with/yarn": 0.0,
    }


def test_answers_have_a_sign_at_every_length_with_the_figures_behind_it() -> None:
    uses = Part(
        "uses",
        "documents",
        (
            seen(64, "y", bounds=Bounds(0.02, 0.01, 0.03, 24)),
            seen(256, "o", 40, Bounds(0.006, 0.001, 0.011, 24)),
            seen(512, "n", bounds=Bounds(-0.02, -0.03, -0.01, 24)),
        ),
        bound=0.005,
    )
    table = answers_table(
        grid_of("plain"), {("one", "plain"): [part("holds", {256: "n"}, granted=128, bound=0.01), uses]}
    )
    assert table is not None and table.name == ANSWERED and table.columns == ("64", "256", "512")
    signs = {row.label: [value.text for value in row.values] for row in table.rows}
    # Within its training window it holds by definition.
    assert signs == {("one", "holds"): ["✓", "✗", ""], ("one", "uses"): ["✓", "?", "✗"]}
    opened = table.rows[1].values[1]
    assert (opened.number, opened.low, opened.high) == (0.006, 0.001, 0.011)
    assert "40 more documents" in opened.note and "of 24" in opened.note
    assert "0.01 nats" in table.note and "0.005 nats" in table.note  # what is asked


def test_nothing_asked_has_no_table() -> None:
    assert answers_table(grid_of("plain"), {("one", "plain"): [part("finds", {}, stopped="out of memory")]}) is None


@pytest.mark.parametrize(("signs", "shown"), [("yyy", "✓"), ("yoy", "?"), ("yon", "✗")])
def test_an_answer_of_several_seeds_is_the_worst_of_them(signs: str, shown: str) -> None:
    runs = [f"one-seed{k}" for k in range(3)]
    cells = [cell(run, "plain", 64, {"any": 1}) for run in runs]
    whole = evaluation("reach", {}, [measured(run, window=128) for run in runs], (64,), cells)
    whole = replace(whole, seeds={"one": {run: run[-1] for run in runs}})
    table = answers_table(
        whole, {(run, "plain"): [part("uses", {64: sign})] for run, sign in zip(runs, signs, strict=True)}
    )
    assert table is not None and [[value.text for value in row.values] for row in table.rows] == [[shown]]


@pytest.mark.parametrize("suite", ["perplexity", "passkey", "recall", "ruler"])
def test_who_ran_out_of_memory_everywhere_is_unknown_and_says_so(suite: str) -> None:
    point = "needle@64" if suite == "ruler" else 64
    cells = [cell("one", "plain", point, status="out_of_memory")]
    grid = evaluation(suite, {}, [measured("one", window=128)], (point,), cells)
    (said,) = verdicts(grid, SUITES.module(suite).Evaluator(settings(suite)).reach_parts(grid))
    assert said.state == "unknown" and "out of memory" in said.line
    assert all(words.endswith("out of memory") for _, words in said.parts)


@pytest.mark.parametrize("suite", ["anomaly", "speed"])
def test_suites_that_say_nothing_of_reach(suite: str) -> None:
    assert SUITES.module(suite).Evaluator(None).reach_parts(None) == {}


def answered(found: Evaluation, drawn: np.ndarray) -> dict[tuple[str, int], Outcome]:
    """By part and length, of these documents alone."""
    said: dict[tuple[str, int], Outcome] = {}
    for each in found.cells:
        result, length = each.result["sources"]["text"], int(each.point)
        if "holds" in result:
            said["holds", length] = holds(length, [result["holds"][d] for d in drawn], HOLDS_WITHIN).answer.outcome
        for n, gains in result["uses"].items():
            said["uses", int(n)] = uses(int(n), [gains[d] for d in drawn], USES_GAIN).answer.outcome
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "truth"),
    [
        (Copier(reach=512), {"holds": 2048, "uses": 512}),
        (Copier(end=1024), {"holds": 1024, "uses": 1024}),
        (Copier(), {"holds": 2048, "uses": 2048}),
    ],
    ids=["a window of 512", "an end at 1,024", "a copy head"],
)
def test_draws_of_documents_contradict_neither_a_known_reach_nor_each_other(
    model: Copier, truth: dict[str, int]
) -> None:
    found, rng, n_pairs, contradicted, wrong, is_open = read(model, N_DOCUMENTS), np.random.default_rng(3), 200, 0, 0, 0
    for _ in range(n_pairs):
        one, other = (
            answered(found, rng.choice(N_DOCUMENTS, int(n), replace=False)) for n in rng.choice((10, 20, 40, 80), 2)
        )
        contradicted += any({one[key], other[key]} == {"yes", "no"} for key in one)
        for (part, length), outcome in (*one.items(), *other.items()):
            wrong += outcome != "open" and (outcome == "yes") != (length <= truth[part])
            is_open += outcome == "open"
    print(f"{contradicted} of {n_pairs} pairs contradicted, {wrong} answers wrong, {is_open} open")
    assert contradicted == wrong == 0
