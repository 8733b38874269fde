"""The table of docs/results.md on models that retrieve, from docs/results/reach.csv.

python -m tests.house.reach

The file is tables/answers.csv of a report, as `evaluate +eval=reach_words` writes it.
"""

import csv
import re
from pathlib import Path

from coca_train.runtime.printing import markdown

FIGURES = Path(__file__).parents[2] / "docs" / "results" / "reach.csv"
FORMS = {"holds": "{:+.3f}", "uses": "{:+.3f}", "finds": "{:.2f}", "works with": "{:.2f}"}
SIGNS = {"yes": "✓", "no": "✗", "open": "?"}
BY_DEFINITION = tuple(SIGNS.values())  # a window holds itself


def text() -> str:
    """Return what each model does at each length, with its verdict."""
    with open(FIGURES, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["whose"] == "ours"]
    lengths = [name for name in rows[0] if re.fullmatch(r"[\d,]+", name)]
    lines = [[row["model"], row["part"], *(_cell(row, length) for length in lengths)] for row in rows]
    return markdown(["model", "part", *lengths], lines, n_left=2)


def _cell(row: dict[str, str], length: str) -> str:
    figure, verdict = row[length], row[f"note: {length}"].partition(":")[0]
    if not figure or figure in BY_DEFINITION:
        return ""
    return f"{FORMS[row['part']].format(float(figure)).replace('-', '−')} {SIGNS[verdict]}"


if __name__ == "__main__":
    print(text(), end="")
