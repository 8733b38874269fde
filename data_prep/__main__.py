"""python -m data_prep <verb>: flags, then Hydra overrides. A verb is imported when it is called, so help is quick."""

import sys

from coca_train.runtime import shutdown
from coca_train.runtime.entry import run

RESUMING = ("tokenize",)  # exits with 75 after a signal to stop; the others die of the signal


def main(argv: list[str] | None = None) -> int:
    """Do what the command line asks. Returns the exit code, as in coca_train.runtime.entry."""
    return run(_main, argv, resumes_from="where it stopped")


def _main(argv: list[str]) -> int | None:
    from data_prep.command_line import answer  # seconds, in which a signal is answered already

    return answer(argv)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in RESUMING:
        shutdown.begin()
    sys.exit(main())
