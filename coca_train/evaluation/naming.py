"""What legends and sentences call a model: by its position scheme, as papers do, with what was exchanged.

"RoPE", "CoCA + dynamic NTK (α 4)", "RoPE + YaRN (factor 8) + sinks (window 64)". Where two models have one scheme, they
are called by their runs.
"""

import re
from collections.abc import Mapping

SCHEMES = {
    "alibi": "ALiBi", "coca": "CoCA", "cope": "CoPE", "dape": "DAPE", "disentangled": "DeBERTa", "fire": "FIRE",
    "fox": "FoX", "kerple_log": "KERPLE-log", "kerple_power": "KERPLE-power", "learned": "learned positions",
    "nope": "NoPE", "rope": "RoPE", "sandwich": "Sandwich", "shaw": "Shaw", "sinusoidal": "sinusoidal", "t5": "T5 bias",
    "transformer_xl": "Transformer-XL", "tupe": "TUPE", "xpos": "xPos",
}  # fmt: skip
FREQUENCIES = {
    "clex": "CLEX", "dynamic_linear": "dynamic PI", "dynamic_ntk": "dynamic NTK",
    "dynamic_ntk_by_parts": "dynamic NTK-by-parts", "dynamic_yarn": "dynamic YaRN",
    "dynamic_yarn_tuned": "dynamic YaRN (tuned)", "linear": "PI", "llama3": "Llama 3 scaling", "longrope": "LongRoPE",
    "ntk": "NTK-aware", "ntk_by_parts": "NTK-by-parts", "yarn": "YaRN",
}  # fmt: skip
GREEK = {"alpha": "α", "beta": "β", "theta": "θ"}
PLAIN = "plain"


def called(schemes: Mapping[str, str]) -> dict[str, str]:
    """By model, what it is called. schemes: by model, its position scheme."""
    known = list(schemes.values())
    return {
        model: SCHEMES.get(scheme, scheme) if known.count(scheme) == 1 else model for model, scheme in schemes.items()
    }


def with_variant(name: str, variant: str) -> str:
    """The name of a model under a variant, which evaluation/variants.py labels."""
    return " + ".join([name, *(_spoken(part) for part in _parts(variant) if part != PLAIN)])


def _parts(variant: str) -> list[str]:
    """What is joined by commas outside brackets."""
    return re.split(r", (?![^(]*\))", variant)


def _spoken(part: str) -> str:
    """`dynamic_ntk (alpha 4)` as "dynamic NTK (α 4)"."""
    name, bracket, options = part.partition(" (")
    for word, sign in GREEK.items():
        options = re.sub(rf"\b{word}\b", sign, options)
    return f"{FREQUENCIES.get(name, name.replace('_', ' '))}{bracket}{options.replace('_', ' ')}"
