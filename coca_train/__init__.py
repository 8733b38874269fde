"""Train language models whose context reaches further than they were trained."""

from pathlib import Path

__version__ = "0.1.0"

# The older forms go on working: `python -m coca_train.evaluate` is in commands/older, `python -m coca_train.plan` the
# file of a verb.
_COMMANDS = Path(__file__).parent / "commands"
__path__ = [*__path__, str(_COMMANDS / "older"), str(_COMMANDS)]
