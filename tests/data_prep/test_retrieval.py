"""`python -m data_prep retrieval`: the texts, how they are drawn, and bytes that do not change."""

import gzip
import json
import random
import re
from collections import Counter
from itertools import pairwise

import pytest

from coca_train.data.prompts import EVERYDAY
from coca_train.data.retrieval import KINDS
from coca_train.data.ruler import TASKS
from data_prep import __main__ as command

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
PASSKEY = re.compile(
    r"There is an important info hidden inside a lot of irrelevant text\. Find it and memorize them\. "
    r"I will quiz you about the important information there\.\n"
    rf"((?:{re.escape(FILLER)}\n)*)The passkey is (\d{{5}})\. Remember it\. \2 is the passkey\.\n"
    rf"((?:{re.escape(FILLER)}\n)*)What is the passkey\?\nThe passkey is \2\.\n"
)
SETS = {
    "mine": {"kinds": {"recall": 4, "echoes": 9}, "n_documents": 20},
    "other": {"kinds": {"needle": 2}, "n_documents": 3},
}


def texts(kind, size, n):
    draw = random.Random(kind)
    return [KINDS[kind](size, draw) for _ in range(n)]


@pytest.fixture
def ask(tmp_path, capsys):
    """ask(sets, options) -> exit status and what was said; the sets are those of a corpus."""

    def make(sets, *words):
        corpus = {"name": "mine", "sources": {"mine": {"files": ["mine_train.jsonl.gz"]}}}
        file = tmp_path / "conf" / "corpus" / "mine.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        settings = {"corpus": corpus, "retrieval": {"sets": sets, "dir": f"{tmp_path}/raw", "n_valid_documents": 5}}
        file.write_text(f"# @package _global_\n{json.dumps(settings)}\n")
        words = ("--config-dir", str(tmp_path / "conf"), "corpus=mine", *words)
        return command.main(["retrieval", *words]), capsys.readouterr().err

    return make


@pytest.fixture
def generate(ask, tmp_path):
    """generate(options) -> by file name, its bytes and its records."""

    def make(*words, sets=SETS):
        assert ask(sets, *words)[0] == 0
        data = {path.name: path.read_bytes() for path in (tmp_path / "raw").iterdir()}
        return data, {name: list(map(json.loads, gzip.decompress(part).splitlines())) for name, part in data.items()}

    return make


def test_echoes_say_again_what_stood_before_at_no_fixed_distance():
    n_pairs, distances = 0, Counter()
    for text in texts("echoes", 80, 50):
        said = text.removesuffix("\n").split(" ")
        assert len(said) == 80 and set(said) <= set(EVERYDAY)
        pairs = list(pairwise(said))
        n_pairs += len(pairs)
        distances.update(pairs[:at][::-1].index(pair) + 1 for at, pair in enumerate(pairs) if pair in pairs[:at])
    assert 0.5 < distances.total() / n_pairs < 0.8
    assert len(distances) > 50 and max(distances.values()) < 0.2 * distances.total()


@pytest.mark.parametrize("kind", ["recall", "recall_common"])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_answers_of_recall_are_those_of_the_object(kind, size):
    n_pairs = Counter()
    for text in texts(kind, size, 200):
        whole, questions = text.split("\n}\n")
        held = json.loads(f"{whole}}}")
        asked = [json.loads(f"{{{line}}}") for line in questions.splitlines()]
        assert len(held) + len(asked) == max(2, size)
        assert all(held[key] == value for pair in asked for key, value in pair.items())
        assert all((word in EVERYDAY) == (kind == "recall_common") for pair in held.items() for word in pair)
        n_pairs[len(held)] += 1
    assert set(n_pairs) == set(range(1, max(2, size)))


def test_passkeys_and_their_places():
    n, places = 3000, Counter()
    for text in texts("passkey", 4, n):
        match = PASSKEY.fullmatch(text)
        assert match, text
        before, after = (match[part].count("grass") for part in (1, 3))
        assert before + after == 3
        places[before] += 1
    assert all(abs(places[at] - n / 4) < 5 * (n / 4) ** 0.5 for at in range(4))


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_of_a_task_is_all_that_is_expected(task):
    for size in (1, 3):
        for text in texts(task, size, 5):
            prompt, answer = text.rsplit("Answer:", 1)
            said = re.split(r" (?:are|is) ", answer)[-1].replace(" and ", ", ").removesuffix(".\n")
            names = said.split(", ")
            one = dict.fromkeys(["needle", "needle_keys", "word", "word_keys"], 1)
            expected = one | {"variables": 5, "common_words": 10, "frequent_words": 3}
            assert len(names) == expected.get(task, 4), text
            assert all(name in prompt for name in names)
            assert [prompt.index(name) for name in names] == sorted(prompt.index(name) for name in names)
            assert text.endswith(f"{names[-1]}.\n")


def test_the_files_and_their_documents(generate):
    _, records = generate()
    assert {name: len(each) for name, each in records.items()} == {
        "mine_train.jsonl.gz": 20, "mine_valid.jsonl.gz": 5, "other_train.jsonl.gz": 3, "other_valid.jsonl.gz": 5,
    }  # fmt: skip
    assert [record["meta"]["id"] for record in records["mine_train.jsonl.gz"][:2]] == ["train-0", "train-1"]
    kinds = Counter(record["text"].startswith("{") for record in records["mine_train.jsonl.gz"])
    assert min(kinds[True], kinds[False]) >= 4
    every = [record["text"] for each in records.values() for record in each if len(record["text"]) > 60]
    assert len(set(every)) == len(every)


def test_the_bytes_depend_on_the_options_only(generate):
    first, _ = generate()
    assert first["mine_train.jsonl.gz"][4:8] == b"\0\0\0\0"  # no time of day in it
    assert generate()[0] == first
    assert generate("retrieval.seed=1")[0]["mine_train.jsonl.gz"] != first["mine_train.jsonl.gz"]
    fewer, _ = generate(sets=SETS | {"other": {"kinds": {"needle": 2}, "n_documents": 2}})
    assert fewer["mine_train.jsonl.gz"] == first["mine_train.jsonl.gz"]  # sets know nothing of each other


@pytest.mark.parametrize(("sets", "status", "parts"), [
    ({}, 3, ["E-RAW-31 retrieval.sets: "]),
    ({"a": {"kinds": {"recal": 3}, "n_documents": 2}}, 2, ["E-CFG-84", "retrieval.sets.a.kinds.recall=3"]),
    ({"a": {"kinds": {}, "n_documents": 2}}, 2, ["E-CFG-84", "retrieval.sets.a.kinds"]),
    ({"a": {"kinds": {"recall_common": 999}, "n_documents": 2}}, 2, ["E-CFG-84", f"recall_common={len(EVERYDAY)}"]),
    ({"a": {"kinds": {"recall": 0}, "n_documents": 2}}, 2, ["retrieval.sets.a.kinds.recall"]),
    ({"a/b": {"kinds": {"recall": 2}, "n_documents": 2}}, 2, ["E-CFG-29", "retrieval.sets.a/b"]),
])  # fmt: skip
def test_what_is_refused(ask, tmp_path, sets, status, parts):
    done, said = ask(sets)
    assert done == status
    assert all(part in said for part in parts), said
    assert not (tmp_path / "raw").exists()


def test_a_place_that_cannot_be_written(ask, tmp_path):
    (tmp_path / "file").write_text("")
    status, said = ask(SETS, f"retrieval.dir={tmp_path}/file/raw")
    assert status != 0
    assert "cannot be written" in said
