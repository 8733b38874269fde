"""The command of one cell: its evaluation's, with the grid narrowed until little more than the cell is left.

Run, it finds the cell again among those that are kept, and measures nothing. So what decides which text a cell reads
stays in the grid, its cells are found again too: the run whose held-out documents are read where no text was named, and
the longest length, to which documents are chosen and cut.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import product

from coca_train.evaluation.configuration import EvaluateConfig, quoted
from coca_train.evaluation.results import Cell, Evaluation, Measured

PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$)[A-Za-z/][\w./@:-]*", re.IGNORECASE)  # what needs no quotes


def cell_commands(config: EvaluateConfig, evaluation: Evaluation) -> list[tuple[str, str]]:
    """Name and command of every model and variant at every length that has a result; where points are no lengths, of
    every model and variant."""
    commands = {}
    lengths = [point for point in evaluation.points if isinstance(point, int)]
    done = {(cell.subject, cell.variant, _length(cell)) for cell in evaluation.cells if cell.result and lengths}
    for row in evaluation.rows():
        for length in lengths or [None]:
            if length is None or (*row.name, length) in done:
                words = [*_models(config, evaluation, row.subject), *_variant(config, row.subject, row.variant)]
                words += [] if length is None else [f"grid.lengths={_listed(_lengths(evaluation, length))}"]
                words.append(f"work.name={evaluation.name}-cell")  # the report of the whole grid stays
                name = row.label if length is None else f"{row.label} at {length:,} tokens"
                commands[name] = shlex.join([*_others(evaluation.command, words), *words])
    return list(commands.items())


def _others(command: str, words: list[str]) -> list[str]:
    """The words of the command that these do not take the place of."""
    replaced = {"checkpoint", *(word.partition("=")[0] for word in words)}
    return [word for word in shlex.split(command) if word.partition("=")[0] not in replaced]


def _models(config: EvaluateConfig, evaluation: Evaluation, subject: Measured) -> Iterator[str]:
    kept = [subject]
    if not config.text.files and config.text.corpus is None:
        kept += [each for each in evaluation.subjects if each.kind == "run"][:1]
    places = [place for place, each in enumerate(evaluation.subjects) if each in kept]
    yield f"grid.checkpoints={_listed(config.grid.checkpoints[place] for place in places)}"
    if config.grid.names:
        yield f"grid.names={_listed(config.grid.names[place] for place in places)}"


def _variant(config: EvaluateConfig, subject: Measured, variant: str) -> Iterator[str]:
    """Nothing where two choices are one variant: then all of them stay."""
    grid = config.grid
    choices = list(product(grid.frequencies, grid.visibilities, grid.logit_scales))
    if len(choices) == len(subject.variants):
        keys = ("frequencies", "visibilities", "logit_scales")
        for key, choice in zip(keys, choices[subject.variants.index(variant)], strict=True):
            yield f"grid.{key}={_listed([choice])}"


def _lengths(evaluation: Evaluation, length: int) -> list[int]:
    """It, the longest that was measured, and those beyond which were impossible: for a model, or for all texts."""
    longest = max(_length(cell) for cell in evaluation.cells if cell.result)
    return sorted({length, longest, *(n for n in evaluation.points if isinstance(n, int) and n > longest)})


def _length(cell: Cell) -> int:
    """At which it was measured [tokens], a task too (`word@256`)."""
    return int(str(cell.point).rpartition("@")[2])


def _listed(values: Iterable[str | int]) -> str:
    """As an override has a list."""
    words = (str(v) if isinstance(v, int) or PLAIN.fullmatch(v) else quoted(v) for v in values)
    return f"[{','.join(words)}]"
