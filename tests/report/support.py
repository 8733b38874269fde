"""Made-up evaluations and facts."""

import json
from dataclasses import asdict

import numpy as np

from coca_train.evaluation.measures.perplexity import summarise
from coca_train.evaluation.measures.positions import bin_ends
from coca_train.evaluation.results import Cell, Evaluation, Measured
from coca_train.training.reach import SETTINGS

WINDOWS = (128, 256, 512)


def subject(run, variants, training_window=128):
    return Measured(
        name=run, path=f"runs/{run}", kind="run", scheme="coca", training_window=training_window, n_parameters=1000,
        step=300, weights="0", variants=tuple(variants),
    )  # fmt: skip


def cell(run, variant, window, loss, sources=("text",), slope=0.0, stride=128):
    """loss: None where there is no result. slope: of the loss by position, each octave, from 5 at position 1."""
    if loss is None:
        reason = f"{run} has {stride} positions"
        return Cell(subject=run, variant=variant, point=window, status="impossible", reason=reason)
    ends = bin_ends(window)
    found = asdict(summarise(np.array([[loss * 100, 100], [loss * 110, 100]]), n_bytes=600))
    found |= {"ends": ends.tolist(), "loss_by_position": (5 + slope * np.log2(ends)).tolist()}
    result = {"stride": stride, "sources": dict.fromkeys(sources, found)}
    return Cell(subject=run, variant=variant, point=window, status="done", result=json.loads(json.dumps(result)))


def report(run="quickstart", losses=None, sources=("text",), slope=0.0):
    """Of one run. losses: by variant, one for each window, None where it is absent."""
    losses = losses or {"plain": (3.0, 4.0, 5.0), "dynamic_ntk": (3.0, 3.1, 3.2)}
    return Evaluation(
        suite="perplexity", name=run, settings=asdict(SETTINGS), subjects=(subject(run, losses),), points=WINDOWS,
        cells=tuple(
            cell(run, name, window, loss, sources, slope)
            for name, each in losses.items()
            for window, loss in zip(WINDOWS, each, strict=True)
        ),
        facts=(("computed on", "a test"),), command="python -m coca_train",
    )  # fmt: skip


def several(*reports):
    """The evaluations of several runs as one."""
    return Evaluation(
        suite="perplexity", name="some", settings={}, points=WINDOWS, facts=(), command="",
        subjects=tuple(s for one in reports for s in one.subjects),
        cells=tuple(c for one in reports for c in one.cells),
    )  # fmt: skip


def facts(**changes):
    known = {"parameters": 1000, "loss": 3.1, "ms_per_step": 50.0, "tokens_per_s": 1234.0, "peak_memory_mib": 600.0}
    return {**known, "valid/text": 3.25, **changes}


def blocks(document):
    """By name, of those that have one."""
    return {b.name: b for section in document.sections for b in section.blocks if hasattr(b, "name")}


def pixels(path):
    """The PNG as an array, through matplotlib's own reader; fails on a damaged file."""
    from matplotlib.image import imread

    return imread(str(path))
