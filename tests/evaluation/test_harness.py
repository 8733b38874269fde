"""Figures of lm-evaluation-harness through our adapter, against sums over plain forwards of whole sequences."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coca_train.config.messages import ConfigError
from coca_train.evaluation import configuration
from coca_train.evaluation.measures.harness_text import OwnText
from coca_train.evaluation.subject import Subject
from coca_train.report import paper
from coca_train.report.render.contents import best_places
from tests.evaluation.grids import cell, evaluation, measured
from tests.evaluation.harnessed import TASKS, WINDOW, cells, lines, log_p, random_subject, settings, setup_of

pytest.importorskip("lm_eval")


@pytest.fixture(scope="module")
def subject(tmp_path_factory) -> Subject:
    return random_subject(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


@pytest.fixture
def suite(monkeypatch):
    """The suite; the paper's table is not what is tested."""
    from coca_train.evaluation.suites import harness

    return harness


def test_choices_equal_sums_over_plain_forwards(suite, subject, monkeypatch):
    acc, norm = [], []
    for doc in lines("capitals"):
        # The harness moves the space at the context's end to the choice, and puts one of its own between.
        before = subject.tokenizer.encode(f"Question: where is {doc['town']}?\nAnswer:")
        sums = []
        for choice in doc["lands"]:
            whole = subject.tokenizer.encode(f"Question: where is {doc['town']}?\nAnswer:  {choice}")
            assert whole[: len(before)] == before
            sums.append(log_p(subject, whole, len(whole) - len(before)))
        acc.append(max(range(len(sums)), key=sums.__getitem__) == doc["right"])
        shares = [total / len(choice) for total, choice in zip(sums, doc["lands"], strict=True)]
        norm.append(max(range(len(sums)), key=shares.__getitem__) == doc["right"])
    by_point, _ = cells(suite, settings(suite, "own_lands"), subject, monkeypatch)
    metrics = by_point["own_lands"]["metrics"]["own_lands"]
    assert acc != norm
    for name, hits in (("acc", acc), ("acc_norm", norm)):
        mean = sum(hits) / len(hits)
        assert metrics[name]["value"] == pytest.approx(mean)
        assert metrics[name]["stderr"] == pytest.approx(math.sqrt(mean * (1 - mean) / (len(hits) - 1)))
    assert by_point["own_lands"]["main"] == metrics["acc"]
    assert by_point["own_lands"]["tasks"]["own_lands"] == {
        "version": "1.0", "num_fewshot": 0, "original": 7, "effective": 7
    }  # fmt: skip
    assert (by_point["own_lands"]["n_clipped"], by_point["own_lands"]["n_requests"]) == (0, 18)


def test_word_perplexity_equals_sums_over_windows(suite, subject, monkeypatch):
    window, total, words = 48, 0.0, 0
    for doc in lines("tales"):
        tokens = [subject.tokenizer.eod, *subject.tokenizer.encode(doc["tale"])]
        for first in range(1, len(tokens), window):
            last = min(first + window, len(tokens))
            total += log_p(subject, tokens[max(0, last - window - 1) : last], last - first)
        words += len(re.split(r"\s+", doc["tale"]))
    assert len(tokens) < window < len(subject.tokenizer.encode(lines("tales")[0]["tale"]))
    by_point, _ = cells(suite, settings(suite, "own_tales", window=window), subject, monkeypatch)
    assert by_point["own_tales"]["main"]["value"] == pytest.approx(math.exp(-total / words), rel=1e-4)
    assert by_point["own_tales"]["main"]["metric"] == "word_perplexity"


