"""What a trial says of a model, and that its file says the same."""

import json
import math

import pytest

from coca_train.atlas import study
from coca_train.atlas.trials import (
    Sweep,
    file_name,
    of_protocol,
    others,
    protocol_of,
    read,
    read_all,
    read_sweep,
    write,
    write_sweep,
)
from coca_train.commands._training import load
from coca_train.runtime.errors import DataError
from tests.atlas.trials import LENGTHS, trial


def test_scores_are_of_longer_lengths_and_of_learned_tasks():
    one = trial(shares={"copy": (90, 55, 10), "left": (89, 100, 100), "sort": (95, 92, 100)})
    assert one.score("copy") == pytest.approx(((0.55 - 0.1) / 0.9 + 0.0) / 2)
    assert trial(shares={"copy": (90, 1, 10)}).score("copy") == pytest.approx(-0.05)  # worse than guessing
    assert math.isnan(one.score("left"))
    assert [one.works_to(task) for task in one.tasks] == [64, 0, 256]
    assert [one.has_learned(task) for task in one.tasks] == [True, False, True]


def test_a_length_that_cannot_be_read_counts_as_wrong():
    one = trial(shares={"copy": (100,)}, absent="its table has 64 positions")
    assert one.score("copy") == 0
    assert one.works_to("copy") == 64


def test_a_trial_is_read_as_it_was_written(tmp_path):
    one = trial(words=("position=rope",), lengths=tuple(LENGTHS))
    assert read(write(one, tmp_path)).result == one.result  # as a repetition compares them
    write(trial(seed=2), tmp_path)
    write(trial(row="coca", protocol="another"), tmp_path)
    assert list(of_protocol(read_all(tmp_path), "p")) == [("rope", 1), ("rope", 2)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "tasks": 3}', '{"format": 9}'])
def test_other_files_are_refused(tmp_path, text):
    for name in ("rope", "rope.rates"):
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        with pytest.raises(DataError, match="E-ATL-02"):
            (read_sweep if "rates" in name else read)(path)


DAMAGE = [
    {"seed": "one"}, {"lengths": [64]}, {"learned": ["dance"]}, {"row": ["rope"]}, {"made_with": None},
    {"n_parameters": None}, {"tasks": {}}, {"tasks": {"dance": {"right": [1], "asked": [1], "chance": [0.1]}}},
    {"tasks": {"copy": {"right": [None], "asked": [1], "chance": [0.1]}}},
    {"tasks": {"copy": {"right": [2], "asked": [1], "chance": [0.1]}}},
    {"tasks": {"copy": {"right": [0], "asked": [0], "chance": [0.1]}}},
    {"tasks": {"copy": {"right": [0], "asked": [1], "chance": [1.0]}}},
]  # fmt: skip


@pytest.mark.parametrize("change", DAMAGE, ids=lambda change: json.dumps(change)[:50])
def test_parts_that_do_not_fit_are_refused(tmp_path, change):
    path = write(trial(), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match="E-ATL-02"):
        read(path)


def test_other_batches_and_starts_are_named():
    same = [trial("rope", 1), trial("coca", 1, start={"embedding.weight 8x4": "abc", "own 3": "x"}), trial("rope", 2)]
    assert others(same) == []
    assert others([*same, trial("nope", 1, batches="c")]) == ["nope seed 1 saw other batches than rope"]
    (said,) = others([*same, trial("nope", 2, start={"embedding.weight 8x4": "abd"})])
    assert said == "nope seed 2 began with another embedding.weight than rope"


def test_a_sweep_is_read_as_it_was_written(tmp_path):
    sweep = Sweep(protocol="p", words=["position=rope"], source="s", losses={0.5: {"copy": 2.0}, 2.0: {"copy": 1.0}})
    path = tmp_path / file_name("rope", "rates")
    write_sweep(sweep, path)
    assert read_sweep(path) == sweep
    assert read_sweep(tmp_path / "none.json") is None
    assert sweep.is_of("p", ("position=rope",))
    assert not sweep.is_of("q", ("position=rope",))


def test_the_best_rate_has_the_lowest_mean_loss():
    losses = {1.0: {"a": 1.0, "b": 3.0}, 2.0: {"a": 1.5, "b": 1.5}, 4.0: {"a": None, "b": 0.0}, 0.5: {}}
    assert study.best_rate(losses) == 2.0  # None: not finite; nothing: diverged
    assert study.best_rate({2.0: {"a": 1.0}, 1.0: {"a": 1.0}}) == 1.0


def test_a_protocol_is_what_all_rows_share():
    config, own = load(["+experiment=atlas"]).config, {"n_cases": 50}
    same = protocol_of(config, own)
    for words in (["position=coca"], ["layers=rnope_swa"], ["run.seed=7"], ["data.dir=/elsewhere"]):
        assert protocol_of(load(["+experiment=atlas", *words]).config, own) == same, words
    different = (
        ["train.max_steps=7"], ["model.d_ff=32"], ["data.sources.copy.weight=2"], ["optim.lr=1"],
        ["eval.max_tokens=64"], ["data.upsample_factor=5", "data.upsample_from_tokens=20"],
    )  # fmt: skip
    for words in different:
        assert protocol_of(load(["+experiment=atlas", *words]).config, own) != same, words
    assert protocol_of(config, {"n_cases": 51}) != same


def test_the_time_of_a_training_is_that_of_its_steps():
    """The first record has no speed yet; the second is of all steps up to it; held-out losses take no step."""
    records = [
        {"step": 1, "loss": 4.0},
        {"step": 10, "loss": 3.0, "tokens_per_s": 100.0},
        {"step": 20, "loss": 2.0, "tokens_per_s": 50.0},
        {"step": 20, "valid/copy": 2.0},
    ]
    assert study.training_time(records, 30) == pytest.approx(10 * 30 / 100 + 10 * 30 / 50)
