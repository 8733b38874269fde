"""Words that a command passes on to a training's configuration."""

from coca_train.config.fields import fields_of
from coca_train.settings import TRAIN


def of_training(word: str) -> bool:
    """Whether a word can be an override of a training: an option inside a section, or a group's choice."""
    key = word.partition("=")[0].lstrip("+~")
    return "." in key or "/" in key or key in {*fields_of(TRAIN.schema), *TRAIN.groups}
