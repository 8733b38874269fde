"""What every command runs in: errors become one line and an exit code.

Exit codes: 0 done, 1 a bug in us, 2 wrong configuration, others as in coca_train.runtime.errors.
"""

import os
import sys
import traceback
from collections.abc import Callable

from coca_train.runtime.errors import DeviceMemoryError, StorageError, UserError
from coca_train.runtime.printing import bounded, escaped

INTERRUPTED = 130
OF_ONE_RANK = (8, 76)  # out of memory, peer lost: their messages name the rank


def run(
    main_fn: Callable[[list[str]], int | None], argv: list[str] | None = None, goes_on: str = "from the last checkpoint"
) -> int:
    """Call an entry point; errors become a line on stderr (rank 0) and an honest exit code.

    goes_on: where the same command goes on after an interrupt.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return main_fn(arguments) or 0
    except UserError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        _tell(str(error), every_rank=error.exit_code in OF_ONE_RANK)
        return error.exit_code
    except KeyboardInterrupt:
        _tell(f"Interrupted. The same command goes on {goes_on}.")
        return INTERRUPTED
    except BrokenPipeError:  # `--help | head`
        # Python flushes stdout once more when it leaves, and would complain of the same pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if (known := _of_the_machine(error)) is not None:
            if "--debug" in arguments:
                traceback.print_exc()
            _tell(str(known), every_rank=True)
            return known.exit_code
        traceback.print_exc()
        print("This is a bug in coca_train; please report it with the lines above.", file=sys.stderr, flush=True)
        return 1


def _of_the_machine(error: Exception) -> UserError | None:
    """What a disk, a path or the memory of this machine refused; None: it is a bug."""
    if isinstance(error, OSError) and error.strerror:
        return StorageError(
            f"E-RUN-29 {error.filename or 'a file'}: {error.strerror}; it has to be read or written. Fix: look at the "
            "path, its owner and its disk"
        )
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error):
        reason = (str(error) or "host memory").splitlines()[0]
        return DeviceMemoryError(f"E-RUN-30 out of memory ({reason}). Fix: ask for less, or use a larger machine")
    return None


def _tell(message: str, every_rank: bool = False) -> None:
    """To stderr, once, or by every rank it happened on. Works while RANK itself is what is wrong."""
    # Not dist.is_main(): a RANK that is no number is an error to tell, and would raise here.
    if every_rank or os.environ.get("RANK", "0").lstrip("0") == "" or not os.environ["RANK"].isdecimal():
        print("\n".join(map(bounded, escaped(message).split("\n"))), file=sys.stderr, flush=True)
