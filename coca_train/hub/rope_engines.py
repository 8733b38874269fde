"""What an engine rotates by. `verify rope=…` gives this text to an interpreter that has the engine, and perhaps nothing
of ours.

The word after it is the engine. Standard input is a JSON object: case -> [config.json, lengths]. The last line of the
output is another: `version`, and `answers`, case -> for every length [radians per position of every pair, temperature];
or a text, why the engine refuses the case.
"""

import importlib
import json
import math
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# At each length, cos and sin of the angle of every pair at position 1, times the temperature.
Turns = Iterator[tuple[list[float], ...]]


def ask_coca_train(config: dict[str, Any], lengths: list[int]) -> Turns:
    """Read the configuration as `import` does."""
    import torch

    from coca_train import positions
    from coca_train.hub.config_json import NAME, read_architecture
    from coca_train.positions.base import AttentionShape

    with TemporaryDirectory() as folder:
        Path(folder, NAME).write_text(json.dumps(config), encoding="utf-8")
        architecture = read_architecture(Path(folder))
    shape = AttentionShape.of(architecture.model, architecture.seq_len)
    scheme: Any = positions.build(architecture.position, shape)
    place = torch.ones(1, 1, dtype=torch.int64)
    for length in lengths:
        turn = scheme(place, place, length).query
        pairs = turn.cos_BT1R.shape[-1] // 2
        yield turn.cos_BT1R[0, 0, 0, :pairs].tolist(), turn.sin_BT1R[0, 0, 0, pairs:].tolist()


def ask_transformers(config: dict[str, Any], lengths: list[int]) -> Turns:
    """Build the model of the configuration, and call its rotary embedding for a text of each length."""
    import torch

    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    config_class = transformers.CONFIG_MAPPING[config["model_type"]]
    model = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[config_class](config_class.from_dict(config))
    rotary = next(module for module in model.modules() if hasattr(module, "inv_freq"))
    for length in lengths:
        turn = rotary(torch.zeros(1), torch.tensor([[1, length - 1]]))
        yield tuple(each[0, 0, : each.shape[-1] // 2].tolist() for each in turn)


def ask_mlx_lm(config: dict[str, Any], lengths: list[int]) -> Turns:
    """Build the model of the configuration, and rotate (1, 0) in each pair of a text of each length."""
    mx, utils = importlib.import_module("mlx.core"), importlib.import_module("mlx_lm.utils")
    model_class, arguments_class = utils._get_classes(config)
    model = model_class(arguments_class.from_dict(config))
    rope = next(module for name, module in model.named_modules() if name.endswith("rope"))
    pairs, width = (rope.dims if hasattr(rope, "dims") else rope.dim) // 2, config["hidden_size"]
    for length in lengths:
        shape = (1, 1, length)
        turned = rope(mx.concatenate([mx.ones((*shape, pairs)), mx.zeros((*shape, width - pairs))], -1))[0, 0, 1]
        yield turned[:pairs].tolist(), turned[pairs : 2 * pairs].tolist()


ENGINES = {"coca_train": ask_coca_train, "transformers": ask_transformers, "mlx_lm": ask_mlx_lm}


def ask(engine: str, config: dict[str, Any], lengths: list[int]) -> list[tuple[list[float], float]] | str:
    """Return what it rotates by in a text of each length [tokens], or why it does not: it may raise what it likes.

    The fastest pair turns one radian a position, so that position 1 shows every frequency.
    """
    try:
        turns = list(ENGINES[engine](config, lengths))
        return [(list(map(math.atan2, sin, cos)), math.hypot(cos[0], sin[0])) for cos, sin in turns]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    version = metadata.version(sys.argv[1])
    answers = {name: ask(sys.argv[1], *case) for name, case in json.load(sys.stdin).items()}
    print("\n" + json.dumps({"version": version, "answers": answers}))
