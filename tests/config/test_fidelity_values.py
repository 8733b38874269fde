"""Every row of docs/fidelity.md that names a file of configs/ says values, and the composed file has them.

    | … | `configs/experiment/coca_350m.yaml`: `train.seq_len = 512`, `optim.betas = [0.9, 0.95]` | …

A value is JSON, or else a string as it is. Of an experiment whose name begins with `_`, every one that is made of it
has the value; `stages.<name>.` before an option is the option in that stage.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from coca_train.data.corpus_config import load as load_corpus
from coca_train.evaluation.configuration import load as load_evaluation
from coca_train.settings import load
from coca_train.stages import resolve
from tests.house.test_fidelity import ITEMS, ROOT, Item

ROWS = [item for item in ITEMS if "`configs/" in item.where]


def stated(item: Item) -> Iterator[tuple[str, str, Any]]:
    """(file below configs/ without its ending, option, value) of each value that a row states."""
    file = ""
    for text in re.findall(r"`([^`]+)`", item.where):
        option, equals, value = text.partition(" = ")
        if not equals:
            file = text.removeprefix("configs/").removesuffix(".yaml")
            continue
        try:
            yield file, option, json.loads(value)
        except json.JSONDecodeError:
            yield file, option, value


@cache
def made_of(name: str) -> list[str]:
    """Experiments that have this one among their defaults, theirs and so on."""
    found = []
    for path in sorted((ROOT / "configs/experiment").glob("*.yaml")):
        defaults = yaml.safe_load(path.read_text("utf-8")).get("defaults", [])
        if name in defaults:
            found += made_of(path.stem) if path.stem.startswith("_") else [path.stem, *made_of(path.stem)]
    return found


@cache
def composed(file: str) -> list[Any]:
    """What a file of configs/ makes of the configurations it belongs to."""
    group, _, name = file.rpartition("/")
    if group == "experiment":
        return [load([f"+experiment={each}"], launch=False).config for each in ([name], made_of(name))[name[0] == "_"]]
    if group == "evaluation/eval":
        return [load_evaluation([f"+eval={name}", "checkpoint=none"])[0]]
    if group == "corpus":
        return [load_corpus([f"corpus={name}"])]
    before = {
        "layers": ["position=rope", "model.n_layers=12"],
        "position/rope_scaling": ["position=rope"],
        "optim": ["train.max_steps=763000"],
    }.get(group, [])
    return [load([*before, f"{group}={name}"], launch=False).config]


def value(config: Any, option: str) -> Any:
    """What a configuration has at a dotted path, as JSON has it."""
    at, names = config, option.split(".")
    if names[0] == "stages":
        stage = {each.name: each for each in resolve(config)}[names[1]]
        at, names = (stage, names[2:]) if hasattr(stage, names[2]) else (stage.config, names[2:])
    for name in names:
        at = at[int(name)] if name.isdecimal() else at[name] if isinstance(at, dict) else getattr(at, name)
    return list(at) if isinstance(at, tuple) else at


@pytest.mark.parametrize("number", [item.number for item in ROWS])
def test_a_row_has_the_values_of_its_file(number: str) -> None:
    (item,) = (item for item in ROWS if item.number == number)
    values = list(stated(item))
    assert values, "no value is stated: `option = value` after the file"
    for file, option, expected in values:
        configs = composed(file)
        assert configs
        for config in configs:
            found = value(config, option)
            assert type(found) in (type(expected), float, int) and found == expected, (file, option)
