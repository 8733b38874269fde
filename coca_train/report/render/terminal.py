"""A table of a report in a terminal."""

from coca_train.report.blocks import Table
from coca_train.runtime.printing import markdown


def terminal_text(table: Table) -> str:
    """Its title and our rows, aligned."""
    rows = [[*row.label, *(value.text for value in row.values)] for row in table.rows if not row.theirs]
    header = (*table.label_columns, *table.columns)
    return f"{table.title}\n\n{markdown(header, rows, n_left=len(table.label_columns))}"