@torch.no_grad()
def test_generation_is_greedy_and_ends_before_its_stop(suite, subject, monkeypatch):
    from coca_train.evaluation.measures import harness

    prompt, tokens = "one, two, three,", subject.tokenizer.encode("one, two, three,")
    for _ in range(12):
        tokens.append(int(subject.model(torch.tensor([tokens]))[0, -1].argmax()))
    text = subject.tokenizer.decode(tokens).removeprefix(prompt)
    reading = harness.Reading(window=64, batch_tokens=64)
    adapter = harness.Adapter(subject.model, OwnText(subject.tokenizer), reading)
    calls, hidden = [], subject.model.hidden
    monkeypatch.setattr(subject.model, "hidden", lambda *given, **options: calls.append(1) or hidden(*given, **options))

    def answer(**options) -> str:
        calls.clear()
        return adapter.generate_until([SimpleNamespace(args=(prompt, {"max_gen_toks": 12, **options}))])[0]

    assert answer(until=["\x00"]) == text
    stop = text[5:7]
    assert len(calls) == 12
    assert answer(until=[stop]) == text.split(stop)[0]
    assert len(calls) < 12  # it stops there
    assert adapter.n_clipped == 0
    assert answer(max_gen_toks=60) != ""  # 4 tokens of the prompt are left
    assert adapter.n_clipped == 1


def test_shares_of_ranks_make_the_same_result(suite, subject, monkeypatch):
    wanted = settings(suite, "own_both", "own_tales", "own_counting")
    alone, material = cells(suite, wanted, subject, monkeypatch)
    shared, _ = cells(suite, wanted, subject, monkeypatch, n_ranks=3)
    for point in alone:
        assert shared[point]["tasks"] == alone[point]["tasks"]
        assert shared[point]["n_requests"] == alone[point]["n_requests"]
        for task, metrics in alone[point]["metrics"].items():
            for name, metric in metrics.items():
                assert shared[point]["metrics"][task][name]["value"] == pytest.approx(metric["value"], rel=1e-5)
    both = alone["own_both"]
    hits = [both["metrics"][task]["acc"]["value"] for task in ("own_capitals", "own_lands")]
    assert both["main"]["value"] == pytest.approx(sum(hits) / 2)
    assert both["tasks"]["own_capitals"]["num_fewshot"] == 2
    contexts = {request.args[0] for request in material.tasks["own_both"].requests}
    assert any(context.count("lies in") == 3 for context in contexts)


def test_fingerprints_follow_what_is_asked(suite, subject):
    def digest(point="own_capitals", begin=(), **changes) -> str:
        asked = SimpleNamespace(**{**vars(subject), "begin": begin})
        material = suite.Evaluator(settings(suite, point, **changes)).prepare(asked, setup_of())
        return suite.Evaluator(None).fingerprint(material, point)

    first = digest()
    assert digest() == first
    changes = (
        {"seed": [0, 1234, 1234, 0]},
        {"num_fewshot": 1},
        {"limit": 3},
        {"window": 32},
        {"begin": (1,)},
        {"point": "own_lands"},
    )
    assert len({first, *(digest(**change) for change in changes)}) == 7
    material = suite.Evaluator(settings(suite, "own_capitals")).prepare(subject, setup_of())
    material.tasks["own_capitals"].requests.pop()
    assert suite.Evaluator(None).fingerprint(material, "own_capitals") != first


def test_the_first_documents_only_and_it_says_so(suite, subject, monkeypatch):
    by_point, _ = cells(suite, settings(suite, "own_lands", limit=3, num_fewshot=2), subject, monkeypatch)
    assert by_point["own_lands"]["tasks"]["own_lands"] | {"version": ""} == {
        "version": "", "num_fewshot": 0, "original": 7, "effective": 3
    }  # fmt: skip
    assert by_point["own_lands"]["n_requests"] == 8


def test_what_cannot_be_asked_has_its_reason(suite, subject):
    wanted = settings(suite, "own_lands", "own_counting", window=6)
    problems = suite.Evaluator(wanted).prepare(subject, setup_of()).problems
    assert "window of 6" in problems["own_lands"]
    assert "6 new tokens" in problems["own_counting"]


def own_task(folder: Path, words: str, *records: dict) -> str:
    """A folder with one task, own_short, of these records."""
    (folder / "short.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (folder / "short.yaml").write_text(
        f"task: own_short\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder}/short.jsonl}}}}\n"
        f"test_split: test\n{words}"
    )
    return str(folder)


