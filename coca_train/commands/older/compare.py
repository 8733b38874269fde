"""`python -m coca_train.compare`: light, as what stands here is loaded before a signal is heeded."""

import sys

from coca_train.commands import entry

if __name__ == "__main__":
    entry(["compare", *sys.argv[1:]])
