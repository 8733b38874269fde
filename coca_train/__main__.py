"""`python -m coca_train <verb>`, and the console script `coca-train`."""

import sys
from typing import NoReturn

from coca_train.commands import main


def entry() -> NoReturn:
    """Leave with the exit code."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
