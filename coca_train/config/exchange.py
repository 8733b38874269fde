"""Another choice of a config group in place of a section that is there: the one rule for runs, stages and variants."""

from collections.abc import Mapping
from typing import Any

import yaml

from coca_train.config.files import choices, config_dir

# What may be exchanged on the same weights: group -> where its options stand.
GROUPS = {"visibility": "visibility", "position/frequencies": "position.frequencies"}


def exchanged(group: str, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the choice `name` where the section `own` stood.

    The file replaces the whole section, but for the base theta: it belongs to the weights, and stays. Only a choice
    that is not named after its module (code_llama) is there for its base, and brings it. KeyError when there is no
    such choice.
    """
    values = yaml.safe_load(choices(group, (config_dir(),))[name].read_text(encoding="utf-8"))
    keeps_theta = values["name"] == name and "theta" in values and "theta" in own
    return values | ({"theta": own["theta"]} if keeps_theta else {})
