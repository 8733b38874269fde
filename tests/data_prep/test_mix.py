"""The mixture: shares are exact, what is written loads in training, and what goes wrong is said."""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coca_train.data.mixture import Mixture
from coca_train.runtime.printing import WIDTH, plain
from coca_train.settings import load
from data_prep.__main__ import main
from data_prep.verbs.mix import DIGITS, Plan, Share, _text, apportion, as_fraction, data_choice, plan
from tests.data_prep.support_corpus import Made, configuration, make
from tests.fixes import first, fix_of


def counted(**tokens: int) -> dict[str, Any]:
    """A manifest that has these datasets, and sources by what their names begin with."""
    datasets = {name: {"documents": 1, "tokens": n} for name, n in tokens.items()}
    return {"sources": {name.rsplit("_", 1)[0]: {} for name in tokens}, "datasets": datasets}


def source(group: str = "text", **settings: Any) -> Made:
    return Made(settings={"group": group} | settings)


@settings(deadline=None)
@example([Fraction(1, 999), Fraction(200201)], 0)  # the first is lifted to a unit: one more than 10^8 in all
@given(
    st.lists(st.builds(Fraction, st.integers(1, 10**6), st.integers(1, 1000)), min_size=1, max_size=30),
    st.integers(0, 10**6),
)
def test_units_add_up_and_are_fair(sizes: list[Fraction], more: int) -> None:
    """One unit more for each source that is too small for one and comes after those with larger remainders."""
    units = 10**8 + more
    counts = apportion(sizes, units)
    quotas = [size * units / sum(sizes) for size in sizes]
    n_left = units - sum(int(quota) for quota in quotas)
    behind = sorted(range(len(sizes)), key=lambda i: (int(quotas[i]) - quotas[i], i))[n_left:]
    assert sum(counts) == units + sum(quotas[i] < 1 for i in behind)
    assert all(count >= 1 and abs(count - quota) < 1 for count, quota in zip(counts, quotas, strict=True))


def test_the_largest_remainder_is_served_first_and_nothing_gets_nothing() -> None:
    assert apportion([Fraction(41), Fraction(34), Fraction(25)], 10) == [4, 3, 3]
    assert apportion([Fraction(1), Fraction(1), Fraction(1)], 10) == [4, 3, 3]
    assert apportion([Fraction(10**9), Fraction(1)], 10) == [10, 1]


def test_shares_are_group_shares_times_weights(tmp_path: Path) -> None:
    sources = {"pile": source(weight=0.69), "books": source(weight=0.06), "code": source("code"), "c": source("code")}
    groups = {"text": {"share": 3}, "code": {"share": 1}}
    config = configuration(tmp_path, sources, groups=groups, tokens=50_000_000_000)
    manifest = counted(pile_train=7, books_train=10**9, code_train=10**10, c_train=2 * 10**10)
    planned = plan(config.corpus, config.mix, manifest)
    weights = {share.source: share.weight for share in planned.shares}
    text = Fraction(3, 4)
    assert planned.groups == {"text": text, "code": 1 - text}
    assert weights["pile"] == text * Fraction(69, 75)
    assert weights["books"] == text * Fraction(6, 75)
    assert abs(weights["code"] - Fraction(1, 12)) < Fraction(1, 10**DIGITS)
    assert weights["code"] + weights["c"] == Fraction(1, 4)
    books = next(share for share in planned.shares if share.source == "books")
    assert books.drawn == 50 * 10**9 * text * Fraction(6, 75) == 3 * 10**9
    assert books.epochs == 3
    assert [share.source for share in planned.shares] == ["pile", "books", "c", "code"]


def test_what_a_source_is_validated_on(tmp_path: Path) -> None:
    sources = {
        "own": source(),
        "own_eval": source(hold_out="all"),
        "a": source(),
        "a_test": source(hold_out="all"),
        "a_eval": source(hold_out="all"),
        "b": source(),
        "b_eval": source(),
        "c": source(),
        "c_valid": source(hold_out="all"),
        "c_eval": source(hold_out="all"),
    }
    config = configuration(tmp_path, sources)
    names = ("own", "a", "b", "b_eval", "c")
    sets = ("own", "own_eval", "a_test", "a_eval", "b_eval", "c_valid", "c_eval")
    manifest = counted(**{f"{n}_train": 100 for n in names}, **{f"{n}_valid": 10 for n in sets})
    manifest["sources"]["gone"] = {}
    planned = plan(config.corpus, config.mix, manifest)
    valid = {share.source: share.valid for share in planned.shares}
    assert valid == {"own": "own_valid", "a": "a_eval_valid", "b": None, "b_eval": "b_eval_valid", "c": "c_valid_valid"}
    assert planned.unused == {
        "gone": "not in the configuration",
        "a_eval": "validates a",
        "a_test": "an evaluation set, not read in training",
        "c_eval": "an evaluation set, not read in training",
        "c_valid": "validates c",
        "own_eval": "an evaluation set, not read in training",
    }
    assert planned.warnings() == ["b: nothing to validate on"]


