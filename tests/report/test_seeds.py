"""Pages over several seeds: who is a seed of what, what a row is the mean of, and which differences are told."""

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from coca_train.config.load import FORMAT
from coca_train.evaluation import findings
from coca_train.evaluation.measures.perplexity import summarise
from coca_train.evaluation.measures.windows import bin_ends
from coca_train.evaluation.perplexity_page import main_text, page, perplexity_text
from coca_train.evaluation.pipeline import seeds_of
from coca_train.evaluation.results import Evaluation, group_seeds, pool_seeds
from coca_train.evaluation.trainings import comparison_page, training_table
from coca_train.report.render import write_report
from coca_train.report.render.contents import best_places
from coca_train.report.render.plain import csv_text, markdown_text, terminal_text
from coca_train.statistics.intervals import Crossed
from tests.evaluation.grids import (
    ROPE,
    TINY,
    WORDS,
    Bytes,
    blocks,
    cell,
    evaluate,
    evaluation,
    measured,
    row,
    settings,
    subject,
)
from tests.report.support import facts, pixels

WINDOWS = (128, 256, 512)
N_DOCUMENTS, N_TOKENS = 24, 500


def scored(losses_D, window, uses=1.0):
    """A cell's result. losses_D: mean loss of each document. uses: of how many nats a token a window is better than
    half of it, in every document."""
    sums_D2 = np.stack((np.asarray(losses_D) * N_TOKENS, np.full(len(losses_D), N_TOKENS)), 1)
    ends = bin_ends(window).tolist()
    by_document = {
        "by_document": sums_D2.tolist(),
        "predictions": f"of {window}",
        "uses": {str(window): [[uses * N_TOKENS + i, N_TOKENS] for i in range(len(losses_D))]},
        **({"holds": [[-1.0 - i, N_TOKENS] for i in range(len(losses_D))]} if window > 128 else {}),
    }
    figures = summarise(sums_D2, n_bytes=5 * N_TOKENS * len(losses_D))
    curve = {"ends": ends, "loss_by_position": [float(np.mean(losses_D))] * len(ends)}
    curve |= {"loss_low": [0.0] * len(ends), "loss_high": [9.0] * len(ends)}
    return json.loads(json.dumps({"stride": 128, "sources": {"books": figures | curve | by_document}}))


def trained(models, n_seeds=3, of_seeds=0.02, of_documents=0.3, reaches=None, n_documents=N_DOCUMENTS):
    """models: by name, the loss at each window. of_seeds, of_documents: standard deviations; documents are hard or easy
    for all models alike, and a little (0.02) harder for one model than for another. reaches: by run, the last window
    that it uses."""
    rng, subjects, cells = np.random.default_rng(11), [], []
    hard_D = rng.normal(size=n_documents) * of_documents
    seeds = {}
    for model, losses in models.items():
        own_D = rng.normal(size=n_documents) * 0.02
        seeds[model] = {f"{model}-seed{k}" if k > 1 else model: str(1233 + k) for k in range(1, n_seeds + 1)}
        for run in seeds[model]:
            subjects.append(replace(measured(run, window=128), scheme=model))
            luck = rng.normal() * of_seeds
            for window, loss in zip(WINDOWS, losses, strict=True):
                uses = 1.0 if window <= (reaches or {}).get(run, 512) else -1.0
                cells.append(cell(run, "plain", window, scored(loss + hard_D + own_D + luck, window, uses)))
    return replace(evaluation("perplexity", {}, subjects, WINDOWS, cells), seeds=seeds)


SAME, BETTER = (3.0, 3.1, 3.4), (3.0, 3.1, 2.4)


def against(whole):
    """What models of an evaluation are compared by, their seeds together."""
    main = main_text(pool_seeds(whole))
    return findings.compare_models(main.rows, main.perplexities)


def tree(position, seed, data_seed=None, **more):
    data = {"seed": seed if data_seed is None else data_seed, "sources": {"text": {"weight": 1}}}
    return {
        "format": FORMAT,
        "run": {"name": "any", "seed": seed},
        "data": data,
        "position": {"scheme": position},
        **more,
    }


