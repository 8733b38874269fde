"""Made-up evaluations and facts."""

import json
from dataclasses import asdict, replace

import numpy as np

from coca_train.evaluation.measures.perplexity import summarise
from coca_train.evaluation.measures.windows import bin_ends
from coca_train.training.reach import SETTINGS
from tests.evaluation.grids import cell, evaluation, measured

WINDOWS = (128, 256, 512)


def scored(run, variant, window, loss, sources=("text",), slope=0.0, stride=128):
    """loss: None where there is no result. slope: of the loss by position, each octave, from 5 at position 1."""
    if loss is None:
        reason = f"{run} has {stride} positions"
        return cell(run, variant, window, reason=reason)
    ends = bin_ends(window)
    sums_D2 = np.array([[loss * 100, 100], [loss * 110, 100]])
    score = summarise(sums_D2, n_bytes=600) | {"by_document": sums_D2.tolist(), "predictions": "same"}
    losses = 5 + slope * np.log2(ends)
    score |= {"ends": ends.tolist(), "loss_by_position": losses.tolist()}
    score |= {"loss_low": (losses - 0.5).tolist(), "loss_high": (losses + 0.5).tolist()}
    result = {"stride": stride, "sources": dict.fromkeys(sources, score)}
    return cell(run, variant, window, json.loads(json.dumps(result)))


def report(run="quickstart", losses=None, sources=("text",), slope=0.0):
    """Of one run. losses: by variant, one for each window, None where it is absent."""
    losses = losses or {"plain": (3.0, 4.0, 5.0), "dynamic_ntk": (3.0, 3.1, 3.2)}
    cells = [
        scored(run, name, window, loss, sources, slope)
        for name, each in losses.items()
        for window, loss in zip(WINDOWS, each, strict=True)
    ]
    subjects = [measured(run, tuple(losses), window=128)]
    return replace(evaluation("perplexity", asdict(SETTINGS), subjects, WINDOWS, cells), name=run)


def several(*reports):
    """The evaluations of several runs as one."""
    subjects, cells = ([each for one in reports for each in getattr(one, kind)] for kind in ("subjects", "cells"))
    return evaluation("perplexity", {}, subjects, WINDOWS, cells)


def facts(**changes):
    known = {"parameters": 1000, "loss": 3.1, "ms_per_step": 50.0, "tokens_per_s": 1234.0, "peak_memory_mib": 600.0}
    return {**known, "valid/text": 3.25, **changes}


def pixels(path):
    """The PNG as an array, through matplotlib's own reader; fails on a damaged file."""
    from matplotlib.image import imread

    return imread(str(path))
