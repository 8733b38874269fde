"""The rules between the options of a training. Those of positions and attention patterns are in attention/rules.py.

The order of the rules is the order of their messages.
"""

import math
import re
from collections.abc import Iterator
from importlib.util import find_spec

from coca_train.config import sizes
from coca_train.config.files import choices, config_dir
from coca_train.config.messages import Problem
from coca_train.config.rules import TRAINING, World, names, paths
from coca_train.config.schema import (
    DEFAULT,
    CheckedSettings,
    DataConfig,
    EngineConfig,
    EvalConfig,
    LayersConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SchemeSettings,
    StageConfig,
    StartConfig,
    TrackingConfig,
    TrainConfig,
)

SHARED = "engine.sequence_parallel"


@TRAINING.rule("train", "engine", "world", about="launch")
def check_batches(train: TrainConfig, engine: EngineConfig, world: World) -> Iterator[Problem]:
    """Groups of processes share a sequence, and the global batch divides among the groups."""
    shared = engine.sequence_parallel
    if world.size % shared:
        text = f"{world.size} processes do not divide into groups of {shared}"
        fix = f"start a multiple of {shared} processes, or write {SHARED}={math.gcd(world.size, shared)}"
        yield Problem("E-CFG-81", (SHARED,), text, fix)
        return
    whole, n = train.global_batch_size, world.size // shared
    if whole % n:
        near = [size for size in (whole // n * n, (whole // n + 1) * n) if size]
        devices = "devices" if shared == 1 else f"groups of {shared} devices"
        text = f"{whole} sequences cannot be shared evenly by {n} {devices}"
        fix = "write " + " or ".join(f"train.global_batch_size={size}" for size in near)
        yield Problem("E-CFG-19", ("train.global_batch_size",), text, fix)


@TRAINING.rule("model")
def check_heads(model: ModelConfig) -> list[Problem]:
    """Heads divide the width, and key/value heads divide the query heads."""
    wrong = []
    if model.head_dim is None and model.d_model % model.n_heads:
        text = f"{model.n_heads} heads do not divide a width of {model.d_model}"
        fix = f"write model.n_heads={sizes.divisors(model.d_model, model.n_heads)[0]}, or set model.head_dim"
        wrong.append(Problem("E-CFG-20", ("model.n_heads", "model.d_model"), text, fix))
    if model.n_kv_heads is not None and model.n_heads % model.n_kv_heads:
        text = f"{model.n_heads} query heads cannot share {model.n_kv_heads} key/value heads evenly"
        fix = f"write model.n_kv_heads={sizes.divisors(model.n_heads, model.n_kv_heads)[0]}"
        wrong.append(Problem("E-CFG-21", ("model.n_kv_heads", "model.n_heads"), text, fix))
    return wrong


@TRAINING.rule("model")
def check_norms(model: ModelConfig) -> Iterator[Problem]:
    """Norms have what other options say of them."""
    others = [part for part in model.bias if part != "norm"]
    if "norm" in model.bias and model.norm == "rmsnorm":
        text, fix = "RMSNorm has no bias", f"write model.bias={others}, or model.norm=layernorm"
        yield Problem("E-CFG-87", ("model.bias", "model.norm"), text, fix.replace("'", ""))
    elif "norm" in model.bias and model.norm_weight == "none":
        text, fix = "a norm without weights has no bias", f"write model.bias={others}, or model.norm_weight=plain"
        yield Problem("E-CFG-87", ("model.bias", "model.norm_weight"), text, fix.replace("'", ""))
    if model.norm_weight == "one_plus" and model.norm == "layernorm":
        text, fix = "1 + w is for RMSNorm", "write model.norm_weight=plain, or model.norm=rmsnorm"
        yield Problem("E-CFG-87", ("model.norm_weight", "model.norm"), text, fix)
    if model.residual == "parallel_one_norm" and model.norm_placement == "post":
        text, fix = "without norms of their inputs, the branches share none", "write model.residual=parallel"
        yield Problem("E-CFG-87", ("model.residual", "model.norm_placement"), text, fix)


def check_pattern(layers: LayersConfig) -> list[Problem]:
    """Check that parameters can have the names of layer types, and that the pattern names existing types."""
    wrong = []
    for name in layers.types:
        if name == DEFAULT or not re.fullmatch("[a-z][a-z0-9_]*", name):
            text = f"parameters are called after layer types: small letters, digits and _, and {DEFAULT} is taken"
            wrong.append(Problem("E-CFG-46", (f"layers.types.{name}",), text, "call it local or wide, for example"))
    if unknown := sorted({*layers.pattern} - {DEFAULT, *layers.types}):
        text = f"there is no layer type {', '.join(unknown)}; there are {', '.join([DEFAULT, *layers.types])}"
        fix = f"write layers.pattern=[{DEFAULT}], or describe layers.types.{unknown[0]}"
        wrong.append(Problem("E-CFG-66", ("layers.pattern",), text, fix))
    return wrong


@TRAINING.rule("model", "position")
def check_scheme(model: ModelConfig, position: SchemeSettings) -> list[Problem]:
    """The position scheme can be built in this model."""
    problems = position.problems(model) if isinstance(position, CheckedSettings) else []
    return [Problem("E-CFG-20", (key,), text, fix) for key, text, fix in problems]


@TRAINING.rule("engine", "model", "train")
def check_slices(engine: EngineConfig, model: ModelConfig, train: TrainConfig) -> Iterator[Problem]:
    """Ranks that share a sequence cut its heads and its tokens evenly."""
    n = engine.sequence_parallel
    if n > 1 and engine.kind == "local":
        text = "the local engine is a single process"
        yield Problem("E-CFG-80", (SHARED, "engine.kind"), text, f"write engine=deepspeed, or {SHARED}=1")
    for key, whole, what in (
        ("model.n_heads", model.n_heads, "heads cannot be shared evenly"),
        ("train.seq_len", train.seq_len, "tokens cannot be cut into slices of one length"),
    ):
        if whole % n:
            text = f"{whole:,} {what} by {n} processes"
            yield Problem("E-CFG-80", (SHARED, key), text, f"write {SHARED}={math.gcd(whole, n)}")


@TRAINING.rule("position", "data")
def check_recurrence(position: SchemeSettings, data: DataConfig) -> Iterator[Problem]:
    """Segment recurrence remembers the previous text, so rows must be consecutive text."""
    if not getattr(position, "memory_len", 0):
        return
    if data.order != "stream":
        text = "shuffled windows are not consecutive, so the memory would hold unrelated text"
        fix = "write data.order=stream, or position.memory_len=0"
        yield Problem("E-CFG-43", ("data.order", "position.memory_len"), text, fix)
    if data.document_mask:
        text = "the memory holds earlier documents, which document_mask hides"
        fix = "write data.document_mask=false, or position.memory_len=0"
        yield Problem("E-CFG-43", ("data.document_mask", "position.memory_len"), text, fix)


@TRAINING.rule("engine", "world", about="machine")
def check_device(engine: EngineConfig, world: World) -> Iterator[Problem]:
    """This machine has the GPUs that its processes need."""
    if engine.device == "cuda" and world.local_rank >= _gpus():
        text = f"process {world.local_rank} of this machine needs its own GPU; {_gpus()} are visible to torch"
        yield Problem("E-RUN-04", ("engine.device",), text, "write engine.device=cpu, or start fewer processes")
    elif engine.dtype == "fp16" and (engine.device == "cpu" or (engine.device == "auto" and _gpus() == 0)):
        keys = ("engine.dtype", "engine.device")
        yield Problem("E-CFG-27", keys, "fp16 is not for CPUs (this run has no GPU)", "write engine.dtype=bf16")


def _gpus() -> int:
    import torch  # not before a rule needs it: configuration errors appear within a second

    return torch.cuda.device_count()  # through NVML; no CUDA context is made


@TRAINING.rule("engine", about="launch")
def check_recheck(engine: EngineConfig) -> Iterator[Problem]:
    """Gradients that are computed twice are the same bits."""
    if engine.recheck_every_steps and not engine.deterministic and engine.device != "cpu" and _gpus():
        keys = ("engine.recheck_every_steps", "engine.deterministic")
        text = "on GPUs the same gradients differ in their last bits when they are computed twice"
        yield Problem("E-CFG-88", keys, text, "write engine.deterministic=true")


@TRAINING.rule("engine", "world", about="launch")
def check_engine(engine: EngineConfig, world: World) -> Iterator[Problem]:
    """An engine is not asked for what it cannot do."""
    if engine.kind == "deepspeed" and engine.zero_stage == 0 and engine.dtype != "fp32":
        wrong = "silently wrong (it starts with a phantom optimizer step)"
        text, keys = f"DeepSpeed without ZeRO computes {engine.dtype} {wrong}", ("engine.zero_stage", "engine.dtype")
        yield Problem("E-CFG-35", keys, text, "write engine.zero_stage=1, or engine.dtype=fp32")
    if engine.compile == "blocks" and engine.zero_stage == 3:
        text = "ZeRO 3 gathers a layer's weights in hooks, which a graph cannot contain"
        fix = "write engine.compile=none, or engine.zero_stage=2"
        yield Problem("E-CFG-77", ("engine.compile", "engine.zero_stage"), text, fix)
    if engine.kind == "deepspeed" and engine.zero_stage < 2 and engine.overlap_communication:
        text = f"ZeRO {engine.zero_stage} sends gradients after the last backward pass"
        keys = ("engine.overlap_communication", "engine.zero_stage")
        yield Problem("E-CFG-83", keys, text, "write engine.zero_stage=2, or engine.overlap_communication=null")
    if engine.kind == "local" and engine.dtype == "fp16":
        text = "the local engine scales no losses, which fp16 needs"
        yield Problem("E-CFG-42", ("engine.dtype", "engine.kind"), text, "write engine.dtype=bf16")
    if engine.kind == "local" and world.size > 1:
        text = f"the local engine is one process, and {world.size} were started"
        yield Problem("E-CFG-36", ("engine.kind",), text, "write engine=deepspeed, or start without torchrun")


@TRAINING.rule("stages")
def check_stages(stages: dict[str, StageConfig]) -> Iterator[Problem]:
    """There is a stage, and each keeps an optimizer only from a stage before it."""
    if not stages:
        yield Problem("E-STG-01", ("stages",), "there is no stage", "choose stages=single, with no ~stages.<name>")
    yield from names("stages", stages)
    before = None
    for name, stage in stages.items():
        key = f"stages.{name}.optimizer"
        if before is None and stage.optimizer == "keep":
            text = "the first stage has no optimizer to keep"
            yield Problem("E-STG-02", (key,), text, f"write {key}=fresh")
        elif stage.optimizer == "keep" and before and (stage.lora.rank or before.lora.rank):
            text = "adapters are those of one stage, and so are their moments"
            yield Problem("E-STG-19", (key,), text, f"write {key}=fresh")
        before = stage


@TRAINING.rule("stages", about="machine")
def check_adapters(stages: dict[str, StageConfig]) -> Iterator[Problem]:
    """peft is installed where a stage trains adapters; reading a trained run does not need it."""
    keys = [f"stages.{name}.lora.rank" for name, stage in stages.items() if stage.lora.rank is not None]
    if keys and find_spec("peft") is None:
        text = "peft is not installed, which the adapters need; it is the extra 'lora'"
        yield from (Problem("E-STG-18", (key,), text, "pip install peft") for key in keys)


@TRAINING.rule("tracking", about="machine")
def check_tracking(tracking: TrackingConfig) -> Iterator[Problem]:
    """Trackers are installed."""
    for name, wanted in {"tensorboard": tracking.tensorboard, "wandb": tracking.wandb != "disabled"}.items():
        if wanted and find_spec(name) is None:
            text = f"{name} is not installed; it is the extra '{name}'"
            yield Problem("E-CFG-37", (f"tracking.{name}",), text, f"pip install {name}")


@TRAINING.rule("optim")
def check_rates(optim: OptimConfig) -> Iterator[Problem]:
    """No learning rate is above the peak."""
    for key in ("min_lr", "warmup_init_lr"):
        if getattr(optim, key) > optim.lr:
            fix = f"write optim.{key}={optim.lr / 10:g}, or raise optim.lr"
            yield Problem("E-CFG-23", (f"optim.{key}", "optim.lr"), "it is above the peak learning rate", fix)


@TRAINING.rule("data")
def check_sources(data: DataConfig) -> Iterator[Problem]:
    """Held-out text is not trained on, no file is two sources, and options for a folder of texts need a folder."""
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
    if data.path and data.prepare != "none":
        text = "data are prepared from the folder or from this Python installation, not from both"
        yield Problem("E-CFG-85", ("data.prepare", "data.path"), text, "omit data.prepare, or data.path")
    for name, default in {"text_field": "text", "vocab_size": None, "valid_share": None, "on_error": "stop"}.items():
        if data.path is None and getattr(data, name) != default:
            text = "it has no effect without a folder of texts"
            yield Problem("E-CFG-85", (f"data.{name}", "data.path"), text, "write data.path=<folder>, or omit it")


@TRAINING.rule("data")
def check_answers(data: DataConfig) -> Iterator[Problem]:
    """Answers begin and end with different pieces, in documents that come whole."""
    begin, end = data.answers.begin, data.answers.end
    if end is not None and begin is None:
        text = "it has no effect where every prediction is scored"
        yield Problem("E-CFG-93", ("data.answers.end", "data.answers.begin"), text, "write data.answers.begin=<piece>")
    if begin is not None and begin == end:
        text = "an answer would end where it begins"
        yield Problem("E-CFG-93", ("data.answers.end", "data.answers.begin"), text, "write data.answers.end=null")
    if begin is not None and data.packing != "documents":
        text = f"{data.packing} cut documents, and an answer would be learned without its prompt"
        fix = "write data.packing=documents data.document_mask=true, or data.answers.begin=null"
        yield Problem("E-CFG-93", ("data.packing", "data.answers.begin"), text, fix)


@TRAINING.rule("data")
def check_objective(data: DataConfig) -> Iterator[Problem]:
    """Tokens are masked where that is the objective, and no more of the chosen ones than there are."""
    key, objective = "data.objective.name", data.objective
    if objective.name == "next_token":
        text = "it has no effect where the next token is predicted"
        for option in ("share", "masked", "random", "mask"):
            if getattr(objective, option) != getattr(type(objective)(), option):
                yield Problem("E-CFG-97", (f"data.objective.{option}", key), text, f"write {key}=masked_token")
    elif objective.masked + objective.random > 1:
        text = f"{objective.masked:g} and {objective.random:g} of the chosen tokens are more than all of them"
        fix = f"write data.objective.random={math.floor((1 - objective.masked) * 1e6) / 1e6:g}"
        yield Problem("E-CFG-97", ("data.objective.random", "data.objective.masked"), text, fix)


@TRAINING.rule("data", "train")
def check_curriculum(data: DataConfig, train: TrainConfig) -> Iterator[Problem]:
    """Contexts that grow begin shorter than a row, end within the steps, and are of rows that do not go on."""
    key, steps = "data.curriculum.begin", "data.curriculum.steps"
    begin, last = data.curriculum.begin, data.curriculum.steps
    if begin is None:
        text = "it has no effect where rows are whole from the first step"
        for option, default in {"steps": None, "shape": "linear"}.items():
            if getattr(data.curriculum, option) != default:
                yield Problem("E-CFG-95", (f"data.curriculum.{option}", key), text, f"write {key}=32, for example")
        return
    if data.answers.begin is not None:
        text = "pieces cut documents, and an answer would be learned without its prompt"
        yield Problem("E-CFG-95", ("data.answers.begin", key), text, f"write {key}=null")
    if begin >= train.seq_len:
        text = f"rows of {train.seq_len:,} tokens have no shorter piece"
        yield Problem("E-CFG-95", (key, "train.seq_len"), text, f"write {key}={max(1, train.seq_len // 8)}")
    if last is None:
        text = "it is not said when rows are whole"
        yield Problem("E-CFG-95", (steps, key), text, f"write {steps}={max(1, train.max_steps * 4 // 5)}")
    elif last > train.max_steps:
        text = f"rows would not be whole at the last of {train.max_steps:,} steps"
        yield Problem("E-CFG-95", (steps, "train.max_steps"), text, f"write {steps}={max(1, train.max_steps * 4 // 5)}")
    if data.order == "stream":
        text = "rows of a stream go on with those of the step before, which pieces would not"
        yield Problem("E-CFG-95", ("data.order", key), text, f"write data.order=shuffled, or {key}=null")
    if data.length_of == "document":
        text = "pieces are no documents, whose length frequencies would follow"
        yield Problem("E-CFG-95", ("data.length_of", key), text, f"write data.length_of=row, or {key}=null")


@TRAINING.rule("data", "train")
def check_packing(data: DataConfig, train: TrainConfig) -> Iterator[Problem]:
    """A packing is compatible with the rest of the data section."""
    windows, long, often = data.packing == "windows", "data.upsample_from_tokens", "data.upsample_factor"
    if data.order == "stream" and not windows:
        text = f"a stream needs consecutive windows, which {data.packing} are not"
        fix = "write data.packing=windows, or data.order=shuffled"
        yield Problem("E-CFG-60", ("data.packing", "data.order"), text, fix)
    if data.packing == "documents" and not data.document_mask:
        text = "documents packed into one window must not see each other"
        fix = "write data.document_mask=true, or data.packing=windows"
        yield Problem("E-CFG-60", ("data.packing", "data.document_mask"), text, fix)
    if data.packing == "segments" and train.seq_len < 3:
        text = "a segment is a BOS, at least one token, and an EOS"
        yield Problem("E-CFG-60", ("data.packing", "train.seq_len"), text, "write train.seq_len=3 or more")
    if windows and data.upsample_from_tokens is not None:
        text = "windows ignore document borders, so no document can be repeated"
        fix = f"write {long}=null, or data.packing=segments or documents"
        yield Problem("E-CFG-61", ("data.packing", long), text, fix)
    if data.upsample_from_tokens is not None and data.upsample_factor == 1:
        fix = f"write {often}=5, for example, or {long}=null"
        yield Problem("E-CFG-61", (long, often), "a factor of 1 changes nothing", fix)
    if data.upsample_from_tokens is None and data.upsample_factor > 1:
        fix = f"write {often}=1" if windows else f"write {long}=4096, for example, or {often}=1"
        yield Problem("E-CFG-61", (long, often), "it has no effect without a length", fix)


@TRAINING.rule("run", "data", "start")
def check_places(run: RunConfig, data: DataConfig, start: StartConfig) -> Iterator[Problem]:
    """Paths are paths."""
    options = {"run.root": run.root, "data.dir": data.dir, "data.tokenizer": data.tokenizer}
    for name, source in data.sources.items():
        options[f"data.sources.{name}.path"] = source.path
        options |= {} if source.valid_path is None else {f"data.sources.{name}.valid_path": source.valid_path}
    given = {"start.path": start.path, "data.path": data.path}
    yield from paths(options | {key: path for key, path in given.items() if path is not None})


@TRAINING.rule("eval")
def check_extrapolation(eval: EvalConfig) -> Iterator[Problem]:
    """Choices that a finished run is evaluated with exist. Their options are checked in settings.py."""
    for key, group, example in (
        ("rope_scalings", "position/rope_scaling", "plain"),
        ("attention_patterns", "attention_pattern", "sliding_window"),
    ):
        option, offered = f"eval.extrapolation.{key}", choices(group, (config_dir(),))
        for name in (text.partition("@")[0] for text in getattr(eval.extrapolation, key)):
            if name not in offered:
                message = f"there is no {name!r}; the choices are {', '.join(offered)}"
                yield Problem("E-CFG-32", (option,), message, f"write {option}=[{example}]")
