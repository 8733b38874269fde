"""Other settings on trained weights: another visibility, other frequencies, nothing that the weights depend on.

The words are those of a training, `visibility=sinks visibility.window=64 position/frequencies=yarn`, and so are
the checks and the messages.
"""

from dataclasses import asdict

from coca_train.config.exchange import GROUPS, exchanged
from coca_train.config.files import choices, config_dir
from coca_train.config.load import Assembled, load
from coca_train.config.messages import Problem
from coca_train.config.overrides import apply, parse, place, wrong
from coca_train.config.places import read, stop
from coca_train.config.schema import Config
from coca_train.runtime.trees import leaves, section
from coca_train.settings import TRAIN

HOW = "choose visibility=… or position/frequencies=…, and set options inside them"


def varies(word: str) -> bool:
    """Whether a word of a command line is for `vary`: it is about visibility or position."""
    key = word.partition("=")[0].lstrip("+~")
    return key.replace("/", ".").split(".")[0] in ("visibility", "position")


def vary(config: Config, overrides: list[str]) -> Config:
    """The configuration of trained weights with another visibility or other frequencies.

    A choice stands in place of the whole section, but for the base theta (config/exchange.py). Raises ConfigError
    with everything that is wrong.
    """
    a, dirs = Assembled(TRAIN, asdict(config)), (config_dir(),)
    parsed = parse(TRAIN, overrides, dirs)
    a.problems += parsed.problems
    for group, name in parsed.groups.items():
        a.problems += _choose(a, config, group, name)
    a.examples = dict(leaves(a.tree))
    for override in parsed.values:
        if override.key_or_group.startswith(tuple(f"{prefix}." for prefix in GROUPS.values())):
            a.problems += apply(a, override)
        else:
            text = "the weights were trained with it, so it cannot change"
            a.problems.append(wrong(override.input_line or "", text, HOW))
    varied = load(a, launch=False).config
    # After typing, because it is about parameters: frequencies that learn some (clex) leave weights without theirs.
    if varied.position != config.position:
        from coca_train.positions.frequencies import exchange_problem

        if text := exchange_problem(config.position.frequencies, varied.position.frequencies):
            raise stop(Problem("E-CFG-33", (), text, "choose other frequencies", "command line position/frequencies"))
    return varied


def _choose(a: Assembled, config: Config, group: str, name: str) -> list[Problem]:
    """Put the file of a choice in its place."""
    where = place(f"{group}={name}")
    if group not in GROUPS:
        text = "the weights were trained with their own, so it cannot change"
        return [Problem("E-CFG-16", (), text, HOW, where)]
    above, _, axis = GROUPS[group].rpartition(".")
    parent = section(a.tree, above) if above else a.tree
    if axis not in parent:
        text = f"the weights were trained with {config.position.scheme}, which has no {axis}"
        return [Problem("E-CFG-33", (), text, f"leave {group} away", where)]
    parent[axis] = exchanged(group, name, parent[axis])
    return read(choices(group, (config_dir(),))[name], GROUPS[group], a.places)
