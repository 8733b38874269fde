"""docs/atlas_results.md is what the stored trials say, and it says no more than they do."""

from pathlib import Path

from tests.house.atlas import text

PAGE = Path(__file__).parents[2] / "docs" / "atlas_results.md"


def test_the_page_is_of_the_stored_trials() -> None:
    assert PAGE.read_text() == text(), "run: python -m tests.house.atlas > docs/atlas_results.md"
