"""The search for factors, LongRoPE's and LongRoPE2's: that a killed one goes on as if it had not been, what it finds,
and what it measures."""

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
from coca_train.data.prompts import EVERYDAY
from coca_train.evaluation import factor_search
from coca_train.evaluation.configuration import ExtendConfig
from coca_train.evaluation.factor_objectives import Document, Judge, needle_rows
from coca_train.evaluation.factor_search import evolve
from coca_train.evaluation.factor_spaces import SPACES, LongRope, LongRope2
from coca_train.positions import ROPE_SCALINGS
from coca_train.settings import load
from coca_train.vary import with_inference
from tests.generation.small_run import SHAPE, TEXT, write_run

METHODS = list(SPACES)
BOTH = {"longrope": LongRope(8, 10000.0, 64, 4.0), "longrope2": LongRope2(8, 10000.0, 64, 4.0)}
BEST = {
    "longrope": [1.0, 1.04, 1.3, 1.9, 2.5, 3.33, 3.6, 4.0],
    "longrope2": [1.0, 4.2**0.5, 4.2, 4.3, 5.0, 5.5, 7.0, 7.7],  # critical pair 2
}


class Target:
    """Judges candidates by their distance from factors that the search does not know; counts how often."""

    def __init__(self, best):
        self.best, self.n = np.array(best), 0

    def losses(self, scaling):
        self.n += 1
        return np.array([float(np.square(np.array(scaling.options["long_factor"]) - self.best).sum())])


class Kept:
    """Scores without a file. After `most` new ones the process is killed."""

    def __init__(self, known=(), most=None):
        self.known, self.left = dict(known), most

    def add(self, candidate, nll):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left = None if self.left is None else self.left - 1
        self.known[candidate] = nll


def given(**changes):
    return ExtendConfig(run="r", length=256, population=16, **{"rounds": 30, **changes})


@pytest.mark.parametrize("method", METHODS)
def test_it_comes_near_what_is_best(method):
    space, judge, scores = BOTH[method], Target(BEST[method]), Kept()
    best = evolve(space, judge, scores, given(rounds=120))
    start = min(scores.known[each] for each in space.seeds().values())
    assert scores.known[best] == min(scores.known.values()) < 0.05 * start
    assert judge.n == len(scores.known) <= 16 + 120 * 8  # none is measured twice
    assert best.critical == {"longrope": 0, "longrope2": 2}[method]


@pytest.mark.parametrize("method", METHODS)
def test_killed_at_any_candidate_it_ends_as_if_it_had_not_been(method):
    space, whole = BOTH[method], Kept()
    best = evolve(space, Target(BEST[method]), whole, given())
    for most in (0, 1, 7, 16, 17, 100):
        scores = Kept(most=most)
        with pytest.raises(KeyboardInterrupt):
            evolve(space, Target(BEST[method]), scores, given())
        again = Kept(scores.known, most=3)
        with pytest.raises(KeyboardInterrupt):
            evolve(space, Target(BEST[method]), again, given())
        third = Kept(again.known)
        assert evolve(space, Target(BEST[method]), third, given()) == best
        assert third.known == whole.known and list(third.known) == list(whole.known)


@pytest.mark.parametrize("method", METHODS)
def test_more_rounds_go_on_from_those_that_are_done(method):
    few = Kept()
    evolve(BOTH[method], Target(BEST[method]), few, given(rounds=3))
    judge, more = Target(BEST[method]), Kept(few.known)
    evolve(BOTH[method], judge, more, given(rounds=5))
    assert judge.n == 2 * 8


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_draws_otherwise(method):
    one, other = Kept(), Kept()
    evolve(BOTH[method], Target(BEST[method]), one, given(rounds=2))
    evolve(BOTH[method], Target(BEST[method]), other, given(rounds=2, seed=1))
    assert list(one.known) != list(other.known)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs"), "r")[0]


