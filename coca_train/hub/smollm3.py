"""SmolLM3's layers, in transformers' words and in ours: RoPE or no positions, everything or a window, one by one.

transformers: `no_rope_layers` (1: RoPE) and `layer_types`; the window is `sliding_window`, one for the model, and only
where use_sliding_window says so. Ours: a pattern of kinds (positions/layers.py).
"""

from typing import Any

from coca_train.config.schema import OWN
from coca_train.hub.architecture import Architecture
from coca_train.positions.hugging_face import NotTheSame, rotation

FULL, SLIDING = "full_attention", "sliding_attention"


def layers(
    n_layers: int, ropes: list[Any] | None, interval: int, types: list[Any] | None, window: int | None
) -> dict[str, Any]:
    """Our `layers` section. window: None where use_sliding_window is false. Raises NotTheSame, in words."""
    ropes = ropes or [int((layer + 1) % interval != 0) for layer in range(n_layers)]
    types = types or [SLIDING if window is not None and not rope else FULL for rope in ropes]
    for name, values, known in (("no_rope_layers", ropes, (0, 1)), ("layer_types", types, (FULL, SLIDING))):
        if len(values) != n_layers or any(value not in known for value in values):
            raise NotTheSame(f"{name}: {n_layers} of {known[0]} and {known[1]} are needed")
    if window is None and SLIDING in types:
        raise NotTheSame("layer_types with sliding_attention, and no window in use_sliding_window and sliding_window")
    names = {(1, FULL): OWN, (0, FULL): "nope", (1, SLIDING): "local", (0, SLIDING): "nope_local"}
    pattern = [names[one] for one in zip(ropes, types, strict=True)]
    nope, local = {"position": {"scheme": "nope"}}, {"visibility": {"name": "sliding_window", "window": window}}
    kinds = {"nope": nope, "local": local, "nope_local": nope | local}
    used = {name: kind for name, kind in kinds.items() if name in pattern}
    return {"pattern": shortest(pattern) if used else [], "kinds": used}


def shortest(names: list[str]) -> list[str]:
    """The beginning that gives all of them when it is repeated."""
    n = next(n for n in range(1, len(names) + 1) if all(name == names[i % n] for i, name in enumerate(names)))
    return names[:n]


def words(architecture: Architecture) -> dict[str, Any]:
    """The keys of config.json. Raises NotTheSame where some layer is of no kind that SmolLM3 has."""
    ropes, types, windows = [], [], set()
    for kind in architecture.kinds:
        rotated = rotation(kind.position, architecture.head_dim)
        window = getattr(kind.visibility, "window", None)
        if rotated is not None and kind.position != architecture.position:
            raise NotTheSame(f"layers with other positions than the run's ({kind.position.scheme})")
        if kind.visibility.name not in ("causal", "sliding_window"):
            raise NotTheSame(f"visibility {kind.visibility.name}")
        ropes.append(int(rotated is not None))
        types.append(FULL if window is None else SLIDING)
        windows |= {window} - {None}
    if len(windows) > 1:
        raise NotTheSame(f"windows of {' and '.join(map(str, sorted(windows)))} tokens; it has one")
    return {
        "no_rope_layers": ropes,
        "layer_types": types,
        "use_sliding_window": bool(windows),
        "sliding_window": next(iter(windows), None),
    }
