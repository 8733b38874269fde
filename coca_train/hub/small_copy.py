"""A window that is wider than a parity probe is long, compared in a copy of the model that is small enough to cross it.

The copy has the config.json of the folder, so what a missing key means to either side is compared too, but for widths
and the number of layers, and random weights.
"""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from coca_train.hub import config_json, parity, transformers_side
from coca_train.hub.architecture import Architecture
from coca_train.hub.keys import read_json, without_code
from coca_train.hub.weights import Source

BEYOND = 32  # tokens that no longer see the first one
LONGEST = 1 << 13  # a window that is wider is made narrower in the copy: a mask grows with its square [tokens]
N_HEADS, WIDTH, N_IDS, SPREAD = 2, 32, 64, 0.15


def check_windows(source: Source, ignore: tuple[str, ...], tokens: int) -> list[parity.Result]:
    """Compare a folder of Hugging Face with its class beyond its widest window; empty where ordinary probes cross it.

    ignore: keys of config.json known to change nothing. tokens: of each ordinary probe.
    """
    window = _widest(source.architecture)
    if window is None or window < min(tokens, max(parity.MULTIPLES) * source.architecture.seq_len):
        return []
    values = _shrunk(without_code(read_json(source.path / config_json.NAME)), source.architecture)
    if window > LONGEST:
        values["sliding_window"] = window = LONGEST // 2
    with TemporaryDirectory() as folder:
        Path(folder, config_json.NAME).write_text(json.dumps(values), encoding="utf-8")
        small = random_source(source, config_json.architecture(Path(folder), ignore))
    positions = torch.arange(window + BEYOND)
    ids = torch.randint(N_IDS, (1, len(positions)), generator=torch.Generator().manual_seed(0))
    probe = parity.Probe("beyond the window", ids, positions[None], len(positions))
    ours = parity.our_logits(small.architecture, small.read)
    theirs = transformers_side.of_source(small, values)
    return parity.compare([probe], ours, theirs, parity.our_spectra(small.architecture))


def _widest(architecture: Architecture) -> int | None:
    windows = [getattr(kind.visibility, "window", None) for kind in architecture.kinds]
    return max((window for window in windows if window is not None), default=None)


def _shrunk(values: dict[str, Any], architecture: Architecture) -> dict[str, Any]:
    """A config.json with other widths, and the layers up to the last one of a new kind."""
    kinds = architecture.layer_kinds
    n_layers = 1 + max(kinds.index(kind) for kind in set(kinds))
    lists = {key: values[key][:n_layers] for key in ("no_rope_layers", "layer_types") if values.get(key) is not None}
    return {
        **values,
        **lists,
        "num_hidden_layers": n_layers,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_HEADS,
        "head_dim": architecture.head_dim,  # lists of factors have its length
        "hidden_size": N_HEADS * architecture.head_dim,
        "intermediate_size": WIDTH,
        "vocab_size": N_IDS,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }


def random_source(source: Source, architecture: Architecture) -> Source:
    """Random weights of this architecture. source: of what it is a copy."""
    generator, shapes = torch.Generator().manual_seed(1), architecture.shapes()
    weights = {
        name: torch.randn(shape, generator=generator) * SPREAD + name.endswith("norm.weight")
        for name, shape in shapes.items()
    }
    dtypes = dict.fromkeys(shapes, torch.float32)
    return replace(source, architecture=architecture, shapes=shapes, dtypes=dtypes, read=weights.__getitem__)
