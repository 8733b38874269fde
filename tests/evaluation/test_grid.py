"""The whole of an evaluation on tiny models: numbers from outside, cells kept, memory that runs out, what cannot be."""

import json
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from coca_train.data.tokenizer import Tokenizer
from coca_train.evaluation import pipeline
from coca_train.evaluation.configuration import load
from coca_train.evaluation.grid import Progress
from coca_train.evaluation.suites import perplexity
from coca_train.runtime.durable import read_json

WINDOWS = (12, 24, 48)


@pytest.fixture
def evaluate(evaluated):
    """evaluate("grid.…=…", ...): the results of suite `perplexity` on one model; cells are kept between calls."""

    def results(*words: str, checkpoint: str = ""):
        chosen = [f"checkpoint={checkpoint}"] if checkpoint else []
        return evaluated("perplexity", f"grid.lengths={list(WINDOWS)}", "eval.stride=7", *chosen, *words)[0]

    return results


@pytest.fixture
def counted(monkeypatch):
    """The points measured from now on."""
    measured, measure = [], perplexity.Evaluator.measure

    def counting(settings, subject, point, material, setup):
        measured.append(point)
        return measure(settings, subject, point, material, setup)

    monkeypatch.setattr(perplexity.Evaluator, "measure", counting)
    return measured


def test_a_cell_is_measured_once(evaluate, counted):
    first = evaluate("grid.lengths=[12,48]")
    assert counted == [48, 12]  # the longest first: if memory runs out, it does so at once
    again = evaluate("grid.lengths=[12,24,48]", "work.micro_batch_tokens=64", "work.name=again")
    assert counted == [48, 12, 24]
    assert [cell["result"] for cell in again["cells"] if cell["point"] != 24] == [c["result"] for c in first["cells"]]


def test_a_cell_is_the_same_bits_whatever_is_measured_with_it(evaluate, counted, tmp_path):
    """Its passes are its own: each missing alone, and each evaluated alone."""
    words = ["grid.rope_scalings=[trained,dynamic_ntk@alpha:4]", "eval.document_tokens=whole"]
    words, folder = [*words, "eval.min_document_tokens=48"], tmp_path / "made/cells"

    def results():
        return {path.name: read_json(path)["result"] for path in folder.rglob("*.json")}

    evaluate(*words)
    whole, cells = results(), sorted(folder.rglob("*.json"))
    assert len(cells) == 2 * len(WINDOWS)
    for cell in cells:
        cell.unlink()
        counted.clear()
        evaluate(*words)
        assert results() == whole and len(counted) == 1
    shutil.rmtree(folder)
    for window in WINDOWS:
        evaluate(*words, f"grid.lengths=[{window}]")
    again = results()
    assert {name: again.get(name) for name in whole} == whole


def test_the_time_left_is_that_of_what_waits(evaluate, monkeypatch, folders):
    calls = []
    monkeypatch.setattr(Progress, "expect", lambda self, work, n_models: calls.append((work, n_models)))
    both = f"{folders('one')},{folders('two')}"
    evaluate("grid.lengths=[48]")
    evaluate("grid.lengths=[48]", checkpoint=both)
    (alone, _), (first, models), (second, last) = calls
    assert alone == second > 0
    assert first == 0  # kept
    assert (models, last) == (2, 1)


def test_another_question_is_measured_anew(evaluate, counted, tmp_path, folders, books):
    """Other settings, seed, precision, variant, text or weights; each is kept beside the others."""
    (tmp_path / "other.jsonl").write_text(books.read_text().replace("cat", "dog"))
    settings = ["eval.stride=5", "work.seed=1", "work.dtype=bf16", "grid.rope_scalings=[linear]"]
    for _ in range(2):
        for other in ("", *settings, f"text.files=[{tmp_path / 'other.jsonl'}]"):
            evaluate("grid.lengths=[12]", *filter(None, [other]))
        evaluate("grid.lengths=[12]", checkpoint=str(folders("two")))
    assert counted == [12] * 7


