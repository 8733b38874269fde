"""Train language models whose context reaches further than they were trained."""

from pathlib import Path

__version__ = "0.1.0"

# Verbs are modules of commands/, and `python -m coca_train.evaluate`, the older form, goes on working.
__path__ = [*__path__, str(Path(__file__).parent / "commands")]
