"""What holds for every suite that asks prompts: ranks and batches, what cannot be asked, what a cell is known by."""

from typing import Any

import pytest

from coca_train.evaluation.suite import AnySuite, suite_of
from tests.evaluation.grids import byte_subject, result, settings, setup

# By suite: small options; points without room, with room, and beyond 300 positions; another option that is asked.
SUITES: dict[str, tuple[dict[str, Any], tuple[Any, Any, Any], dict[str, Any]]] = {
    "passkey": ({"n_cases": 6, "max_new_tokens": 8, "places": "even", "n_depths": 3}, (100, 290, 600),
                {"places": "uniform"}),
    "recall": ({"n_cases": 6, "n_depths": 3}, (30, 200, 400), {"values": "hex"}),
    "ruler": ({"tasks": ["needle", "needle_values"], "n_cases": 3, "haystack": "filler"},
              ("needle@100", "word@290", "needle@800"), {"n_cases": 4}),
}  # fmt: skip


def small(name: str, **options: Any) -> AnySuite:
    (suite,) = suite_of(settings(name, **(SUITES[name][0] | options))).parts()
    return suite


@pytest.mark.parametrize(("micro_batch_tokens", "n_ranks"), [(1, 2), (1400, 1), (1400, 5)])
@pytest.mark.parametrize("name", SUITES)
def test_a_cell_is_the_same_for_every_batch_and_world(name: str, micro_batch_tokens: int, n_ranks: int) -> None:
    point = SUITES[name][1][2 if name in ("passkey", "ruler") else 1]
    alone = result(small(name), byte_subject(), point, setup([point], micro_batch_tokens=100_000))
    shared = setup([point], micro_batch_tokens=micro_batch_tokens)
    there = result(small(name), byte_subject(), point, shared, n_ranks)
    assert there == alone
    assert len({case["answer"] for case in alone["cases"]}) > 1


@pytest.mark.parametrize("name", SUITES)
def test_what_cannot_be_asked(name: str) -> None:
    learned, points, suite = byte_subject("learned"), SUITES[name][1], small(name)
    material = suite.prepare(learned, setup(points))
    assert material[points[0]] == [] and suite.impossible(learned, points[0], material)
    assert "300 positions" in suite.impossible(learned, points[2], material)
    assert suite.impossible(byte_subject(), points[2], material) == ""


@pytest.mark.parametrize("name", SUITES)
def test_the_fingerprint_is_of_what_is_asked(name: str) -> None:
    point = SUITES[name][1][2]

    def mark(who: Any = byte_subject, seed: int = 0, **options: Any) -> str:
        suite = small(name, **options)
        return suite.fingerprint(suite.prepare(who(), setup([point], seed=seed)), point)

    others = [mark(seed=1), mark(n_cases=2), mark(**SUITES[name][2]), mark(lambda: byte_subject(kind="huggingface"))]
    assert mark() == mark(lambda: byte_subject("alibi"))
    assert len({mark(), *others}) == 5


@pytest.mark.parametrize("name", SUITES)
def test_a_folder_of_hugging_face_has_its_beginning(name: str) -> None:
    point = SUITES[name][1][2]
    of_folder, of_run = (
        small(name).prepare(byte_subject(kind=kind), setup([point]))[point] for kind in ("huggingface", "run")
    )
    assert {case.tokens[0] for case in of_folder} == {1} and 1 not in {case.tokens[0] for case in of_run}
