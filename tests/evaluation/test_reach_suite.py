"""`+eval=reach`, whole: its parts' cells in one grid, kept as their own suites keep them; a line of answers a model."""

import math
from pathlib import Path
from typing import Any

import pytest

from coca_train.config.messages import ConfigError
from coca_train.evaluation.configuration import load
from coca_train.evaluation.grid import Progress
from coca_train.evaluation.results import Evaluation
from coca_train.evaluation.suites import reach
from coca_train.evaluation.verdict import FOUND_SHARE, USES_GAIN, Evidence, Part, answers_table, verdicts
from coca_train.report.blocks import ANSWERED, Document, Section, Table
from coca_train.report.render import write_report
from coca_train.report.render.contents import picture_note
from coca_train.statistics.answers import Answer
from coca_train.statistics.intervals import Bounds
from tests.evaluation.grids import cell, evaluation, measured, settings
from tests.evaluation.page_parser import Page

PARTS = {"holds", "uses", "finds"}


def test_its_parts_are_measured_in_one_grid_and_found_again(evaluated, tmp_path: Path, capsys) -> None:
    words = ["grid.lengths=[24,48]", "eval.works=null", "eval.finds.n_cases=2", "eval.reads.stride=7"]
    record, page = evaluated("reach", *words)
    by_suite = {
        suite: [cell["point"] for cell in record["cells"] if cell["suite"] == suite]
        for suite in ("perplexity", "recall")
    }
    assert by_suite == {"perplexity": [24, 48], "recall": [24, 48]}
    (said,) = page.verdicts
    assert said.state == "unknown" and {name for name, _ in said.parts} <= PARTS
    assert {"holds", "uses"} <= {name for name, _ in said.parts}
    shown = "".join(capsys.readouterr())
    assert said.label in shown and "✓" in shown
    folded = {section.title: section.folded for section in page.sections}
    assert folded["Definition"] and not folded["Perplexity, books"]
    # The answers of all parts are in one table, and what the text alone answers in no other; its finding is the page's.
    (answers,) = [b for section in page.sections for b in section.blocks if getattr(b, "name", "") == ANSWERED]
    assert {name for _, name in (row.label for row in answers.rows)} == {name for name, _ in said.parts}
    assert page.finding and page.finding[0] in shown
    # The suite by itself finds the cells that the part has measured.
    kept = sorted(path.name for path in (tmp_path / "made" / "cells").rglob("*.json"))
    evaluated("perplexity", "grid.lengths=[24,48]", "eval.stride=7", "text.max_documents=24")
    assert sorted(path.name for path in (tmp_path / "made" / "cells").rglob("*.json")) == kept


def test_the_time_left_is_that_of_all_parts(evaluated, monkeypatch) -> None:
    """Said once: a share that fell when the next part began would make every time left before it a lie."""
    expected, begun = [], []
    monkeypatch.setattr(Progress, "expect", lambda self, work, n_models: expected.append(work))
    monkeypatch.setattr(Progress, "cell", lambda self, words, work: begun.append((work, len(expected))))
    record, _ = evaluated("reach", "grid.lengths=[24,48]", "eval.works=null", "eval.finds.n_cases=2")
    assert {cell["suite"] for cell in record["cells"]} == {"perplexity", "recall"}
    assert [sum(work for work, _ in begun)] == expected and {said for _, said in begun} == {1}


def test_a_part_that_is_left_out_is_not_asked(evaluated) -> None:
    record, page = evaluated("reach", "grid.lengths=[48]", "eval.reads=null", "eval.works=null", "eval.finds.n_cases=2")
    assert {cell["suite"] for cell in record["cells"]} == {"recall"}
    assert {name for verdict in page.verdicts for name, _ in verdict.parts} <= {"finds"}


def test_nothing_asked_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing is asked"):
        load(["+eval=reach", "checkpoint=one", "eval.reads=null", "eval.finds=null", "eval.works=null"])


@pytest.mark.parametrize("last", ["needle", "common_words"])
def test_a_task_that_fits_no_prompt_leaves_it_open_and_says_why(last: str) -> None:
    """Whichever task comes last, and whether or not the others were measured."""
    why, cases = "the shortest prompt of common_words is longer than 256 tokens", [{"score": 1}] * 20
    tasks = [task for task in ("needle", "common_words") if task != last] + [last]
    known: dict[str, Any] = {"needle": {"result": {"cases": cases}}, "common_words": {"reason": why}}
    cells = [cell("one", "plain", f"{t}@{n}", suite="ruler", **known[t]) for t in tasks for n in (128, 256)]
    options = {"reads": None, "finds": None, "works": {"suite": "ruler"}}
    grid = evaluation("reach", options, [measured("one", window=128)], (128, 256), cells)
    (said,) = verdicts(grid, reach.Evaluator(settings("reach")).reach_parts(grid))
    assert said.state == "unknown" and said.parts == (("works with", f"undecided: {why}"),)


def test_a_loss_that_is_no_number_fails_where_it_can_be_seen() -> None:
    grid, said = planted()
    said["one", "plain"] = [part("holds", (256, math.nan, math.nan, math.nan, 24, "no"), granted=128)]
    table = answers_table(grid, said)
    assert isinstance(table, Table)
    assert [value.text for value in table.rows[0].values] == ["✓", "✗"]
    assert "nan" in table.rows[0].values[1].note


