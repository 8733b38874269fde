"""What a training may make of the weights it begins with, where it says so (`start.convert`): the files of this folder.

Nothing that gives weights their meaning changes by itself. A conversion is a module with

EQUAL                                   where the model after it must give the logits of the one before
leads(before, after) -> bool            whether it makes something of `after` that `before` has not
converted(source, after, start, seed)   the source as that; UserError where it cannot be made of this source
"""

import ast
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from coca_train.config.files import Registry
from coca_train.config.messages import nearest
from coca_train.config.schema import StartConfig
from coca_train.hub import parity
from coca_train.hub.architecture import Architecture
from coca_train.hub.weights import Source
from coca_train.runtime.errors import CheckpointError, UserError

EVERYWHERE = "everywhere"
AT_FIRST = "at the first token"  # it sees itself alone: whatever its score is, attention gives its own value
CONVERSIONS = Registry(
    Path(__file__).parent, lambda name: import_module(f"{__name__}.{name}"), "convert", "coca_train.conversions"
)


def summaries() -> dict[str, str]:
    """What each conversion does, in a line, by name."""
    lines = {}
    for name in CONVERSIONS.names():
        text = ast.get_docstring(ast.parse(CONVERSIONS.source(name).read_text(encoding="utf-8"))) or ""
        lines[name] = text.partition("\n")[0]
    return lines


def check_names(names: Sequence[str]) -> None:
    """Raises UserError E-STA-06 for a conversion that does not exist."""
    known = CONVERSIONS.names()
    for name in names:
        if name not in known:
            close = nearest(name, known)
            fix = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise UserError(
                f"E-STA-06 start.convert={name}: there is no such conversion; python -m coca_train schemes lists them. "
                f"Fix: {fix}"
            )


def ways(before: Architecture, after: Architecture) -> list[str]:
    """Conversions that lead from one to the other, or a step towards it."""
    return [name for name in CONVERSIONS.names() if CONVERSIONS.module(name).leads(before, after)]


def apply(source: Source, after: Architecture, start: StartConfig, seed: int) -> tuple[Source, list[str]]:
    """The source, converted as `start.convert` says, one after the other; and those that had something to do.

    after: what it is to become. seed: of weights that are drawn anew. Raises UserError (E-STA-06, E-IOP-14).
    """
    check_names(start.convert)
    done = []
    for name in start.convert:
        conversion = CONVERSIONS.module(name)
        if conversion.leads(source.architecture, after):
            source = conversion.converted(source, after, start, seed)
            done.append(name)
    return source, done


def prove(before: Source, after: Source, done: Sequence[str], n_tokens: int) -> dict[str, Any]:
    """Hold the converted model against the one before, where the conversions leave its logits as they are.

    n_tokens: of each probe. What parity.json keeps of it; raises CheckpointError E-STA-05.
    """
    everywhere = all(CONVERSIONS.module(name).EQUAL == EVERYWHERE for name in done)
    probes = parity.probes(before.architecture, None, n_tokens)
    if not everywhere:
        first = probes[0].tokens_BT[:, :1]
        probes = [parity.Probe("the first token", first, torch.zeros_like(first), 1)]
    side = parity.Side("the same weights converted", parity.our_logits(after.architecture, after.read))
    results = parity.compare(probes, parity.our_logits(before.architecture, before.read), side, None)
    where, names = EVERYWHERE if everywhere else AT_FIRST, ",".join(done)
    if not parity.passed(results):
        worst = max(results, key=lambda result: result.relative)
        raise CheckpointError(
            f"E-STA-05 {before.path} start.convert={names}: {worst.probe}: logits before and after differ by "
            f"{worst.max_abs_difference:.3g} where the largest is {worst.max_abs_logit:.3g}; {where} they must be the "
            "same, and nothing is begun. Fix: check the weights for NaN; else mend the conversion, or report it"
        )
    return parity.record(results, f"{before.path}, {names}", side.name) | {"equal": where}
