"""Which parameters of a model a stage trains, and which of them through adapters."""

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from torch import nn

from coca_train.config.schema import LoraConfig
from coca_train.models import lora
from coca_train.runtime.errors import UserError


def adapt(model: nn.Module, patterns: Sequence[str], settings: LoraConfig) -> None:
    """Give every weight matrix of a linear layer that a pattern matches an adapter, in place.

    Raises UserError where no pattern matches such a matrix (E-STG-16), or one is smaller than the rank (E-STG-17).
    """
    assert settings.rank is not None
    modules = dict(model.named_modules())
    layers = {}
    for name in sorted(_matching([name for name, _ in model.named_parameters()], patterns)):
        owner, _, leaf = name.rpartition(".")
        layer = modules[owner]
        if leaf == "weight" and isinstance(layer, nn.Linear):
            layers[owner] = min(layer.in_features, layer.out_features)
    if not layers:
        raise UserError(
            f"E-STG-16 stages lora.rank={settings.rank}: trainable {', '.join(patterns)} matches no weight matrix of a "
            "linear layer, and only these have adapters. Fix: stages.<name>.lora.rank=null, or a pattern like "
            "'blocks.*.attention.[qkv].*'"
        )
    smallest = min(layers, key=layers.__getitem__)
    if settings.rank > layers[smallest]:
        raise UserError(
            f"E-STG-17 stages lora.rank={settings.rank}: {smallest}.weight has a side of {layers[smallest]}; an "
            f"adapter of a higher rank is no low-rank one. Fix: stages.<name>.lora.rank={layers[smallest]} or less, or "
            "patterns that do not match it"
        )
    lora.attach(model, list(layers), settings)


def select_trainable(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freeze every parameter that no pattern (shell style) matches; return the sorted names of the others.

    A weight that has an adapter is frozen, and the adapter trained in its place. Raises UserError naming the nearest
    parameters when a pattern matches nothing.
    """
    parameters = dict(lora.named_parameters(model))
    chosen: set[str] = set()
    for name in _matching([name for name in parameters if not lora.is_adapter(name)], patterns):
        # Patterns are about the weights as they were before there were adapters, so that one schedule serves with and
        # without.
        adapter = lora.adapter_of(name)
        chosen.update(adapter if adapter[0] in parameters else [name])
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in chosen)
    return sorted(chosen)


def _matching(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """Return the names that any pattern matches. Raises UserError E-STG-14 for a pattern that matches none."""
    chosen: set[str] = set()
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            nearest = difflib.get_close_matches(pattern, list(names), n=3, cutoff=0.0)
            raise UserError(
                f"E-STG-14 stages trainable: pattern {pattern!r} matches no parameter; "
                f"nearest names: {', '.join(nearest)}. Fix: use one of the names, or '*' for all"
            )
        chosen.update(matched)
    return chosen
