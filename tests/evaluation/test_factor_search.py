"""LongRoPE's search: what its candidates are, that a killed one goes on as if it had not been, and what it finds."""

import json
import random
import re
import shlex

import numpy as np
import pytest
import torch

from coca_train.checkpoint.opening import load_run
from coca_train.commands import main
from coca_train.config.choice import Selection
from coca_train.evaluation import factor_search
from coca_train.evaluation.configuration import ExtendConfig
from coca_train.evaluation.factor_search import Space, children, crossed, evolve, mutated
from coca_train.positions import ROPE_SCALINGS
from coca_train.settings import load
from coca_train.vary import with_inference
from tests.generation.small_run import SHAPE, TEXT, write_run

SPACE = Space(8, 10000.0, 64, 4.0)


class Target:
    """Judges candidates by their distance from factors that the search does not know; counts how often."""

    def __init__(self, best):
        self.best, self.n = np.array(best), 0

    def losses(self, factors):
        self.n += 1
        return np.array([float(np.square(np.array(factors) - self.best).sum()) / 1e6])

    def selection(self, factors):
        return factors


class Kept:
    """Scores without a file. After `most` new ones the process is killed."""

    def __init__(self, known=(), most=None):
        self.known, self.left = dict(known), most

    def add(self, factors, nll):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left = None if self.left is None else self.left - 1
        self.known[factors] = nll


BEST = [100, 104, 130, 190, 250, 333, 360, 400]


def given(**changes):
    return ExtendConfig(run="r", length=256, population=16, **{"rounds": 30, **changes})


def test_the_first_candidates_are_pi_ntk_and_yarn():
    """By hand: PI is s for every pair, NTK s^(2j/(D-2)), YaRN keeps the fast pairs and divides the slow ones by s."""
    seeds = SPACE.seeds()
    assert seeds["PI"] == (400,) * 8
    assert seeds["NTK"] == tuple(round(100 * 4 ** (2 * j / 14)) for j in range(8))
    assert seeds["YaRN"][0] == 100 and seeds["YaRN"][-1] == 400
    assert all(list(each) == sorted(each) for each in seeds.values())


@pytest.mark.parametrize("seed", range(30))
def test_children_are_candidates_and_new(seed):
    draw = random.Random(seed)
    parents = [SPACE.valid([draw.randint(0, 900) for _ in range(8)]) for _ in range(5)]
    for child in (mutated(parents[0], SPACE, draw), crossed(*parents[:2], SPACE, draw)):
        assert list(child) == sorted(child) and child[0] >= 100 and child[-1] <= 500
    assert set(crossed(*parents[:2], SPACE, draw)) <= {*parents[0], *parents[1]}
    known = set(parents)
    found = children(parents, 12, known, SPACE, draw)
    assert len(set(found)) == len(found) == 12 and not set(found) & set(parents) and known >= set(found)


def test_it_comes_near_what_is_best():
    judge, scores = Target(BEST), Kept()
    best = evolve(SPACE, judge, scores, given(rounds=120))
    start = min(float(np.square(np.array(each) - judge.best).sum()) / 1e6 for each in SPACE.seeds().values())
    assert scores.known[best] == min(scores.known.values()) < 0.05 * start
    assert judge.n == len(scores.known) <= 16 + 120 * 8  # none is measured twice


def test_killed_at_any_candidate_it_ends_as_if_it_had_not_been():
    whole = Kept()
    best = evolve(SPACE, Target(BEST), whole, given())
    for most in (0, 1, 7, 16, 17, 100):
        scores = Kept(most=most)
        with pytest.raises(KeyboardInterrupt):
            evolve(SPACE, Target(BEST), scores, given())
        again = Kept(scores.known)
        assert evolve(SPACE, Target(BEST), again, given()) == best
        assert again.known == whole.known and list(again.known) == list(whole.known)


def test_more_rounds_go_on_from_those_that_are_done():
    few = Kept()
    evolve(SPACE, Target(BEST), few, given(rounds=3))
    judge, more = Target(BEST), Kept(few.known)
    evolve(SPACE, judge, more, given(rounds=5))
    assert judge.n == 2 * 8


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs"), "r")[0]


