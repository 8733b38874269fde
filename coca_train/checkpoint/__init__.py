"""The state of a run, committed atomically and verified before it is trusted."""

from coca_train.checkpoint.commit import MAX_FAILURES, Saves, prune
from coca_train.checkpoint.lock import RunLock
from coca_train.checkpoint.manifest import Checkpoint, Meta
from coca_train.checkpoint.recovery import begin, find, load, load_weights, newest, sweep
from coca_train.checkpoint.weights import Frozen, Weights, open_weights

__all__ = [
    "MAX_FAILURES",
    "Checkpoint",
    "Frozen",
    "Meta",
    "RunLock",
    "Saves",
    "Weights",
    "begin",
    "find",
    "load",
    "load_weights",
    "newest",
    "open_weights",
    "prune",
    "sweep",
]
