"""Facts about the two other axes: frequencies and visibilities, measured on what their modules give."""

from dataclasses import dataclass

import torch
from torch import nn

from coca_train.planning.catalog.entries import Entry
from coca_train.planning.catalog.reference import Reference
from coca_train.positions import frequencies, visibilities
from coca_train.positions.visibility import seen

STRETCH = 4  # frequencies are shown at this many training windows
FAR = 16  # what the last query sees is shown at this many training windows


@dataclass(frozen=True)
class FrequencyFacts:
    """One choice of position/frequencies, for a head of the reference's width."""

    entry: Entry
    kind: str  # fixed, dynamic (follows the length) or learned
    theta: float
    stretch: tuple[float, float, float]  # wavelengths over those of `plain` with this theta, at STRETCH windows:
    # of the fastest pair, the one a quarter of the way to the slowest, and the slowest
    temperature: float  # multiplied into q' and into k', at STRETCH windows


@dataclass(frozen=True)
class VisibilityFacts:
    """One choice of visibility, seen from the last query of FAR training windows."""

    entry: Entry
    trains: bool
    n_seen: int  # keys, itself included
    farthest: int  # largest distance at which a key seems to stand
    cached: int | None  # keys that a cache has to keep; None: all


def frequency_facts(entry: Entry, given: Reference) -> FrequencyFacts:
    """Learned frequencies at zero, where their learned part has no say: so they start."""
    settings = given.settings(entry)
    module = frequencies.build(settings, given.shape.head_dim).eval()
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        trained, far = module(given.seq_len), module(STRETCH * given.seq_len)
    plain = frequencies.frequency_module("plain")
    unscaled = plain.spectrum(plain.Settings(name="plain", theta=settings.theta), given.shape.head_dim, given.seq_len)
    stretch_J = unscaled.inv_freq_J / far.inv_freq_J
    follows = not torch.equal(trained.inv_freq_J, far.inv_freq_J)
    return FrequencyFacts(
        entry=entry,
        kind="learned" if any(True for _ in module.parameters()) else "dynamic" if follows else "fixed",
        theta=settings.theta,
        stretch=(float(stretch_J[0]), float(stretch_J[len(stretch_J) // 4]), float(stretch_J[-1])),
        temperature=far.temperature,
    )


def visibility_facts(entry: Entry, given: Reference) -> VisibilityFacts:
    """Look at the last row of all views."""
    rules = visibilities.build(given.settings(entry))
    n_tokens, keep = FAR * given.seq_len, rules.keep()
    pos_BT = torch.arange(n_tokens)[None]
    n_seen, farthest = 0, 0
    for layout in rules.layouts(pos_BT[:, -1:], pos_BT):
        shown_S = seen(layout, slice(0, 1), slice(0, n_tokens))[0, 0]
        distance_S = (layout.pos_BT[0] - layout.pos_BS[0])[shown_S]
        n_seen += int(shown_S.sum())
        farthest = max(farthest, int(distance_S.max()) if len(distance_S) else 0)
    return VisibilityFacts(entry, rules.trains, n_seen, farthest, keep and keep.first + keep.last)
