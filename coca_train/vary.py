"""Inference settings of trained weights: another RoPE scaling, another attention pattern, another logit scale; nothing
that decides which weights there are.

`with_inference` works on typed settings. `vary` reads the words of a command line first, `attention_pattern=sinks
attention_pattern.window=64 position/rope_scaling=yarn`, which are those of a training, as are the checks and the
messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from coca_train.attention.rules import attention_pattern_fits, layers_fit, logit_scale_fits, objective_fits
from coca_train.config.check import check_scheme
from coca_train.config.choice import SECTIONS, Selection, assemble_over
from coca_train.config.files import choices, config_dirs
from coca_train.config.inheritance import LOGIT_SCALE, part_problems, put_choice
from coca_train.config.load import resolve
from coca_train.config.messages import ConfigError, Problem
from coca_train.config.schema import Config
from coca_train.config.strict import type_sections
from coca_train.positions import scaling_of
from coca_train.runtime.trees import leaves, section
from coca_train.settings import TRAIN

ROPE_SCALINGS, ATTENTION_PATTERN = "position/rope_scaling", "attention_pattern"
VARIED = ("position", "attention_pattern", "model")  # sections with something that may be exchanged


class IncompatibleError(ConfigError):
    """Settings that are valid by themselves, and that these weights cannot have."""


def is_inference_option(word: str) -> bool:
    """Return whether a word of a command line is for `vary`: it is about attention pattern, position or logit scale."""
    key = word.partition("=")[0].lstrip("+~")
    return key.startswith(f"{LOGIT_SCALE}.") or key.replace("/", ".").split(".")[0] in ("attention_pattern", "position")


def with_inference(
    config: Config,
    *,
    rope_scaling: Selection | None = None,
    attention_pattern: Selection | None = None,
    logit_scale: Selection | None = None,
) -> Config:
    """Return the configuration of the same weights with these settings exchanged; None keeps the trained one.

    A selection replaces the whole section but for the base theta, which belongs to the weights (config/inheritance.py).
    Raises ConfigError with everything that is wrong with the selections, IncompatibleError where the weights cannot
    have them.
    """
    selected = {ROPE_SCALINGS: rope_scaling, ATTENTION_PATTERN: attention_pattern, LOGIT_SCALE: logit_scale}
    if rope_scaling is not None and not hasattr(config.position, "rope_scaling"):
        text, fix = f"{config.position.scheme} has no frequencies", f"omit {ROPE_SCALINGS}"
        raise IncompatibleError(*_in_lines([Problem("E-CFG-33", ("position.rope_scaling",), text, fix)]))
    trained: dict[str, object] = {name: asdict(getattr(config, name)) for name in VARIED}
    # The values of a file may refer to the training's: original_seq_len: ${train.seq_len}.
    tree: dict[str, object] = {**trained, "train": {"seq_len": config.train.seq_len}}
    problems: list[Problem] = []
    for group, selection in selected.items():
        if selection is None:
            continue
        if group == LOGIT_SCALE:
            section(tree, group)["name"] = selection.name
        elif selection.name in (offered := choices(group, config_dirs())):
            put_choice(tree, group, selection.name)
        else:
            text = f"there is no {group} {selection.name}; the choices are {', '.join(offered)}"
            problems.append(Problem("E-CFG-32", (SECTIONS[group],), text, f"write one of {', '.join(offered)}"))
            continue
        section(tree, SECTIONS[group]).update(selection.options)
    typed, mistyped = _type(resolve(tree)[0], dict(leaves(trained)))
    if problems := [*problems, *mistyped]:
        raise ConfigError(*_in_lines(problems))
    varied = replace(config, **typed)
    if problems := _incompatibilities(config, varied):
        raise IncompatibleError(*_in_lines(problems))
    return varied


def vary(config: Config, words: Sequence[str]) -> Config:
    """Return the configuration of the same weights with what the words of a command line exchange.

    Raises ConfigError with everything that is wrong and where it was written.
    """
    trained: dict[str, object] = {name: asdict(getattr(config, name)) for name in (*VARIED, "train")}
    a = assemble_over(TRAIN, trained, words)
    a.tree, unresolved = resolve(a.tree)
    typed, mistyped = _type(a.tree, a.examples)
    a.problems += [*unresolved, *mistyped]
    varied = replace(config, **typed)
    a.problems += [] if mistyped else _incompatibilities(config, varied)
    if a.problems:
        raise ConfigError(a.problems, a.lines())
    return varied


def _type(tree: Mapping[str, object], examples: dict[str, object]) -> tuple[dict[str, object], list[Problem]]:
    return type_sections(TRAIN, {name: tree[name] for name in VARIED}, examples)


def _incompatibilities(trained: Config, varied: Config) -> list[Problem]:
    """Return why weights cannot have other settings, each of which is valid by itself."""
    from coca_train.attention import patterns  # torch, which help does not wait for

    position, attention_pattern, model = varied.position, varied.attention_pattern, varied.model
    problems = [
        *check_scheme(model, position),
        *attention_pattern_fits(attention_pattern, position, model),
        *layers_fit(varied.layers, position, attention_pattern, model),
        *logit_scale_fits(varied.layers, position, attention_pattern, model),
    ]
    if patterns.build(attention_pattern).bidirectional != patterns.build(trained.attention_pattern).bidirectional:
        ways = ("in one direction", "in both directions")
        was, now = ways[::-1] if patterns.build(trained.attention_pattern).bidirectional else ways
        text, fix = f"the weights were trained to read {was}, and cannot read {now}", "omit it"
        problems.append(Problem("E-CFG-44", ("attention_pattern.name",), text, fix))
    problems += objective_fits(varied.data, varied.eval, varied.layers, position, trained.attention_pattern, model)
    if attention_pattern != trained.attention_pattern and patterns.build(attention_pattern).in_training():
        text, fix = f"{attention_pattern.name} is for training; elsewhere it is causal attention", "omit it"
        problems.append(Problem("E-CFG-44", ("attention_pattern.name",), text, fix))
    if varied.layers.types and not problems:  # without stages: what they differ in was right for the run
        problems = part_problems(TRAIN, replace(varied, stages={}), launch=False)
    if not problems and position != trained.position:
        from coca_train.positions.rope_scaling import exchange_problem  # torch, which messages do not wait for

        before, after = scaling_of(trained.position), scaling_of(position)
        if before and after and (text := exchange_problem(before, after)):
            place = f"command line {ROPE_SCALINGS}"
            problems = [Problem("E-CFG-33", (), text, "choose other frequencies", place)]
    return problems


def _in_lines(problems: list[Problem]) -> tuple[list[Problem], list[str]]:
    """Return the problems, and each as a line without a place: selections come from no file."""
    return problems, [
        f"{each.id} {', '.join(each.keys) or each.place}: {each.message}. Fix: {each.fix}" for each in problems
    ]
