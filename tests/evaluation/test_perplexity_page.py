"""The page of suite `perplexity` from made-up cells."""

import math
import re
from dataclasses import replace

import pytest

from coca_train.evaluation import perplexity_page
from coca_train.evaluation.pages import OTHER_TOKENS, file_names, grid_in_words
from coca_train.evaluation.perplexity_page import main_text, page
from coca_train.evaluation.results import Evaluation
from coca_train.evaluation.verdict import NOTHING, verdicts
from coca_train.report.render import write_report
from coca_train.report.render.contents import best_places
from tests.evaluation.grids import blocks, cell, evaluation, measured

WINDOWS = (512, 1024, 2048)


def result(perplexity: float, *sources: str, n_documents: int = 24) -> dict:
    figures = {
        "perplexity": perplexity, "ci_low": perplexity - 1, "ci_high": perplexity + 1, "bits_per_byte": 1.25,
        "n_documents": n_documents, "n_tokens": 300, "n_bytes": 1000, "ends": [1, 2], "loss_by_position": [3.0, 2.5],
        "loss_low": [2.5, 2.0], "loss_high": [3.5, 3.0], "predictions": "same",
        "by_document": [[100 * math.log(perplexity) + i % 2, 100] for i in range(n_documents)],
    }  # fmt: skip
    return {"stride": 512, "sources": dict.fromkeys(sources, figures)}


def some(*sources: str, **fields: int) -> Evaluation:
    figures = {"rope": (20.0, 40.0, 90.0), "coca": (21.0, 30.0, 50.0)}
    cells = [
        cell(name, "plain", window, result(figure, *sources, **fields))
        for name, row in figures.items()
        for window, figure in zip(WINDOWS, row, strict=True)
    ]
    cells += [cell(name, "yarn", window, reason="no frequencies") for name in figures for window in WINDOWS]
    subjects = [measured(name, ("plain", "yarn"), window=512) for name in figures]
    return evaluation("perplexity", {}, subjects, WINDOWS, cells)


def test_rows_windows_and_what_the_paper_has():
    table = blocks(page(some("books")))["perplexity-books"]
    assert table.columns == ("512 (1×)", "1,024 (2×)", "2,048 (4×)")
    ours = [(row.label, [value.number for value in row.values]) for row in table.rows if not row.theirs]
    assert ours == [(("rope", "plain"), [20.0, 40.0, 90.0]), (("coca", "plain"), [21.0, 30.0, 50.0])]
    theirs = {row.label: [value.number for value in row.values] for row in table.rows if row.theirs}
    assert theirs["RoPE", "CoCA, table 1"] == [19.66, 411.5, 3276.0]
    assert theirs["CoCA + dynamic NTK (alpha 4)", "CoCA, table 1"] == [20.11, 20.81, 25.88]
    assert theirs["CoCA + dynamic NTK (alpha 8) + strict", "CoCA, table 3"] == [20.18, 21.92, 28.41]
    # Of a model trained in windows of 2,048: at as many times its window.
    assert theirs["LLaMA-7B + CoCA + PI", "CoCA, table 4"] == [8.37, 7.87, 7.84]


def test_a_text_of_yarns_has_its_authors_figures_beside_ours():
    """At the same length, and none of CoCA's, whose text is another; where they did not measure there is none."""
    table = blocks(page(some("proof_pile")))["perplexity-proof-pile"]
    theirs = {row.label: [value.number for value in row.values] for row in table.rows if row.theirs}
    assert {who for _, who in theirs} == {"YaRN's authors"} and "stride 256" in table.note
    assert theirs["Yarn-Llama-2-7b-64k", "YaRN's authors"] == [None, None, 4.1407]
    assert theirs["Llama-2-70b-hf", "YaRN's authors"] == [None, 3.7056, 3.2749]


