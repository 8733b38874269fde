"""CSV of a table or of a picture's data: one row a row, numbers in full, and whose they are.

Columns: the labels, the figures, `whose` (ours or paper), then, for figures with a note (an interval, why there is
none), `note: <column>`. A number is written so that reading it gives the same float; inf and nan as such.
"""

import csv
import io

from coca_train.report.blocks import MISSING, Table, Value
from coca_train.report.render.contents import PAPER


def csv_text(table: Table) -> str:
    noted = [i for i in range(len(table.columns)) if any(row.values[i].note for row in table.rows)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        [*table.label_columns, *table.columns, "whose", *(f"note: {table.columns[index]}" for index in noted)]
    )
    for row in table.rows:
        notes = [row.values[index].note for index in noted]
        writer.writerow([*row.label, *map(_number, row.values), PAPER if row.theirs else "ours", *notes])
    return buffer.getvalue()


def _number(value: Value) -> str:
    """In full; words where the figure is words; nothing where it is missing."""
    if value.number is not None:
        return repr(value.number)
    return "" if value.text == MISSING.text else value.text
