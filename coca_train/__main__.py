"""`python -m coca_train <verb>`, and the console script `coca-train`."""

from coca_train.commands import entry

if __name__ == "__main__":
    entry()