def part(name: str, *seen: tuple[int, float, float, float, int, Any], granted: int = 0) -> Part:
    """seen: length, estimate, low, high, n, outcome."""
    evidence = tuple(Evidence(length, Answer(outcome, Bounds(*figures))) for length, *figures, outcome in seen)
    bound = {"holds": 0.01, "uses": USES_GAIN}.get(name, FOUND_SHARE)
    return Part(name, "documents", evidence, granted, bound=bound)  # type: ignore[arg-type]


def planted() -> tuple[Evaluation, dict[tuple[str, str], list[Part]]]:
    """Two models: one whose loss flies off, one with all parts."""
    flies = part("holds", (256, 0.002, 0.001, 0.004, 24, "yes"), (512, 3.0, 2.9, 3.1, 24, "no"), granted=128)
    used = part("uses", (128, 0.02, 0.01, 0.03, 24, "yes"), (256, 0.01, -0.01, 0.03, 12, "open"))
    found = part("finds", (128, 0.95, 0.85, 0.99, 40, "yes"), (256, math.nan, 0.0, 1.0, 0, "open"))
    models = [measured("one", window=128), measured("two", window=128)]
    grid = evaluation("reach", {"reads": {"holds_within": 0.01}}, models, (128, 256, 512), [
        cell(name, "plain", length, {"any": 1}) for name in ("one", "two") for length in (128, 256, 512)
    ])  # fmt: skip
    return grid, {("one", "plain"): [flies], ("two", "plain"): [used, found]}


def test_each_part_has_a_picture_with_its_bound() -> None:
    grid, said = planted()
    pictures, table = reach._pictures(grid, said), answers_table(grid, said)
    assert isinstance(table, Table)
    holds, uses, finds = pictures
    assert [picture.name for picture in pictures] == ["reach-holds", "reach-uses", "reach-finds"]
    assert [level for picture in pictures for level, _ in picture.levels] == [0.01, USES_GAIN, FOUND_SHARE]
    assert holds.y_limits == pytest.approx((-0.01, 0.11))  # a loss that flies off leaves the bound where it can be seen
    assert finds.y_limits == (0.0, 1.0) and uses.y_limits == (None, None)
    (of_one,) = holds.lines  # two was not asked
    assert (of_one.x, of_one.high) == ((128.0, 256.0, 512.0), (None, 0.004, 3.1))
    assert of_one.y[0] == 0.0  # in its training window nothing is added
    (of_two,) = finds.lines
    assert (of_two.label, of_two.look) == ("two", 1)  # its colour stays its own
    assert (of_two.x, of_two.y) == ((128.0,), (0.95,))  # no prompt, no point
    assert "Dashed: yes is at most this" in picture_note(holds)
    assert {row.label: [value.text for value in row.values] for row in table.rows} == {
        ("one", "holds"): ["✓", "✓", "✗"],
        ("two", "uses"): ["✓", "?", ""],
        ("two", "finds"): ["✓", "?", ""],
    }
    assert (table.rows[0].values[1].low, table.rows[0].values[1].high) == (0.001, 0.004)


@pytest.mark.parametrize(("lost", "limits"), [(-0.3, (-0.11, 0.02)), (0.05, (None, None)), (0.3, (-0.01, 0.11))])
def test_the_picture_of_what_is_held_ends_at_ten_times_what_may_be_lost(lost: float, limits: tuple) -> None:
    grid, said = planted()
    said["one", "plain"] = [part("holds", (256, lost, lost - 0.01, lost + 0.01, 24, "yes" if lost < 0 else "no"))]
    assert reach._pictures(grid, said)[0].y_limits == pytest.approx(limits)


def test_pictures_and_answers_in_every_form(tmp_path: Path) -> None:
    grid, said = planted()
    blocks = [*reach._pictures(grid, said), answers_table(grid, said)]
    page = Document(title="t", summary=[], sections=[Section(title="s", blocks=blocks)], facts=[], command="c")  # type: ignore[arg-type]
    paths = write_report(page, tmp_path)
    assert {"figures/reach-holds.png", "figures/reach-uses.svg", "tables/reach-finds.csv"} <= set(paths)
    source = paths["report.html"].read_text()
    # The answers first, then the picture behind them.
    assert source.index(f'id="block-{ANSWERED}"') < source.index('id="block-reach-holds"') < source.index("</main>")
    assert source.count('class="level"') == 2 * 3
    assert len(Page(source).ids()) == len(set(Page(source).ids()))
    assert "0.004" in paths["tables/reach-holds.csv"].read_text()
    assert "0.004" in paths[f"tables/{ANSWERED}.csv"].read_text()


def test_a_model_without_the_positions_is_unknown_in_what_it_could_not_be_asked() -> None:
    uses = {"stride": 128, "sources": {"text": {"uses": {"128": [[0.1 + n / 100, 1] for n in range(20)]}}}}
    learned, why = measured("learned", window=128), "learned has 128 positions"
    cells = [
        cell("learned", "plain", 128, uses, suite="perplexity"),
        *(cell("learned", "plain", n, status="impossible", reason=why, suite="perplexity") for n in (256, 512)),
        *(cell("learned", "plain", n, status="impossible", reason=why, suite="recall") for n in (128, 256, 512)),
    ]
    options = {"reads": {"suite": "perplexity"}, "finds": {"suite": "recall"}, "works": None}
    ((used, found),) = (
        reach.Evaluator(settings("reach"))
        .reach_parts(evaluation("reach", options, [learned], (128, 256, 512), cells))
        .values()
    )
    assert (used.name, used.sure, used.stopped) == ("uses", 128, why)
    assert (found.name, found.known, found.stopped) == ("finds", False, why)
