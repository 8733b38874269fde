"""What is tried on the same weights: frequencies and visibilities as the grid names them.

A name is a choice of the config group, with options behind it: `dynamic_ntk@alpha:4`, `yarn@factor:16@convention:code`;
`own` is what the model was trained with. The base theta stays (config/vary.py).
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from coca_train.config.messages import ConfigError
from coca_train.config.schema import Config
from coca_train.evaluation.results import OWN
from coca_train.runtime.errors import UserError
from coca_train.vary import GROUPS, Variant, vary


def variants(config: Config, frequencies: Sequence[str], visibilities: Sequence[str]) -> dict[str, Variant]:
    """By the name a report shows, every frequency with every visibility; a pair that cannot be has `problem` set.

    config: of the trained weights. Raises UserError E-EVAL-02 for a name that is no choice, and ConfigError for options
    that are wrong.
    """
    found = {}
    for frequency in frequencies:
        for visibility in visibilities:
            words = [*_words("position/frequencies", frequency), *_words("visibility", visibility)]
            name = label(config, frequency, visibility)
            if frequency != OWN and getattr(config.position, "frequencies", None) is None:
                problem = f"{config.position.scheme} has no frequencies"
                found[name] = Variant(config.position, config.visibility, problem)
                continue
            found[name] = _variant(config, words)
    return found


def label(config: Config, frequency: str, visibility: str) -> str:
    """`plain`, `dynamic_ntk (alpha 4)`, `plain, sinks (window 256)`."""
    own = getattr(config.position, "frequencies", None)
    parts = [(own.name if own else "plain") if frequency == OWN else _shown(frequency)]
    if visibility != OWN:
        parts.append(_shown(visibility))
    return ", ".join(parts)


def _shown(text: str) -> str:
    name, *options = text.split("@")
    return f"{name} ({', '.join(option.replace(':', ' ') for option in options)})" if options else name


def _words(group: str, text: str) -> list[str]:
    """As words of a command line, which is where their checks are."""
    if text == OWN:
        return []
    name, *options = text.split("@")
    pairs = [option.partition(":") for option in options]
    if not all(key and colon and value for key, colon, value in pairs):
        raise UserError(
            f"E-EVAL-02 grid {text!r}: an option is written choice@option:value. Fix: e.g. dynamic_ntk@alpha:4"
        )
    return [f"{group}={name}", *(f"{GROUPS[group]}.{key}={value}" for key, _, value in pairs)]


def _variant(config: Config, words: list[str]) -> Variant:
    """Settings that cannot go with this model are a variant with a problem; wrong words are the user's error."""
    try:
        varied = vary(config, words)
    except ConfigError as error:
        if all(problem.id in IMPOSSIBLE for problem in error.problems):
            return Variant(config.position, config.visibility, "; ".join(p.message for p in error.problems))
        where = "in grid.frequencies and grid.visibilities it is written choice@option:value"
        raise ConfigError(error.problems, [f"{line} ({where})" for line in error.lines]) from None
    return Variant(varied.position, varied.visibility)


IMPOSSIBLE = ("E-CFG-33",)  # frequencies or a visibility that these weights cannot have


def described(variant: Variant) -> dict[str, Any]:
    """Everything a cell's content depends on in a variant, as plain values."""
    return {"position": asdict(variant.position), "visibility": asdict(variant.visibility)}
