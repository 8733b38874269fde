"""A training that the command line makes shorter keeps the shape of its schedule: warm-ups shrink in proportion.

A longer one keeps its warm-up: that many steps were enough, and a run that goes on longer must not warm up anew. What
else belongs to a schedule is a share of the steps by itself (optim.cooldown).
"""

from collections.abc import Sequence
from typing import Any

from coca_train.config.compose import Assembled
from coca_train.runtime.trees import leaves, lookup, section

WARMUP = "optim.warmup_steps"


def shorten(a: Assembled, values: Sequence[Any], typed: dict[str, Any]) -> None:
    """Scale the warm-ups of stages that the command line makes shorter, where it does not set them, and note it.

    values: of the command line, parsed. typed: the tree as these have it, resolved.
    """
    words = {key for each in values for key, _ in leaves(each.value(), each.key_or_group)}
    stages = [name for name in section(a.tree, "stages") if name in section(typed, "stages")]
    keys = {name: f"stages.{name}.{WARMUP}" for name in stages}
    keys = {name: key if _whole(typed, key) is not None else WARMUP for name, key in keys.items()}
    before, scaled, lengths = {}, {}, {}
    for name, key in keys.items():
        steps, was, now = _whole(typed, key), _length(a.tree, name), _length(typed, name)
        if steps is not None and was is not None and now is not None:
            shorter = 0 < now < was and key not in words
            before[name], scaled[name] = steps, min(round(steps * now / was), now - 1) if shorter else steps
            lengths[name] = f"{now:,} steps, not {was:,}"
    # The warm-up of the run serves all stages that have none of their own; where they differ now, each gets its own.
    of_run = {steps for name, steps in scaled.items() if keys[name] == WARMUP}
    changes: dict[str, str] = {}
    for name in (name for name in scaled if scaled[name] != before[name]):
        key = keys[name] if keys[name] != WARMUP or len(of_run) == 1 else f"stages.{name}.{WARMUP}"
        _set(a.tree, key, scaled[name])
        a.places[key] = "as train.max_steps"
        changes[key] = f"{key}={scaled[name]}, not {before[name]} ({lengths[name]})"
    if changes:
        a.notes.append(f"schedule  shorter than its files say, and the warm-up with it: {'; '.join(changes.values())}")


def _length(tree: dict[str, Any], stage: str) -> int | None:
    """The steps of a stage; None where it is counted in tokens, or nothing is known of it."""
    own = section(tree, f"stages.{stage}")
    if own.get("tokens") is not None:
        return None
    return _whole(tree, f"stages.{stage}.max_steps" if own.get("max_steps") is not None else "train.max_steps")


def _whole(tree: dict[str, Any], key: str) -> int | None:
    try:
        value = lookup(tree, key)
    except KeyError:
        return None
    return value if type(value) is int else None


def _set(tree: dict[str, Any], key: str, value: int) -> None:
    *above, name = key.split(".")
    for part in above:
        tree = tree.setdefault(part, {})
    tree[name] = value
