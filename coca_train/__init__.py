"""Train language models whose context reaches further than they were trained."""

from pathlib import Path

__version__ = "0.1.0"

# The older forms go on working: `python -m coca_train.evaluate`, now the file of a verb, and what is in commands/older.
_COMMANDS = Path(__file__).parent / "commands"
__path__ = [*__path__, str(_COMMANDS), str(_COMMANDS / "older")]