def test_runs_that_differ_in_nothing_but_their_seeds_are_one_model():
    assert group_seeds({
        "rope": tree("rope", 1), "rope-seed2": tree("rope", 2), "alibi_s1": tree("alibi", 1, 7),
        "alibi_s2": tree("alibi", 2, 8), "other": tree("rope", 1, optim={"lr": 1}), "again": tree("rope", 1),
    }) == {
        "rope": {"rope": "1", "rope-seed2": "2"}, "alibi_s": {"alibi_s1": "1, data 7", "alibi_s2": "2, data 8"},
        "other": {"other": "1"}, "again": {"again": "1"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "model"),
    [
        (("rope_seed1", "rope_seed2"), "rope"), (("a.seed-10", "a.seed-11"), "a"), (("one", "two"), "one"),
        (("seed1", "seed2"), "seed1"), (("coca350-3", "coca350-4"), "coca350"), (("t5", "t5-seed2"), "t5"),
        (("t5-seed2", "t5", "t5-seed10"), "t5"), (("rope-factor-8", "rope-factor-8-seed2"), "rope-factor-8"),
        (("rope_seed1", "rope_seed10"), "rope"), (("t5-seed2", "t5-seed20"), "t5"), (("t5", "t5b"), "t5"),
    ],
)  # fmt: skip
def test_a_model_is_called_what_its_runs_share(runs, model):
    assert list(group_seeds({run: tree("rope", k) for k, run in enumerate(runs)})) == [model]


def test_no_model_is_called_like_a_run_of_another():
    runs = {"rope": ("one", 0), "base": ("one", 1), "rope-1": ("two", 0), "rope-2": ("two", 1)}
    models = group_seeds({run: tree(scheme, seed) for run, (scheme, seed) in runs.items()})
    assert {model: list(seeds) for model, seeds in models.items()} == {
        "rope": ["rope", "base"],
        "rope-1": ["rope-1", "rope-2"],
    }


def saved(directory, scheme, seed, step=20):
    """A run on the disk, as an evaluation sees it."""
    directory.mkdir()
    (directory / "config.yaml").write_text(json.dumps(tree(scheme, seed)))
    return replace(measured(directory.name), path=str(directory), step=step)


def imported(name):
    return replace(measured(name, kind="huggingface"), path="nowhere")


def test_an_evaluation_knows_the_seeds_of_a_training_after_as_many_steps(tmp_path):
    runs = saved(tmp_path / "rope", "rope", 1), saved(tmp_path / "rope-seed2", "rope", 2)
    others = saved(tmp_path / "early", "rope", 3, step=10), saved(tmp_path / "alibi", "alibi", 1)
    assert seeds_of([*runs, *others, imported("llama")]) == {
        "rope": {"rope": "1", "rope-seed2": "2"}, "early": {"early": "3"}, "alibi": {"alibi": "1"}
    }  # fmt: skip


def test_a_model_of_several_runs_is_not_called_what_an_import_is_called(tmp_path):
    runs = [saved(tmp_path / f"rope-{number}", "rope", number) for number in (1, 2)]
    assert seeds_of([imported("rope"), *runs]) == {"rope-1": {"rope-1": "1", "rope-2": "2"}}


def test_models_with_a_seed_in_common_are_compared_by_it_and_it_is_said():
    whole = trained({"rope": SAME, "coca": BETTER, "alibi": SAME})
    left = [each for each in whole.subjects if each.name not in ("coca-seed2", "coca-seed3")]
    whole = replace(whole, subjects=tuple(left), seeds={**whole.seeds, "coca": {"coca": "1234"}})
    document = page(whole)
    alone, told, *rest = document.summary
    assert "RoPE and CoCA; CoCA and ALiBi" in alone
    assert "better than RoPE at 512" in told and told.endswith("one seed.")
    assert any(line.startswith("RoPE and ALiBi cannot") for line in rest)
    table = blocks(document)["differences"]
    assert "over documents alone" in table.note and "documents and seeds" in table.note
    assert [each.values[0].spread is None for each in table.rows] == [True, False, True]
    assert [each.values[0].note.endswith("of 24 documents") for each in table.rows] == [True, False, True]


def test_a_row_is_the_mean_over_seeds_with_what_they_lie_between():
    whole = trained({"rope": SAME, "coca": BETTER})
    table = blocks(page(whole))["perplexity-books"]
    assert [each.label for each in table.rows if not each.theirs] == [("rope", "plain"), ("coca", "plain")]
    each = [
        np.array(whole.find(run, "plain", 512).result["sources"]["books"]["by_document"]) for run in whole.seeds["rope"]
    ]
    losses = [float(sums[:, 0].sum() / sums[:, 1].sum()) for sums in each]
    value = row(table, "rope", "plain").values[-1]
    assert value.number == pytest.approx(np.exp(np.mean(losses)))
    assert (value.spread.low, value.spread.high) == pytest.approx((np.exp(min(losses)), np.exp(max(losses))))
    assert value.spread.deviation == pytest.approx(np.std(np.exp(losses), ddof=1))
    assert value.spread.words == f"seeds {np.exp(min(losses)):.2f} to {np.exp(max(losses)):.2f}"
    over_documents = summarise(np.mean(each, axis=0))
    assert value.interval == pytest.approx((over_documents["ci_low"], over_documents["ci_high"]))
    # What it is compared by has every seed and every document.
    assert value.sample.seeds == ("1234", "1235", "1236")
    np.testing.assert_allclose(value.sample.sums_SU2, each)
    both, documents = Crossed(value.sample.sums_SU2).interval(), np.log(value.interval)
    assert both.low < documents[0] and documents[1] < both.high
    bits = row(blocks(page(whole))["bits-per-byte-books"], "rope", "plain").values[-1]
    assert bits.number == pytest.approx(np.mean(losses) / 5 / np.log(2))
    assert bits.spread.high == pytest.approx(max(losses) / 5 / np.log(2))


