"""Many-shot learning: what shots tell, what the asked word's label is, and what reading them all would give."""

from coca_train.evaluation.suites.manyshot import cases, label_requests

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


def test_choices_are_cut_where_they_differ():
    prompt = "bamilo: A\nbamilo:"
    for request, label in zip(label_requests(encode, prompt, LABELS, (1,)), LABELS, strict=True):
        assert [*request.context, *request.continuation] == [1, *encode(f"{prompt} {label}")]
        assert request.continuation == (ord(label),)
    merging = {": A": 1000, ": B": 1001}

    def joined(text):
        """The colon, the space and the label are one token."""
        return [*encode(text[:-3]), merging.get(text[-3:], 0)]

    first, second = label_requests(joined, prompt, ["A", "B"], ())
    assert first.context == second.context == tuple(encode(prompt[:-1]))
    assert (first.continuation, second.continuation) == ((1000,), (1001,))
    unknown = cases(lambda text: [ord(letter) if letter > "Z" else 0 for letter in text], 80, 1, n_words=4,
                    labels=["A", "B"], seed=0)  # fmt: skip
    assert unknown[0].indistinct and not make(80)[0].indistinct
