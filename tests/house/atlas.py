"""What the stored trials of the atlas say, docs/atlas_results.md: its page without the curves.

python -m tests.house.atlas > docs/atlas_results.md
python -m tests.house.atlas --short        the table of docs/results.md
"""

import math
import sys
from collections import defaultdict
from dataclasses import replace

from coca_train.atlas.groups import reader_title
from coca_train.atlas.matrix import Matrix
from coca_train.atlas.methods import title_of
from coca_train.atlas.page import page
from coca_train.atlas.study import EXPERIMENT, Study
from coca_train.atlas.trials import STORED, of_protocol, read_all
from coca_train.atlas.window_reader import share
from coca_train.commands.atlas import AtlasConfig
from coca_train.report.blocks import Document, Table, Value
from coca_train.report.render.plain import markdown_text
from coca_train.runtime.printing import markdown
from coca_train.settings import load

COMMAND = "python -m coca_train atlas"
ALSO = "coca_ntk4"  # in the short table whatever its difference to RoPE: a finding is about it
FAR = (("copy", 256), ("left", 256))  # what its columns show of reading beyond the window


def matrix() -> Matrix:
    """Return the trials of the study that comes with the package."""
    config = AtlasConfig()
    shared = config.n_cases, tuple(config.rates), config.sweep_steps, (), load([EXPERIMENT]).config
    return Matrix(of_protocol(read_all(STORED), Study(tuple(config.lengths), *shared).protocol))


def document() -> Document:
    """Return the page of that study, with its curves."""
    return page(list(matrix().trials.values()), AtlasConfig().rates, COMMAND)


def text() -> str:
    """Return the page without them."""
    whole = document()
    kept = [section for section in whole.sections if section.title != "Curves"]
    return markdown_text(replace(whole, sections=kept), alone=True)


def short() -> str:
    """Return a table of the models as they are trained, of what is significantly above RoPE, and of CoCA with NTK."""
    stored = matrix()
    window, values = stored.lengths[0], _values(document())
    apart, kept, groups = f"Δ to {title_of(stored.reference)}", f"tasks at {window}", ("far: score", "near: score")
    reader = values[reader_title(stored)]
    by_reader = [reader[each].text for each in groups] + [f"{share(*each, window):.0%}" for each in FAR]
    lines = [[reader_title(stored).strip("()"), "–", "–", *by_reader, "–"]]
    for row in sorted(stored.rows, key=lambda row: values[title_of(row)]["rank"].number or math.inf):
        of_row = values[title_of(row)]
        if row in (*stored.trained, ALSO) or (of_row[apart].low or 0) > 0:
            shown = [of_row["score"], of_row[apart], *(of_row[each] for each in groups)]
            shown += [*(stored.share(row, *each) for each in FAR), of_row[f"{kept} tokens"]]
            lines.append([title_of(row), *(f"{one.text} ({one.range})" if one.range else one.text for one in shown)])
    head = ["method", "score", apart, *groups, *(f"`{task}` at {length}" for task, length in FAR), kept]
    return markdown(head, [[cell.replace("-0.", "−0.").replace("%", " %") for cell in line] for line in lines])


def _values(page: Document) -> dict[str, dict[str, Value]]:
    """Return the figures of the tables of ranks and of groups by row and column."""
    found = defaultdict[str, dict[str, Value]](dict)
    for block in (block for section in page.sections for block in section.blocks):
        if isinstance(block, Table) and block.name in ("ranks", "groups"):
            for row in block.rows:
                found[row.label[0]].update(zip(block.columns, row.values, strict=True))
    return found


if __name__ == "__main__":
    print(short() if "--short" in sys.argv[1:] else text(), end="")