def test_pictures_have_a_stroke_from_the_lowest_to_the_highest_seed(tmp_path):
    document = page(trained({"rope": SAME, "coca": BETTER}))
    curve = blocks(document)["perplexity-curves-books"].lines[0]
    assert all(least < y < most for least, y, most in zip(curve.least, curve.y, curve.most, strict=True))
    by_position = blocks(document)["loss-by-position-books"]
    assert by_position.lines[0].low is None and by_position.lines[0].least[0] < by_position.lines[0].y[0]
    paths = write_report(document, tmp_path)
    html = paths["report.html"].read_text()
    assert html.count('class="seeds"') >= 4
    assert pixels(paths["figures/perplexity-curves-books.png"]).std() > 0.02


def test_each_seed_is_a_click_away_and_in_no_other_place():
    document = page(trained({"rope": SAME, "coca": BETTER}))
    (folded,) = [section for section in document.sections if section.title == "Each seed"]
    assert folded.folded
    names = [each.label[0] for each in folded.blocks[0].rows]
    assert names == ["rope", "rope-seed2", "rope-seed3", "coca", "coca-seed2", "coca-seed3"]
    assert "rope: 1234, 1235, 1236; coca" in folded.blocks[0].note
    alone = page(trained({"rope": SAME, "coca": BETTER}, n_seeds=1))
    assert "Each seed" not in [section.title for section in alone.sections]
    assert all(value.spread is None for each in blocks(alone)["perplexity-books"].rows for value in each.values)


def test_a_planted_difference_is_told_and_a_planted_tie_is_not():
    document = comparison_page(trained({"rope": SAME, "coca": BETTER}), {n: facts() for n in runs(3)}, ["the text"])
    told, tie = document.summary
    assert re.match(r"CoCA is better than RoPE .*512.* (0\.9|1\.0)\d\d .*\(0\.\d+ to 1\.\d+\)", told)
    assert told.endswith("3 seeds.")
    assert "cannot" in tie and "128" in tie
    assert document.title.endswith("128 to 512 tokens, 3 seeds")
    assert document.finding[0].startswith("At 512") and "CoCA predicts best" in document.finding[0]
    table = blocks(document)["differences"]
    near, _, far = table.rows[0].values
    assert table.rows[0].label == ("RoPE", "CoCA") and len(table.columns) == 3
    assert near.low < 0 < near.high and 0 < far.low < 1 < far.high
    assert far.spread.low <= far.number <= far.spread.high
    assert "Holm" in table.note


def runs(n_seeds, *models):
    return [f"{m}-seed{k}" if k > 1 else m for m in models or ("rope", "coca") for k in range(1, n_seeds + 1)]


def test_what_outlasts_documents_and_not_seeds_is_no_difference():
    near = trained({"rope": (3.0, 3.0, 3.0), "coca": (3.0, 3.0, 2.94)}, of_seeds=0.1)
    assert not [each for each in against(near) if each.found.significant]
    said = findings.difference_sentences(against(near))
    assert any("not over 3 seeds" in line for line in said)


def test_two_seeds_tell_little_and_one_tells_nothing_of_seeds():
    two = findings.difference_sentences(against(trained({"rope": SAME, "coca": (3.0, 3.1, 3.2)}, n_seeds=2)))
    assert not any("is better" in line for line in two)
    assert "Two seeds" in two[-1] and "6 times" in two[-1]  # 12.7 standard errors, by 2
    some = trained({"rope": SAME, "alibi": SAME, "coca": (3.0, 3.1, 0.4)}, n_seeds=2, of_seeds=0.001)
    told = findings.difference_sentences(against(some))
    assert sum("is better" in line for line in told) == 2 and told[-1] == two[-1]
    all_told = [each for each in against(some) if each.found.significant]
    assert not any("Two seeds" in line for line in findings.difference_sentences(all_told))
    one = findings.difference_sentences(against(trained({"rope": SAME, "coca": BETTER}, n_seeds=1)))
    assert one[0] == findings.ALONE
    assert "CoCA is better" in one[1] and one[1].endswith("one seed.")


def test_of_few_documents_no_model_is_better():
    few = trained({"rope": SAME, "coca": BETTER}, n_documents=15)
    (said,) = findings.difference_sentences(against(few))
    assert "inconclusive" in said and "15 of the 20" in said
    assert "inconclusive" in page(few).finding[0]
    assert "differences" not in blocks(page(few))


