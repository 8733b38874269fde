"""python -m coca_train = train."""

import sys

from coca_train.commands.train import main

if __name__ == "__main__":
    sys.exit(main())