PAGES = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{page}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
"""


@pytest.mark.parametrize("window", ["whole", "training", 1])
def test_an_empty_page_has_no_loss(suite, subject, monkeypatch, tmp_path, window):
    def perplexity(*pages: str) -> float:
        path = own_task(tmp_path, PAGES, *({"page": page} for page in pages))
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / str(len(pages)))
        by_point, _ = cells(suite, settings(suite, "own_short", include_path=path, window=window), subject, monkeypatch)
        return by_point["own_short"]["metrics"]["own_short"]["byte_perplexity"]["value"]

    assert perplexity("a tale", "", "b") == pytest.approx(perplexity("a tale", "b"), rel=1e-6)


def test_nothing_but_empty_pages_has_its_reason(suite, subject, tmp_path):
    wanted = settings(suite, "own_short", include_path=own_task(tmp_path, PAGES, {"page": ""}), window="whole")
    assert "empty texts" in suite.Evaluator(wanted).prepare(subject, setup_of()).problems["own_short"]


@pytest.mark.parametrize(("said", "next", "reason"), [("", "", "an empty text"), ("  ", "x", "")])
def test_an_empty_context(suite, subject, monkeypatch, tmp_path, said, next, reason):
    words = """
output_type: loglikelihood
doc_to_text: "{{said}}"
doc_to_target: "{{next}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""
    path = own_task(tmp_path, words, {"said": said, "next": next})
    wanted = settings(suite, "own_short", include_path=path)
    if reason:
        assert reason in suite.Evaluator(wanted).prepare(subject, setup_of()).problems["own_short"]
    else:
        assert cells(suite, wanted, subject, monkeypatch)[0]["own_short"]["n_requests"] == 1


def test_the_seeds_are_those_of_lm_eval():
    import lm_eval.defaults as defaults

    others = [defaults.DEFAULT_OTHER_SEED] * 3
    assert configuration.load(["+eval=harness", "checkpoint=x"])[0].eval.seed == [defaults.DEFAULT_RANDOM_SEED, *others]


def test_whole_reads_what_is_asked_however_long(suite, subject, monkeypatch):
    """Few-shot questions longer than the training window, against plain forwards of all of them."""
    whole = settings(suite, "own_capitals", "own_tales", num_fewshot=3, window="whole")
    by_point, material = cells(suite, whole, subject, monkeypatch)
    assert [each["n_clipped"] for each in by_point.values()] == [0, 0]
    best = {}
    for request in material.tasks["own_capitals"].requests:
        context, choice = request.args
        n = len(subject.tokenizer.encode(context))
        assert n > WINDOW
        total = log_p(subject, subject.tokenizer.encode(context + choice), len(subject.tokenizer.encode(choice)))
        best.setdefault(request.doc_id, []).append(total)
    right = [doc["right"] for doc in lines("capitals")]
    hits = [totals.index(max(totals)) == right[index] for index, totals in sorted(best.items())]
    assert by_point["own_capitals"]["metrics"]["own_capitals"]["acc"]["value"] == pytest.approx(sum(hits) / len(hits))
    clipped, _ = cells(suite, settings(suite, "own_capitals", num_fewshot=3), subject, monkeypatch)
    assert clipped["own_capitals"]["n_clipped"] == 18
    tales = [[subject.tokenizer.eod, *subject.tokenizer.encode(doc["tale"])] for doc in lines("tales")]
    words = sum(len(re.split(r"\s+", doc["tale"])) for doc in lines("tales"))
    total = sum(log_p(subject, tokens, len(tokens) - 1) for tokens in tales)
    assert max(map(len, tales)) > WINDOW
    assert by_point["own_tales"]["main"]["value"] == pytest.approx(math.exp(-total / words), rel=1e-4)


