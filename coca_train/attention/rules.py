"""Rules between the position scheme, the attention pattern and the rest of a training (in the form of
config/check.py)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import ValidationError

from coca_train.attention import PatternSettings
from coca_train.attention.layer_types import LayerType, layer_types
from coca_train.config.check import TRAINING, check_heads, check_pattern, check_scheme
from coca_train.config.messages import Problem
from coca_train.config.schema import (
    DEFAULT,
    DataConfig,
    EngineConfig,
    EvalConfig,
    LayersConfig,
    ModelConfig,
    TrainConfig,
)
from coca_train.positions import SchemeSettings
from coca_train.runtime.errors import UserError

if TYPE_CHECKING:
    from coca_train.positions.base import Position


@TRAINING.rule("attention_pattern", "position", "model")
def attention_pattern_fits(
    attention_pattern: PatternSettings, position: SchemeSettings, model: ModelConfig
) -> list[Problem]:
    """Check that the attention pattern can be combined with the scheme."""
    from coca_train.attention import patterns  # torch, which help does not wait for

    if check_heads(model) or check_scheme(model, position):
        return []  # the scheme cannot even be built
    problems = patterns.problems(attention_pattern, position, model)
    return [Problem("E-CFG-44", (key, "position.scheme"), text, fix) for key, text, fix in problems]


@TRAINING.rule("attention_pattern", "train")
def groups_fit(attention_pattern: PatternSettings, train: TrainConfig) -> list[Problem]:
    """Check that groups which are a part of the window are a part of that which is trained on."""
    window, key = getattr(attention_pattern, "window", train.seq_len), "attention_pattern.window"
    if attention_pattern.name != "s2" or getattr(attention_pattern, "group", None) or window == train.seq_len:
        return []
    text = f"groups are a quarter of a window of {window:,} tokens, and {train.seq_len:,} are trained on"
    fix = f"write {key}={train.seq_len} where train.seq_len is set, or attention_pattern.group"
    return [Problem("E-CFG-91", (key, "train.seq_len"), text, fix)]


@TRAINING.rule("layers", "position", "attention_pattern", "model")
def layers_fit(
    layers: LayersConfig, position: SchemeSettings, attention_pattern: PatternSettings, model: ModelConfig
) -> list[Problem]:
    """Check that the layer types can be combined in one model. Each by itself: config/inheritance.py."""
    issues = check_pattern(layers)
    if not layers.types:
        return issues  # all layers are alike
    settings = {} if issues else _right_types(layers, model, position, attention_pattern)
    if check_heads(model) or any(check_scheme(model, layer_type.position) for layer_type in settings.values()):
        return issues
    from coca_train.attention import patterns

    schemes = {name: patterns.outline(layer_type.position, model) for name, layer_type in settings.items()}
    issues += [_embeds(name, each) for name, each in schemes.items() if each.embeds and each.settings != position]
    if len(schemes) > 1 and any(each.memory_len for each in schemes.values()):
        text, keys = "a memory of the text before is for layers of one type", ("position.memory_len", "layers.pattern")
        issues.append(Problem("E-CFG-67", keys, text, "write position.memory_len=0"))
    if schemes and DEFAULT not in schemes and any(True for _ in patterns.outline(position, model).parameters()):
        issues.append(_untrained(position))
    return issues


@TRAINING.rule("layers", "position", "attention_pattern", "model")
def logit_scale_fits(
    layers: LayersConfig, position: SchemeSettings, attention_pattern: PatternSettings, model: ModelConfig
) -> list[Problem]:
    """Check that a logit scale reaches a softmax: in linear attention it cancels."""
    if check_heads(model) or layers_fit(layers, position, attention_pattern, model):
        return []
    from coca_train.attention import patterns

    kinds = _right_types(layers, model, position, attention_pattern)
    scaled = {name: kind for name, kind in kinds.items() if kind.logit_scale.name != "none"}
    if any(check_scheme(model, kind.position) for kind in scaled.values()):
        return []
    if not scaled or not all(patterns.outline(kind.position, model).linear for kind in scaled.values()):
        return []
    name, kind = next(iter(scaled.items()))
    own = name != DEFAULT and "name" in layers.types[name].logit_scale
    key = f"layers.types.{name}.logit_scale.name" if own else "model.logit_scale.name"
    scheme = "position.scheme" if name == DEFAULT else f"layers.types.{name}.position.scheme"
    text = f"{kind.logit_scale.name} scales the scores of a softmax, and {kind.position.scheme} has none"
    return [Problem("E-CFG-92", (key, scheme), text, f"write {key}=none, or let layers have a softmax")]


@TRAINING.rule("data", "train", "layers", "position", "attention_pattern", "model")
def placement_fits(
    data: DataConfig,
    train: TrainConfig,
    layers: LayersConfig,
    position: SchemeSettings,
    attention_pattern: PatternSettings,
    model: ModelConfig,
) -> Iterator[Problem]:
    """Check that tokens can be said to stand elsewhere: in a scheme that sees it, below a target, without windows."""
    placement, key, target = data.placement, "data.placement.name", "data.placement.target"
    if placement.name == "text" or layers_fit(layers, position, attention_pattern, model):
        return
    if placement.target is None or placement.target < train.seq_len:
        text = f"{placement.name} places the {train.seq_len} tokens of a row below a target, which is at least as long"
        fix = f"write {target}={8 * train.seq_len}, for example, or {key}=text"
        yield Problem("E-CFG-90", (target, key), text, fix)
        return
    if data.order == "stream":
        text = "rows that continue each other stand where the text says"
        yield Problem("E-CFG-90", (key, "data.order"), text, f"write data.order=shuffled, or {key}=text")
    from coca_train.attention import patterns

    if check_heads(model):
        return
    for name, kind in _right_types(layers, model, position, attention_pattern).items():
        if check_scheme(model, kind.position):
            return
        where = "position.scheme" if name == DEFAULT else f"layers.types.{name}.position.scheme"
        built, called, seen = patterns.outline(kind.position, model), kind.position.scheme, kind.attention_pattern.name
        rows = built.max_positions
        if rows is not None and rows < placement.target:
            text = f"{called} has {rows} positions, and tokens are placed below {placement.target}"
            yield Problem("E-CFG-90", (target, where), text, f"write {target}={rows} or less")
        if built.halo or built.only_documents or built.projects_distances:
            text = (
                f"{called} finds the beginning of a document by its position, and looks at positions for nothing else"
            )
            if built.projects_distances:
                text = f"{called} projects a row for each distance up to {placement.target} in every layer"
            yield Problem("E-CFG-90", (key, where), text, f"write {key}=text, or choose another scheme")
        if kind.logit_scale.name != "none":
            text = f"{kind.logit_scale.name} counts the tokens of a text, and they are placed elsewhere"
            yield Problem("E-CFG-90", ("model.logit_scale.name", key), text, f"write {key}=text")
        if name == DEFAULT and not built.sees_positions:
            text = f"{called} sees no positions, so that placing tokens changes nothing"
            yield Problem("E-CFG-90", (key, where), text, f"write {key}=text")
        whole = seen == "bidirectional" and getattr(kind.attention_pattern, "window", None) is None
        if seen != "causal" and not whole:
            pattern = "attention_pattern.name" if name == DEFAULT else f"layers.types.{name}.attention_pattern.name"
            text = f"{seen} counts distances in the text, and tokens are placed elsewhere"
            plain = _plain(name) if seen != "bidirectional" else f"{pattern.removesuffix('.name')}.window=null"
            yield Problem("E-CFG-90", (pattern, key), text, f"write {plain}, or {key}=text")


@TRAINING.rule("data", "eval", "layers", "position", "attention_pattern", "model")
def objective_fits(
    data: DataConfig,
    eval: EvalConfig,
    layers: LayersConfig,
    position: SchemeSettings,
    attention_pattern: PatternSettings,
    model: ModelConfig,
) -> Iterator[Problem]:
    """Check that a model reads in both directions where, and only where, hidden tokens are predicted."""
    if check_heads(model) or layers_fit(layers, position, attention_pattern, model):
        return
    from coca_train.attention import patterns

    types = _right_types(layers, model, position, attention_pattern)
    both = {name for name, kind in types.items() if patterns.build(kind.attention_pattern).bidirectional}
    key, masks = "data.objective.name", data.objective.name == "masked_token"
    for name in types:
        pattern = "attention_pattern.name" if name == DEFAULT else f"layers.types.{name}.attention_pattern.name"
        fix = f"write {_plain(name, 'bidirectional')}"
        if name in both and not masks:
            text = "a query sees the token that comes next, which is what it should predict"
            yield Problem("E-CFG-96", (key, pattern), text, f"write {key}=masked_token, or {_plain(name)}")
        elif name not in both and (masks or both):
            text = "hidden tokens are predicted from both sides, and a query sees one"
            yield Problem("E-CFG-96", (pattern, key), text, f"{fix}, or {key}=next_token")
        elif masks and types[name].logit_scale.name != "none":
            text = f"{types[name].logit_scale.name} counts the tokens before a query, and it sees those after it too"
            own = name != DEFAULT and "name" in layers.types[name].logit_scale
            scale = f"layers.types.{name}.logit_scale.name" if own else "model.logit_scale.name"
            yield Problem("E-CFG-96", (scale, pattern), text, f"write {scale}=none")
    if masks and eval.extrapolation.every_steps:
        text = "a probe asks for next tokens"
        probe = "eval.extrapolation.every_steps"
        yield Problem("E-CFG-96", (probe, key), text, f"write {probe}=0")


@TRAINING.rule("data", "layers", "position", "attention_pattern", "model")
def curriculum_fits(
    data: DataConfig,
    layers: LayersConfig,
    position: SchemeSettings,
    attention_pattern: PatternSettings,
    model: ModelConfig,
) -> Iterator[Problem]:
    """Check that pieces of a row, whose positions go on, are pieces to the schemes and the scores too."""
    if data.curriculum.begin is None or check_heads(model):
        return
    from coca_train.attention import patterns

    key, fix = "data.curriculum.begin", "write data.curriculum.begin=null"
    for name, kind in _right_types(layers, model, position, attention_pattern).items():
        if check_scheme(model, kind.position):
            return
        if patterns.outline(kind.position, model).halo:
            where = "position.scheme" if name == DEFAULT else f"layers.types.{name}.position.scheme"
            called = kind.position.scheme
            text = f"{called} finds the beginning of a document by its position, and pieces have others"
            yield Problem("E-CFG-95", (key, where), text, f"{fix}, or choose another scheme")
        if kind.logit_scale.name != "none":
            text = f"{kind.logit_scale.name} counts the tokens before a query, and a piece sees fewer"
            yield Problem("E-CFG-95", ("model.logit_scale.name", key), text, f"{fix}, or model.logit_scale.name=none")


@TRAINING.rule("data", "train", "layers", "position", "attention_pattern", "model")
def length_of_fits(
    data: DataConfig,
    train: TrainConfig,
    layers: LayersConfig,
    position: SchemeSettings,
    attention_pattern: PatternSettings,
    model: ModelConfig,
) -> Iterator[Problem]:
    """Check that frequencies can follow the documents of a row: a mask separates them, rows are computed one by one,
    and some layer has frequencies that follow anything."""
    if data.length_of == "row":
        return
    key, fix = "data.length_of", "write data.length_of=row"
    if not data.document_mask:
        text = "documents that see each other are one text"
        yield Problem("E-CFG-94", (key, "data.document_mask"), text, f"write data.document_mask=true, or {fix[6:]}")
    if train.micro_batch_size != 1:
        text = "rows that are computed together have the same frequencies"
        yield Problem(
            "E-CFG-94", (key, "train.micro_batch_size"), text, f"write train.micro_batch_size=1, or {fix[6:]}"
        )
    if data.placement.name != "text":
        text = f"{data.placement.name} places documents below a target, which is the length that frequencies follow"
        yield Problem("E-CFG-94", (key, "data.placement.name"), text, f"write data.placement.name=text, or {fix[6:]}")
    if check_heads(model):
        return
    types = _right_types(layers, model, position, attention_pattern).values()
    if not types or any(check_scheme(model, kind.position) for kind in types):
        return
    if not any(_follows_length(kind.position, model, train.seq_len) for kind in types):
        text = f"frequencies are the same at every length up to {train.seq_len:,} tokens"
        longer = "choose those that follow the length, such as longrope with a shorter original_seq_len"
        yield Problem("E-CFG-94", (key, "position.scheme"), text, f"{longer}, or {fix}")


def _follows_length(settings: SchemeSettings, model: ModelConfig, seq_len: int) -> bool:
    """Return whether a scheme has frequencies that are others at the length of a row than at that of a token; learned
    ones may be."""
    from coca_train.attention import patterns
    from coca_train.positions import rotary, scaling_of

    scaling, built = scaling_of(settings), patterns.outline(settings, model)
    if scaling is None or not isinstance(built, rotary.Frequencies):
        return False
    if scaling.learned:
        return True
    one, row = (scaling.spectrum(built.rotary_dim, length).inv_freq_J for length in (1, seq_len))
    return one.tolist() != row.tolist()


@TRAINING.rule("engine", "layers", "position", "attention_pattern", "model")
def heads_shared(
    engine: EngineConfig,
    layers: LayersConfig,
    position: SchemeSettings,
    attention_pattern: PatternSettings,
    model: ModelConfig,
) -> list[Problem]:
    """Refuse schemes that cannot compute some heads, or some tokens, on one rank."""
    key = "engine.sequence_parallel"
    if engine.sequence_parallel == 1 or layers_fit(layers, position, attention_pattern, model):
        return []
    if check_heads(model):
        return []
    from coca_train.attention import patterns

    issues = []
    for name, layer_type in _right_types(layers, model, position, attention_pattern).items():
        if check_scheme(model, layer_type.position):
            return []
        where = "position.scheme" if name == DEFAULT else f"layers.types.{name}.position.scheme"
        built, called = patterns.outline(layer_type.position, model), layer_type.position.scheme
        if built.mixes_heads:
            text = f"{called} mixes all heads of a pair of tokens, and each process would have some of them only"
            issues.append(Problem("E-CFG-82", (key, where), text, f"write {key}=1, or choose another scheme"))
        if patterns.build(layer_type.attention_pattern).in_training():
            pattern = "attention_pattern.name" if name == DEFAULT else f"layers.types.{name}.attention_pattern.name"
            text = f"{layer_type.attention_pattern.name} gives halves of the heads other keys, and each process has "
            text += "some of the heads"
            issues.append(Problem("E-CFG-82", (key, pattern), text, f"write {key}=1, or {pattern}=causal"))
        if built.memory_len:
            text = "the memory of the text before belongs to whole sequences, and each process has a slice"
            fix = f"write position.memory_len=0, or {key}=1"
            issues.append(Problem("E-CFG-82", (key, "position.memory_len"), text, fix))
    return issues


def _right_types(
    layers: LayersConfig, model: ModelConfig, position: SchemeSettings, attention_pattern: PatternSettings
) -> dict[str, LayerType]:
    """Return the layer types that occur; none where one is wrong by itself, which has its own message."""
    try:
        return layer_types(layers, model, position, attention_pattern)
    except (ValidationError, UserError):
        return {}


def _plain(layer_type: str, pattern: str = "causal") -> str:
    """Return the word that gives the layers of a type an attention pattern with its defaults."""
    place = "attention_pattern" if layer_type == DEFAULT else f"layers.types.{layer_type}.attention_pattern.name"
    return f"{place}={pattern}"


def _embeds(layer_type: str, scheme: "Position") -> Problem:
    name = scheme.settings.scheme
    text = f"{name} acts on the embeddings, which all layers share"
    return Problem("E-CFG-68", (f"layers.types.{layer_type}.position.scheme",), text, f"write position={name}")


def _untrained(position: SchemeSettings) -> Problem:
    text = f"no layer is {DEFAULT}, and {position.scheme} has parameters that would never be trained"
    fix = f"let layers of the pattern be {DEFAULT}, or choose position=rope"
    return Problem("E-CFG-69", ("layers.pattern", "position.scheme"), text, fix)


@TRAINING.rule("attention_pattern", "position", "layers", about="launch")
def attention_pattern_trains(
    attention_pattern: PatternSettings, position: SchemeSettings, layers: LayersConfig
) -> list[Problem]:
    """Refuse patterns that cannot be trained with; trained weights may be evaluated with any."""
    from coca_train.attention import patterns

    rules = patterns.build(attention_pattern)
    if not rules.trains and {DEFAULT}.issuperset(layers.pattern):
        text = f"{attention_pattern.name} is for evaluation only; in training it is what a shorter window does"
        fix = "write attention_pattern=causal and a smaller train.seq_len"
        return [Problem("E-CFG-45", ("attention_pattern.name",), text, fix)]
    keep = rules.keep()
    if keep is not None and keep.first and getattr(position, "memory_len", 0):
        text = f"{attention_pattern.name} looks back to the first tokens of a text, and a memory holds the last ones"
        fix = "write position.memory_len=0, or attention_pattern=causal or sliding_window"
        return [Problem("E-CFG-45", ("attention_pattern.name", "position.memory_len"), text, fix)]
    return []
