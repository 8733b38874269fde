"""Names of runs that nothing has used yet, for the fixes that error messages print."""

import itertools
import re
from pathlib import Path

LONGEST = 100  # as run.name is checked


def unused_name(run_dir: Path) -> str:
    """Return the override that begins another run next to this one: `run.name=quickstart-2`."""
    base = re.sub(r"-\d+$", "", run_dir.name)[: LONGEST - 5]
    names = (f"{base}-{number}" for number in itertools.count(2))
    return f"run.name={next(name for name in names if not (run_dir.parent / name).exists())}"