def test_a_model_without_the_positions_says_so(suite, tmp_path):
    learned = random_subject(tmp_path, ["position=learned", f"position.max_len={WINDOW}"])
    for window, problem in (("training", ""), ("whole", f"learned has {WINDOW} positions, and what is asked takes ")):
        wanted = settings(suite, "own_capitals", num_fewshot=3, window=window)
        reason = suite.Evaluator(wanted).impossible(
            learned, "own_capitals", suite.Evaluator(wanted).prepare(learned, setup_of())
        )
        assert reason.startswith(problem) and bool(reason) == bool(problem)


def test_where_a_continuation_begins(subject):
    from coca_train.evaluation.measures import harness

    def pair(context: str, continuation: str, begin: tuple[int, ...] = ()):
        text, reading = OwnText(subject.tokenizer, begin), harness.Reading(window=64, batch_tokens=64)
        return harness.Adapter(subject.model, text, reading)._encode_pair(context, continuation)

    encode = subject.tokenizer.encode
    assert pair("where ", "is") == (encode("where"), encode("where is")[len(encode("where")) :])
    assert pair("where", " is", begin=(99,))[0] == [99, *encode("where")]
    whole = encode("import")
    merged = next(n for n in range(1, 6) if len(encode("import"[:n])) >= len(whole))
    assert pair("import"[:merged], "import"[merged:]) == (whole[:-1] or [subject.tokenizer.eod], whole[-1:])


def test_page_shows_ours_and_says_what_is_missing(suite, subject, monkeypatch):
    by_point, _ = cells(suite, settings(suite, "own_lands", "own_tales"), subject, monkeypatch)
    grid_cells = [cell("mine", "plain", point, each) for point, each in by_point.items()]
    grid_cells.append(cell("mine", "plain", "copa", reason="no network"))
    points = ("own_lands", "own_tales", "copa")
    grid = evaluation("harness", {"limit": None}, [measured("mine")], points, grid_cells)
    document = suite.Evaluator(None).page(grid)
    higher, lower = (block for block in document.sections[0].blocks if hasattr(block, "rows"))
    assert higher.columns == ("own_lands", "copa")
    assert higher.rows[0].values[0].number == pytest.approx(100 * by_point["own_lands"]["main"]["value"])
    assert higher.rows[0].values[1].note == "no network"
    assert (higher.rows[1].theirs, higher.rows[1].values[1].number) == (True, 72.0)
    assert lower.columns == ("own_tales",)
    words = "\n".join(block.text for section in document.sections for block in section.blocks if hasattr(block, "text"))
    assert "at copa: no network" in words
    assert "all documents" in document.summary[0]


def test_shots_are_of_each_task(suite, subject, monkeypatch):
    wanted = settings(suite, "own_capitals", "own_tales", num_fewshot={"own_capitals": 1})
    by_point, material = cells(suite, wanted, subject, monkeypatch)
    shots = {task: each["num_fewshot"] for result in by_point.values() for task, each in result["tasks"].items()}
    assert shots == {"own_capitals": 1, "own_tales": 0}
    contexts = [request.args[0] for request in material.tasks["own_capitals"].requests]
    assert all(context.count("lies in") == 2 for context in contexts)
    alone = suite.Evaluator(settings(suite, "own_capitals", num_fewshot=1)).prepare(subject, setup_of())
    assert suite.Evaluator(None).fingerprint(alone, "own_capitals") == suite.Evaluator(None).fingerprint(
        material, "own_capitals"
    )
    by_task = suite.Evaluator(wanted)
    one_for_all = suite.Evaluator(settings(suite, "own_capitals", num_fewshot=1))
    assert by_task.options("own_capitals") == one_for_all.options("own_capitals")
    assert by_task.options("own_tales")["num_fewshot"] is None
    # The window's word, and where texts lie, are no part of a cell: its fingerprint has what is read.
    assert by_task.options("own_capitals")["window"] is None
    assert not {"metadata", "tasks"} & by_task.options("own_capitals").keys()
    with pytest.raises(ValueError, match=r"own_lands.* own_capitals"):
        settings(suite, "own_capitals", num_fewshot={"own_lands": 1})


