"""Numbers of methods published since YaRN, made outside this project: formulas in 40-digit arithmetic from the papers,
on inputs for which the authors' own code, where it could be run, gave the same."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@cache
def _cases() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("methods.json").read_text(encoding="utf-8"))["cases"]


def case(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (inputs, expected) of one."""
    return _cases()[name]["inputs"], _cases()[name]["expected"]


def tensor(values: list[Any] | float | None) -> Tensor:
    """Nested lists of numbers as float64, None as NaN: a pair that is not seen."""
    if isinstance(values, list):
        return torch.stack([tensor(each) for each in values])
    return torch.tensor(math.nan if values is None else values, dtype=torch.float64)


def same(ours: Tensor, expected: list[Any], atol: float = 1e-12) -> bool:
    """Whether they are equal wherever there is a number."""
    exact = tensor(expected)
    return torch.allclose(torch.where(exact.isnan(), exact, ours.double()), exact, rtol=atol, atol=atol, equal_nan=True)
