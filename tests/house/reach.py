"""The tables of docs/results.md on models that retrieve, from files of docs/results.

python -m tests.house.reach

The files are tables/answers.csv of reports, as `evaluate +eval=reach_words` writes them.
"""

import csv
import re
from pathlib import Path

from coca_train.runtime.printing import markdown

FOLDER = Path(__file__).parents[2] / "docs" / "results"
TABLES = {"reach": ("holds", "uses", "finds", "works with"), "reach_patterns": ("holds", "finds")}  # their parts
FORMS = {"holds": "{:+.3f}", "uses": "{:+.3f}", "finds": "{:.2f}", "works with": "{:.2f}"}
SIGNS = {"yes": "✓", "no": "✗", "open": "?"}
BY_DEFINITION = tuple(SIGNS.values())  # a window holds itself


def text(table: str) -> str:
    """Return what each model does at each length, with its verdict."""
    with open(FOLDER / f"{table}.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["whose"] == "ours" and row["part"] in TABLES[table]]
    names = [name for name in rows[0] if re.fullmatch(r"[\d,]+", name)]
    lengths = [name for name in names if any(_cell(row, name) for row in rows)]
    lines = [[row["model"], row["part"], *(_cell(row, length) for length in lengths)] for row in rows]
    return markdown(["model", "part", *lengths], lines, n_left=2)


def _cell(row: dict[str, str], length: str) -> str:
    figure, verdict = row[length], row[f"note: {length}"].partition(":")[0]
    if not figure or figure in BY_DEFINITION:
        return ""
    return f"{FORMS[row['part']].format(float(figure)).replace('-', '−')} {SIGNS[verdict]}"


if __name__ == "__main__":
    print("\n".join(map(text, TABLES)), end="")
