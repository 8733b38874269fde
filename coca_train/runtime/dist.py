"""This process among the ranks: its number, what it says, and the few collectives that the packages above need.

Every function works before `torch.distributed` is initialised and on a single process. A collective waits for the other
ranks under the watchdog (`coca_train.runtime.watchdog`), where one runs: no longer than engine.timeout_s.
"""

import contextlib
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from coca_train.runtime.errors import DataError, UserError
from coca_train.runtime.printing import escaped, off_bars
from coca_train.runtime.shortage import lacking

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
TimeLimit = Callable[[str], AbstractContextManager[None]]  # takes what is waited for

SILENCE_S = 3.0  # after which `explained` logs what takes so long

_time_limit: TimeLimit | None = None


# ---- who and where


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    return rank() == 0


def reader(sequence_parallel: int) -> tuple[int, int]:
    """Return the number of this rank's data reader, and how many readers there are: ranks that share sequences read as
    one."""
    return rank() // sequence_parallel, world_size() // sequence_parallel


# ---- logging


def log(message: str) -> None:
    """Print a line to stderr on rank 0. Control characters of a sample or a name do not reach the terminal."""
    if is_main():
        with contextlib.suppress(BrokenPipeError), off_bars():  # its reader is gone; that ends no training
            print(escaped(message) if sys.stderr.isatty() else message, file=sys.stderr, flush=True)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Say on rank 0 that `what` is being done, if the block takes longer than SILENCE_S."""
    if not is_main():
        yield
        return
    # On a thread: an import or a first step logs nothing itself.
    timer = threading.Timer(SILENCE_S, log, (f"wait      {what}",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# ---- collectives


def limit_waits(limit: TimeLimit | None) -> TimeLimit | None:
    """Have `limit` surround everything that waits for other ranks; return the limit before. None: no limit."""
    global _time_limit
    before, _time_limit = _time_limit, limit
    return before


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Limit the time of a block that waits for other ranks, where a watchdog runs and there are other ranks."""
    if _time_limit is None or world_size() == 1:
        yield
        return
    with _time_limit(what):
        yield


def _group() -> ModuleType | None:
    """Return torch.distributed, where this process is one of several that are connected; else None."""
    # What has not imported torch has no process group, and does not wait for its import only to learn that.
    if world_size() == 1 or "torch" not in sys.modules:
        return None
    import torch.distributed

    return torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None


def _device(group: ModuleType) -> str:
    """Return where tensors of a collective must lie."""
    return "cuda" if group.get_backend() == "nccl" else "cpu"


def all_reduce(values: list[float], op: str = "sum") -> list[float]:
    """COLLECTIVE. Reduce a few float64 numbers over all ranks. op: sum, max or min."""
    if (group := _group()) is None:
        return list(values)
    import torch

    # Sent as float64, so that counts of tokens and flags come back exactly.
    tensor = torch.tensor(values, dtype=torch.float64, device=_device(group))
    with waiting("a reduction"):
        group.all_reduce(tensor, op=getattr(group.ReduceOp, op.upper()))
        return tensor.tolist()


def all_gather_object(value: T) -> list[T]:
    """COLLECTIVE. Return every rank's value, by rank. Plain data only, among the ranks of one run."""
    if (group := _group()) is None:
        return [value]
    out = [value] * world_size()  # all of them are overwritten
    with waiting("a gathering"):
        group.all_gather_object(out, value)
    return out


def ranks_here() -> int:
    """COLLECTIVE. Count the ranks on this machine, by its name: not every launcher says how many there are."""
    host = platform.node()
    return all_gather_object(host).count(host)


def broadcast_from_rank0(action: Callable[[], T]) -> T:
    """COLLECTIVE. Run the action on rank 0; return its result, or raise its exception, on every rank."""
    if is_main() and _group() is None:  # no other rank waits
        return action()
    results: list[T] = []
    error: Exception | None = None
    if is_main():
        # Caught and sent on: a rank 0 that simply raised would leave the others in the broadcast until their time-out.
        try:
            results = [action()]
        except Exception as problem:
            error = lacking(problem) or problem  # its cause is not sent
    results, error = broadcast_object((results, error))
    if error is not None:
        raise error
    return results[0]


def raise_on_all_ranks(action: Callable[[], T]) -> T:
    """COLLECTIVE. Run the action on every rank; raise a DataError of any rank, or what it lacked, on all of them."""
    # Only errors of the data are shared. Any other exception is a bug of this rank, and ends it; the others notice that
    # as a lost peer.
    results: list[T] = []
    problem: UserError | None = None
    try:
        results = [action()]
    except DataError as error:
        problem = lacking(error) or error
    # A reduction first, which is cheap: words are sent only where there are any.
    if all_reduce([float(problem is not None)], "max")[0]:
        first = next(each for each in all_gather_object(problem) if each is not None)
        first.on_all_ranks, first.of_one_rank = True, False
        raise first
    return results[0]


def broadcast_object(value: T) -> T:
    """COLLECTIVE. Return rank 0's value on every rank."""
    if (group := _group()) is None:
        return value
    box = [value]
    with waiting("a broadcast"):
        group.broadcast_object_list(box, src=0)
    return box[0]


def broadcast_tensor(tensor: "Tensor", source: int) -> None:
    """COLLECTIVE. Overwrite a contiguous tensor on every rank by that of the source rank. It lies where collectives
    are."""
    if (group := _group()) is None or not tensor.numel():
        return
    import torch

    with waiting("a broadcast"):
        group.broadcast(tensor.view(-1).view(torch.uint8), src=source)  # bits: gloo does not know every precision


def all_gather_equal(tensor: "Tensor") -> "Tensor":
    """COLLECTIVE. Concatenate flat tensors of one size, by rank. They lie where collectives are."""
    if (group := _group()) is None:
        return tensor
    out = tensor.new_empty(world_size() * len(tensor))
    with waiting("a gathering"):
        group.all_gather_into_tensor(out, tensor)
    return out
