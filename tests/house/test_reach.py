"""docs/results.md has the tables of the models that retrieve as their evaluations wrote them."""

from pathlib import Path

import pytest

from tests.house.reach import TABLES, text

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_of_its_evaluation(table: str) -> None:
    assert text(table) in (DOCS / "results.md").read_text(encoding="utf-8"), "python -m tests.house.reach"