@pytest.fixture
def words(run, tmp_path):
    """A search of seconds: windows of 400 tokens of a model for 128."""
    draw, file = random.Random(5), tmp_path / "texts.jsonl"
    texts = [". ".join(" ".join(draw.choices(" ".join(TEXT).split(), k=20)) for _ in range(20)) for _ in range(6)]
    file.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    return ["extend", f"run={run}", "length=400", f"files=[{file}]", f"to={tmp_path / 'out'}", "rounds=3",
            "population=6", "documents=3"]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_command_that_is_killed_goes_on_and_what_it_writes_can_be_chosen(method, words, run, tmp_path, capsys):
    words.append(f"method={method}")
    assert main(words) == 0
    said = capsys.readouterr().err
    scores, choice = tmp_path / "out" / factor_search.SCORES, tmp_path / "out" / factor_search.CHOICE
    whole, chosen = scores.read_bytes(), choice.read_bytes()
    assert "on 3 other texts: searched " in said and "on needles in 3 other texts: searched " in said
    assert str(choice) in said
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 1 + 6 + 3 * 3
    for cut in (b"".join(lines[:1]), b"".join(lines[:5]) + lines[5][:20], b"".join(lines[:-1])):
        scores.write_bytes(cut)
        choice.unlink()
        assert main(words) == 0
        assert (scores.read_bytes(), choice.read_bytes()) == (whole, chosen)
    config = load(["position=rope", "position/rope_scaling=searched", *SHAPE], (tmp_path / "out",)).config
    best = min((json.loads(line) for line in lines[1:]), key=lambda entry: (entry["nll"], entry["factors"]))
    critical, factors = best["critical"], [each / 100 for each in best["factors"]]
    found = config.position.rope_scaling
    assert found.long_factor == pytest.approx([factors[0] ** (j / critical) for j in range(critical)] + factors)
    assert found.short_factor is None


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
    rows = torch.tensor([trained.tokenizer.encode(text)[:401] for text in texts[::2]])
    scaling = {"factor": 3.125, "original_seq_len": 128, "long_factor": [each / 100 for each in entry["factors"]]}
    config = with_inference(trained.loaded.config, rope_scaling=Selection("longrope", scaling))
    trained.model.set_position(config.position)
    with torch.no_grad():
        logits = trained.model(rows[:, :-1])
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    assert entry["nll"] == pytest.approx(nll.item(), rel=1e-5)