def test_models_of_two_tokenizers_have_no_best():
    alike = some("books")
    rope, coca = alike.subjects
    known = replace(alike, subjects=(replace(rope, tokenizer="a"), replace(coca, tokenizer="a")))
    assert "CoCA" in page(known).finding[0] and best_places(blocks(page(known))["perplexity-books"])
    differ = replace(alike, subjects=(replace(rope, tokenizer="a"), replace(coca, tokenizer="b")))
    said = page(differ)
    assert said.finding == [OTHER_TOKENS]
    losses, bits = (blocks(said)[f"{name}-books"] for name in ("perplexity", "bits-per-byte"))
    assert OTHER_TOKENS in losses.note and not best_places(losses) and not best_places(bits)


def test_models_with_different_sources_are_compared_on_what_they_have_in_common():
    alike = some("books")
    cells = [
        replace(c, result=result(20.0, "all", "wiki", "books")) if c.subject == "rope" and c.result else c
        for c in alike.cells
    ]
    assert main_text(replace(alike, cells=cells)).source == "books"
    both = {"rope": ("wiki", "books", "all"), "coca": ("code", "books", "all")}
    cells = [replace(c, result=result(20.0, *both[c.subject])) if c.result else c for c in alike.cells]
    assert main_text(replace(alike, cells=cells)).source == "books"  # `all` is of other texts
    every = [replace(c, result=result(20.0, "books", "wiki", "all")) if c.result else c for c in alike.cells]
    assert main_text(replace(alike, cells=every)).source == "all"
    # Where they have none in common, who has none of the text that is shown has no verdict, and is not left out.
    gains = {"128": [[0.1 + n / 100, 1] for n in range(20)]}
    apart = [
        replace(c, result={"stride": 1, "sources": {c.subject: {**c.result["sources"]["books"], "uses": gains}}})
        if c.result
        else c
        for c in alike.cells
    ]
    apart = replace(alike, cells=apart)
    said = {each.label: dict(each.parts)["uses"] for each in verdicts(apart, perplexity_page.reach_parts(apart))}
    assert said == {"RoPE": "128", "CoCA": f"undecided: {NOTHING}"}


def test_the_title_says_what_was_asked():
    grid = some("books")
    assert page(grid).title.endswith(": rope, coca, 512 to 2,048 tokens")
    alone = replace(grid, subjects=grid.subjects[:1], points=(512,))
    assert page(alone).title.endswith(": rope, 512 tokens")
    many = replace(grid, subjects=[measured(f"m{i}") for i in range(9)], points=("boolq", "copa"))
    assert grid_in_words(many) == "9 models, boolq, copa"
    assert grid_in_words(replace(many, points=[f"task{i}" for i in range(9)])) == "9 models, 9 tasks"
    assert grid_in_words(many, "1/√t from 0.8 to 1.4") == "9 models, 1/√t from 0.8 to 1.4"


def test_a_model_alone_is_compared_with_itself():
    both = some("books")
    alone = replace(both, subjects=both.subjects[1:], cells=tuple(c for c in both.cells if c.subject == "coca"))
    (sentence,) = page(alone).finding
    assert "from 21 at 512" in sentence and "to 50 at 2,048" in sentence and "(4×" in sentence


@pytest.mark.parametrize("sources", [("books_test",), ("a_b", "a-b"), ("€", "<script>"), ("all", "books", "code")])
def test_any_name_of_a_source_is_a_file_name(sources, tmp_path):
    paths = write_report(page(some(*sources)), tmp_path)
    assert sum(path.startswith("tables/perplexity-") and path.endswith(".tex") for path in paths) == len(sources)
    names = file_names(sources)
    assert len(set(names.values())) == len(sources)
    assert all(re.fullmatch(r"[A-Za-z0-9-]+", name) for name in names.values())


def test_of_several_models_those_too_little_trained_are_named():
    known = some("books")
    for each in known.cells:
        if each.point == 512 and each.subject == "rope" and each.result:
            each.result["sources"]["books"]["token_frequencies"] = [
                [400.0, 250.0, 100] for _ in range(24)
            ]  # 2.5 nats a token
    finding = page(known).finding
    assert len(finding) == 2 and finding[1].startswith("RoPE") and "trained" in finding[1]