class Shifted(Bytes):
    """As many tokens as bytes, other ones."""

    def encode(self, text):
        return [token + 1 for token in super().encode(text)]

    def decode(self, tokens):
        return super().decode([token - 1 for token in tokens])


def test_two_tokenizers_are_no_pair_though_they_make_as_many_tokens():
    texts = {"books": [WORDS * 2, WORDS[5:] * 2], "code": [WORDS[9:] * 2]}
    options = settings("perplexity", document_tokens="longest", bootstrap_resamples=10)

    def found(tokenizer, ranks=1):
        one, other = (subject(n, ROPE, tokenizer=t, config=TINY) for n, t in (("one", Bytes()), ("other", tokenizer)))
        return evaluate(options, [one, other], (32, 64), texts, ranks)

    same, others = found(Bytes(), ranks=2), found(Shifted())
    assert [(each.one, each.other) for each in against(same)] == [("one", "other")] * 2
    assert against(others) == []
    every = [c.result["sources"] for c in others.cells]
    assert len({tuple(n for _, n in sources["all"]["by_document"]) for sources in every}) == 1  # counts tell nothing
    assert len({(name, text["predictions"]) for sources in every for name, text in sources.items()}) == 2 * 3


def test_of_many_models_each_is_compared_with_the_first():
    many = trained({f"m{i}": SAME for i in range(6)})
    assert {each.one for each in against(many)} == {"m0"} and len(against(many)) == 5 * 3
    assert len(against(trained({f"m{i}": SAME for i in range(5)}))) == 10 * 3


def test_of_a_model_is_sure_what_its_least_seed_is_sure_of():
    reaches = {"rope": 512, "rope-seed2": 256, "rope-seed3": 512, "coca": 64, "coca-seed2": 128, "coca-seed3": 128}
    document = page(trained({"rope": SAME, "coca": SAME}, reaches=reaches))
    rope, coca = document.verdicts
    assert (rope.label, rope.state) == ("RoPE", "reads")
    assert dict(rope.parts)["holds"].startswith("512, ")
    assert dict(rope.parts)["uses"] == "256, not 512, seeds 512 / 256 / 512"
    assert coca.state == "none" and dict(coca.parts)["uses"].startswith("not even 128")
    answers = blocks(document)["answers"]
    assert [value.text for value in row(answers, "RoPE", "uses").values] == ["✓", "✓", "✗"]
    assert [value.text for value in row(answers, "CoCA", "uses").values] == ["✗"] * 3


def test_seeds_that_were_not_all_measured_have_no_mean():
    whole = trained({"rope": SAME})
    cells = [
        replace(each, status="impossible", result={}, reason="no positions")
        if (each.subject, each.point) == ("rope-seed2", 512)
        else each
        for each in whole.cells
    ]
    without = pool_seeds(replace(whole, cells=tuple(cells)))
    assert (without.find("rope", "plain", 512).reason, without.find("rope", "plain", 256).status) == (
        "no positions",
        "done",
    )


def test_what_is_written_and_read_again_is_the_same():
    whole = trained({"rope": SAME, "coca": BETTER})
    again = Evaluation.from_json(json.loads(json.dumps(whole.to_json())))
    assert markdown_text(page(again)) == markdown_text(page(whole))


def test_the_terminal_and_the_files_have_the_seeds():
    whole = trained({"rope": SAME, "coca": BETTER})
    shown = perplexity_text(whole)
    assert "| CoCA  | uses  |" in shown and "| RoPE  | plain" in shown and "seed2" not in shown
    table = blocks(page(whole))["perplexity-books"]
    value = row(table, "rope", "plain").values[-1]
    assert f"({value.range}; {value.spread.words})" in markdown_text(page(whole))
    (first, *_) = csv.DictReader(io.StringIO(csv_text(table)))
    assert float(first["lowest: 512 (4×)"]) == value.spread.low
    assert float(first["deviation: 512 (4×)"]) == value.spread.deviation
    known = {run: facts(loss=3.0 + i / 10) for i, run in enumerate(runs(3))}
    training = training_table(known, whole.seeds)
    assert [each.label for each in training.rows] == [("rope",), ("coca",)]
    assert row(training, "coca").values[1].text == "3.400"
    assert "3.400 (seeds 3.300 to 3.500)" in terminal_text(training)


def test_bold_counts_seeds_in():
    """What documents alone would tell, and seeds do not, is no best."""
    models = {"rope": (3.0, 3.0, 3.0), "coca": (3.0, 3.0, 2.94)}

    def best(**changes):
        table = blocks(page(trained(models, **changes)))["perplexity-books"]
        return {place for place in best_places(table) if not table.rows[place[0]].theirs and place[1] == 2}

    assert best(of_seeds=0.1) == {(0, 2), (1, 2)}
    assert best(of_seeds=0.0001) == {(1, 2)}
