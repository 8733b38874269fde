"""python -m coca_train = train."""

import sys

from coca_train.cli import main

if __name__ == "__main__":
    sys.exit(main())
