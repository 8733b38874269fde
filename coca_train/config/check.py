"""Rules between options. Each returns what is wrong: the values, the rule, a fix.

A rule's parameters name the sections it needs; it runs when all of them are right by themselves.
"""

import inspect
import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from coca_train.config.check_data import memory, names, packing, paths, sources
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

MAX_SEED = 2**63 - 1  # what torch.manual_seed takes


class World(NamedTuple):
    """The processes of this launch, as the launcher's environment tells."""

    rank: int
    size: int
    local_rank: int


Rule = Callable[..., list[Problem]]


def problems(sections: dict[str, Any], launch: bool = True, *, rules: Sequence[Rule]) -> list[Problem]:
    """Everything the rules find in the sections that are right by themselves.

    launch: also what depends on this machine and this launch (a saved run may be read anywhere).
    """
    world, found = _world() if launch else (None, [])
    known = {**sections, **({"world": world} if world else {})}
    if not launch:
        known.pop("tracking", None)
    for rule in rules:
        wanted = list(inspect.signature(rule).parameters)
        if all(name in known for name in wanted):
            found += rule(**{name: known[name] for name in wanted})
    return found


def _world() -> tuple[World | None, list[Problem]]:
    values = {}
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        text = os.environ.get(name, default)
        if not text.isdecimal() or (name == "WORLD_SIZE" and int(text) == 0):
            problem = f"{name}={text!r} is not a rank or a size"
            return None, [Problem("E-RUN-01", (), problem, "start with torchrun, or unset it", "environment")]
        values[name] = int(text)
    world = World(values["RANK"], values["WORLD_SIZE"], values["LOCAL_RANK"])
    if world.rank < world.size:
        return world, []
    problem = f"RANK={world.rank} is not below WORLD_SIZE={world.size}"
    return None, [Problem("E-RUN-01", (), problem, "start with torchrun, or unset both", "environment")]


