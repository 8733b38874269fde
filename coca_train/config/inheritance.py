"""Inheritance between settings: stages, layer types and sources hold only what differs from the run's sections.

A part that names another choice of a config group takes the values of that choice's file (`exchange_choice`); else it
changes single values (`merge`). Parts are completed as plain values (`fill_defaults`); `stage_config` and
`part_problems` merge a part into the run's sections, and type only those that differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from typing import TYPE_CHECKING, get_args, get_origin

from pydantic_core import PydanticUndefined

from coca_train.config import sizes
from coca_train.config.fields import fields_of
from coca_train.config.files import choices, config_dirs
from coca_train.config.messages import Problem
from coca_train.config.places import note_places, read_yaml
from coca_train.config.root import Root
from coca_train.config.schema import Config, SchemeSettings, StageConfig
from coca_train.config.strict import type_sections
from coca_train.runtime.trees import leaves, lookup, section

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# What may be exchanged on the same weights: group -> the section of its options.
GROUPS = {"attention_pattern": "attention_pattern", "position/rope_scaling": "position.rope_scaling"}
# A section without files of choices that may be exchanged too.
LOGIT_SCALE = "model.logit_scale"
# Sections that are a choice, by their own name -> the option that names the choice.
NAMED = {"position": "scheme", "rope_scaling": "name", "attention_pattern": "name"}

WARMUP = "optim.warmup_steps"
# What a stage may change.
SECTIONS = ("train", "optim", "data", "position", "attention_pattern", "layers", "engine", "eval")
# What a stage cannot change, and what to do instead. A key includes everything below it.
FIXED = {
    "train.max_steps": "write the stage's own max_steps or tokens",
    "data.tokenizer": "a model has one vocabulary: set data.tokenizer for the whole run",
    "position.scheme": "convert the weights first, schemes differ in parameters: python -m coca_train import",
    "engine.kind": "set it for the whole run",
    "engine.device": "set it for the whole run",
    "engine.dtype": "a run keeps its precision: set it for the whole run",
    "engine.timeout_s": "set it for the whole run",
}


def exchange_choice(group: str, name: str, own: Mapping[str, object]) -> dict[str, object]:
    """Return the values of the choice `name` in place of the section `own`. KeyError when there is no such choice.

    The file replaces the whole section except the base theta, which belongs to the weights; a choice that is not named
    after its module (code_llama) exists for its base, and sets it.
    """
    values = read_yaml(choices(group, config_dirs())[name])
    defaults = values.pop("defaults", [])
    for default in defaults if isinstance(defaults, list) else ():
        if default != "_self_":
            ((axis, chosen),) = default.items()
            values[axis] = exchange_choice(f"{group}/{axis}", chosen, section(own, axis))
    keeps_theta = values.get("name") == name and "theta" in values and "theta" in own
    return values | ({"theta": own["theta"]} if keeps_theta else {})


def put_choice(tree: dict[str, object], group: str, name: str) -> None:
    """Put the choice `name` of one of GROUPS in place of its section. KeyError when there is no such choice."""
    above, _, axis = GROUPS[group].rpartition(".")
    parent = section(tree, above) if above else tree
    parent[axis] = exchange_choice(group, name, section(parent, axis))


def merge(
    below: Mapping[str, object], above: Mapping[str, object], name: str = "", named: Mapping[str, str] = NAMED
) -> dict[str, object]:
    """Merge sections: `above` where it has a value, else `below`. Sections in them are merged, all else is replaced.

    name: of the section. named: sections that are replaced as a whole where `above` names a choice, which is complete.
    """
    tag = named.get(name, "")
    # The same scheme is no exchange: `position: {scheme: rope, rope_scaling: …}` changes the scaling of a rope.
    if tag and tag in above and not (name == "position" and above[tag] == below.get(tag)):
        return dict(above)
    merged = dict(below)
    for key, part in above.items():
        old = below.get(key)
        merged[key] = merge(old, part, key, named) if isinstance(old, dict) and isinstance(part, dict) else part
    return merged


def fill_defaults(root: Root, tree: dict[str, object], places: dict[str, str]) -> None:
    """Fill in missing values of every section and part of `tree`, and note their places.

    Defaults of the schema first, then the files of the choices that stages and layer types name. Mistakes stay as
    they are: typing reports them.
    """
    _fill_section(root, root.schema, tree, "", places)
    if root.schema is Config:  # a stage may name a choice, a layer type too
        run = {key: section(tree, key) for key in ("position", "attention_pattern")}
        kinds, stages = section(tree, "layers.types"), section(tree, "stages")
        for name, kind in kinds.items():
            _fill_choices(f"layers.types.{name}", kind, run, places)
        for stage_name, stage in stages.items():
            _fill_choices(f"stages.{stage_name}", stage, run, places)
            for name, kind in section(stage, "layers.types").items():
                base = {key: merge(part, section(kinds, f"{name}.{key}"), key) for key, part in run.items()}
                _fill_choices(f"stages.{stage_name}.layers.types.{name}", kind, base, places)


def _fill_section(root: Root, schema: type, tree: dict[str, object], prefix: str, places: dict[str, str]) -> None:
    for name, field in fields_of(schema).items():
        key, has_parts = f"{prefix}{name}", get_origin(field.annotation) is dict
        kind = get_args(field.annotation)[1] if has_parts else field.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            own = tree.setdefault(name, {})
            for part, inside in (own if isinstance(own, dict) and has_parts else {"": own}).items():
                if isinstance(inside, dict):
                    _fill_section(root, kind, inside, f"{key}.{part}." if has_parts else f"{key}.", places)
        elif name not in tree:
            default = field.get_default(call_default_factory=True)
            if default is not PydanticUndefined:
                tree[name] = list(default) if isinstance(default, tuple) else default
                places.setdefault(key, "default")
            elif not root.groups:  # no file can have it
                tree[name] = "???"
    for name in [name for name in fields_of(schema) if name in tree]:  # in the order of the schema, for people
        tree[name] = tree.pop(name)


def _fill_choices(where: str, part: object, base: Mapping[str, object], places: dict[str, str]) -> None:
    """Complete a part that names another choice than its base from that choice's file."""
    run_scheme, scheme = section(base, "position").get("scheme"), section(part, "position").get("scheme")
    other_scheme = scheme not in (None, run_scheme)
    # A whole position before its frequencies: its file brings some, and naming others exchanges those.
    for group, key in {"position": "position", **GROUPS}.items():
        chosen, tag = section(part, key), NAMED[key.rpartition(".")[2]]
        if tag not in chosen or (group == "position" and not other_scheme):
            continue
        name = str(chosen[tag])
        if (path := choices(group, config_dirs()).get(name)) is not None:
            # Another scheme has weights of its own, and a theta of its own: the run's is kept for the run's scheme.
            values = exchange_choice(group, name, {} if other_scheme else section(base, key))
            chosen |= merge(values, chosen)
            in_file: dict[str, str] = {}
            note_places(path, f"{where}.{key}", in_file)
            places.update(in_file | places)  # a place that is known is nearer to the value


