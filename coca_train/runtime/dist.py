"""Who am I among the ranks, and the few collectives the code above needs.

Every function works before `torch.distributed` is initialised and on a single process.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    return rank() == 0


def log(message: str) -> None:
    """Tell the user, once (rank 0, stderr)."""
    if is_main():
        print(message, file=sys.stderr, flush=True)


def _active() -> bool:
    # What has not imported torch has no process group, and does not wait for its import only to learn that.
    if world_size() == 1 or "torch" not in sys.modules:
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def barrier() -> None:
    """COLLECTIVE. Wait for all ranks."""
    if _active():
        import torch.distributed as dist

        dist.barrier()


def all_reduce(values: list[float], op: str = "sum") -> list[float]:
    """Reduce a few float64 numbers over all ranks. op: sum, max or min."""
    if not _active():
        return list(values)
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op={"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op])
    return tensor.tolist()


def all_gather_object(value: T) -> list[T]:
    """Every rank's value, by rank. Plain data only, among the ranks of one run."""
    if not _active():
        return [value]
    import torch.distributed as dist

    out: list[Any] = [None] * world_size()
    dist.all_gather_object(out, value)
    return out


def on_main(action: Callable[[], T]) -> T:
    """COLLECTIVE. Run on rank 0; its result, or its exception, on every rank (none is left waiting)."""
    if is_main() and not _active():  # nobody waits
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


def broadcast_object(value: T) -> T:
    """Rank 0's value, on every rank."""
    if not _active():
        return value
    import torch.distributed as dist

    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def broadcast_tensor(tensor: "Tensor | None", shape: tuple[int, ...], source: int) -> "Tensor":
    """The source rank's float32 CPU tensor, on every rank (the others pass None and its shape)."""
    if not _active():
        assert tensor is not None
        return tensor
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    box = torch.empty(shape, dtype=torch.float32, device=device) if tensor is None else tensor.to(device)
    dist.broadcast(box, src=source)
    return box.cpu()
