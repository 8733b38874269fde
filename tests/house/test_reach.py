"""docs/results.md has the table of the models that retrieve as their evaluation wrote it."""

from pathlib import Path

from tests.house.reach import text

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_of_the_evaluation() -> None:
    assert text() in (DOCS / "results.md").read_text(encoding="utf-8"), "python -m tests.house.reach"
