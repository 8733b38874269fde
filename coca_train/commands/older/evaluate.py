"""`python -m coca_train.evaluate`: light, as what stands here is loaded before a signal is heeded."""

import sys

from coca_train.commands import entry

if __name__ == "__main__":
    entry(["evaluate", *sys.argv[1:]])
