"""How the layers of a family of transformers differ from each other, as its config.json says it, both ways."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar

from coca_train.attention.layer_types import LayerType, describe_layers
from coca_train.config.schema import DEFAULT
from coca_train.hub.architecture import Architecture
from coca_train.hub.config_keys import COUNT, COUNT_OR_NULL, TRUTH, WHOLE, Json, Keys
from coca_train.positions.hugging_face import NotTheSame, rotation

FULL, SLIDING = "full_attention", "sliding_attention"
CAUSAL: Json = {"name": "causal"}
Item = TypeVar("Item", int, str)


class LayerRule(ABC):
    """How the layers of a model differ from each other."""

    @abstractmethod
    def read(self, keys: Keys, n_layers: int, of_windows: Json | None) -> tuple[Json, Json | None]:
        """Return our section `attention_pattern`, and `layers` where they differ. of_windows: what
        layers with a window have instead of section `position`; None: the same. Raises NotTheSame."""

    @abstractmethod
    def write(self, architecture: Architecture) -> Json:
        """Return keys of config.json. Raises NotTheSame where the family has no such layers."""


class CausalLayers(LayerRule):
    """All layers alike, without a window."""

    def read(self, keys: Keys, n_layers: int, of_windows: Json | None) -> tuple[Json, Json | None]:
        return CAUSAL, None

    def write(self, architecture: Architecture) -> Json:
        _refuse_other_layers(architecture, "causal")
        return {}


@dataclass(frozen=True)
class WindowLayers(LayerRule):
    """All layers alike, with one window or none, as config.json says (Mistral). default: where it says nothing."""

    default: int | None = 4096

    def read(self, keys: Keys, n_layers: int, of_windows: Json | None) -> tuple[Json, Json | None]:
        size = keys.read("sliding_window", COUNT_OR_NULL, self.default)
        return (CAUSAL if size is None else {"name": "sliding_window", "window": size}), None

    def write(self, architecture: Architecture) -> Json:
        _refuse_other_layers(architecture, "causal", "sliding_window")
        return {"sliding_window": getattr(architecture.attention_pattern, "window", None)}


@dataclass(frozen=True)
class TypedLayers(LayerRule):
    """A window or all keys, as `layer_types` says of each layer. period: where it says nothing, every so many layers
    one has all keys; 0: none has. nope: those have no positions (Cohere 2); nope_alone: also in a model without a
    window. own_positions: layers with a window have others (Gemma 3)."""

    period: int
    period_key: str = ""
    nope: bool = False
    nope_alone: bool = True
    own_positions: bool = False

    def read(self, keys: Keys, n_layers: int, of_windows: Json | None) -> tuple[Json, Json | None]:
        size, types = keys.read("sliding_window", COUNT_OR_NULL, 4096), keys.take("layer_types")
        default = []
        if types is None:
            period = keys.read(self.period_key, COUNT, self.period) if self.period_key else self.period
            default = [SLIDING if not period or (layer + 1) % period else FULL for layer in range(n_layers)]
        elif self.period_key:
            keys.take(self.period_key)  # layer_types says it of each layer
        types = _of_layers("layer_types", types, (FULL, SLIDING), default or [FULL] * n_layers)
        if size is None and SLIDING in types:
            raise NotTheSame(f"layer_types with {SLIDING}, and no sliding_window")
        if not self.nope or (size is None and not self.nope_alone):
            return CAUSAL, windows_of(types, size, of_windows)
        window: Json = {"name": "sliding_window", "window": size} if size is not None else CAUSAL
        far = {"position": {"scheme": "nope"}, "attention_pattern": CAUSAL}
        pattern = _shortest([DEFAULT if kind == SLIDING else "far" for kind in types])
        return window, {"pattern": pattern, "types": {"far": far}} if FULL in types else None

    def write(self, architecture: Architecture) -> Json:
        nope = self.nope and (self.nope_alone or any(map(has_window, architecture.layer_types)))
        types, size = types_of(architecture, nope, self.own_positions)
        # These classes need a size even where no layer has a window, except Exaone 4's, to which null says something.
        size = architecture.seq_len if size is None and self.nope_alone else size
        return {"layer_types": types, "sliding_window": size}


class LaterWindowLayers(LayerRule):
    """A window in the layers from `max_window_layers` on, where `use_sliding_window` is true (Qwen); `layer_types`
    says the same of each layer."""

    def read(self, keys: Keys, n_layers: int, of_windows: Json | None) -> tuple[Json, Json | None]:
        windowed = keys.read("use_sliding_window", TRUTH, False)
        size, first = keys.read("sliding_window", COUNT_OR_NULL, 4096), keys.read("max_window_layers", WHOLE, 28)
        size = size if windowed else None
        default = [SLIDING if size is not None and layer >= first else FULL for layer in range(n_layers)]
        types = _of_layers("layer_types", keys.take("layer_types"), (FULL, SLIDING), default)
        if size is None and SLIDING in types:
            raise NotTheSame(f"layer_types with {SLIDING}, and no window in use_sliding_window and sliding_window")
        return CAUSAL, windows_of(types, size)

    def write(self, architecture: Architecture) -> Json:
        types, size = types_of(architecture)
        return {
            "layer_types": types,
            "use_sliding_window": size is not None,
            "sliding_window": size,
            "max_window_layers": types.index(SLIDING) if SLIDING in types else len(types),
        }


def has_window(kind: LayerType) -> bool:
    """Whether layers of this kind have a window."""
    return getattr(kind.attention_pattern, "window", None) is not None


def windows_of(types: list[str], size: int | None, position: Json | None = None) -> Json | None:
    """Return our `layers` section where some layers have a window; None: none has. position: what
    these have instead of the run's."""
    if SLIDING not in types:
        return None
    local: Json = {"attention_pattern": {"name": "sliding_window", "window": size}}
    local |= {} if position is None else {"position": position}
    return {"pattern": _shortest([DEFAULT if kind == FULL else "local" for kind in types]), "types": {"local": local}}