def test_the_loss_of_needles_is_that_of_the_answers_alone(words, run, tmp_path):
    """By hand: document by document, each ending with its answer."""
    trained, space = load_run(run, "cpu"), LongRope2(8, 10000.0, 128, 3.125)
    texts = [json.loads(line)["text"] for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    documents = [Document(text, np.array(())) for text in texts[::2]]
    rows = needle_rows(documents, trained.tokenizer.encode, "word", 400, seed=0)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.mul_(8)  # an untrained model hardly looks at positions
    one, other = (Selection("longrope", space.options(each)) for each in space.start(5, random.Random(0))[2:4])
    found = Judge(trained, rows).losses(one)
    trained.model.set_position(with_inference(trained.loaded.config, rope_scaling=one).position)
    for tokens_S, scored_T, nll in zip(*rows, found, strict=True):
        places = scored_T.nonzero().flatten()
        end = int(places[-1]) + 2
        assert trained.tokenizer.decode(tokens_S[places[0] + 1 : end].tolist()).strip() in EVERYDAY
        assert trained.tokenizer.decode(tokens_S[: places[0] + 1].tolist()).endswith(" is")
        with torch.no_grad():
            logits = trained.model(tokens_S[None, : end - 1], length=400)[0, -len(places) :]
        answer = tokens_S[end - len(places) : end]
        assert nll == pytest.approx(torch.nn.functional.cross_entropy(logits, answer).item(), rel=1e-4)
    assert not np.allclose(found, Judge(trained, rows).losses(other), rtol=1e-2)


class Characters:
    """A tokenizer with a token for every character."""

    @staticmethod
    def encode(text):
        return [ord(each) for each in text]

    @staticmethod
    def decode(tokens):
        return "".join(map(chr, tokens))


@pytest.mark.parametrize("kind", ["number", "word"])
@pytest.mark.parametrize("length", [1000, 4000])
def test_needles_are_hidden_at_depths_that_spread(kind, length):
    """Document i of n has its needle between i/n and (i + 1)/n of its sentences, which are its own, in order."""
    n = 10
    documents = [Document(" ".join(f"It was {i} at {j}." for j in range(900)), np.array(())) for i in range(n)]
    tokens_BS, scored_BT = needle_rows(documents, Characters.encode, kind, length, seed=3)
    assert tokens_BS.shape == (n, length + 1) and scored_BT.shape == (n, length)
    values = set()
    for i, (tokens_S, scored_T) in enumerate(zip(tokens_BS, scored_BT, strict=True)):
        text = Characters.decode(tokens_S[tokens_S != 0].tolist())
        assert 0.97 * length <= len(text) <= length
        lines = text.splitlines()
        (place,) = [k for k, line in enumerate(lines) if line.startswith(f"The special {kind} of ")]
        sentences = [line for k, line in enumerate(lines[1:-2], start=1) if k != place]
        assert sentences == [f"It was {i} at {j}." for j in range(len(sentences))]
        assert i / n * (len(sentences) + 1) - 1 < place - 1 < (i + 1) / n * (len(sentences) + 1)
        key, value = re.fullmatch(rf"The special {kind} of (.*) is (.*)\.", lines[place]).groups()
        assert lines[-1] == f"Answer: the special {kind} of {key} is {value}"
        assert Characters.decode(tokens_S[1:][scored_T].tolist()) == f" {value}"
        values.add(value)
    assert len(values) > n / 2


def test_what_fills_up_a_row_changes_nothing(run):
    """No prediction sees what comes after it."""
    trained = load_run(run, "cpu")
    documents = [Document("We look at it again. " * 50, np.array(())) for _ in range(2)]
    tokens_BS, scored_BT = needle_rows(documents, trained.tokenizer.encode, "word", 500, seed=0)
    last = int(scored_BT.nonzero()[:, 1].max())
    assert last < 499
    other_BS = tokens_BS.clone()
    other_BS[:, last + 2 :] = 3
    targets = [each[:, 1:].where(scored_BT, -100) for each in (tokens_BS, other_BS)]
    nll = [trained.model.losses(x[:, :-1], y) for x, y in zip((tokens_BS, other_BS), targets, strict=True)]
    assert torch.equal(*nll) and torch.equal(nll[0] != 0, scored_BT)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (["length=128"], "E-EXT-01 length=128: .*Fix: length=512"),
        (["length=5000"], "E-EVAL-05 text: 0 documents .*Fix: "),
        (["seed=1"], "E-EXT-02 .*Fix: to="),
        (["method=longrope2"], "E-EXT-02 .*another run, method, .*Fix: to="),
        (["to=/dev/null/x"], "E-EXT-03 .*Fix: to="),
        (["method=longrope2", "length=130"], "E-EXT-06 length=130: .* which take [0-9]+ tokens. Fix: length="),
    ],
)
def test_what_is_refused(words, changes, line, capsys):
    if "E-EXT-02" in line:
        assert main(words) == 0
        capsys.readouterr()
    keys = {each.partition("=")[0] for each in changes}
    assert main([*(word for word in words if word.partition("=")[0] not in keys), *changes]) != 0
    assert re.search(line, capsys.readouterr().err.splitlines()[-1])


def test_needles_that_do_not_fit_are_not_compared(words, capsys):
    """A search by texts does not need them."""
    assert main([*(word for word in words if word != "length=400"), "length=130"]) == 0
    assert "not compared by needles: 130 tokens have no room for one" in capsys.readouterr().err


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