@pytest.mark.parametrize(
    ("shots", "code", "named"),
    [
        ("-1", "E-CFG-05", ">= 0"),
        ("abc", "E-CFG-04", ">= 0"),
        ("{copa: -1}", "E-CFG-05", "copa is -1"),
        ("{copa: x}", "E-CFG-05", 'copa is "x"'),
        ("{nope: 3}", "E-CFG-05", "nope"),
    ],
)
def test_wrong_shots_are_one_problem_in_words(shots, code, named):
    with pytest.raises(ConfigError) as caught:
        configuration.load(["+eval=harness", "checkpoint=x", f"eval.num_fewshot={shots}"])
    said = str(caught.value)
    assert said.startswith(code) and f" eval.num_fewshot={shots}: " in said and named in said and "Fix: " in said
    assert said.count("E-CFG") == 1


PAPERS = ("harness_yarn", "harness_coca")
LONG = tuple(f"harness_{name}" for name in ("ruler", "babilong", "longbench", "longbench2"))


def test_the_papers_presets():
    yarn, coca = (configuration.load([f"+eval={name}", "checkpoint=x"])[0].eval for name in PAPERS)
    shots = {"arc_challenge": 25, "hellaswag": 10, "mmlu": 5, "truthfulqa_mc2": 0}
    assert {task: yarn.shots(task) for task in yarn.tasks} == shots
    assert set(coca.tasks) == set(paper.OPENCOMPASS)


@pytest.mark.slow
def test_the_harness_has_the_presets_tasks(subject):
    from coca_train.evaluation.measures.harness import find_tasks

    index = set(find_tasks((), None, OwnText(subject.tokenizer)).index.all_tasks)
    for name in PAPERS + LONG:
        assert set(configuration.load([f"+eval={name}", "checkpoint=x"])[0].eval.tasks) <= index


def answered(
    share: float = 0.0, n: int = 0, right: Sequence[int] = (), asked: str = "same", stderr: float | None = None
) -> dict[str, Any]:
    """A cell's result of task copa: a share of n documents, or which of them are right."""
    n, share = (len(right), sum(right) / len(right)) if right else (n, share)
    stderr = math.sqrt(share * (1 - share) / n) if n and stderr is None else stderr
    main = {"metric": "acc", "value": share, "stderr": stderr, "higher_is_better": True}
    documents = {"copa": {"asked": asked, "metrics": {"acc": list(right)}}} if right else {}
    task = {"effective": n, "original": n, "num_fewshot": 0, "version": "1"}
    return {
        "main": main, "metrics": {"copa": {"acc": main}}, "documents": documents, "tasks": {"copa": task} if n else {},
        "n_clipped": 0, "n_requests": 1,
    }  # fmt: skip


def tables_of(suite: Any, results: Mapping[str, Mapping[str, Any]], limit: int | None = None) -> list[Any]:
    """The tables of a page. results: by model and task."""
    tasks = tuple(next(iter(results.values())))
    grid_cells = [cell(name, "plain", task, result) for name, by in results.items() for task, result in by.items()]
    grid = evaluation("harness", {"limit": limit}, [measured(name) for name in results], tasks, grid_cells)
    document = suite.Evaluator(None).page(grid)
    return [block for section in document.sections for block in section.blocks if hasattr(block, "rows")]


def column_of(table: Any, task: str) -> Any:
    """Which models stand where in the column of a task."""
    return table.standings(theirs=False)[table.columns.index(task)]


def test_table_5_stands_beside_the_tasks_that_are_here(suite):
    shown = tables_of(suite, {"mine": {task: answered(0.25) for task in (*paper.OPENCOMPASS, "own")}})[0]
    llama, *others = (row for row in shown.rows if row.theirs)
    assert [value.number for value in llama.values] == [72, 46.9, 69.4, 50.2, 40.4, 35, 26.8, 27.1, None]
    assert len(others) == 3 and llama.label == ("LLaMA-7B", "CoCA, table 5")


