"""The weights of CoCA's authors (github.com/codefuse-ai/Collinear-Constrained-Attention).

Their LLaMA calls the key projection t_proj; their GPT-NeoX keeps the name query_key_value for q, t and v, so nothing in
the folder tells it from plain GPT-NeoX (`keys=t` says it). T is as wide as K was: its halves are averaged before the
ReLU, which is our t_width=full_mean. The score is q ∘ R q · R t, our variant=slack.
"""

from dataclasses import asdict, replace
from pathlib import Path

from coca_train import positions
from coca_train.hub.architecture import Architecture, Shapes
from coca_train.runtime.errors import UserError

T_PROJ = "self_attn.t_proj"


def adapt(
    path: Path, architecture: Architecture, table: dict[str, str], shapes: Shapes, keys: str
) -> tuple[Architecture, dict[str, str]]:
    """The architecture and the name table, with CoCA's scheme where the folder holds T in place of K."""
    named_t = any(f".{T_PROJ}." in name for name in shapes)
    if keys == "k" and named_t:
        raise UserError(
            f"E-IOP-04 {path}: its tensors are called {T_PROJ}, and keys=k was asked for. Fix: leave keys away"
        )
    if not named_t and keys != "t":
        return architecture, table
    if architecture.position.rotary_pct < 1:
        raise UserError(
            f"E-IOP-04 {path} rotary_pct={architecture.position.rotary_pct:g}: CoCA rotates the whole head. "
            "Fix: leave keys=t away if this is no CoCA model"
        )
    if named_t:
        table = table | {"attention.k": T_PROJ}
    tensor = f"{table['blocks']}.0.{table['attention.k']}.weight"
    full = architecture.n_kv_heads * architecture.head_dim
    half = tensor in shapes and shapes[tensor][0] * 2 == full
    section = {
        "scheme": "coca",
        "variant": "slack",
        "t_width": "half" if half else "full_mean",
        "rotary_pct": 1.0,
        "frequencies": asdict(architecture.position.frequencies),
    }
    return replace(architecture, position=positions.settings(section)), table
