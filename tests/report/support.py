"""Made-up reports and facts."""

import numpy as np

from coca_train.evaluation.extrapolation.measure import Absent, Cell, Extrapolation
from coca_train.evaluation.measures.perplexity import summarise
from coca_train.evaluation.measures.positions import bin_ends, position_loss

WINDOWS = (128, 256, 512)


def report(run="quickstart", losses=None, sources=("text",), slope=0.0):
    """losses: by variant, one for each window, None where it is absent. slope: of the loss by position, each octave."""
    losses = losses or {"plain": (3.0, 4.0, 5.0), "dynamic_ntk": (3.0, 3.1, 3.2)}
    found = [(name, w, loss) for name, each in losses.items() for w, loss in zip(WINDOWS, each, strict=True)]
    cells = [
        Cell(
            source=source,
            variant=name,
            window=window,
            result=summarise(np.array([[loss * 100, 100], [loss * 110, 100]]), n_bytes=600),
        )
        for source in sources
        for name, window, loss in found
        if loss is not None
    ]
    parts = [
        by_position(sources[-1], name, window, slope)
        for name, window, loss in found
        if loss is not None
        and window in (WINDOWS[0], max(w for n, w, other in found if n == name and other is not None))
    ]
    return Extrapolation(
        run=run,
        scheme="coca",
        training_window=128,
        stride=128,
        windows=WINDOWS,
        variants=tuple(losses),
        sources=sources,
        document_tokens=513,
        seed=0,
        cells=tuple(cells),
        positions=tuple(parts),
        absent=tuple(
            Absent(variant=name, window=window, reason=f"{run} has 128 positions")
            for name, window, loss in found
            if loss is None
        ),
    )


def by_position(source, variant, window, slope):
    """A loss of 5 at position 1, that changes by `slope` every time the position doubles."""
    ends = bin_ends(window)
    return position_loss(np.stack([5 + slope * np.log2(ends), np.ones(len(ends))], 1), source, variant, window)


def facts(**changes):
    known = {"parameters": 1000, "loss": 3.1, "ms_per_step": 50.0, "tokens_per_s": 1234.0, "peak_memory_mib": 600.0}
    return {**known, "valid/text": 3.25, **changes}


def pixels(path):
    """The PNG as an array, through matplotlib's own reader; fails on a damaged file."""
    from matplotlib.image import imread

    return imread(str(path))