def _shortest(names: list[str]) -> list[str]:
    """Return the shortest pattern that gives all of them when it is repeated, as a person would write it."""
    lengths = range(1, len(names) + 1)
    return names[: next(n for n in lengths if all(name == names[i % n] for i, name in enumerate(names)))]


def types_of(
    architecture: Architecture, nope: bool = False, own_positions: bool = False
) -> tuple[list[str], int | None]:
    """Return the type of each layer, and the window of those that have one. Raises NotTheSame for layers that differ
    in more, or by windows of several sizes. nope: layers without a window have no positions. own_positions: those with
    a window may have others, which the rule of positions writes."""
    types, windows = [], set()
    for kind in architecture.layer_types:
        if kind.attention_pattern.name not in ("causal", "sliding_window"):
            raise NotTheSame(f"attention pattern {kind.attention_pattern.name}")
        size = getattr(kind.attention_pattern, "window", None)
        if nope and size is None:
            fits = kind.position.scheme == "nope"
        else:
            fits = kind.position == architecture.position or (own_positions and size is not None)
        if not fits:
            raise NotTheSame(f"layers with other positions than the run's ({kind.position.scheme})")
        types.append(FULL if size is None else SLIDING)
        windows |= {size} - {None}
    if len(windows) > 1:
        raise NotTheSame(f"windows of {' and '.join(map(str, sorted(windows)))} tokens; it has one")
    return types, next(iter(windows), None)


def _refuse_other_layers(architecture: Architecture, *attention_patterns: str) -> None:
    """Raise NotTheSame unless all layers are alike and have one of these attention patterns."""
    if not architecture.is_uniform:
        raise NotTheSame(
            f"layers of several types ({describe_layers(architecture.layers, architecture.model.n_layers)})"
        )
    if architecture.attention_pattern.name not in attention_patterns:
        raise NotTheSame(f"attention pattern {architecture.attention_pattern.name}")


class ListedLayers(LayerRule):
    """For each layer RoPE or no positions (`no_rope_layers`, 1: RoPE), and all keys or one window (`layer_types`)."""

    def read(self, keys: Keys, n_layers: int, of_windows: Json | None) -> tuple[Json, Json | None]:
        windowed = keys.read("use_sliding_window", TRUTH, False)
        size = keys.read("sliding_window", COUNT_OR_NULL)
        interval = keys.read("no_rope_layer_interval", COUNT, 4)
        ropes, types = keys.take("no_rope_layers"), keys.take("layer_types")
        return CAUSAL, self.section(n_layers, ropes, interval, types, size if windowed else None)

    def section(self, n_layers: int, ropes: object, interval: int, types: object, window: int | None) -> Json:
        """Return our `layers` section. window: None where use_sliding_window is false. Raises NotTheSame."""
        ropes = _of_layers("no_rope_layers", ropes, (0, 1), [int((i + 1) % interval != 0) for i in range(n_layers)])
        default = [SLIDING if window is not None and not rope else FULL for rope in ropes]
        types = _of_layers("layer_types", types, (FULL, SLIDING), default)
        if window is None and SLIDING in types:
            raise NotTheSame(f"layer_types with {SLIDING}, and no window in use_sliding_window and sliding_window")
        names = {(1, FULL): DEFAULT, (0, FULL): "nope", (1, SLIDING): "local", (0, SLIDING): "nope_local"}
        kind_of = [names[one] for one in zip(ropes, types, strict=True)]
        nope, local = (
            {"position": {"scheme": "nope"}},
            {"attention_pattern": {"name": "sliding_window", "window": window}},
        )
        kinds = {"nope": nope, "local": local, "nope_local": nope | local}
        used = {name: kind for name, kind in kinds.items() if name in kind_of}
        return {"pattern": _shortest(kind_of) if used else [], "types": used}

    def write(self, architecture: Architecture) -> Json:
        ropes, types, windows = [], [], set()
        for kind in architecture.layer_types:
            rotated = rotation(kind.position, architecture.head_dim)
            size = getattr(kind.attention_pattern, "window", None)
            if rotated is not None and kind.position != architecture.position:
                raise NotTheSame(f"layers with other positions than the run's ({kind.position.scheme})")
            if kind.attention_pattern.name not in ("causal", "sliding_window"):
                raise NotTheSame(f"attention pattern {kind.attention_pattern.name}")
            ropes.append(int(rotated is not None))
            types.append(FULL if size is None else SLIDING)
            windows |= {size} - {None}
        if len(windows) > 1:
            raise NotTheSame(f"windows of {' and '.join(map(str, sorted(windows)))} tokens; it has one")
        return {
            "no_rope_layers": ropes,
            "layer_types": types,
            "use_sliding_window": bool(windows),
            "sliding_window": next(iter(windows), None),
        }


def _of_layers(key: str, values: object, known: tuple[Item, Item], default: list[Item]) -> list[Item]:
    """Return one of two values for each layer, the default where there are none. Raises NotTheSame."""
    if values is None:
        return default
    each = values if isinstance(values, list) else []
    kept = [one for value in each for one in known if type(one) is type(value) and one == value]
    if not len(each) == len(kept) == len(default):
        raise NotTheSame(f"{key}: {len(default)} of {known[0]} and {known[1]} are needed")
    return kept
