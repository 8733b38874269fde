"""What a whole evaluation of prompts leaves in results.json, against prompts written here from their definition
(docs/evaluation.md), answers computed anew for every token, and answers matched by hand.

Tokens are letters, behind the one that begins a text. Answers come from transformers' own model, or from one that
copies as far back as it reads (copying.py), so that some are right and some are not.
"""

import math
import random
import re

import pytest
import torch
import transformers
from scipy.stats import binomtest

from tests.evaluation.copying import CopyHead, successor
from tests.evaluation.grids import Bytes, blocks, row
from tests.evaluation.written import BEGIN, RULER, passkey, recall, ruler

END = 0
ASKED = {  # how a question goes on in the prompt's own words, as the copier understands it
    "What is the passkey?": "The passkey is",
    "the special number of": "The special number of",
    "all the special numbers of": "The special number of",
    " are": " is",
}


def understood(text: list[int], reach: int) -> int:
    """The copier's next token, a question's words turned into those of the answer. Behind a number that ends with 3, 6
    or 9 it says 7: another number, with this one's digits in it."""
    *before, last = "".join(map(chr, text)).rpartition("\n")
    for question, words in ASKED.items():
        last = last.replace(question, words)
    said = successor([ord(letter) for letter in "".join([*before, last])], reach)
    return ord("7") if text[-1] in b"369" and said not in b"0123456789" else said


class Letters(Bytes):
    """Token n is the letter n, however large a vocabulary is."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(token) for token in tokens if token > BEGIN)


def copier(reach, read, says=understood):
    """read: gets every text that is read."""

    def reading(text, reach):
        read.add("".join(map(chr, text[1:])))
        return says(text, reach)

    return lambda opened: opened._replace(model=CopyHead(reach, reading).eval(), tokenizer=Letters())


def lengthened(text: list[int], reach: int) -> int:
    """The copier's next token, but a word that ends with a or e has a letter more: it is another word."""
    said = understood(text, reach)
    return ord("s") if said == ord('"') and text[-1] in b"ae" else said


def of_letters(opened):
    """The folder's own model, its tokens letters."""
    return opened._replace(tokenizer=Letters())


@pytest.fixture(scope="module")
def theirs(folders):
    model = transformers.AutoModelForCausalLM.from_pretrained(folders("one"), dtype=torch.float32).eval()

    @torch.no_grad()
    def log_p(text):
        return model(input_ids=torch.tensor([text])).logits[0].double().log_softmax(-1)

    return log_p


def decoded(prompt: str, n: int, following) -> str:
    """Greedily, up to the token that ends a text."""
    text = [BEGIN, *prompt.encode()]
    start = len(text)
    while len(text) < start + n and text[-1] != END:
        text.append(following(text))
    return "".join(chr(token) for token in text[start:] if token > BEGIN)


def wilson(hits):
    interval = binomtest(sum(hits), len(hits)).proportion_ci(method="wilson")
    return pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(
    ("wording", "name", "end", "between", "reach"),
    [
        ("coca", "passkey", "What is the passkey?", "\n", 500),
        ("yarn", "pass key", "What is the pass key? The pass key is", " ", 500),
    ],
)
def test_passkey(evaluated, wording, name, end, between, reach):
    words = [f"eval.prompt={wording}", "eval.n_cases=12", "eval.max_new_tokens=12", "eval.n_depths=4"]
    words += ["eval.places=even", "grid.lengths=[500,900]"]
    read = set()
    record, _ = evaluated("passkey", *words, exchanged=copier(reach, read))
    for cell in record["cells"]:
        length, found = cell["point"], cell["result"]
        hits, inside = [], []
        for index, case in enumerate(found["cases"]):
            draw = random.Random(f"passkey 0 {length} {index}")
            key = draw.randint(10_000, 99_999) if wording == "coca" else draw.randint(1, 50_000)
            longest = max(n for n in range(20) if 1 + len(passkey(name, end, between, key, n, 0)[0]) <= length)
            n_before = round(longest * (index % 4) / 3)
            prompt, distance = passkey(name, end, between, key, longest, n_before)
            answer = decoded(prompt, 12, lambda text: understood(text, reach))
            assert prompt in read
            numbers = re.findall("[0-9]+", answer)
            hits.append(str(key) in (numbers if wording == "coca" else numbers[:1]))
            inside.append(str(key) in answer)
            assert case == {
                "hidden": str(key), "depth": n_before / longest, "distance": distance, "found": hits[-1],
                "answer": answer,
            }  # fmt: skip
        assert (found["accuracy"], found["more"]["contained"]) == (sum(hits) / 12, sum(inside) / 12)
        assert (found["low"], found["high"]) == wilson(hits)
        assert 0 < sum(hits) < sum(inside) <= 12 and (length == 500) == all(inside)


