"""How reach grew during training, from the probes in metrics.jsonl (coca_train/training/probe.py).

Definition. A window holds at a step when its perplexity there is at most 1.05 times that of the training window at
the same step. It holds from a step on when it holds at that probe and at every later one. A model that has learnt
nothing holds at every window, equally badly: what counts is where a window came to hold and kept holding.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coca_train.evaluation.extrapolation.tables import number
from coca_train.report.figures import Curve, draw, look, page
from coca_train.runtime.durable import write_text
from coca_train.runtime.printing import markdown
from coca_train.tracking.writers import read_jsonl

TOLERANCE = 1.05
COLUMNS = 3  # panels side by side, at most


class Probed(NamedTuple):
    """One probe. losses: by variant and window [tokens], mean NLL [nats per token]."""

    step: int
    training_window: int
    losses: Mapping[str, Mapping[int, float]]

    def holds(self, variant: str, window: int) -> bool:
        """See the module's definition; a window that was not scored does not hold."""
        losses = self.losses.get(variant, {})
        own = losses.get(self.training_window, math.nan)
        return losses.get(window, math.inf) - own <= math.log(TOLERANCE)


def read_probes(records: Sequence[Mapping[str, Any]]) -> list[Probed]:
    """The probes among the records of a metrics.jsonl, in their order."""
    found = []
    for record in records:
        if (own := record.get("probe/training_window")) is None:
            continue
        losses: dict[str, dict[int, float]] = {}
        for key, loss in record.items():
            match key.split("/"):
                case "probe", variant, window:
                    losses.setdefault(variant, {})[int(window)] = math.inf if loss is None else loss
        found.append(Probed(record["step"], int(own), losses))
    return found


def holds_from(probes: Sequence[Probed], variant: str, window: int) -> int | None:
    """Step from which the window holds to the end; None: it does not hold at the last probe."""
    first = None
    for probe in reversed(probes):
        if not probe.holds(variant, window):
            break
        first = probe.step
    return first


def sentences(probes: Sequence[Probed]) -> list[str]:
    """Of each variant, which windows beyond the training window hold and since when."""
    last, lines = probes[-1], []
    for variant, losses in last.losses.items():
        longer = sorted(window for window in losses if window > last.training_window)
        if not longer:
            continue
        since = {window: holds_from(probes, variant, window) for window in longer}
        held = [f"{window:,} from step {step:,} on" for window, step in since.items() if step is not None]
        lost = [f"{window:,}" for window, step in since.items() if step is None]
        words = [f"hold: {', '.join(held)}"] * bool(held) + [f"do not hold: {', '.join(lost)}"] * bool(lost)
        lines.append(f"{variant}: windows beyond the training window ({last.training_window:,}) " + "; ".join(words))
    return lines


def write_reach(run_dir: Path, title: str) -> list[str]:
    """reach.png in the run's directory and report/reach.md; what they say, in sentences. Nothing without a probe."""
    probes = read_probes(read_jsonl(run_dir / "metrics.jsonl"))
    if not probes:
        return []
    variants = list(probes[-1].losses)
    said = sentences(probes)
    columns = min(len(variants), COLUMNS)
    rows = -(-len(variants) // columns)
    size = (1.5 + 5.5 * columns, 1.5 + 4.5 * rows)
    subtitle = "perplexity on the held-out documents of the probe, by context window [tokens]"
    with page(run_dir / "reach.png", f"{title}: reach during training", subtitle, size, rows, columns) as axes:
        for one, variant in zip(axes, variants, strict=False):
            for curve in curves(probes, variant):
                draw(one, curve)
            one.set_title(variant, fontsize=12)
            one.set_xlabel("optimizer step", fontsize=11)
            one.set_ylabel("perplexity", fontsize=11)
            one.set_yscale("log")
            one.legend(fontsize=9, frameon=False, title="window")
        for unused in axes[len(variants) :]:
            unused.set_visible(False)
    write_text(run_dir / "report" / "reach.md", _page(title, probes, said))
    return said


def curves(probes: Sequence[Probed], variant: str) -> list[Curve]:
    """Perplexity by step, a curve a window; the training window's is marked in the legend."""
    windows = sorted({window for probe in probes for window in probe.losses.get(variant, {})})
    own = probes[-1].training_window
    return [
        Curve(
            label=f"{window:,}" + " (training)" * (window == own),
            look=look(index),
            x=[probe.step for probe in probes],
            y=[_perplexity(probe, variant, window) for probe in probes],
        )
        for index, window in enumerate(windows)
    ]


def _perplexity(probe: Probed, variant: str, window: int) -> float:
    loss = probe.losses.get(variant, {}).get(window, math.nan)
    return math.exp(loss) if loss < 700 else math.inf if loss == math.inf else math.nan


def _page(title: str, probes: Sequence[Probed], said: Sequence[str]) -> str:
    windows = sorted({window for probe in probes for losses in probe.losses.values() for window in losses})
    rows = [
        [variant, f"{probe.step:,}", *(number(_perplexity(probe, variant, window)) for window in windows)]
        for variant in probes[-1].losses
        for probe in probes
    ]
    table = markdown(["variant", "step", *(f"{window:,}" for window in windows)], rows)
    how = (
        f"Perplexity by training step and context window [tokens]. A window holds when its perplexity is at most "
        f"{TOLERANCE:g} times that of the training window at the same step, there and at every later probe."
    )
    return "\n".join([f"# Reach during training: {title}\n", how, "", *(f"* {line}" for line in said), "", table])