def test_too_many_epochs_are_warned_about(tmp_path: Path) -> None:
    config = configuration(tmp_path, {"a": source(weight=1), "b": source(weight=3)}, tokens=4000, max_epochs=4)
    manifest = counted(a_train=1000, b_train=500, a_valid=1, b_valid=1)
    planned = plan(config.corpus, config.mix, manifest)
    assert [float(share.epochs) for share in planned.shares] == [6, 1]
    (warning,) = planned.warnings()
    assert re.match(r"b: .* 6 times .*=4\).* 500 .* 750.* 50.00 %$", warning)
    assert planned.lasts == 2666
    for tokens, n in ((2666, 0), (2667, 1)):
        config = configuration(tmp_path, {"a": source(weight=1), "b": source(weight=3)}, tokens=tokens, max_epochs=4)
        planned = plan(config.corpus, config.mix, manifest)
        assert len(planned.warnings()) == n
        assert ("mix.tokens=2666" in _text(planned, plain)) == bool(n)


def test_without_a_length_it_is_planned_for_as_long_as_the_first_source_lasts(tmp_path: Path) -> None:
    config = configuration(tmp_path, {"a": source(weight=1), "b": source(weight=3)}, tokens=None, max_epochs=4)
    planned = plan(config.corpus, config.mix, counted(a_train=1000, b_train=500, a_valid=1, b_valid=1))
    assert planned.tokens == planned.lasts == 2666
    assert not planned.warnings()


def test_what_cannot_be_mixed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(manifest_of: dict[str, Made], sources: dict[str, Made], **mix: Any) -> str:
        make(tmp_path, manifest_of)
        configuration(tmp_path, sources, **mix)
        assert main(["mix", "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]) == 3
        return capsys.readouterr().err

    text = {"a": Made(["one two"], ["three"])}
    assert re.match(r"E-TOK-23 corpus\.sources\.b: .* Fix: .*tokenize", error(text, text | {"b": source()}))
    held = {"a": Made(["one"]), "b": Made([], ["two"])}
    message = error(held, held)
    assert re.match(r"E-TOK-24 corpus\.sources\.b: ", message)
    assert not (tmp_path / "tiny" / "report").exists()
    mixed = ["mix", "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]
    (removed,) = [word for word in message.split() if word.startswith("~")]
    assert main([*mixed, removed.rstrip(".")]) == 0
    held = {"a": Made(["one"]), "b": Made([], ["two"], {"group": "code", "hold_out": "all"})}
    message = error(held, held)
    assert re.match(r"E-TOK-24 mix\.groups\.code: ", message)
    group = first(fix_of(message).strip())
    assert main([*mixed, *group]) == 2
    message = capsys.readouterr().err  # that a source is still of this group
    assert message.startswith("E-CFG-52 ")
    assert main([*mixed, *group, *first(fix_of(message).strip())]) == 0
    (tmp_path / "tiny" / "manifest.json").unlink()
    assert main(["mix", "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]) == 3
    message = capsys.readouterr().err
    assert re.match(r"E-TOK-23 .*tiny/manifest\.json: No such file .* python -m data_prep tokenize", message)


def test_what_is_written_loads_and_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"document {i}: " + "a few words, " * 40 for i in range(6)]
    sources = {
        "wiki": Made(texts[:4], texts[4:]),
        "code": Made(texts[:1], settings={"group": "code"}),
        "code_eval": Made([], texts[5:], {"group": "code", "hold_out": "all"}),
    }
    make(tmp_path, sources, tokens=20_000, groups={"text": {"share": 0.75}, "code": {"share": 0.25}})
    assert main(["mix", "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "tiny"
    assert f"python -m coca_train --config-dir {folder}/config data=tiny\n" in out
    assert "code_eval (validates code)" in out and "Warning: code: seen" in out
    assert max(map(len, out.partition("Train on it")[0].splitlines())) <= WIDTH
    data = load(["data=tiny"], (folder / "config",)).config.data
    assert data.dir == str(folder) and data.tokenizer == f"{folder}/tokenizer.model"
    assert {name: one.weight for name, one in data.sources.items()} == {"wiki": 0.75, "code": 0.25}
    assert data.sources["code"].valid_path == f"{folder}/code_eval_valid"
    assert data.sources["wiki"].valid_path == f"{folder}/wiki_valid"
    mixture = Mixture(data, seq_len=16, vocab_size=600)
    assert mixture.samples(0, 4).tokens_BT.shape == (4, 16)
    report = json.loads((folder / "report" / "mix.json").read_text())
    assert {share["source"]: share["weight"] for share in report["shares"]} == {"wiki": 0.75, "code": 0.25}
    assert "| text" in (folder / "report" / "mix.md").read_text()
    lines = (folder / "config" / "data" / "tiny.yaml").read_text().splitlines()
    assert lines[0].startswith("# Corpus tiny: 75.00 % text, 25.00 % code; ") and "20,000 tokens" in lines[0]


def a_plan(n: int) -> Plan:
    weight = Fraction(10**8 // n, 10**8)
    names = [f"source_{i:02d}" for i in range(n)]
    shares = [Share(name, "text", 10, 10**9 * (i + 1), weight, weight * 10**11, None) for i, name in enumerate(names)]
    return Plan("many", 10**11, 4, {"text": Fraction(1)}, shares, {})


def test_training_reads_the_folder_the_tokenizer_and_the_sources() -> None:
    tree = data_choice(a_plan(3), "/somewhere", "tokenizer.json")
    assert list(tree) == ["dir", "tokenizer", "sources"]
    assert tree["tokenizer"] == "${data.dir}/tokenizer.json"
    assert data_choice(a_plan(3), "/somewhere", "/else/t.model")["tokenizer"] == "/else/t.model"
    read = yaml.safe_load(yaml.safe_dump(tree))["sources"]
    assert [as_fraction(read[f"source_{i:02d}"]["weight"]) for i in range(3)] == [
        share.weight for share in a_plan(3).shares
    ]
