"""How reach grew during training, from the probes in metrics.jsonl (coca_train/training/probe.py).

Definition. A window holds at a step when its perplexity there is at most 1.05 times that of the training window at
the same step. It holds from a step on when it holds at that probe and at every later one. A model that has learnt
nothing holds at every window, equally badly: what counts is where a window came to hold and kept holding.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coca_train.evaluation.measures.perplexity import perplexity_of

TOLERANCE = 1.05


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

    def perplexity(self, variant: str, window: int) -> float:
        """NaN where the window was not scored."""
        loss = self.losses.get(variant, {}).get(window)
        return math.nan if loss is None else perplexity_of(loss)


def read_probes(records: Sequence[Mapping[str, Any]]) -> list[Probed]:
    """The probes among the records of a metrics.jsonl, in their order."""
    probes = []
    for record in records:
        if (own := record.get("probe/training_window")) is None:
            continue
        losses: dict[str, dict[int, float]] = {}
        for key, loss in record.items():
            match key.split("/"):
                case "probe", variant, window:
                    losses.setdefault(variant, {})[int(window)] = math.inf if loss is None else loss
        probes.append(Probed(record["step"], int(own), losses))
    return probes


def holds_from(probes: Sequence[Probed], variant: str, window: int) -> int | None:
    """Step from which the window holds to the end; None: it does not hold at the last probe."""
    first = None
    for probe in reversed(probes):
        if not probe.holds(variant, window):
            break
        first = probe.step
    return first


def sentences(probes: Sequence[Probed]) -> list[str]:
    """Of each variant, which windows beyond the training window hold and since when. Nothing without a probe."""
    lines = []
    for variant, losses in probes[-1].losses.items() if probes else ():
        own = probes[-1].training_window
        longer = sorted(window for window in losses if window > own)
        if not longer:
            continue
        since = {window: holds_from(probes, variant, window) for window in longer}
        held = [f"{window:,} from step {step:,} on" for window, step in since.items() if step is not None]
        lost = [f"{window:,}" for window, step in since.items() if step is None]
        words = [f"hold: {', '.join(held)}"] * bool(held) + [f"do not hold: {', '.join(lost)}"] * bool(lost)
        lines.append(f"{variant}: windows beyond the training window ({own:,}) " + "; ".join(words))
    return lines