def test_what_yarns_authors_have_stands_beside_the_tasks_of_their_table_3(suite):
    tasks = ("arc_challenge", "hellaswag", "mmlu", "truthfulqa_mc2")
    shown = tables_of(suite, {"mine": {task: answered(0.25) for task in tasks}})[0]
    theirs = {row.label[0]: row.values for row in shown.rows if row.theirs}
    assert len(theirs["Yarn-Llama-2-7b-64k"]) == len(shown.columns)
    figures = [(value.text, value.note) for value in theirs["Yarn-Llama-2-7b-64k"]]
    assert figures[:3] == [("52.3", "acc_norm"), ("78.8", "acc_norm"), ("42.5", "acc")]


@pytest.mark.parametrize(("ahead", "n", "bold"), [(0.02, 400, [0, 1]), (0.2, 400, [1]), (0.2, 12, [])])
def test_of_figures_within_their_errors_none_is_the_best(suite, ahead, n, bold):
    shown = tables_of(suite, {"one": {"copa": answered(0.5, n)}, "two": {"copa": answered(0.5 + ahead, n)}})[0]
    assert [place for place, _ in sorted(best_places(shown)) if place < 2] == bold
    if n == 400:
        assert shown.rows[0].values[0].range == "45.1 to 54.9"  # Wilson's of 200 of 400


def test_all_right_is_not_surely_better_than_most(suite):
    """The harness's standard error of 20 of 20 is 0; Wilson's intervals are 83.9 to 100 and 58.4 to 91.9."""
    results = {"one": {"copa": answered(1.0, n=20, stderr=0.0)}, "two": {"copa": answered(0.8, n=20, stderr=0.0918)}}
    overview, every = tables_of(suite, results, limit=20)
    assert [row.values[0].range for row in overview.rows[:2]] == ["83.9 to 100.0", "58.4 to 91.9"]
    assert {(0, 0), (1, 0)} <= best_places(overview)
    assert every.rows[0].values[0].range == "83.9 to 100.0"


@pytest.mark.parametrize(
    ("asked", "kept", "paired"), [("same", True, True), ("other", True, False), ("same", False, False)]
)
def test_one_that_is_right_on_more_of_the_same_documents_is_better(suite, asked, kept, paired):
    """400 documents, 24 of them right for one model alone: means of 50 % and 56 % by themselves are not apart."""
    two = answered(right=[1, 0] * 176 + [1, 1] * 24, asked=asked)
    two["documents"]["copa"]["metrics"] = two["documents"]["copa"]["metrics"] if kept else {}
    shown = tables_of(suite, {"one": {"copa": answered(right=[1, 0] * 200)}, "two": {"copa": two}})[0]
    assert column_of(shown, "copa").best == ((1,) if paired else (0, 1))
    assert ("copa (" in shown.note) != paired


@pytest.mark.slow
def test_simple_evaluate_of_the_harness_itself_gives_the_same(suite, subject, monkeypatch):
    from lm_eval import simple_evaluate

    from coca_train.evaluation.measures import harness

    by_point, material = cells(
        suite, settings(suite, "own_capitals", "own_tales", "own_counting"), subject, monkeypatch
    )
    text = OwnText(subject.tokenizer)
    manager = harness.find_tasks(["own_capitals"], str(TASKS), text).index
    adapter = harness.Adapter(subject.model, text, material.adapter.reading)
    theirs = simple_evaluate(adapter, tasks=list(by_point), task_manager=manager, bootstrap_iters=100)
    for task, each in by_point.items():
        for name, metric in each["metrics"][task].items():
            assert theirs["results"][task][f"{name},none"] == pytest.approx(metric["value"], rel=1e-5)


