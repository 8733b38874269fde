"""The errors which mean that another rank died: no bug of ours."""

import re
import sys

from coca_train.runtime import dist
from coca_train.runtime.errors import PeerLost

SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Timed out waiting",
    "timed out",
    "Socket Timeout",
    "NCCL communicator was aborted",
    "remote process exited",
    "failed to recv",
    "failed to send",
)


def is_lost(error: BaseException) -> bool:
    """Whether an error says that another rank is gone."""
    torch_dist = sys.modules.get("torch.distributed")
    of_group = torch_dist is not None and isinstance(error, torch_dist.DistError)
    of_gloo = isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
    return dist.world_size() > 1 and (of_group or of_gloo)


def reason(error: BaseException) -> str:
    """Its first sentence, without the file of the C++ sources where it was raised."""
    line = (str(error) or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[\S*:\d+\] ", "", line).partition(". ")[0][:200]


def peer_lost(error: BaseException) -> PeerLost | None:
    """The error to exit with (code 76) when `error` means that another rank is gone; else None."""
    if not is_lost(error):
        return None
    return PeerLost(
        f"E-RUN-15 rank {dist.rank()}: another rank is gone ({reason(error)}). "
        "Fix: look at the first error above, then run the same command again"
    )
