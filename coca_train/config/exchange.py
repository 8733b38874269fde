"""Settings over other settings: the one rule for files, the command line, kinds of layers, stages and variants.

What names another choice of a config group brings the values of that choice's file (`exchanged`); what names none
changes single values, and leaves all others as they are (`over`).
"""

from collections.abc import Mapping
from typing import Any

from coca_train.config.files import choices, config_dir
from coca_train.config.places import plain

# What may be exchanged on the same weights: group -> where its options stand.
GROUPS = {"visibility": "visibility", "position/frequencies": "position.frequencies"}
# What may be varied on the same weights besides: a section without files of choices.
LOGIT_SCALE = "model.logit_scale"
# Sections that are a choice, by their own name -> the option that names the choice.
NAMED = {"position": "scheme", "frequencies": "name", "visibility": "name"}


def exchanged(group: str, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the choice `name` where the section `own` stood. KeyError when there is no such choice.

    The file replaces the whole section, but for the base theta: it belongs to the weights, and stays. Only a choice
    that is not named after its module (code_llama) is there for its base, and brings it.
    """
    values = plain(choices(group, (config_dir(),))[name])
    for default in values.pop("defaults", ()):
        if default != "_self_":
            ((axis, chosen),) = default.items()
            values[axis] = exchanged(f"{group}/{axis}", chosen, own.get(axis, {}))
    keeps_theta = values.get("name") == name and "theta" in values and "theta" in own
    return values | ({"theta": own["theta"]} if keeps_theta else {})


def over(below: Any, above: Any, name: str = "", named: Mapping[str, str] = NAMED) -> Any:
    """`above` where it has a value, else `below`: sections are merged, all else is replaced.

    name: what the section is called. named: sections that are replaced too, when `above` names a choice. It is
    complete by then (parts.py:fill), and an option of the choice below would be foreign to it.
    """
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    tag = named.get(name)
    # The same scheme is no exchange: `position: {scheme: rope, frequencies: …}` changes the frequencies of a rope.
    if tag in above and not (name == "position" and above[tag] == below.get(tag)):
        return above
    merged = {key: over(below[key], part, key, named) if key in below else part for key, part in above.items()}
    return below | merged