def test_a_cell_keeps_what_each_document_adds(suite, subject, monkeypatch):
    tasks = ("own_both", "own_tales", "own_counting")
    by_point, _ = cells(suite, settings(suite, *tasks), subject, monkeypatch)
    both, tales, counting = (by_point[task] for task in tasks)
    for task in ("own_capitals", "own_lands"):
        kept, metrics = both["documents"][task]["metrics"], both["metrics"][task]
        assert set(kept) == {"acc", "acc_norm"} and set(kept["acc"]) <= {0, 1}
        assert all(sum(kept[name]) / len(kept[name]) == pytest.approx(metrics[name]["value"]) for name in kept)
    asked = [each["asked"] for result in (both, tales) for each in result["documents"].values()]
    assert asked[0] == asked[1] != asked[2]  # two tasks of one file
    (words,) = (each["metrics"]["word_perplexity"] for each in tales["documents"].values())
    assert [n for _, n in words] == [len(re.split(r"\s+", doc["tale"])) for doc in lines("tales")]
    mean = sum(nats for nats, _ in words) / sum(n for _, n in words)
    assert math.exp(mean) == pytest.approx(tales["main"]["value"])
    assert len(counting["documents"]["own_counting"]["metrics"]["exact_match"]) == len(lines("counting"))


def test_models_are_compared_on_each_document(suite, subject, tmp_path, monkeypatch):
    """Two models of the same tasks, a group among them, whose figures are known by hand."""
    other = random_subject(tmp_path, ["model.n_layers=1"])
    tasks = ("own_both", "own_tales")
    wanted = settings(suite, *tasks)
    asked = {name: cells(suite, wanted, each, monkeypatch)[0] for name, each in (("one", subject), ("two", other))}
    higher, lower = tables_of(suite, asked)[:2]
    for shown in (higher, lower):
        ((difference,),) = [each.differences.values() for each in shown.standings(theirs=False)]
        assert difference.paired and "on each document" in shown.note
    (difference,) = column_of(higher, "own_both").differences.values()
    right = [
        [hit for task in ("own_capitals", "own_lands") for hit in by["own_both"]["documents"][task]["metrics"]["acc"]]
        for by in asked.values()
    ]
    assert difference.n_above == sum(a > b for a, b in zip(*right, strict=True))
    assert difference.n_below == sum(a < b for a, b in zip(*right, strict=True))
    nats = [by["own_tales"]["documents"]["own_tales"]["metrics"]["word_perplexity"] for by in asked.values()]
    (difference,) = column_of(lower, "own_tales").differences.values()
    by_hand = sum(a - b for (a, _), (b, _) in zip(*nats, strict=True)) / sum(n for _, n in nats[0])
    assert difference.bounds.estimate == pytest.approx(by_hand)


def test_a_figure_that_is_no_mean_over_documents_has_none_of_them():
    from coca_train.evaluation.harness_page import by_document

    said = {"filter": "none", "target_hash": "t", "metrics": ["mcc", "loss", "odd"]}
    log = [
        said | {"doc_id": 1, "doc_hash": "b", "mcc": (1, 0), "loss": -3.0, "odd": 1.0},
        said | {"doc_id": 0, "doc_hash": "a", "mcc": (1, 1), "loss": -1.0, "odd": "no"},
    ]
    kept = by_document(log, {"mcc": 0.7, "loss": math.exp(2), "odd": 1.0})["metrics"]
    assert kept == {"loss": [1, 3]}  # in the order of ids
    renamed = [each | {"doc_hash": "c"} for each in log]
    assert by_document(renamed, {})["asked"] != by_document(log, {})["asked"]


@pytest.mark.parametrize(("weights", "figure"), [("documents", 3 / 5), ("tasks", (1 / 1 + 2 / 4) / 2), ("else", 0.7)])
def test_the_figure_of_a_group_is_a_mean_over_documents_or_over_tasks(weights, figure):
    from coca_train.evaluation.harness_page import sample

    documents = {
        "a": {"asked": "a", "metrics": {"acc": [1]}},
        "b": {"asked": "b", "metrics": {"acc": [1, 0, 1, 0]}},
    }
    found = sample(documents, "acc", figure)
    assert (found is None) == (weights == "else")
    if found is not None:
        total, divisor = found.sums_SU2[0].sum(0)
        assert total / divisor == pytest.approx(figure) and found.n == 5
