"""What is tried on the same weights: frequencies, attention patterns and logit scales as the grid names them.

A name is a choice of the config group, with options after it: `dynamic_ntk@alpha:4`, `yarn@factor:16@convention:code`;
`trained` is what the weights were trained with. The base theta stays (config/inheritance.py).
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import NamedTuple

from coca_train.attention import PatternSettings
from coca_train.config.choice import EXAMPLES, SPELLING, Selection
from coca_train.config.messages import ConfigError
from coca_train.config.schema import Config, LogitScaleConfig
from coca_train.models.transformer import Transformer
from coca_train.positions import SchemeSettings
from coca_train.runtime.errors import UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.vary import IncompatibleError, with_inference

AS_TRAINED = "trained"  # how a grid names what the weights were trained with


class Variant(NamedTuple):
    """Settings to be put on trained weights. problem: why they cannot be, in words; empty: they can.

    logit_scale: None, as the weights were trained.
    """

    position: SchemeSettings
    attention_pattern: PatternSettings
    problem: str = ""
    logit_scale: LogitScaleConfig | None = None

    def apply_to(self, model: Transformer) -> None:
        """Exchange what differs of frequencies, attention pattern and logit scale on the same weights."""
        if model.position.settings != self.position:
            model.set_position(self.position)
        if model.attention_pattern.settings != self.attention_pattern:
            model.set_attention_pattern(self.attention_pattern)
        model.set_logit_scale(self.logit_scale)


class Choice(NamedTuple):
    """What to try, as the grid names it."""

    rope_scaling: str = AS_TRAINED
    attention_pattern: str = AS_TRAINED
    logit_scale: str = AS_TRAINED


def variants(config: Config, tried: Iterable[Choice]) -> dict[str, Variant]:
    """Return by the name a report shows; what cannot be has `problem` set.

    config: of the trained weights. Raises UserError E-EVAL-02 for a text that is spelled otherwise, and ConfigError for
    choices that are not there and options that are wrong.
    """
    return {label(config, choice): _variant(config, choice) for choice in tried}


def after_training(config: Config) -> list[Choice]:
    """Return what a training tries on its own weights: as they were trained, then every choice of
    `eval.extrapolation.rope_scalings` with the trained attention pattern, then every one of `attention_patterns` with
    the trained frequencies. What they were trained with comes once; a scheme without frequencies has no others."""
    options, own = config.eval.extrapolation, getattr(config.position, "rope_scaling", None)
    rope_scalings = [name for name in options.rope_scalings if own is not None and name != own.name]
    attention_patterns = [name for name in options.attention_patterns if name != config.attention_pattern.name]
    return [
        Choice(),
        *(Choice(name) for name in rope_scalings),
        *(Choice(AS_TRAINED, name) for name in attention_patterns),
    ]


def label(config: Config, choice: Choice) -> str:
    """Label a choice: `plain`, `dynamic_ntk (alpha 4)`, `plain, sinks (window 256)`, `plain, logit scale log`."""
    own = getattr(config.position, "rope_scaling", None)
    parts = [(own.name if own else "plain") if choice.rope_scaling == AS_TRAINED else _readable(choice.rope_scaling)]
    if choice.attention_pattern != AS_TRAINED:
        parts.append(_readable(choice.attention_pattern))
    if choice.logit_scale != AS_TRAINED:
        parts.append(f"logit scale {_readable(choice.logit_scale)}")
    return ", ".join(parts)


def _readable(text: str) -> str:
    name, *options = text.split("@")
    return f"{name} ({', '.join(option.replace(':', ' ') for option in options)})" if options else name


def _variant(config: Config, choice: Choice) -> Variant:
    """Type a choice. Settings that cannot go with this model are a variant with a problem; wrong words are the user's
    error."""
    if choice == Choice():
        return Variant(config.position, config.attention_pattern)
    rope_scaling, attention_pattern, logit_scale = map(_selection, EXAMPLES, choice)
    try:
        varied = with_inference(
            config, rope_scaling=rope_scaling, attention_pattern=attention_pattern, logit_scale=logit_scale
        )
    except IncompatibleError as error:
        return Variant(config.position, config.attention_pattern, "; ".join(each.message for each in error.problems))
    except ConfigError as error:
        where = f"in grid.rope_scalings, attention_patterns and logit_scales {SPELLING}"
        raise ConfigError(error.problems, [f"{line} ({where})" for line in error.lines]) from None
    scale = None if logit_scale is None else varied.model.logit_scale
    return Variant(varied.position, varied.attention_pattern, logit_scale=scale)


def _selection(group: str, text: str) -> Selection | None:
    try:
        return None if text == AS_TRAINED else Selection.parse(text)
    except ValueError as error:
        raise UserError(f"E-EVAL-02 grid {text!r}: {error}. Fix: e.g. {EXAMPLES[group]}") from None


def described(variant: Variant) -> JsonObject:
    """Return everything a cell's content depends on in a variant, as plain values."""
    content = {"position": asdict(variant.position), "attention_pattern": asdict(variant.attention_pattern)}
    return content | ({"logit_scale": asdict(variant.logit_scale)} if variant.logit_scale else {})
