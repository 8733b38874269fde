"""Suites: one file each. A config names one (`eval.suite`), as it names a position scheme.

Each module holds
* `Settings`: a frozen pydantic dataclass, its own options, `suite: Literal["<name>"]` among them;
* `VERSION`: counted up whenever the same inputs would give other numbers; cells of older versions are measured anew;
* `CACHED`: False where the same cell measured again is another measurement (times); left out: True;
* `SHARES`: True where it asks a model for `losses` alone, so that ranks may share each window; left out: False;
* `AXIS`: options that only list the points; a cell does not depend on them; left out: none;
* `of_cell(options, point) -> dict`: of its options without AXIS, as plain values, what a cell depends on, as it was
  written when the cell's kind was first measured: a cell is known again by it; left out: all of them;
* `points(settings, lengths) -> tuple[Point, ...]`: the last axis of the grid; lengths: those of grid.lengths [tokens];
  left out: the lengths themselves;
* `parts(settings) -> sequence`: settings of the suites it is made of, whose cells are its own; such a suite measures
  nothing itself, and of all below has only a page; left out: itself alone;
* `asked(evaluation) -> dict`: by model and variant, what its cells say of how far the model reads (verdict.py and
  measures/reach.py); left out: nothing;
* `prepare(settings, subject, setup) -> material`: what is measured on this model, made once (tokens, prompts);
* `work(settings, subject, points, material) -> list[float]`: what cells under the variant on the model cost when they
  are measured in this order, for the time left: in tokens where other suites count in them too, as they are added up;
* `fingerprint(material, point) -> str`: digest of the material that a cell at this point reads;
* `impossible(settings, subject, point, material) -> str`: why the cell cannot be measured, in words; "" when it can;
* `measure(settings, subject, point, material, setup) -> part`: this rank's share of one cell, as plain JSON. It calls
  no collective: a rank that runs out of memory would leave the others waiting;
* `combine(settings, point, material, parts) -> result`: the cell's result from all ranks' parts, by rank; plain JSON,
  the same numbers for every world size. Called when all ranks have succeeded, on all of them;
* `page(settings, evaluation) -> Document`: what there is to see: sections of the blocks that grid_blocks.py makes.

The arithmetic is in measures/. What several suites share is in files with an underscore: _one_window.py,
_answers.py, _found.py.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from coca_train.config.files import Registry

SUITES = Registry(
    Path(__file__).parent, lambda name: import_module(f"{__name__}.{name}"), tag="suite", plugins="coca_train.suites"
)


DEFAULTS = {
    "CACHED": True,
    "SHARES": False,
    "AXIS": (),
    "of_cell": lambda options, point: options,
    "points": lambda settings, lengths: tuple(lengths),
    "parts": lambda settings: (settings,),
    "asked": lambda evaluation: {},
}


def suite_module(name: str) -> ModuleType:
    """The module evaluation/suites/<name>.py, with DEFAULTS for what it leaves out. UserError when there is no such
    file."""
    suite = SUITES.module(name)
    for key, value in DEFAULTS.items():
        if not hasattr(suite, key):
            setattr(suite, key, value)
    return suite


def settings(value: Any) -> Any:
    """A mapping with the key `suite`, typed by that suite's own Settings (errors: see Registry.settings)."""
    return SUITES.settings(value)