@pytest.fixture
def words(run, tmp_path):
    """A search of seconds: windows of 160 tokens of a model for 128."""
    draw, file = random.Random(5), tmp_path / "texts.jsonl"
    texts = [" ".join(draw.choice(" ".join(TEXT).split()) for _ in range(200)) for _ in range(6)]
    file.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    return ["extend", f"run={run}", "length=160", f"files=[{file}]", f"to={tmp_path / 'out'}", "rounds=3",
            "population=6", "documents=3"]  # fmt: skip


def test_a_command_that_is_killed_goes_on_and_what_it_writes_can_be_chosen(words, run, tmp_path, capsys):
    assert main(words) == 0
    said = capsys.readouterr().err
    scores, choice = tmp_path / "out" / factor_search.SCORES, tmp_path / "out" / factor_search.CHOICE
    whole, chosen = scores.read_bytes(), choice.read_bytes()
    assert "on 3 other texts: searched " in said and str(choice) in said
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 1 + 6 + 3 * 3
    for cut in (b"".join(lines[:1]), b"".join(lines[:5]) + lines[5][:20], b"".join(lines[:-1])):
        scores.write_bytes(cut)
        choice.unlink()
        assert main(words) == 0
        assert (scores.read_bytes(), choice.read_bytes()) == (whole, chosen)
    config = load(["position=rope", "position/rope_scaling=searched", *SHAPE], (tmp_path / "out",)).config
    best = min((json.loads(line) for line in lines[1:]), key=lambda entry: (entry["nll"], entry["factors"]))
    assert [round(100 * each) for each in config.position.rope_scaling.long_factor] == best["factors"]


def test_the_command_that_it_prints_measures_what_it_found(words, tmp_path, capsys, monkeypatch):
    """Next to the frequencies as trained, and with a name in the tables."""
    assert main(words) == 0
    (command,) = re.findall(r"python -m coca_train (evaluate .*)", capsys.readouterr().err)
    monkeypatch.chdir(tmp_path)
    short = [f"text.files=[{tmp_path / 'texts.jsonl'}]", "text.max_documents=1", "work.device=cpu"]
    assert main([*shlex.split(command), *short]) == 0
    assert "| searched |" in capsys.readouterr().err


def test_the_loss_is_that_of_the_model_with_these_factors(words, run, tmp_path):
    """By hand, with the scaling given as an option to the model."""
    assert main(words) == 0
    entry = json.loads((tmp_path / "out" / factor_search.SCORES).read_text().splitlines()[3])
    trained = load_run(run, "cpu")
    texts = [json.loads(line)["text"] for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    rows = torch.tensor([trained.tokenizer.encode(text)[:161] for text in texts[::2]])
    scaling = {"factor": 1.25, "original_seq_len": 128, "long_factor": [each / 100 for each in entry["factors"]]}
    config = with_inference(trained.loaded.config, rope_scaling=Selection("longrope", scaling))
    trained.model.set_position(config.position)
    with torch.no_grad():
        logits = trained.model(rows[:, :-1])
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    assert entry["nll"] == pytest.approx(nll.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (["length=128"], "E-EXT-01 length=128: .*Fix: length=512"),
        (["length=5000"], "E-EVAL-05 text: 0 documents .*Fix: "),
        (["seed=1"], "E-EXT-02 .*Fix: to="),
        (["to=/dev/null/x"], "E-EXT-03 .*Fix: to="),
    ],
)
def test_what_is_refused(words, changes, line, capsys):
    if changes == ["seed=1"]:
        assert main(words) == 0
        capsys.readouterr()
    keys = {each.partition("=")[0] for each in changes}
    assert main([*(word for word in words if word.partition("=")[0] not in keys), *changes]) != 0
    assert re.search(line, capsys.readouterr().err.splitlines()[-1])


def test_frequencies_that_were_scaled_before_are_refused(words, monkeypatch, capsys):
    scaled = ROPE_SCALINGS.settings({"name": "linear", "theta": 10000.0, "factor": 2.0})
    monkeypatch.setattr(factor_search, "scaling_of", lambda settings: scaled)
    assert main(words) == 2
    assert "E-EXT-01 run=" in (line := capsys.readouterr().err) and "rope_scaling.name=linear" in line


def test_two_processes_are_refused(words, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(words) == 2
    assert "torchrun" in capsys.readouterr().err


def test_a_scheme_without_frequencies_is_refused(words, monkeypatch, capsys):
    monkeypatch.setattr(factor_search, "scaling_of", lambda settings: None)
    assert main(words) == 2
    assert "E-EXT-01 run=" in capsys.readouterr().err
