"""Small random models, written by transformers, and logits that came through nothing of ours."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from pydantic import TypeAdapter

from coca_train import positions
from coca_train.attention import patterns
from coca_train.attention.layer_types import UNIFORM
from coca_train.config.schema import LayersConfig, ModelConfig
from coca_train.hub import forms, transformers_side
from coca_train.hub.architecture import Architecture
from coca_train.hub.weights import Source

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

LENGTH = 24  # max_position_embeddings [tokens]
VOCAB = 101
SHARED: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "vocab_size": VOCAB,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.15,  # large enough that a wrong angle shows in the logits
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "llama_gqa": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"num_key_value_heads": 2}),
    "mistral": (
        transformers.MistralConfig,
        transformers.MistralForCausalLM,
        {"num_key_value_heads": 2, "sliding_window": 20, "head_dim": 16},
    ),
    "smollm3": (
        transformers.SmolLM3Config,
        transformers.SmolLM3ForCausalLM,
        {"num_key_value_heads": 2, "num_hidden_layers": 5, "pad_token_id": 0},
    ),
    "smollm3_window": (  # as its configuration makes it: a window where there is no RoPE
        transformers.SmolLM3Config,
        transformers.SmolLM3ForCausalLM,
        {
            "num_hidden_layers": 4,
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 7,
            "pad_token_id": 0,
        },
    ),
    "gpt_neox": (transformers.GPTNeoXConfig, transformers.GPTNeoXForCausalLM, {"hidden_size": 64}),
}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 8},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.75},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}


def write(folder: Path, kind: str, scaling: str = "plain", dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """A folder as save_pretrained makes it. Biases and norms are random too: zeros and ones would hide a swap."""
    config_class, model_class, own = KINDS[kind]
    rope = dict(SCALINGS[scaling] or {"rope_type": "default"})
    rope |= {"rope_theta": 500.0}
    if kind == "gpt_neox":
        rope["partial_rotary_factor"] = 1.0 if scaling == "yarn" else 0.25
    save = {key: changes.pop(key) for key in ("max_shard_size",) if key in changes}
    torch.manual_seed(0)
    model = model_class(config_class(**(SHARED | own | {"rope_parameters": rope} | changes)))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.2)
    model.to(dtype).save_pretrained(folder, **save)
    return folder


def config_of(model_type: str, values: dict[str, Any]) -> Any:
    """The configuration of a small model of any type."""
    known = transformers.AutoConfig.for_model(model_type)
    read = known.to_dict().keys() | known.attribute_map.keys()
    shared = {key: value for key, value in SHARED.items() if key in read}
    if "n_positions" in values:  # another name of max_position_embeddings
        del shared["max_position_embeddings"]
    return transformers.AutoConfig.for_model(model_type, **shared | {"pad_token_id": 0} | values)


def write_family(folder: Path, model_type: str, values: dict[str, Any]) -> Path:
    """A folder of any model type as save_pretrained writes it, all weights random."""
    config = config_of(model_type, values)
    set_theta(getattr(config, "rope_parameters", None) or {})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            is_weight = name.endswith("weight") and "gemma" not in model_type
            torch.nn.init.normal_(parameter, mean=1.0 if is_weight else 0.0, std=0.2)
    model.save_pretrained(folder)
    return folder


def set_theta(rope: dict[str, Any]) -> None:
    """Rotate fast enough for a short text: one section, or one for each type of layer."""
    if nested := [each for each in rope.values() if isinstance(each, dict)]:
        for theta, section in zip((500.0, 50.0), nested, strict=True):
            section["rope_theta"] = theta
    elif rope:
        rope["rope_theta"] = 500.0


def logits(folder: Path, length: int, **load: Any) -> torch.Tensor:
    """float32 logits of a folder on fixed ids, by transformers alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **load).eval()
    ids = torch.randint(VOCAB, (1, length), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """To 1e-5 of the largest logit, which is no small number."""
    scale = b.abs().max().item()
    assert scale > 1
    return (a - b).abs().max().item() <= 1e-5 * scale


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes one."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def random_source(
    position: dict[str, Any],
    attention_pattern: dict[str, Any] | None = None,
    layers: LayersConfig = UNIFORM,
    **model: Any,
) -> Source:
    """A model of ours with random weights, as if it were a run."""
    section = {
        "n_layers": 2, "d_model": 48, "n_heads": 4, "n_kv_heads": 2, "head_dim": None, "d_ff": 80, "vocab_size": VOCAB,
        "norm": "rmsnorm", "norm_eps": 1e-6, "activation": "swiglu", "residual": "sequential", "bias": [],
        "tie_embeddings": False, "qk_norm": "none", "logit_scale": {"name": "none", "length": None, "beta": 0.1},
        "dropout": 0.0, "init_std": 0.02, "init_depth_scaled": False,
    }  # fmt: skip
    architecture = Architecture(
        TypeAdapter(ModelConfig).validate_json(json.dumps(section | model)),
        positions.settings(position),
        patterns.settings(attention_pattern or {"name": "causal"}),
        LENGTH,
        layers,
    )
    generator = torch.Generator().manual_seed(1)
    shapes = architecture.shapes()
    weights = {
        name: torch.randn(shape, generator=generator) * 0.15 + name.endswith("norm.weight")
        for name, shape in shapes.items()
    }
    return Source(
        path=Path("random"), kind="run", family="", architecture=architecture, shapes=shapes,
        dtypes=dict.fromkeys(shapes, torch.float32), read=weights.__getitem__,
    )  # fmt: skip


def both(source: Source, attention: str = "sdpa") -> tuple[Any, Any]:
    """Our model of a source, and the class of our own export with the same weights under its names."""
    theirs = transformers_side.model_of_source(source, forms.own_config(source.architecture))
    if attention != "sdpa":
        theirs.set_attn_implementation(attention)
    ours = source.architecture.build().eval()
    ours.load_state_dict({name: source.read(name) for name in source.names}, strict=False)
    ours.tie()
    return ours, theirs


def edit_new(folder: Path, values: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values))