def stage_config(root: Root, config: Config, name: str) -> tuple[Config, list[Problem]]:
    """Return a run's configuration in one of its stages, and what is wrong with the sections that differ.

    train.max_steps is the length of the stage [optimizer steps]; tokens are rounded up to whole steps.
    """
    stage, problems = config.stages[name], []
    if changes := _changes(stage):
        complete = merge({key: asdict(getattr(config, key)) for key in changes}, changes)
        sources = section(complete, "data.sources")
        for source in [source for source, part in sources.items() if part is None]:
            del sources[source]
        typed, problems = type_sections(root, complete, _examples(config))
        config = replace(config, **typed)
    train, steps = config.train, stage.max_steps or config.train.max_steps
    if stage.tokens is not None:
        steps = -(-stage.tokens // (train.seq_len * train.global_batch_size))
    return replace(config, train=replace(train, max_steps=steps)), problems


def part_problems(root: Root, config: Config, launch: bool) -> list[Problem]:
    """Return what is wrong in the stages and layer types of a run whose own sections are right."""
    if problems := [each for name in config.layers.types for each in _kind_problems(root, config, name)]:
        return problems
    if problems := _unknown_sources(config):
        return problems
    for name, stage in config.stages.items():
        if stage.max_steps is not None and stage.tokens is not None:
            keys = (f"stages.{name}.max_steps", f"stages.{name}.tokens")
            problems.append(Problem("E-STG-03", keys, "both say how long the stage is", "omit one of them"))
        changes = _changes(stage)
        if changes:
            text = "a stage cannot change this"
            fixed = [key for key in FIXED if _within(key, changes)]
            refused = [Problem("E-STG-04", (f"stages.{name}.{key}",), text, FIXED[key]) for key in fixed]
            refused += [] if refused else _no_rope_scaling(changes, config.position, f"stages.{name}")
            if refused:
                problems += refused
                continue
        complete, wrong = stage_config(root, config, name)
        # Rules see what is right by itself; of a section that is wrong `complete` has the run's.
        right = vars(complete).keys() - {problem.keys[0].partition(".")[0] for problem in wrong} - {"stages"}
        if changes:
            wrong += root.check({key: getattr(complete, key) for key in right}, launch)
            kinds = complete.layers.types if not wrong else ()
            wrong += [each for kind in kinds for each in _kind_problems(root, complete, kind)]
        # Not among the rules of the run: its length is that of its stages.
        if {"train", "optim"} <= right:
            wrong += sizes.check_schedule(complete.train, complete.optim)
        words = f"in stage {name}: " if len(config.stages) > 1 else ""
        length = "tokens" if stage.tokens is not None else "max_steps"
        names = {"train.max_steps": f"stages.{name}.{length}"} if getattr(stage, length) is not None else {}
        problems += [_of_part(each, changes, asdict(config), f"stages.{name}", words, names) for each in wrong]
    return problems


def _unknown_sources(config: Config) -> list[Problem]:
    """Report sources that stages weigh and the run's data lacks: one problem for all, not three for each."""
    known, unknown = config.data.sources, {}
    for name, stage in config.stages.items():
        for source, part in section(_changes(stage), "data.sources").items():
            if isinstance(part, dict) and part and "path" not in part and source not in known:
                unknown.setdefault(source, f"stages.{name}.data.sources.{source}.{next(iter(part))}")
    if not unknown:
        return []
    one = f"a source {next(iter(unknown))}" if len(unknown) == 1 else f"sources {', '.join(unknown)}"
    text = f"stages have {one}, the data of this run has {', '.join(known)}"
    keys = (next(iter(unknown.values())), "data.sources")
    return [Problem("E-STG-05", keys, text, "choose the data that has them: data=…")]


def _kind_problems(root: Root, config: Config, name: str) -> list[Problem]:
    """Return what is wrong in the layers of a kind. Rules about a launch are checked for the run as a whole."""
    kind = config.layers.types[name]
    changes = {
        "position": kind.position,
        "attention_pattern": kind.attention_pattern,
        "model": {"logit_scale": kind.logit_scale},
    }
    run = {key: asdict(getattr(config, key)) for key in changes}
    if problems := _no_rope_scaling(changes, config.position, f"layers.types.{name}"):
        return problems
    typed, problems = type_sections(root, merge(run, changes), _examples(config))
    problems = problems or root.check(typed, False)
    words = f"in layers of type {name}: "
    return [_of_part(each, changes, run, f"layers.types.{name}", words, {}) for each in problems]


def _no_rope_scaling(part: Mapping[str, object], position: SchemeSettings, place: str) -> list[Problem]:
    """Report frequencies of a part whose scheme has none, as one problem instead of one for each option.

    position: of the run. place: of the part."""
    own = section(part, "position")
    if "rope_scaling" not in own or "scheme" in own or hasattr(position, "rope_scaling"):
        return []
    key = f"{place}.position.rope_scaling"
    keys, text = (
        (key, "position.scheme"),
        f"{position.scheme} rotates nothing, so it has no RoPE scaling to exchange here",
    )
    return [Problem("E-CFG-33", keys, text, f"choose position=rope, or write ~{key}")]


def _of_part(problem: Problem, part: object, run: object, place: str, words: str, names: dict[str, str]) -> Problem:
    """Return a problem of merged sections in terms of the part's own keys.

    run: the sections below the part. place: key of the part. words: which part it is. names: of keys with another name
    in it.
    """
    keys, fix = [], problem.fix
    for key in problem.keys:
        parent = key.rpartition(".")[0]  # of a key that is missing in what only the part has
        own = _within(key, part) or (_within(parent, part) and not _within(parent, run))
        keys.append(names.get(key) or (f"{place}.{key.removeprefix('model.')}" if own else key))
        fix = fix.replace(f"{key}=", f"{keys[-1]}=")
    return replace(problem, keys=tuple(keys), message=f"{words}{problem.message}", fix=fix)


def _within(key: str, tree: object) -> bool:
    try:
        lookup(tree, key)
    except KeyError:
        return False
    return True


def _changes(stage: StageConfig) -> dict[str, dict[str, object]]:
    """Return the sections in which a stage differs from the run, as plain values."""
    return {key: part for key in SECTIONS if (part := getattr(stage, key))}


def _examples(config: Config) -> dict[str, object]:
    """Return valid values, to show in messages."""
    return {key: value for key, value in leaves(asdict(config)) if not key.startswith(("stages.", "layers."))}


def scale_warmups(
    tree: dict[str, object], places: dict[str, str], values: Sequence["Override"], typed: dict[str, object]
) -> list[str]:
    """Scale the warm-ups of stages that the command line shortens and whose warm-up it does not set; return a note.

    A longer training keeps its warm-up, so that a run that continues does not warm up again.

    values: of the command line, parsed. typed: the tree with them, resolved.
    """
    words = {key for each in values for key, _ in leaves(each.value(), each.key_or_group)}
    stages = [name for name in section(tree, "stages") if name in section(typed, "stages")]
    keys = {name: f"stages.{name}.{WARMUP}" for name in stages}
    keys = {name: key if _whole(typed, key) is not None else WARMUP for name, key in keys.items()}
    before, scaled, lengths = {}, {}, {}
    for name, key in keys.items():
        steps, was, now = _whole(typed, key), _length(tree, name), _length(typed, name)
        if steps is not None and was is not None and now is not None:
            shorter = 0 < now < was and key not in words
            before[name], scaled[name] = steps, min(round(steps * now / was), now - 1) if shorter else steps
            lengths[name] = f"{now:,} steps, not {was:,}"
    # Stages without a warm-up of their own share the run's; where they differ now, each gets its own.
    of_run = {steps for name, steps in scaled.items() if keys[name] == WARMUP}
    changes: dict[str, str] = {}
    for name in (name for name in scaled if scaled[name] != before[name]):
        key = keys[name] if keys[name] != WARMUP or len(of_run) == 1 else f"stages.{name}.{WARMUP}"
        *above, option = key.split(".")
        node: object = tree
        for part in above:
            node = node.setdefault(part, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node[option] = scaled[name]
        places[key] = "as train.max_steps"
        changes[key] = f"{key}={scaled[name]}, not {before[name]} ({lengths[name]})"
    listed = "; ".join(changes.values())
    return [f"schedule  shortened, and its warm-up with it: {listed}"] if changes else []


def _length(tree: object, stage: str) -> int | None:
    """Return the steps of a stage; None where it is counted in tokens, or is wrong."""
    own = section(tree, f"stages.{stage}")
    if own.get("tokens") is not None:
        return None
    return _whole(tree, f"stages.{stage}.max_steps" if own.get("max_steps") is not None else "train.max_steps")


def _whole(tree: object, key: str) -> int | None:
    try:
        value = lookup(tree, key)
    except KeyError:
        return None
    return value if type(value) is int else None
