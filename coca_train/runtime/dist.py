"""Who am I among the ranks, and the few collectives the code above needs.

Every function works before `torch.distributed` is initialised and on a single process. What waits for other ranks does
so under the watchdog, where one runs: no longer than engine.timeout_s.
"""

import contextlib
import os
import platform
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from coca_train.runtime.errors import DataError
from coca_train.runtime.launcher import rank, world_size
from coca_train.runtime.printing import escaped, off_bars
from coca_train.runtime.watchdog import waiting

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


def reader(sequence_parallel: int) -> tuple[int, int]:
    """Of the groups of ranks that share sequences, each with batches of its own, which this rank is in; how many there
    are."""
    return rank() // sequence_parallel, world_size() // sequence_parallel


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    return rank() == 0


def log(message: str) -> None:
    """Tell the user, once (rank 0, stderr). A sample, or a name, moves no terminal's cursor."""
    if is_main():
        with contextlib.suppress(BrokenPipeError), off_bars():  # its reader is gone; that ends no training
            print(escaped(message) if sys.stderr.isatty() else message, file=sys.stderr, flush=True)


def _group() -> Any:
    """torch.distributed, where this process is one of several that are connected; else None."""
    # What has not imported torch has no process group, and does not wait for its import only to learn that.
    if world_size() == 1 or "torch" not in sys.modules:
        return None
    import torch.distributed

    return torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None


def _device(group: Any) -> str:
    """Where tensors of a collective must lie."""
    return "cuda" if group.get_backend() == "nccl" else "cpu"


def all_reduce(values: list[float], op: str = "sum") -> list[float]:
    """Reduce a few float64 numbers over all ranks. op: sum, max or min."""
    if (group := _group()) is None:
        return list(values)
    import torch

    # Sent as float64, so that counts of tokens and flags come back exactly.
    tensor = torch.tensor(values, dtype=torch.float64, device=_device(group))
    with waiting("a reduction"):
        group.all_reduce(tensor, op=getattr(group.ReduceOp, op.upper()))
        return tensor.tolist()


def all_gather_object(value: T) -> list[T]:
    """Every rank's value, by rank. Plain data only, among the ranks of one run."""
    if (group := _group()) is None:
        return [value]
    out: list[Any] = [None] * world_size()
    with waiting("a gathering"):
        group.all_gather_object(out, value)
    return out


def ranks_here() -> int:
    """COLLECTIVE. Ranks on the machine of this one: by its name, as not every launcher says how many there are."""
    host = platform.node()
    return all_gather_object(host).count(host)


def on_main(action: Callable[[], T]) -> T:
    """COLLECTIVE. Run on rank 0; its result, or its exception, on every rank (none is left waiting)."""
    if is_main() and _group() is None:  # nobody waits
        return action()
    result: Any = None
    error: Exception | None = None
    if is_main():
        # Caught and sent on: a rank 0 that simply raised would leave the others in the broadcast until their time-out.
        try:
            result = action()
        except Exception as problem:
            error = problem
    result, error = broadcast_object((result, error))
    if error is not None:
        raise error
    return result


def on_each(action: Callable[[], T]) -> T:
    """COLLECTIVE. Run on every rank; a DataError of one is raised on all, in the same words."""
    # Only what the data says is told to the others. Any other exception is a bug of this rank, and ends it; they learn
    # of that as of a lost peer.
    result: Any = None
    problem = ""
    try:
        result = action()
    except DataError as error:
        problem = str(error)
    # A reduction first, which is cheap: words are sent only where there are any.
    if all_reduce([float(bool(problem))], "max")[0]:
        raise DataError(next(text for text in all_gather_object(problem) if text))
    return result


def broadcast_object(value: T) -> T:
    """Rank 0's value, on every rank."""
    if (group := _group()) is None:
        return value
    box: list[Any] = [value]
    with waiting("a broadcast"):
        group.broadcast_object_list(box, src=0)
    return box[0]


def broadcast_tensor(tensor: "Tensor", source: int) -> None:
    """The source rank's contiguous tensor, in place on every rank. It lies where collectives are."""
    if (group := _group()) is None or not tensor.numel():
        return
    import torch

    with waiting("a broadcast"):
        group.broadcast(tensor.view(-1).view(torch.uint8), src=source)  # bits: gloo does not know every precision


def all_gather_equal(tensor: "Tensor") -> "Tensor":
    """Flat tensors of one size from every rank, one after the other. They lie where collectives are."""
    if (group := _group()) is None:
        return tensor
    out = tensor.new_empty(world_size() * len(tensor))
    with waiting("a gathering"):
        group.all_gather_into_tensor(out, tensor)
    return out
