"""How fast each rank multiplies matrices while all of them do."""

import time

import torch

from coca_train.engine.base import DTYPES

MOMENT_S = 0.25
MOMENTS = 20
SIDE = {"cpu": 256, "cuda": 4096}  # of the square matrices: a product takes about a millisecond


def compute_rates(device: torch.device, dtype: str) -> list[float]:
    """FLOP/s in each of MOMENTS moments that follow one another by the clock, whatever this rank does in them.

    A product counts in the moment in which it ends: one in which a stopped rank ends nothing has a rate of 0.
    """
    side = SIDE[device.type]
    a = torch.ones(side, side, device=device, dtype=DTYPES[dtype])
    out = a @ a  # the first call pays for set-up
    _finish(device)
    counts, began = [0] * MOMENTS, time.monotonic()
    while (moment := int((time.monotonic() - began) / MOMENT_S)) < MOMENTS:
        torch.mm(a, a, out=out)
        _finish(device)
        moment = int((time.monotonic() - began) / MOMENT_S)
        if moment < MOMENTS:
            counts[moment] += 1
    return [2 * side**3 * count / MOMENT_S for count in counts]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
