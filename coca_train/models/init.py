"""Initial weights: every parameter is a pure function of (seed, its name), whatever scheme, engine or world size."""

import hashlib
import math
from collections.abc import Container
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coca_train import positions
from coca_train.attention.layer_types import UNIFORM, layer_types_of, position_of
from coca_train.config.schema import DEFAULT, LayersConfig, ModelConfig
from coca_train.models.lora import init_adapter, is_adapter
from coca_train.positions import SchemeSettings

if TYPE_CHECKING:
    from coca_train.models.transformer import Transformer

RESIDUAL_OUTPUTS = ("attention.out.weight", "mlp.down.weight")
KEYS = "attention.k.weight"


def seed_of(*parts: object) -> int:
    """Hash anything printable to a 63-bit seed."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@torch.no_grad()
def init_parameter(
    name: str,
    parameter: Tensor,
    model: ModelConfig,
    position: SchemeSettings,
    seed: int,
    layers: LayersConfig = UNIFORM,
) -> None:
    """Fill one parameter in place: norms 1, biases 0, matrices N(0, init_std), a position scheme's as it declares, an
    adapter so that it changes nothing yet.

    position: the scheme's settings. layers: which layers have others.

    With init_depth_scaled the two projections that write into the residual stream have their std divided by sqrt(2
    n_layers) (GPT-2; Radford et al. 2019, section 2.3). Key projections all begin with the same numbers: a scheme whose
    keys are narrower derives its own from those (`Position.narrow_key`).
    """
    generator = torch.Generator().manual_seed(seed_of(seed, name))
    scheme = _scheme_of(name, model, position, layers)
    # By the scheme first: its parameters may be called norm or bias too.
    own = None if scheme is None else positions.initials(scheme).get(name.rpartition(".")[2])
    if own is not None:
        values = torch.empty(parameter.shape, dtype=torch.float32)
        own(values, generator)
        parameter.copy_(values)
    elif is_adapter(name):
        init_adapter(name, parameter, generator)
    elif name.endswith(KEYS):
        _init_keys(parameter, model, _of_layer(name, model, position, layers), generator)
    elif name.endswith("score_scale.weight"):
        parameter.fill_(1.0)
    elif name.endswith("norm.weight"):
        parameter.fill_(0.0 if model.norm_weight == "one_plus" else 1.0)
    elif name.endswith(".bias"):
        parameter.zero_()
    else:
        std = model.init_std
        if model.init_depth_scaled and name.endswith(RESIDUAL_OUTPUTS):
            std /= math.sqrt(2 * model.n_layers)
        values = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
        parameter.copy_(values)


def _init_keys(parameter: Tensor, model: ModelConfig, scheme: SchemeSettings, generator: torch.Generator) -> None:
    """Draw N(0, init_std), one row per feature of a key head; narrow them where the scheme projects fewer."""
    n_kv_heads, head_dim = model.n_kv_heads or model.n_heads, model.head_dim or model.d_model // model.n_heads
    narrow = positions.scheme_class(scheme.scheme).narrow_key if parameter.shape[0] < n_kv_heads * head_dim else None
    n_rows = parameter.shape[0] if narrow is None else n_kv_heads * head_dim
    values = torch.empty(n_rows, *parameter.shape[1:], dtype=torch.float32)
    values.normal_(0.0, model.init_std, generator=generator)
    parameter.copy_(values if narrow is None else narrow(values, n_kv_heads, scheme))


def _of_layer(name: str, model: ModelConfig, position: SchemeSettings, layers: LayersConfig) -> SchemeSettings:
    """Return the settings of the position scheme of the layer that a parameter belongs to: blocks.<layer>.…"""
    return position_of(layers, layer_types_of(layers, model.n_layers)[int(name.split(".")[1])], position)


def _scheme_of(name: str, model: ModelConfig, position: SchemeSettings, layers: LayersConfig) -> SchemeSettings | None:
    """Return the settings of the position scheme that a parameter belongs to; None: it belongs to none."""
    parts = name.split(".")
    if parts[0] == "position" or parts[0].startswith("position_"):
        return position_of(layers, parts[0].removeprefix("position").removeprefix("_") or DEFAULT, position)
    return _of_layer(name, model, position, layers) if "position" in parts else None


def init_weights(module: "Transformer", model: ModelConfig, seed: int) -> None:
    """Initialise every parameter of a Transformer."""
    for name, parameter in module.named_parameters():
        init_parameter(name, parameter, model, module.position.settings, seed, module.layers)


def init_digests(outline: "Transformer", seed: int, names: Container[str] | None = None) -> dict[str, str]:
    """Return the SHA-256 (first 16 digits) of every parameter's initial value: two schemes share parameters of equal
    digest.

    outline: a Transformer, possibly on the meta device. names: of the parameters wanted; None: all.
    """
    digests = {}
    for name, parameter in outline.named_parameters():
        if names is not None and name not in names:
            continue
        # Parameter by parameter: the weights of a whole model need not fit into this process.
        values: Tensor = torch.empty(parameter.shape, dtype=torch.float32)
        init_parameter(name, values, outline.config, outline.position.settings, seed, outline.layers)
        digests[name] = hashlib.sha256(values.numpy().data).hexdigest()[:16]
    return digests
