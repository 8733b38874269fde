"""Print the batch of a training step as the model saw it, and where every row comes from.

python -m data_prep show run=runs/quickstart step=120
python -m data_prep show run=runs/quickstart step=120 rows=2 characters=2000

run          directory of a run; nothing else has to be known
step         as metrics.jsonl counts: from 1; any step, also one that is still to come
rows         rows of the global batch that are printed, from the first on (8)
characters   of text printed of each row (200)
folder       where relative paths of the data begin (where the run was started last)
"""

from dataclasses import dataclass

from coca_train.config.arguments import parse
from coca_train.runtime.errors import UserError


@dataclass(frozen=True)
class Options:
    """See the module's docstring."""

    run: str
    step: int
    rows: int = 8
    characters: int = 200
    folder: str = ""


def main(words: list[str]) -> None:
    """Print it.

    Raises UserError for a directory that is no run, DataError E-TOK-14 when the data is not the run's.
    """
    options = parse(Options, words)
    for name in ("step", "rows", "characters"):
        if getattr(options, name) < 1:
            value = getattr(options, name)
            raise UserError(f"E-CFG-05 command line {name}={value}: must be at least 1. Fix: write {name}=1 or more")
    from data_prep.looking.showing import show

    print(show(options.run, options.step, options.rows, options.characters, options.folder), end="")
