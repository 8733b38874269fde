"""Key-value recall: what prompts hold, that the answer follows from them, lengths, places, answers."""

import json
import re

import pytest

from coca_train.data.prompts import EVERYDAY, FORMS, recall_answer, recall_prefix, recall_prompt
from coca_train.evaluation.suites.recall import SPARE, cases, new_tokens, value_in
from coca_train.runtime.errors import DataError
from tests.fixes import fix_of

PROMPT = '{\n"bamilo": "tufage",\n"kirado": "zolane"\n}\n"bamilo":'


def encode(text):
    """A token a character."""
    return [ord(letter) for letter in text]


def make(length, n_cases=6, **options):
    settings = {"keys": "words", "values": "words", "places": "even", "n_depths": 3, "seed": 0} | options
    return cases(encode, length, n_cases, **settings)


def parts(case, begin=0):
    """The object of a prompt, and what is asked."""
    whole, asked = "".join(map(chr, case.tokens[begin:])).rsplit("\n", 1)
    return json.loads(whole), json.loads(asked[:-1])


def test_the_prompt():
    keys, values = ["bamilo", "kirado"], ["tufage", "zolane"]
    assert recall_prompt(keys, values, "bamilo") == PROMPT
    for n, line in enumerate(['"bamilo"', '"kirado"']):
        assert PROMPT.startswith(recall_prefix(keys, values, n)) and PROMPT[
            len(recall_prefix(keys, values, n)) :
        ].startswith(line)


@pytest.mark.parametrize(("form", "looks"), [
    ("words", "([bdfgklmnprstvz][aeiou]){3}"), ("common", "[a-z]{3,8}"), ("digits", "[0-9]{6}"), ("hex", "[0-9a-f]{8}"),
    ("uuid", "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
])  # fmt: skip
def test_the_value_is_that_of_the_key(form, looks):
    assert form in FORMS
    for case in make(700, keys=form, values=form):
        held, asked = parts(case)
        assert (asked, held[asked]) == (case.key, case.value)
        assert tuple(held.values()) == case.values and len(set(case.values)) == len(held)
        assert all(re.fullmatch(looks, word) for pair in held.items() for word in pair)


@pytest.mark.parametrize("options", [{"keys": "common"}, {"values": "common"}])
def test_more_pairs_than_there_are_common_words(options):
    assert make(5_000, n_cases=1, **options)
    with pytest.raises(DataError, match=f"^E-EVAL-21 grid.lengths: 40,000 tokens .* {len(EVERYDAY)} ") as raised:
        make(40_000, n_cases=1, **options)
    words = re.findall(r"eval\.(\w+)=(\w+)", fix_of(raised.value))
    assert len(words) == 2 and make(40_000, n_cases=1, **dict(words))


def test_no_room():
    assert make(len(PROMPT) - 1) == [] == make(len(PROMPT), begin=(1,))
    assert len(parts(make(len(PROMPT))[0])[0]) == 2


def test_places_depths_and_distances():
    for index, case in enumerate(make(700)):
        held, asked = parts(case)
        at = list(held).index(asked)
        assert at == round((len(held) - 1) * (index % 3) / 2)
        assert case.depth == at / (len(held) - 1)
        assert "".join(map(chr, case.tokens[-case.distance :])).startswith(f'"{case.key}": "{case.value}"')
    depths = [case.depth for case in make(200, n_cases=900, places="uniform")]
    n_pairs = len(make(200)[0].values)
    assert len(set(depths)) == n_pairs
    expected = 900 / n_pairs
    assert all(abs(depths.count(depth) - expected) < 4.5 * expected**0.5 for depth in set(depths))


def test_draws_do_not_depend_on_what_else_there_is():
    few, many = make(700, n_cases=2), make(700, n_cases=6)
    assert many[:2] == few and len({case.key for case in many}) == 6
    assert all(one.values != other.values for one, other in zip(few, make(700, n_cases=2, seed=1), strict=True))
    # Another tokenizer has other lengths and so another number of pairs, of which the first ones are the same.
    wide = cases(lambda text: encode(text) * 2, 700, 1, keys="words", values="words", places="even", n_depths=3, seed=0)
    assert 2 < len(wide[0].values) < len(few[0].values) and few[0].values[: len(wide[0].values)] == wide[0].values


@pytest.mark.parametrize(("answer", "value"), [
    (' "tufage",\n"kirado"', "tufage"), ('"tufage"', "tufage"), ('\n "tufage" and', "tufage"), (' "tufage', None),
    (" tufage", None), ("", None), ('tufage "zolane"', None), (' ""', ""), (' "tufagez"', "tufagez"),
])  # fmt: skip
def test_the_value_that_an_answer_gives(answer, value):
    assert value_in(answer) == value


def test_an_answer_has_room():
    prompts = make(300, values="uuid")
    assert new_tokens(prompts) == len(recall_answer(prompts[0].value)) + SPARE == 39 + SPARE
