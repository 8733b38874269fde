"""Many-shot learning: what shots tell, what the asked word's label is, and what reading them all would give."""

import pytest

from coca_train.evaluation.suites.manyshot import cases, ceiling, choices, learnt

LABELS = ["A", "B", "C", "D"]


def encode(text):
    """A token a character."""
    return [ord(letter) for letter in text]


def make(length, n_cases=5, **options):
    return cases(encode, length, n_cases, **({"n_words": 20, "labels": LABELS, "seed": 0} | options))


def parts(case):
    """Shots in order, and the asked word."""
    *lines, asked = "".join(map(chr, case.requests[0].context)).splitlines()
    return [tuple(line.split(": ")) for line in lines], asked.removesuffix(": ")


@pytest.mark.parametrize("length", [40, 150, 700])
def test_the_label_is_that_of_the_shots(length):
    for case in make(length):
        shots, asked = parts(case)
        assert len(shots) == case.n_shots and asked == case.word
        known = dict(shots)
        assert all(known[word] == label for word, label in shots)  # never two labels
        assert case.seen == (asked in known)
        assert not case.seen or known[asked] == LABELS[case.label]
        assert len(known) == min(len(shots), 20)  # none comes again before all have come
        assert len(case.tokens) <= length < len(case.tokens) + len("bamilo: A\n") or len(case.tokens) >= 0.99 * length


def test_the_last_shot_of_the_asked_word():
    seen = [case for case in make(500, n_cases=20) if case.seen]
    assert seen
    for case in seen:
        prompt = "".join(map(chr, case.requests[0].context)).rstrip()
        assert case.distance == len(prompt) - prompt.rindex(f"{case.word}: ")


def test_draws_do_not_depend_on_what_else_there_is():
    assert make(300, n_cases=2) == make(300)[:2]
    assert len({case.word for case in make(300)}) == 5
    assert all(parts(one) != parts(other) for one, other in zip(make(300), make(300, seed=1), strict=True))
    # Another tokenizer has other lengths and so other numbers of shots, of which the first ones are the same.
    (few,) = cases(lambda text: encode(text) * 2, 300, 1, n_words=20, labels=LABELS, seed=0)
    (many,) = make(300, n_cases=1)
    text = "".join(map(chr, few.tokens))[: len("bamilo: A\n") * few.n_shots]
    assert few.n_shots < many.n_shots and few.word == many.word and "".join(map(chr, many.tokens)).startswith(text)
    assert make(15) == []
    assert make(30, begin=(7,))[0].tokens[0] == 7


@pytest.mark.parametrize("length", [80, 150, 1000])
def test_a_reader_of_all_shots_gets_the_ceiling_and_one_of_the_last_ones_does_not(length):
    """Readers that know what shots they read and guess the first label otherwise, on 2,000 prompts."""
    prompts = make(length, n_cases=2000, n_words=40)
    n_shots, n = prompts[0].n_shots, len(prompts)

    def share(last: int) -> float:
        hits = 0
        for case in prompts:
            shots, asked = parts(case)
            hits += dict(shots[-last:]).get(asked, LABELS[0]) == LABELS[case.label]
        return hits / n

    top = ceiling(sum(case.seen for case in prompts), n, 4)
    assert top == pytest.approx(0.25 + 0.75 * min(n_shots, 40) / 40, abs=0.04)
    assert share(10**6) == pytest.approx(top, abs=0.04)
    assert share(5) == pytest.approx(ceiling(5, 40, 4), abs=0.04)
    assert learnt(top, 4) == pytest.approx(min(n_shots, 40) / 40, abs=0.06)


def test_choices_are_cut_where_they_differ():
    prompt = "bamilo: A\nbamilo:"
    for request, label in zip(choices(encode, prompt, LABELS, (1,)), LABELS, strict=True):
        assert [*request.context, *request.continuation] == [1, *encode(f"{prompt} {label}")]
        assert request.continuation == (ord(label),)
    merging = {": A": 1000, ": B": 1001}

    def joined(text):
        """The colon, the space and the label are one token."""
        return [*encode(text[:-3]), merging.get(text[-3:], 0)]

    first, second = choices(joined, prompt, ["A", "B"], ())
    assert first.context == second.context == tuple(encode(prompt[:-1]))
    assert (first.continuation, second.continuation) == ((1000,), (1001,))
    unknown = cases(lambda text: [ord(letter) if letter > "Z" else 0 for letter in text], 80, 1, n_words=4,
                    labels=["A", "B"], seed=0)  # fmt: skip
    assert unknown[0].indistinct and not make(80)[0].indistinct