def _batch(train: TrainConfig, world: World) -> list[Problem]:
    whole, micro = train.global_batch_size, train.micro_batch_size
    unit = micro * world.size
    if whole % unit == 0:
        return []
    below, above = max(whole // unit, 1) * unit, (whole // unit + 1) * unit
    legal = [(size, micro) for size in list(dict.fromkeys((below, above, above + unit)))[:2]]
    divisors = [m for m in range(1, whole // world.size + 1) if whole % (m * world.size) == 0]
    legal += [(whole, m) for m in sorted(divisors, key=lambda m: abs(m - micro))[: 3 - len(legal)]]
    sets = ", ".join(f"{size} with {m}" for size, m in legal)
    text = f"{whole} sequences are not a multiple of {micro} per device x {world.size} devices = {unit}"
    keys = ("train.global_batch_size", "train.micro_batch_size")
    return [Problem("E-CFG-19", keys, text, f"nearest legal (global with micro): {sets}")]


def heads(model: ModelConfig) -> list[Problem]:
    if model.head_dim is not None or model.d_model % model.n_heads == 0:
        return []
    divisors = [n for n in range(1, model.d_model + 1) if model.d_model % n == 0]
    best = min(divisors, key=lambda n: abs(n - model.n_heads))
    text = f"{model.n_heads} heads do not divide a width of {model.d_model}"
    return [
        Problem(
            "E-CFG-20", ("model.n_heads", "model.d_model"), text, f"write model.n_heads={best}, or set model.head_dim"
        )
    ]


def kv_heads(model: ModelConfig) -> list[Problem]:
    if model.n_kv_heads is None or model.n_heads % model.n_kv_heads == 0:
        return []
    divisors = [n for n in range(1, model.n_heads + 1) if model.n_heads % n == 0]
    best = min(divisors, key=lambda n: abs(n - (model.n_kv_heads or 1)))
    text = f"{model.n_heads} query heads cannot share {model.n_kv_heads} key/value heads evenly"
    return [Problem("E-CFG-21", ("model.n_kv_heads", "model.n_heads"), text, f"write model.n_kv_heads={best}")]


def pattern(layers: LayersConfig) -> list[Problem]:
    found = []
    for name in layers.kinds:
        if name == OWN or not re.fullmatch("[a-z][a-z0-9_]*", name):
            rule = f"parameters are called after kinds: small letters, digits and _, and {OWN} is taken"
            found.append(Problem("E-CFG-46", (f"layers.kinds.{name}",), rule, "call it local or wide, for example"))
    if unknown := sorted({*layers.pattern} - {OWN, *layers.kinds}):
        text = f"there is no kind {', '.join(unknown)}; there are {', '.join([OWN, *layers.kinds])}"
        fix = f"describe layers.kinds.{unknown[0]}, or write layers.pattern=[{OWN}]"
        found.append(Problem("E-CFG-46", ("layers.pattern",), text, fix))
    return found


def scheme(model: ModelConfig, position: Any) -> list[Problem]:
    rules: Callable[[ModelConfig], list[tuple[str, str, str]]] = getattr(position, "problems", lambda model: [])
    return [Problem("E-CFG-20", (key,), text, fix) for key, text, fix in rules(model)]


def _gpus() -> int:
    import torch  # not before a rule needs it: config errors are told within a second

    return torch.cuda.device_count()  # through NVML; no CUDA context is made


def _device(engine: EngineConfig, world: World) -> list[Problem]:
    if engine.device == "cuda" and world.local_rank >= _gpus():
        text = f"process {world.local_rank} of this machine needs its own GPU; {_gpus()} are visible to torch"
        return [Problem("E-RUN-04", ("engine.device",), text, "write engine.device=cpu, or start fewer processes")]
    if engine.dtype == "fp16" and (engine.device == "cpu" or (engine.device == "auto" and _gpus() == 0)):
        keys = ("engine.dtype", "engine.device")
        return [Problem("E-CFG-27", keys, "fp16 is not for CPUs (this run has no GPU)", "write engine.dtype=bf16")]
    return []


def _engine(engine: EngineConfig, world: World) -> list[Problem]:
    found = []
    if engine.kind == "deepspeed" and engine.zero_stage == 0 and engine.dtype != "fp32":
        text = (
            f"DeepSpeed without ZeRO computes {engine.dtype} silently wrong (it starts with a phantom optimizer step)"
        )
        fix = "write engine.zero_stage=1, or engine.dtype=fp32"
        found.append(Problem("E-CFG-35", ("engine.zero_stage", "engine.dtype"), text, fix))
    if engine.kind == "local" and engine.dtype == "fp16":
        text = "the local engine scales no losses, which fp16 needs"
        found.append(Problem("E-CFG-42", ("engine.dtype", "engine.kind"), text, "write engine.dtype=bf16"))
    if engine.kind == "local" and world.size > 1:
        text = f"the local engine is one process, and {world.size} were started"
        found.append(Problem("E-CFG-36", ("engine.kind",), text, "write engine=deepspeed, or start without torchrun"))
    return found


def _stages(stages: dict[str, StageConfig]) -> list[Problem]:
    if not stages:
        return [Problem("E-STG-01", ("stages",), "there is no stage", "choose stages=single")]
    found, first = names("stages", stages), next(iter(stages))
    if stages[first].optimizer == "keep":
        text = "no stage comes before the first one, so there is nothing to keep"
        found.append(Problem("E-STG-02", (f"stages.{first}.optimizer",), text, "write optimizer: fresh"))
    for before, (name, stage) in zip([None, *stages.values()], stages.items(), strict=False):
        key = f"stages.{name}.optimizer"
        adapted = stage.lora.rank is not None or (before is not None and before.lora.rank is not None)
        if stage.optimizer == "keep" and adapted and name != first:
            text = "adapters begin and end with their stage, and Adam's moments of them are of no use to another"
            found.append(Problem("E-STG-19", (key,), text, f"write {key}=fresh"))
    return found


def _peft(stages: dict[str, StageConfig], world: World) -> list[Problem]:
    """Asks for the world because it is about launches only: a trained run is read without peft."""
    if find_spec("peft") is not None:
        return []
    text = "peft is not installed, which makes the adapters; it is the extra 'lora'"
    keys = [f"stages.{name}.lora.rank" for name, stage in stages.items() if stage.lora.rank is not None]
    return [Problem("E-STG-18", (key,), text, "pip install peft") for key in keys]


def warm_up(train: TrainConfig, optim: OptimConfig) -> list[Problem]:
    """Of a stage: train.max_steps is its length."""
    if optim.warmup_steps < train.max_steps:
        return []
    text = f"a warm-up of {optim.warmup_steps} steps does not fit into {train.max_steps}"
    fix = f"write optim.warmup_steps={train.max_steps // 10}"
    return [Problem("E-CFG-23", ("optim.warmup_steps", "train.max_steps"), text, fix)]


def _rates(optim: OptimConfig) -> list[Problem]:
    found = []
    for key in ("min_lr", "warmup_init_lr"):
        if getattr(optim, key) > optim.lr:
            fix = f"write optim.{key}={optim.lr / 10:g}, or raise optim.lr"
            found.append(Problem("E-CFG-23", (f"optim.{key}", "optim.lr"), "it lies above the peak learning rate", fix))
    return found


def _paths(run: RunConfig, data: DataConfig, start: StartConfig) -> list[Problem]:
    given = {"run.root": run.root, "data.dir": data.dir, "data.tokenizer": data.tokenizer}
    return paths(given | ({"start.path": start.path} if start.path is not None else {}))


def _seeds(run: RunConfig, data: DataConfig) -> list[Problem]:
    seeds = (("run.seed", run.seed), ("data.seed", data.seed))
    return [
        Problem("E-CFG-05", (key,), "a seed has 63 bits at most", f"write {key}=1234")
        for key, seed in seeds
        if seed > MAX_SEED
    ]


def _tracking(tracking: TrackingConfig) -> list[Problem]:
    wanted = {"tensorboard": tracking.tensorboard, "wandb": tracking.wandb != "disabled"}
    return [
        Problem("E-CFG-37", (f"tracking.{name}",), f"{name} is not installed", f"pip install {name}")
        for name, needed in wanted.items()
        if needed and find_spec(name) is None
    ]


def _extrapolation(eval: EvalConfig) -> list[Problem]:
    found = []
    for key, group, example in (
        ("frequencies", "position/frequencies", "[plain]"),
        ("visibilities", "visibility", "[sliding_window]"),
    ):
        offered = choices(group, (config_dir(),))
        text, fix = f"the choices are {', '.join(offered)}", f"write eval.extrapolation.{key}={example}"
        for name in getattr(eval.extrapolation, key):
            if name not in offered:
                what = f"there is no {name!r}; {text}"
                found.append(Problem("E-CFG-32", (f"eval.extrapolation.{key}",), what, fix))
    return found


RULES = (
    _batch,
    heads,
    kv_heads,
    scheme,
    memory,
    _device,
    _engine,
    _stages,
    _peft,
    _rates,
    sources,
    packing,
    _paths,
    _seeds,
    _tracking,
    _extrapolation,
)
