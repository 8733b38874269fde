"""docs/interop.md has the table of docs/interop.json, and nothing in it is wrong. `python -m tests.outside.families`
measures it."""

import json

import pytest

from tests.outside import families

FIGURES = json.loads(families.FIGURES.read_text(encoding="utf-8"))


def test_the_table_is_that_of_the_figures() -> None:
    assert families.page(FIGURES) == families.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("column", FIGURES)
def test_nothing_is_wrong(column: str) -> None:
    assert not any(found["WRONG"] for found in FIGURES[column].values())
    assert any(found["same"] for found in FIGURES[column].values())
