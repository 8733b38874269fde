"""python -m tests.data_prep.slowly <seconds> <words of data_prep>: the command, but each chunk takes a while to write.

Only the main process is slowed down: there are moments enough to kill it, and its workers, in. They import this module,
so it imports the command only where it is the command.
"""

import sys
import time


def slow_down(seconds: float) -> None:
    """Let this process wait before it writes a chunk."""
    from data_prep import parts

    add = parts.InputParts.add

    def slow_add(*arguments: object) -> None:
        time.sleep(seconds)
        add(*arguments)  # type: ignore[arg-type]

    parts.InputParts.add = slow_add  # type: ignore[method-assign]


if __name__ == "__main__":
    from data_prep.__main__ import main

    slow_down(float(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
