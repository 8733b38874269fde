"""`python -m tests.models.alike`: what the four recipes of the 350M class begin with, at full width, as a table.

Each tensor is drawn as a run draws it, one at a time; the largest has 413 MB. A minute on one core.
"""

import hashlib
from collections import defaultdict
from typing import NamedTuple

import torch

from coca_train.config.schema import Config
from coca_train.models.init import init_digests, init_parameter
from coca_train.planning.outline import outline
from coca_train.positions.schemes.coca import fold_full_mean
from coca_train.runtime.printing import markdown
from coca_train.settings import load

RECIPES = ("roformer_350m", "alibi_350m", "coca_350m", "coca_strict_350m")
T = "blocks.{}.attention.k.weight"


class Start(NamedTuple):
    """What a recipe begins with."""

    n_parameters: int
    digests: dict[str, str]  # SHA-256 of every tensor, its first 16 digits


def start(recipe: str, *overrides: str) -> Start:
    """Of the tensors of a recipe, each drawn in full."""
    config = config_of(recipe, *overrides)
    model = outline(config, ["*"])
    return Start(model.n_parameters, init_digests(model.model, config.run.seed))


def config_of(recipe: str, *overrides: str) -> Config:
    return load([f"+experiment={recipe}", *overrides]).config


def std_of_t(recipe: str, layer: int = 0, *overrides: str) -> float:
    """Of what W_T does: of the mean of its halves, whether the model takes it or the tensor has it."""
    config, name = config_of(recipe, *overrides), T.format(layer)
    shape = outline(config, ["*"]).model.get_parameter(name).shape
    weight = torch.empty(shape)
    init_parameter(name, weight, config.model, config.position, config.run.seed)
    folded = fold_full_mean(weight, config.model.n_heads) if shape[0] == config.model.d_model else weight
    return folded.double().std().item()


def by_role(digests: dict[str, str]) -> dict[str, str]:
    """One digest for all layers of a role: of theirs, in the order of the layers."""
    parts = defaultdict(list)
    for name, digest in digests.items():
        parts[".".join("<i>" if part.isdigit() else part for part in name.split("."))].append(digest)
    return {role: hashlib.sha256("".join(all_).encode()).hexdigest()[:16] for role, all_ in parts.items()}


def main() -> None:
    starts = {recipe: start(recipe) for recipe in RECIPES}
    roles = {recipe: by_role(each.digests) for recipe, each in starts.items()}
    rows = [["parameters", *(f"{each.n_parameters:,}" for each in starts.values())]]
    rows += [[role, *(roles[recipe].get(role, "–") for recipe in RECIPES)] for role in roles[RECIPES[0]]]
    rows += [["std of the effective T, layer 0", "–", "–", *(f"{std_of_t(recipe):.6f}" for recipe in RECIPES[2:])]]
    print(markdown(["role", *RECIPES], rows))


if __name__ == "__main__":
    main()
