"""Rules between options. Each gives what is wrong: the values, the rule, a fix.

A rule's parameters name the sections it needs; it runs when all of them are right by themselves. Naming the `world`
makes it one about a launch, which a saved run that is only read does not have.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from coca_train.config import sharing, sizes
from coca_train.config.files import choices, config_dir
from coca_train.config.messages import Problem
from coca_train.config.schema import (
    OWN,
    DataConfig,
    EngineConfig,
    EvalConfig,
    LayersConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    StageConfig,
    StartConfig,
    TrackingConfig,
    TrainConfig,
)
from coca_train.config.world import World, divisors

MAX_SEED = 2**63 - 1  # what torch.manual_seed takes
LONGEST_PATH, LONGEST_PART = 3500, 255  # [bytes] Linux allows 4,096 in all; below a run's folder others follow
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


Rule = Callable[..., Iterable[Problem]]


def problems(sections: dict[str, Any], launch: bool = True, *, rules: Sequence[Rule]) -> list[Problem]:
    """Everything that the rules have against the sections that are right by themselves.

    launch: also what depends on this machine and this launch (a saved run may be read anywhere).
    """
    named = {rule: inspect.signature(rule).parameters.keys() for rule in rules}
    world, wrong = _world() if launch and any("world" in names for names in named.values()) else (None, [])
    known = {**sections, **({"world": world} if world else {})}
    if not launch:
        known.pop("tracking", None)
    for rule, names in named.items():
        if names <= known.keys():
            wrong += rule(**{name: known[name] for name in names})
    return wrong


def _world() -> tuple[World | None, list[Problem]]:
    values = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    values |= {name: os.environ[name] for name in values if name in os.environ}
    text = ""
    for name, value in values.items():
        if not value.isdecimal() or (name == "WORLD_SIZE" and int(value) == 0):
            text = text or f"{name}={value!r} is not a rank or a size"
    if not text and int(values["RANK"]) >= int(values["WORLD_SIZE"]):
        text = f"RANK={values['RANK']} is not below WORLD_SIZE={values['WORLD_SIZE']}"
    if text:
        return None, [Problem("E-RUN-01", (), text, "start with torchrun, or unset them all", "environment")]
    return World(int(values["RANK"]), int(values["WORLD_SIZE"]), int(values["LOCAL_RANK"])), []


def heads(model: ModelConfig) -> list[Problem]:
    if model.head_dim is not None or model.d_model % model.n_heads == 0:
        return []
    text = f"{model.n_heads} heads do not divide a width of {model.d_model}"
    fix = f"write model.n_heads={divisors(model.d_model, model.n_heads)[0]}, or set model.head_dim"
    return [Problem("E-CFG-20", ("model.n_heads", "model.d_model"), text, fix)]


def kv_heads(model: ModelConfig) -> list[Problem]:
    if model.n_kv_heads is None or model.n_heads % model.n_kv_heads == 0:
        return []
    text = f"{model.n_heads} query heads cannot share {model.n_kv_heads} key/value heads evenly"
    fix = f"write model.n_kv_heads={divisors(model.n_heads, model.n_kv_heads)[0]}"
    return [Problem("E-CFG-21", ("model.n_kv_heads", "model.n_heads"), text, fix)]


def pattern(layers: LayersConfig) -> list[Problem]:
    wrong = []
    for name in layers.kinds:
        if name == OWN or not re.fullmatch("[a-z][a-z0-9_]*", name):
            text = f"parameters are called after kinds: small letters, digits and _, and {OWN} is taken"
            wrong.append(Problem("E-CFG-46", (f"layers.kinds.{name}",), text, "call it local or wide, for example"))
    if unknown := sorted({*layers.pattern} - {OWN, *layers.kinds}):
        text = f"there is no kind {', '.join(unknown)}; there are {', '.join([OWN, *layers.kinds])}"
        fix = f"write layers.pattern=[{OWN}], or describe layers.kinds.{unknown[0]}"
        wrong.append(Problem("E-CFG-66", ("layers.pattern",), text, fix))
    return wrong


def scheme(model: ModelConfig, position: Any) -> list[Problem]:
    rules: Callable[[ModelConfig], list[tuple[str, str, str]]] = getattr(position, "problems", lambda model: [])
    return [Problem("E-CFG-20", (key,), text, fix) for key, text, fix in rules(model)]


def _memory(position: Any, data: DataConfig) -> Iterator[Problem]:
    """Segment recurrence: the memory is the text before, which the data must be as well."""
    if getattr(position, "memory_len", 0) and data.order != "stream":
        text = "shuffled windows do not go on where the ones before ended, so a memory would hold other text"
        fix = "write data.order=stream, or position.memory_len=0"
        yield Problem("E-CFG-43", ("data.order", "position.memory_len"), text, fix)
    if getattr(position, "memory_len", 0) and data.document_mask:
        text = "the memory holds earlier documents, which document_mask hides"
        fix = "write data.document_mask=false, or position.memory_len=0"
        yield Problem("E-CFG-43", ("data.document_mask", "position.memory_len"), text, fix)


def _gpus() -> int:
    import torch  # not before a rule needs it: config errors are told within a second

    return torch.cuda.device_count()  # through NVML; no CUDA context is made


def _device(engine: EngineConfig, world: World) -> Iterator[Problem]:
    if engine.device == "cuda" and world.local_rank >= _gpus():
        text = f"process {world.local_rank} of this machine needs its own GPU; {_gpus()} are visible to torch"
        yield Problem("E-RUN-04", ("engine.device",), text, "write engine.device=cpu, or start fewer processes")
    elif engine.dtype == "fp16" and (engine.device == "cpu" or (engine.device == "auto" and _gpus() == 0)):
        keys = ("engine.dtype", "engine.device")
        yield Problem("E-CFG-27", keys, "fp16 is not for CPUs (this run has no GPU)", "write engine.dtype=bf16")


def _engine(engine: EngineConfig, world: World) -> Iterator[Problem]:
    if engine.kind == "deepspeed" and engine.zero_stage == 0 and engine.dtype != "fp32":
        wrong = "silently wrong (it starts with a phantom optimizer step)"
        text, keys = f"DeepSpeed without ZeRO computes {engine.dtype} {wrong}", ("engine.zero_stage", "engine.dtype")
        yield Problem("E-CFG-35", keys, text, "write engine.zero_stage=1, or engine.dtype=fp32")
    if engine.compile == "blocks" and engine.zero_stage == 3:
        text = "ZeRO 3 lends a layer its weights by hooks, which no graph can hold"
        fix = "write engine.compile=none, or engine.zero_stage=2"
        yield Problem("E-CFG-77", ("engine.compile", "engine.zero_stage"), text, fix)
    if engine.kind == "deepspeed" and engine.zero_stage < 2 and engine.overlap_communication:
        text = f"ZeRO {engine.zero_stage} sends gradients when all micro batches are added up, after the backward pass"
        keys = ("engine.overlap_communication", "engine.zero_stage")
        yield Problem("E-CFG-83", keys, text, "write engine.zero_stage=2, or engine.overlap_communication=null")
    if engine.kind == "local" and engine.dtype == "fp16":
        text = "the local engine scales no losses, which fp16 needs"
        yield Problem("E-CFG-42", ("engine.dtype", "engine.kind"), text, "write engine.dtype=bf16")
    if engine.kind == "local" and world.size > 1:
        text = f"the local engine is one process, and {world.size} were started"
        yield Problem("E-CFG-36", ("engine.kind",), text, "write engine=deepspeed, or start without torchrun")


def _stages(stages: dict[str, StageConfig]) -> Iterator[Problem]:
    if not stages:
        yield Problem("E-STG-01", ("stages",), "there is no stage", "choose stages=single, with no ~stages.<name>")
    yield from names("stages", stages)
    before = None
    for name, stage in stages.items():
        key = f"stages.{name}.optimizer"
        if before is None and stage.optimizer == "keep":
            text = "no stage comes before the first one, so there is nothing to keep"
            yield Problem("E-STG-02", (key,), text, f"write {key}=fresh")
        elif stage.optimizer == "keep" and before and (stage.lora.rank or before.lora.rank):
            text = "adapters begin and end with their stage, and Adam's moments of them are of no use to another"
            yield Problem("E-STG-19", (key,), text, f"write {key}=fresh")
        before = stage


def _peft(stages: dict[str, StageConfig], world: World) -> Iterator[Problem]:
    """Asks for the world because it is about launches only: a trained run is read without peft."""
    if find_spec("peft") is None:
        text = "peft is not installed, which makes the adapters; it is the extra 'lora'"
        keys = [f"stages.{name}.lora.rank" for name, stage in stages.items() if stage.lora.rank is not None]
        yield from (Problem("E-STG-18", (key,), text, "pip install peft") for key in keys)


def _rates(optim: OptimConfig) -> Iterator[Problem]:
    for key in ("min_lr", "warmup_init_lr"):
        if getattr(optim, key) > optim.lr:
            fix = f"write optim.{key}={optim.lr / 10:g}, or raise optim.lr"
            yield Problem("E-CFG-23", (f"optim.{key}", "optim.lr"), "it lies above the peak learning rate", fix)


def _sources(data: DataConfig) -> Iterator[Problem]:
    """Held-out text is not trained on, and no text is two sources."""
    first: dict[str | None, str] = {}  # path -> the option that names it first
    for name, source in data.sources.items():
        key = f"data.sources.{name}"
        if source.path in first:
            fix = f"write ~{key}, and raise the other's weight"
            yield Problem("E-CFG-30", (f"{key}.path", first[source.path]), "two sources read the same file", fix)
        first.setdefault(source.path, f"{key}.path")
    for name, source in data.sources.items():
        key = f"data.sources.{name}.valid_path"
        if source.valid_path in first:
            fix = f"write {key}=null, or give another file"
            yield Problem("E-CFG-30", (key, first[source.valid_path]), "held-out text is also trained on", fix)
    yield from names("data.sources", data.sources)


def _folder(data: DataConfig) -> Iterator[Problem]:
    """What is said of the making of data is about data that are made."""
    if data.path and data.prepare != "none":
        text = "data are made of the folder or of this Python installation, not of both"
        yield Problem("E-CFG-85", ("data.prepare", "data.path"), text, "leave data.prepare out, or data.path")
    said = {"text_field": "text", "vocab_size": None, "valid_share": None, "on_error": "stop"}
    for name, default in said.items():
        if data.path is None and getattr(data, name) != default:
            text = "nothing is made of a folder here, so it changes nothing"
            yield Problem("E-CFG-85", (f"data.{name}", "data.path"), text, "write data.path=<folder>, or leave it out")


def _packing(data: DataConfig, train: TrainConfig) -> Iterator[Problem]:
    """Packings that go with the rest of the data section."""
    windows, long, often = data.packing == "windows", "data.upsample_from_tokens", "data.upsample_factor"
    if data.order == "stream" and not windows:
        text = f"a stream is cut into windows; {data.packing} do not go on where the ones before ended"
        fix = "write data.packing=windows, or data.order=shuffled"
        yield Problem("E-CFG-60", ("data.packing", "data.order"), text, fix)
    if data.packing == "documents" and not data.document_mask:
        text = "documents that only share a window must not see each other"
        fix = "write data.document_mask=true, or data.packing=windows"
        yield Problem("E-CFG-60", ("data.packing", "data.document_mask"), text, fix)
    if data.packing == "segments" and train.seq_len < 3:
        text = "a segment is a BOS, at least one token, and an EOS"
        yield Problem("E-CFG-60", ("data.packing", "train.seq_len"), text, "write train.seq_len=3 or more")
    if windows and data.upsample_from_tokens is not None:
        text = "windows know no documents, so none can be seen more often"
        fix = f"write {long}=null, or data.packing=segments or documents"
        yield Problem("E-CFG-61", ("data.packing", long), text, fix)
    if data.upsample_from_tokens is not None and data.upsample_factor == 1:
        fix = f"write {often}=5, for example, or {long}=null"
        yield Problem("E-CFG-61", (long, often), "a factor of 1 changes nothing", fix)
    if data.upsample_from_tokens is None and data.upsample_factor > 1:
        fix = f"write {often}=1" if windows else f"write {long}=4096, for example, or {often}=1"
        yield Problem("E-CFG-61", (long, often), "no length is given to begin at", fix)


def _paths(run: RunConfig, data: DataConfig, start: StartConfig) -> list[Problem]:
    options = {"run.root": run.root, "data.dir": data.dir, "data.tokenizer": data.tokenizer}
    for name, source in data.sources.items():
        options[f"data.sources.{name}.path"] = source.path
        options |= {} if source.valid_path is None else {f"data.sources.{name}.valid_path": source.valid_path}
    given = {"start.path": start.path, "data.path": data.path}
    return paths(options | {key: path for key, path in given.items() if path is not None})


def _seeds(run: RunConfig, data: DataConfig) -> Iterator[Problem]:
    for key, seed in (("run.seed", run.seed), ("data.seed", data.seed)):
        if seed > MAX_SEED:
            yield Problem("E-CFG-05", (key,), "a seed has 63 bits at most", f"write {key}=1234")


def _tracking(tracking: TrackingConfig) -> Iterator[Problem]:
    for name, wanted in {"tensorboard": tracking.tensorboard, "wandb": tracking.wandb != "disabled"}.items():
        if wanted and find_spec(name) is None:
            text = f"{name} is not installed; it is the extra '{name}'"
            yield Problem("E-CFG-37", (f"tracking.{name}",), text, f"pip install {name}")


def _extrapolation(eval: EvalConfig) -> Iterator[Problem]:
    for key, group, example in (
        ("frequencies", "position/frequencies", "plain"),
        ("visibilities", "visibility", "sliding_window"),
    ):
        option, offered = f"eval.extrapolation.{key}", choices(group, (config_dir(),))
        for text in getattr(eval.extrapolation, key):
            name = text.partition("@")[0]  # the options behind it: settings.py, which knows the modules they are for
            if name not in offered:
                message = f"there is no {name!r}; the choices are {', '.join(offered)}"
                yield Problem("E-CFG-32", (option,), message, f"write {option}=[{example}]")


def names(section: str, mapping: dict[str, Any]) -> list[Problem]:
    """Keys of a section of named parts that cannot be part of a file name."""
    text, fix = "this name goes into file names", "use letters, digits, '.', '_', '-', at most 100"
    return [Problem("E-CFG-29", (f"{section}.{name}",), text, fix) for name in mapping if not NAME.fullmatch(name)]


def paths(options: dict[str, str]) -> list[Problem]:
    """Options (key -> value) that are no path, or one that only a shell would understand."""
    wrong = []
    for key, path in options.items():
        if not path.strip() or not path.isprintable():
            wrong.append(Problem("E-CFG-29", (key,), "this is no path", f"give a folder or file name: {key}=…"))
        elif len(os.fsencode(path)) > LONGEST_PATH or any(len(os.fsencode(p)) > LONGEST_PART for p in path.split("/")):
            text = f"{len(os.fsencode(path)):,} bytes; a path has at most {LONGEST_PATH:,}, a name in it {LONGEST_PART}"
            wrong.append(Problem("E-CFG-29", (key,), text, f"give a shorter one: {key}=…"))
        elif path.startswith("~"):
            wrong.append(Problem("E-CFG-29", (key,), "~ means nothing here", f"write {key}=$HOME{path[1:]}"))
    return wrong


# The order of messages. Rules of positions and visibilities follow these (settings.py).
RULES = (
    sizes.weights,
    sizes.window,
    sizes.evaluation,
    sizes.steps,
    sharing.batches,
    heads,
    kv_heads,
    scheme,
    sharing.slices,
    _memory,
    _device,
    _engine,
    _stages,
    _peft,
    _rates,
    _sources,
    _folder,
    _packing,
    _paths,
    _seeds,
    _tracking,
    _extrapolation,
)