@pytest.mark.parametrize("model", ["theirs", "copier"])
def test_recall(evaluated, theirs, model):
    greedy = lambda text: int(theirs(text)[-1].argmax())  # noqa: E731
    following, exchanged = {
        "theirs": (greedy, of_letters),
        "copier": (lambda text: lengthened(text, 200), copier(200, set(), lengthened)),
    }[model]
    words = ["eval.n_cases=8", "eval.n_depths=4", "grid.lengths=[150,300]"]
    for cell in evaluated("recall", *words, exchanged=exchanged)[0]["cells"]:
        hits, others, chances, inside = [], [], [], []
        for index, case in enumerate(cell["result"]["cases"]):
            prompt, value, values, distance = recall(cell["point"], index, 4)
            answer = decoded(prompt, len(' "bamilo"') + 2, following)
            hits.append(answer.lstrip().startswith(f'"{value}"'))
            others.append(any(answer.lstrip().startswith(f'"{each}"') for each in values if each != value))
            chances.append(1 / len(values))
            inside.append(value in answer)
            assert (case["hidden"], case["distance"]) == (value, distance)
            assert (case["answer"], case["found"]) == (answer, hits[-1])
        found = cell["result"]
        assert (found["accuracy"], found["more"]["others"]) == (sum(hits) / 8, sum(others) / 8)
        assert found["more"]["chance"] == pytest.approx(sum(chances) / 8)
        assert (found["low"], found["high"]) == wilson(hits)
        assert model == "theirs" or 0 < sum(hits) < sum(inside)


def done(task, length, index, reach, inside=True):
    """Of each of these prompts, the copier's answer, and the share of what is expected that stands in it."""
    answers = []
    for prompt, expected in ruler(task, length, index, inside):
        answer = decoded(prompt, RULER[task][1], lambda text: understood(text, reach))
        answers.append((answer[:80], sum(each.lower() in answer.lower() for each in expected) / len(expected)))
    return answers


def test_ruler(evaluated):
    words = [f"eval.tasks=[{','.join(RULER)}]", "eval.n_cases=3", "grid.lengths=[900,3900]"]
    read = set()
    record, page = evaluated("ruler", *words, exchanged=copier(700, read))
    found = {cell["point"]: cell for cell in record["cells"]}
    assert found.pop("common_words@900")["status"] == "impossible"
    seen = set()
    for point, cell in found.items():
        task, length = point.split("@")
        scores = [case["score"] for case in cell["result"]["cases"]]
        for index, case in enumerate(cell["result"]["cases"]):
            assert (case["answer"], case["score"]) in done(task, int(length), index, 700)
            assert any(prompt in read for prompt, _ in ruler(task, int(length), index))
        mean = sum(scores) / 3
        error = math.sqrt(sum((score - mean) ** 2 for score in scores) / 2 / 3)
        assert (cell["result"]["score"], cell["result"]["standard_error"]) == pytest.approx((mean, error))
        seen |= set(scores)
    assert {0, 0.25, 1} <= seen
    needle = row(blocks(page)["ruler-tasks"], "one", "plain", "needle").values[0]
    hits = [case["score"] == 1 for case in found["needle@900"]["result"]["cases"]]
    assert (needle.low, needle.high) == wilson(hits)


def test_reach_of_prompts(evaluated):
    """How far a copier of 400 letters finds and works: to the last length before one that is not answered yes."""
    lengths = (200, 300, 400, 600)
    words = [f"grid.lengths=[{','.join(map(str, lengths))}]", "eval.reads=null", "eval.works.tasks=[needle_keys]"]
    words += ["eval.finds.n_cases=36", "eval.finds.n_depths=4", "eval.works.n_cases=36"]
    _, page = evaluated("reach", *words, exchanged=copier(400, set()))
    shown = {row.label[1]: row.values for row in blocks(page)["answers"].rows}
    expected, reached = {"finds": {}, "works with": {}}, {}
    for length in lengths:
        asked = [recall(length, index, 4) for index in range(36)]
        answers = [decoded(prompt, 11, lambda text: understood(text, 400)) for prompt, *_ in asked]
        values = [value for _, value, *_ in asked]
        expected["finds"][length] = [
            f' "{v}"' == answer[: len(v) + 3] for v, answer in zip(values, answers, strict=True)
        ]
        if length > 300:  # shorter ones have no room for four needles
            whole = [done("needle_keys", length, index, 400, inside=False)[-1] for index in range(36)]
            expected["works with"][length] = [score == 1 for _, score in whole]
    for part, hits in expected.items():
        for length, value in zip(lengths, shown[part], strict=True):
            if length not in hits:
                assert value.number is None
                continue
            exact = binomtest(sum(hits[length]), 36).proportion_ci(0.999, method="exact")
            assert (value.number, value.low, value.high) == pytest.approx(
                (sum(hits[length]) / 36, exact.low, exact.high)
            )
            if exact.low <= 0.8:
                break
            reached[part] = length
    assert reached == {"finds": 400, "works with": 400}
    (said,) = page.verdicts
    assert [(part, words.split(",")[0]) for part, words in said.parts] == [(p, str(n)) for p, n in reached.items()]
