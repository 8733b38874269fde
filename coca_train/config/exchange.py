"""Settings put over settings that are there: the one rule for runs, kinds of layers, stages and variants.

What names another choice of a config group brings the values of that choice's file (`exchanged`); what names none
changes single values, and leaves all others as they are (`over`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from coca_train.config.files import choices, config_dir
from coca_train.config.provenance import Sources, read
from coca_train.runtime.trees import lookup

# What may be exchanged on the same weights: group -> where its options stand.
GROUPS = {"visibility": "visibility", "position/frequencies": "position.frequencies"}
# Sections that are a choice, by their own name -> the option that names the choice.
NAMED = {"position": "scheme", "frequencies": "name", "visibility": "name"}


def exchanged(group: str, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the choice `name` where the section `own` stood.

    The file replaces the whole section, but for the base theta: it belongs to the weights, and stays. Only a choice
    that is not named after its module (code_llama) is there for its base, and brings it. KeyError when there is no
    such choice.
    """
    values = yaml.safe_load(choices(group, (config_dir(),))[name].read_text(encoding="utf-8"))
    for default in values.pop("defaults", ()):
        if default != "_self_":
            ((axis, chosen),) = default.items()
            values[axis] = exchanged(f"{group}/{axis}", chosen, own.get(axis, {}))
    keeps_theta = values.get("name") == name and "theta" in values and "theta" in own
    return values | ({"theta": own["theta"]} if keeps_theta else {})


def over(below: Any, above: Any, name: str = "") -> Any:
    """`above` where it says something, else `below`: sections are merged, all else is replaced. So is a section in
    which `above` names its choice: it is complete then, by `fill_choices`. name: what the section is called."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    tag = NAMED.get(name)
    if tag in above and not (name == "position" and above[tag] == below.get(tag)):
        return above
    return below | {key: over(below[key], part, key) if key in below else part for key, part in above.items()}


def fill_choices(tree: dict[str, Any], sources: Sources) -> None:
    """Where a stage or a kind of layer names another choice, give it what it leaves out of that choice's file."""
    for where, part, base in _parts(tree):
        for group, key in (("position", "position"), *((group, key) for group, key in GROUPS.items())):
            try:
                said, named = lookup(part, key), NAMED[key.rpartition(".")[2]]
                if group == "position" and said[named] == base["position"]["scheme"]:
                    continue  # it stays
                foreign = said_scheme(part) not in (None, base["position"]["scheme"])
                values = exchanged(group, said[named], {} if foreign else lookup(base, key))
            except (KeyError, TypeError, AttributeError):
                continue  # nothing is named, or typing will say that it does not exist
            said |= over(values, said)
            places = Sources()
            read(choices(group, (config_dir(),))[said[named]], f"{where}.{key}", places)
            sources.files = places.files | sources.files


def said_scheme(part: Any) -> Any:
    """The position scheme that a stage or a kind names; None: that of the run."""
    return part.get("position", {}).get("scheme")


def _parts(tree: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(where it stands, a part that says what is different, the sections from which it differs)."""
    kinds = _mapping(_mapping(tree, "layers"), "kinds")
    yield from ((f"layers.kinds.{name}", kind, tree) for name, kind in kinds.items())
    for stage_name, stage in _mapping(tree, "stages").items():
        yield f"stages.{stage_name}", stage, tree
        for name, kind in _mapping(_mapping(stage, "layers"), "kinds").items():
            base = {key: over(tree[key], _mapping(kinds, name).get(key, {}), key) for key in ("position", "visibility")}
            yield f"stages.{stage_name}.layers.kinds.{name}", kind, base


def _mapping(tree: Any, key: str) -> dict[str, Any]:
    """A section, empty where it is none: typing will say so."""
    found = tree.get(key) if isinstance(tree, dict) else None
    return found if isinstance(found, dict) else {}
