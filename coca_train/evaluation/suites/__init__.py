"""Suites: a file each, with `Settings` and `Evaluator` (evaluation/suite.py has the contract).

What several suites share is in files with an underscore.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from coca_train.config.files import Registry

SUITES = Registry(
    Path(__file__).parent, lambda name: import_module(f"{__name__}.{name}"), tag="suite", plugins="coca_train.suites"
)


def settings(value: Any) -> Any:
    """Type a mapping with the key `suite` by that suite's own Settings (errors: see Registry.settings)."""
    return SUITES.settings(value)
