"""What an exported config.json must make transformers rotate by: every scaling, and every recipe that exports natively.

A case is a config.json as an export writes it, but for widths that no angle depends on, and our own frequencies.
"""

from typing import Any

from coca_train.hub import forms
from coca_train.hub.architecture import Architecture
from coca_train.hub.rope_check import Case
from coca_train.positions.hugging_face import NotTheSame
from coca_train.settings import load
from coca_train.stages import resolve
from tests.cases import experiments
from tests.hub import models

L, WINDOW = 256, 512  # of the original weights; of the run, neither that nor s·L [tokens]
THETA = 10000.0
RAMP = {"theta": THETA, "factor": 8.0, "original_seq_len": L, "beta_fast": 32.0, "beta_slow": 1.0}
LISTS = {"short_factor": [1.0 + j / 64 for j in range(32)], "long_factor": [1.0 + j for j in range(32)]}
LONG = {"name": "longrope", "theta": THETA, "factor": 8.0, "original_seq_len": L, "temperature": None}
SCALINGS: dict[str, dict[str, Any]] = {
    "plain": {"name": "plain", "theta": 500000.0},
    "linear": {"name": "linear", "theta": THETA, "factor": 4.0},
    "dynamic": {"name": "dynamic_ntk", "theta": THETA, "alpha": 4.0, "original_seq_len": L},
    "ntk": {"name": "ntk", "theta": THETA, "factor": 4.0},
    "yarn": {"name": "yarn", **RAMP, "convention": "code"},
    "by-parts": {"name": "ntk_by_parts", **RAMP, "convention": "paper"},
    "by-parts-indices": {"name": "ntk_by_parts", **RAMP, "convention": "indices"},
    "llama3": {
        "name": "llama3", "theta": THETA, "factor": 8.0, "original_seq_len": L, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": LONG | LISTS,
    "longrope-one-list": LONG | LISTS | {"short_factor": LISTS["long_factor"]},
    "partial": {"name": "partial", "theta": THETA, "share": 0.75},
}  # fmt: skip
FAMILIES = {
    "llama": tuple(SCALINGS),
    "mistral": ("plain", "linear", "dynamic", "yarn"),
    "smollm3": ("linear", "yarn"),
    "gpt_neox": ("plain", "linear", "dynamic", "llama3"),
}
NEOX = {
    "norm": "layernorm",
    "activation": "gelu",
    "residual": "parallel",
    "bias": ["qkv", "out", "mlp", "norm"],
    "n_kv_heads": None,
}


def cases() -> dict[str, Case]:
    """By name."""
    made = {f"{family} {name}": scaled(family, name) for family, names in FAMILIES.items() for name in names}
    for name in experiments():
        if (case := recipe(name)) is not None:
            made[name] = case
    return made


def scaled(family: str, name: str) -> Case:
    """A scaling in a family. GPT-NeoX rotates a quarter of its heads."""
    section = {"scheme": "rope", "rotary_pct": 0.25 if family == "gpt_neox" else 1.0, "rope_scaling": SCALINGS[name]}
    width = {"d_model": 1024 if family == "gpt_neox" else 256, "n_heads": 4, **(NEOX if family == "gpt_neox" else {})}
    architecture = models.random_source(section, **width).architecture
    return case(Architecture(architecture.model, architecture.position, architecture.attention_pattern, WINDOW), family)


def recipe(name: str) -> Case | None:
    """What the last stage of an experiment exports; None: no native class computes it."""
    config = resolve(load([f"+experiment={name}"], launch=False).config)[-1].config
    try:
        return case(Architecture.of(config, config.model.vocab_size or 1000), "")
    except NotTheSame:
        return None


def case(architecture: Architecture, family: str) -> Case:
    written = forms.native_config(architecture, family)
    head_dim, rotary_pct = architecture.head_dim, architecture.position.rotary_pct
    small = {
        "hidden_size": head_dim, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 8,
        "vocab_size": 8, **({"num_key_value_heads": 1} if "num_key_value_heads" in written else {}),
    } | {key: written[key][:1] for key in ("no_rope_layers", "layer_types") if key in written}  # fmt: skip
    lengths = [L // 2, 4 * max(architecture.seq_len, written["max_position_embeddings"])]
    module = architecture.position.rope_scaling.build(round(head_dim * rotary_pct))
    spectra = [module(length) for length in lengths]
    return Case(
        written | small, lengths, [each.inv_freq_J.tolist() for each in spectra], [each.temperature for each in spectra]
    )
