"""The frame of every command: errors become one line and an exit code.

Exit codes: 0 done, 1 a bug in coca_train, 2 wrong configuration, others as in coca_train.runtime.errors.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable

from coca_train.runtime.errors import StorageError, UserError
from coca_train.runtime.printing import bounded, escaped
from coca_train.runtime.shortage import lacking
from coca_train.runtime.shutdown import INTERRUPTED, peer_lost


def run(
    main_fn: Callable[[list[str]], int | None],
    argv: list[str] | None = None,
    resumes_from: str = "from the last checkpoint",
) -> int:
    """Call an entry point; errors become a line on stderr (rank 0) and an exit code.

    resumes_from: from where the same command continues after an interrupt.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return main_fn(arguments) or 0
    except UserError as raised:
        error = lacking(raised) or raised
        if "--debug" in arguments:
            traceback.print_exc()
        _print_error(str(error), error.of_one_rank)
        return error.exit_code
    except KeyboardInterrupt:
        _print_error(f"Interrupted. The same command goes on {resumes_from}.")
        return INTERRUPTED
    except BrokenPipeError:  # `--help | head`
        # Python flushes stdout once more when it leaves, and would complain of the same pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if (known := peer_lost(error) or _of_the_machine(error)) is not None:
            if "--debug" in arguments:
                traceback.print_exc()
            _print_error(str(known), every_rank=True)
            return known.exit_code
        traceback.print_exc()
        print("This is a bug in coca_train; please report it with the lines above.", file=sys.stderr, flush=True)
        return 1


def _of_the_machine(error: Exception) -> UserError | None:
    """Return the error of a disk, a path or what this machine has too little of; None: it is a bug."""
    if (lack := lacking(error)) is not None:
        return lack
    if isinstance(error, OSError) and error.strerror:
        return StorageError(
            f"E-RUN-29 {error.filename or 'a file'}: {error.strerror}; it has to be read or written. Fix: look at the "
            "path, its owner and its disk"
        )
    return None


def _print_error(message: str, every_rank: bool = False) -> None:
    """Print a message to stderr, once, or on every rank it happened on. Works while RANK itself is wrong."""
    # Not dist.is_main(): it would raise for a RANK that is not a number, an error to report; so is one beyond the last.
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    is_of_run = rank.isdecimal() and size.isdecimal() and int(rank) < int(size)
    if every_rank or not is_of_run or int(rank) == 0:
        with contextlib.suppress(BrokenPipeError):  # the exit code is returned all the same
            print("\n".join(map(bounded, escaped(message).split("\n"))), file=sys.stderr, flush=True)