def test_a_killed_grid_goes_on_where_it_stopped(evaluate, monkeypatch, counted):
    measure, calls = perplexity.Evaluator.measure, []

    def killed(*arguments):
        calls.append(arguments[2])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(perplexity.Evaluator, "measure", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate()
    assert counted == [48, 24]
    evaluate()
    assert counted == [48, 24, 12]


def test_a_damaged_cell_is_measured_again(evaluate, counted, tmp_path):
    evaluate("grid.lengths=[12]")
    (cell,) = (tmp_path / "made/cells").rglob("*.json")
    cell.write_text(cell.read_text()[:100])
    evaluate("grid.lengths=[12]")
    assert counted == [12, 12]


def test_out_of_memory_is_a_cell_and_the_grid_goes_on(evaluate, monkeypatch):
    measure = perplexity.Evaluator.measure
    errors = {
        12: torch.OutOfMemoryError("CUDA out of memory"),
        24: MemoryError(),
        36: RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    }

    def small(settings, subject, point, material, setup):
        if point in errors:
            raise errors[point]
        return measure(settings, subject, point, material, setup)

    monkeypatch.setattr(perplexity.Evaluator, "measure", small)
    cells = evaluate("grid.lengths=[12,24,36,48]")["cells"]
    assert [cell["status"] for cell in cells] == [*["out_of_memory"] * 3, "done"]
    assert all("rank 0" in cell["reason"] for cell in cells[:3])


def test_a_bug_is_not_taken_for_a_lack_of_memory(evaluate, monkeypatch):
    def wrong(*arguments):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(perplexity.Evaluator, "measure", wrong)
    with pytest.raises(RuntimeError, match="shapes differ"):
        evaluate()


def test_variants_are_rows_and_those_that_cannot_be_say_why(evaluate):
    record = evaluate(
        "grid.rope_scalings=[trained,dynamic_ntk@alpha:4,clex]", "grid.attention_patterns=[trained,segments@length:12]"
    )
    by_variant = {(c["variant"], c["point"]): c for c in record["cells"]}
    same = {
        by_variant[name, 12]["result"]["sources"]["books"]["perplexity"] for name in ("plain", "dynamic_ntk (alpha 4)")
    }
    assert len(same) == 1  # within the training window the factor is 1
    far = {n: by_variant[n, 48]["result"]["sources"]["books"]["perplexity"] for n in ("plain", "dynamic_ntk (alpha 4)")}
    assert far["plain"] != far["dynamic_ntk (alpha 4)"]
    segments = "plain, segments (length 12)"
    assert by_variant[segments, 48]["result"] != by_variant["plain", 48]["result"]
    clex = [cell for cell in record["cells"] if cell["variant"].startswith("clex")]
    assert {cell["status"] for cell in clex} == {"impossible"}
    assert "clex" in clex[0]["reason"]


def test_a_variant_reads_nothing_where_it_is_the_identity(evaluate, monkeypatch):
    """A dynamic frequency is the plain one up to the training window, and neither reading nor progress counts it."""
    read, shares, score = [], [], perplexity.score_share

    def recorded(model, documents, rows, *more):
        read.append((model.position.settings.rope_scaling.name, [row.length for row in rows]))
        return score(model, documents, rows, *more)

    monkeypatch.setattr(perplexity, "score_share", recorded)
    monkeypatch.setattr(Progress, "share", lambda self, share: shares.append(self._before + share * self._work))
    monkeypatch.setattr(Progress, "expect", lambda self, work, n_models: shares.append(-work))
    record = evaluate("grid.rope_scalings=[trained,dynamic_ntk@alpha:4]")
    window = record["subjects"][0]["training_window"]
    lengths = {name: [n for of, each in read if of == name for n in each] for name in ("plain", "dynamic_ntk")}
    assert min(lengths["plain"]) < window < min(lengths["dynamic_ntk"])
    assert shares[-1] == -shares[0] > 0


def test_a_logit_scale_is_an_axis_and_acts_beyond_the_training_window_only(evaluate, tmp_path):
    cells = evaluate("grid.logit_scales=[log,trained]", "grid.lengths=[12,48]")["cells"]
    nll = {(c["variant"], c["point"]): c["result"]["sources"]["books"]["nll_sum"] for c in cells}
    assert nll["plain, logit scale log", 12] == nll["plain", 12]
    assert nll["plain, logit scale log", 48] != nll["plain", 48]
    alone = evaluate("grid.lengths=[12,48]", f"work.root={tmp_path / 'alone'}")[
        "cells"
    ]  # without another variant before it
    assert [c["result"]["sources"]["books"]["nll_sum"] for c in alone] == [nll["plain", 12], nll["plain", 48]]


def test_windows_that_no_document_fills_are_left_out(evaluate):
    cells = {cell["point"]: cell for cell in evaluate("grid.lengths=[12,24,3000]")["cells"]}
    assert [cells[window]["status"] for window in (12, 24, 3000)] == ["done", "done", "impossible"]
    assert cells[3000]["reason"].split()[-2] == "3,000"
    assert cells[12]["result"]["sources"]["books"]["n_tokens"] == 3 * 24


@pytest.mark.parametrize(("choice", "n_predictions"), [("longest", 3 * 24), ("window", 3 * 12), ("whole", None)])
def test_what_is_scored(evaluate, choice, n_predictions, folders, books):
    record = evaluate("grid.lengths=[12,24]", f"eval.document_tokens={choice}", "eval.min_document_tokens=24")
    texts = [json.loads(line)["text"] for line in books.read_text().splitlines()]
    encode = Tokenizer(folders("one") / "tokenizer.model").encode
    expected = n_predictions or sum(len(encode(text)) for text in texts)
    assert record["cells"][0]["result"]["sources"]["books"]["n_tokens"] == expected


def test_multiples_are_of_the_shortest_training_window(monkeypatch):
    windows = {"long": 128, "short": 32}
    opened = lambda path: nullcontext(SimpleNamespace(architecture=SimpleNamespace(seq_len=windows[path])))  # noqa: E731
    monkeypatch.setattr(pipeline, "open_source", opened)
    config, _ = load(["checkpoint=long,short", "grid.lengths=[4x,100,1x,0.5x,0.3x,0.01x,1.5x]"])
    assert pipeline.lengths(config) == (1, 9, 16, 32, 48, 100, 128)
