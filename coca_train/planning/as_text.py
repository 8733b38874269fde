"""A plan as text: the stages, what changes from one to the next, and each one's cost and counted step."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from coca_train.attention.layer_types import describe_layers
from coca_train.config.schema import Config
from coca_train.planning.cost import Cluster, Cost, n_tokens
from coca_train.planning.hardware import GIB, OF_LINKS, ON_PAGE, PUBLISHED, SHORTEST_S, Rates, rates_of
from coca_train.planning.memory import GpuMemory
from coca_train.planning.outline import Outline
from coca_train.planning.roofline import Row, Step
from coca_train.runtime import printing
from coca_train.runtime.printing import percent, short
from coca_train.stages import Stage

GIGA, TERA = 1e9, 1e12
SHORT = {"none": "all activations", "selective": "selective", "full": "full"}
SHOWN = 0.005 * GIB  # a component below this is not listed
WINDOWS = "eval.extrapolation.multiples, or a smaller eval.extrapolation.micro_batch_tokens"
HEADER = ("stage", "steps", "trains", "seq_len", "batch", "tokens", "lr", "rope_scaling", "data")


def plan(name: str, costs: Sequence[Cost], cluster: Cluster, export: str = "") -> str:
    """Return the page: a summary, the schedule, what changes between stages, and each stage's cost.

    export: what an export will be; "": not known.
    """
    head = [_summary(name, costs, cluster), _basis(cluster, costs)]
    head += [textwrap.fill(f"export: {export}", printing.WIDTH, subsequent_indent="  ")] if export else []
    stages = table([cost.stage for cost in costs], [cost.outline for cost in costs])
    return "\n".join([*head, "", stages, *(_stage(cost, cluster) for cost in costs)])


def _summary(name: str, costs: Sequence[Cost], cluster: Cluster) -> str:
    """Return whether all stages fit, and hours, tokens and FLOPs of all together."""
    if not all(cost.fits for cost in costs):
        fits = "DOES NOT FIT on"
    else:
        late = any(_memory_as_set(cost).report > cluster.gpu.usable for cost in costs)
        fits = "fits, BUT NOT ITS REPORT, on" if late else "fits on"
    tokens, flops = sum(c.n_tokens for c in costs), sum(c.per_token.total * c.n_tokens for c in costs)
    amounts = [*filter(None, [_hours(costs, cluster)]), f"{short(tokens)} tokens", f"{flops:.2e} FLOPs"]
    line = f"{name} {fits} {cluster.n_gpus} x {cluster.gpu.device}: {', '.join(amounts)}"
    return textwrap.fill(line, printing.WIDTH, subsequent_indent="  ")


def _memory_as_set(cost: Cost) -> GpuMemory:
    return cost.memory[cost.stage.config.engine.activation_checkpointing]


def _basis(cluster: Cluster, costs: Sequence[Cost]) -> str:
    """Return the memory of the stage that needs most, and where the hours come from."""
    most, has = max(_memory_as_set(cost).total for cost in costs) / GIB, cluster.gpu.usable / GIB
    needs, source = f"needs {most:,.1f} of {has:,.1f} GiB each", costs[0].peak.source
    seconds = 3600 * sum(cost.hours or 0.0 for cost in costs)
    if not seconds:
        return f"{needs}; no hours: the speed of this {cluster.gpu.noun} is not known; mfu=0.4 assumes 40 % of its peak"
    if cluster.mfu is not None:
        return f"{needs}; hours at {_percent(cluster.mfu)} MFU of {source}"
    flops = sum(cost.per_token.total * cost.n_tokens for cost in costs)
    mfu = _percent(flops / (seconds * cluster.n_gpus * costs[0].peak.flops))
    how = "measured" if rates_of(cluster.gpu) is None else "counted"
    return f"{needs}; hours by the {how} step, {mfu} MFU of {source}"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _hours(costs: Sequence[Cost], cluster: Cluster) -> str:
    """Return the hours of all of them; "": not known."""
    known = [cost.hours for cost in costs if cost.hours is not None]
    if not known:
        return ""
    hours = sum(known)
    days = f" ({hours / 24:.1f} days)" if hours >= 48 else ""
    one, all_gpus = (f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in (hours, hours * cluster.n_gpus))
    return f"{one} hours{days}, {all_gpus} {cluster.gpu.noun} hours"


def _stage(cost: Cost, cluster: Cluster) -> str:
    outline, config, per_token = cost.outline, cost.stage.config, cost.per_token
    train, engine = config.train, config.engine
    again = {"none": "", "selective": "what is elementwise", "full": "the forward"}[engine.activation_checkpointing]
    left_out = f"; MFU leaves out {again} that checkpointing computes again" if again else ""
    lines = [
        f"stage {cost.stage.name}",
        f"  trains    {share(outline)} of the parameters: {outline.n_trained:,} of {outline.n_parameters:,}",
        *([] if cost.stage.lora is None else [f"  LoRA      {lora(cost.stage)}"]),
        *([f"  layers    {describe_layers(config.layers, config.model.n_layers)}"] if config.layers.pattern else []),
        f"  tokens    {short(cost.n_tokens)}: {cost.stage.max_steps:,} steps of "
        f"{train.global_batch_size:,} x {train.seq_len:,}",
        f"  FLOPs     a token: {short(per_token.forward)} forward + {short(per_token.backward)} backward; "
        f"in all {per_token.total * cost.n_tokens:.2e}",
        f"  time      {_hours([cost], cluster) or 'not known'}{left_out}",
        f"  memory    of one {cluster.gpu.noun} [GiB], micro batch {train.micro_batch_size} x {train.seq_len:,}, "
        f"{engine.dtype}, {f'ZeRO {engine.zero_stage}' if engine.kind == 'deepspeed' else 'local engine'}",
        "",
        *(f"    {line}" for line in _memory(cost).splitlines()),
        "",
        f"  {_verdict(cost, cluster)}",
        "",
        *roofline_lines(cost.step, ON_PAGE if cluster.gpu.kind == "cuda" else (), cost.measured, cluster.gpu.noun),
    ]
    return "\n".join(lines) + "\n"


def _memory(cost: Cost) -> str:
    """Return components by activation checkpointing, their sum, then the most in each phase of a run."""
    as_set = cost.stage.config.engine.activation_checkpointing
    ways = list(cost.memory.values())
    header = ("component", *(f"{SHORT[way]}{' (as set)' * (way == as_set)}" for way in cost.memory))
    rows = [
        (name, *(f"{memory.rows[name] / GIB:,.2f}" for memory in ways))
        for name in ways[0].rows
        if any(abs(memory.rows[name]) >= SHOWN for memory in ways)
    ]
    rows.append(("a step needs", *(f"{memory.training / GIB:,.2f}" for memory in ways)))
    rows += [(f"most in {name}", *(f"{memory.phases[name] / GIB:,.2f}" for memory in ways)) for name in ways[0].phases]
    if ways[0].report:
        rows.append(("most in the final report", *(f"{memory.report / GIB:,.2f}" for memory in ways)))
    return printing.plain(header, rows)


def _verdict(cost: Cost, cluster: Cluster) -> str:
    has = cluster.gpu.usable / GIB
    if cost.fits:
        way, as_set = cost.cheapest(cluster.gpu.usable), cost.stage.config.engine.activation_checkpointing
        other = way is not None and way != as_set
        faster = f"; engine.activation_checkpointing={way} fits too, and computes less again" * other
        late = _memory_as_set(cost).report > cluster.gpu.usable
        return f"fits into {has:,.1f} GiB{faster}" + f"; ITS REPORT DOES NOT: shorter {WINDOWS}" * late
    if cost.change is None:
        return f"DOES NOT FIT into {has:,.1f} GiB, whatever is changed of micro batch, checkpointing, ZeRO and GPUs"
    stage, own = cost.stage, cost.stage.config.stages.get(cost.stage.name)
    alone = len(stage.config.stages) > 1 or bool(own and (own.train or own.engine))
    words = cost.change.typed(stage.name if alone else "")
    return f"DOES NOT FIT into {has:,.1f} GiB; the smallest change that fits: {words}"


# ---- the counted step


def roofline_lines(
    step: Step, rates: Sequence[Rates], measured: dict[str, float] | None = None, noun: str = "GPU"
) -> list[str]:
    """Return the counted step by part, as lines.

    measured: seconds of a step on this machine, by part; None: not measured. noun: GPU or CPU.
    """
    train, n_ranks = step.outline.config.train, step.outline.config.engine.sequence_parallel
    n, shared = step.n_micro_batches, f", each shared by {n_ranks}" if n_ranks > 1 else ""
    lines = [
        f"  roofline  a step of one {f'of {step.n_gpus} {noun}s' if step.n_gpus > 1 else noun}, counted: "
        f"{n} micro batch{'es' * (n > 1)} of "
        f"{train.micro_batch_size} x {train.seq_len:,}{shared}",
        "",
        *(f"    {line}" for line in _roofline(step, rates, measured).splitlines()),
        "",
    ]
    lines += [f"    {line}" for line in _roofline_notes(step, rates, noun)]
    return lines


def _roofline(step: Step, rates: Sequence[Rates], measured: dict[str, float] | None) -> str:
    rows = step.rows(rates)
    seconds = [step.seconds(each) for each in rates]
    cells = {name: _cells(row) for name, row in rows.items()}
    cells["device"] = _cells(sum(rows.values(), Row(seconds=(0.0,) * len(rates))))
    cells["host"] = ["", "", "", *(f"{1e3 * step.host_seconds:,.1f}" for _ in rates)]
    cells["a step"] = ["", "", "", *(f"{1e3 * each:,.1f}" for each in seconds)]
    cells["MFU"] = ["", "", "", *(_percent(step.mfu(*each)) for each in zip(rates, seconds, strict=True))]
    header = ["part", "kernels", "GB", "TFLOP", *(f"{each.name} [ms]" for each in rates)]
    if measured is not None:
        header.append("this machine [ms]")
        own = {name: measured.get(name, 0.0) for name in rows} | {"a step": sum(measured.values())}
        for name, line in cells.items():
            line.append(f"{1e3 * own[name]:,.1f}" if name in own else "")
    return printing.plain(header, [[name, *line] for name, line in cells.items()])


def _cells(row: Row) -> list[str]:
    counted = [f"{row.kernels:,.0f}", f"{row.nbytes / GIGA:,.1f}", f"{row.flops / TERA:,.2f}" if row.flops else ""]
    return [*counted, *(f"{1e3 * each:,.1f}" for each in row.seconds)]


def _roofline_notes(step: Step, rates: Sequence[Rates], noun: str) -> list[str]:
    notes = [f"sent by each {noun}: {each.text}" for each in step.collectives]
    if step.outline.config.engine.compile == "blocks":
        notes.append("compiled blocks take less than this: what they save is not counted")
    places = ", ".join(f"{place} x {n}" if n > 1 else place for place, n in step.syncs.items())
    notes.append(f"the host waits for the device in forward and backward: {places or 'never'}")
    notes.append(
        "host: one thread launches the kernels and does the engine's bookkeeping, as measured on a CPU (python -m "
        "benchmarks.host); a step is the longer of device and host"
    )
    for each in rates:
        mfu, known = step.mfu(each, step.seconds(each)), PUBLISHED.get(each.gpu)
        if known is not None and mfu > known.mfu:
            notes.append(
                f"{_percent(mfu)} MFU on {each.name} is more than any published training that we know of reaches "
                f"({_percent(known.mfu)}: {known.training}); read it as a bound, or set mfu="
            )
    every = step.outline.config.checkpoint.save_every_steps
    notes.append(
        f"checkpoint: {printing.n_bytes(step.saved)} every {every:,} steps, "
        f"{printing.n_bytes(round(step.saved / step.n_gpus))} for each {noun}; no disk's rate is assumed"
    )
    if rates:
        shared = f"a kernel {SHORTEST_S * 1e6:g} us or more; links at {OF_LINKS:.0%}".replace("%", " %")
        notes.append(f"rates: {'; '.join(each.text for each in rates)}; {shared} of their data sheets (assumed)")
    wrapped = [textwrap.wrap(note, printing.WIDTH - 4, subsequent_indent="  ") for note in notes]
    return [line for lines in wrapped for line in lines]


# ---- the schedule, and what differs between stages


def table(stages: Sequence[Stage], outlines: Sequence[Outline]) -> str:
    """Return the table of stages, then what differs from each stage to the next."""
    rows = [_row(stage, each) for stage, each in zip(stages, outlines, strict=True)]
    parts = [printing.plain(HEADER, rows)]
    for i in range(1, len(stages)):
        parts.append(f"\n{stages[i - 1].name} -> {stages[i].name}\n")
        parts += [f"  {line}\n" for line in between(stages[i - 1 : i + 1], outlines[i - 1 : i + 1])]
    return "".join(parts)


def between(stages: Sequence[Stage], outlines: Sequence[Outline]) -> list[str]:
    """Return what differs between two stages, lines of text; the state of the optimizer always."""
    before, after = stages
    lines = []
    if outlines[0].trained != outlines[1].trained:
        shares = [share(each) for each in outlines]
        others = ", others" if shares[0] == shares[1] else ""
        lines.append(f"trains {shares[0]} -> {shares[1]} of the parameters{others}")
    if before.lora != after.lora:
        lines.append(f"LoRA {lora(before)} -> {lora(after)}")
    if before.max_steps != after.max_steps:
        lines.append(f"steps {before.max_steps:,} -> {after.max_steps:,}")
    lines += [line for line in differences(before.config, after.config) if not line.startswith("steps ")]
    kept = "keeps its state" if after.keeps_optimizer else "starts afresh"
    return [*lines, f"optimizer {kept}"]


def share(outline: Outline) -> str:
    """Write the share of trained parameters in per cent with one digit, as papers do."""
    return "100 %" if outline.n_trained == outline.n_parameters else f"{outline.share:.1%}".replace("%", " %")


def lora(stage: Stage) -> str:
    """Write the adapters of a stage."""
    return "none" if stage.lora is None else f"rank {stage.lora.rank}, alpha {stage.lora.alpha:g}"


def _row(stage: Stage, outline: Outline) -> tuple[str, ...]:
    train, optim, data = stage.config.train, stage.config.optim, stage.config.data
    rope_scaling = getattr(stage.config.position, "rope_scaling", None)
    factor = getattr(rope_scaling, "factor", None)
    lr = f"{optim.lr:g}" if optim.schedule == "constant" else f"{optim.lr:g} {optim.schedule} {optim.min_lr:g}"
    return (
        stage.name,
        f"{stage.first_step:,}-{stage.first_step + stage.max_steps:,}",
        share(outline),
        f"{train.seq_len:,}",
        f"{train.global_batch_size:,}",
        printing.short(n_tokens(stage)),
        lr,
        "-" if rope_scaling is None else rope_scaling.name + (f" {factor:g}" if factor is not None else ""),
        ", ".join(data.sources) if len(data.sources) <= 2 else f"{len(data.sources)} sources",
    )


# Sections that are a choice with options of its own -> the option that names it. Shown as a whole when it is another.
CHOICES = {"position": "scheme", "position.rope_scaling": "name", "attention_pattern": "name"}
NAMES = {
    "position.rope_scaling": "rope_scaling",
    "train.max_steps": "steps",
    "train.seq_len": "seq_len",
    "train.global_batch_size": "global batch",
    "train.micro_batch_size": "micro batch",
    "optim.lr": "lr",
    "optim.schedule": "lr schedule",
    "engine.zero_stage": "ZeRO",
    "engine.activation_checkpointing": "activation checkpointing",
}
ABSENT = "none"


def differences(before: Config, after: Config) -> list[str]:
    """Return a line for each difference, in the order of the configuration; none where the two are equal.

    >>> differences(stage_1.config, stage_2.config)
    ['frequencies plain (theta 10000) -> linear (theta 10000, factor 16)', 'seq_len 2,048 -> 32,768',
     'tokens a step 4,194,304 -> 2,097,152']
    """
    lines = list(_between(asdict(before), asdict(after), ""))
    old, new = (config.train.seq_len * config.train.global_batch_size for config in (before, after))
    if old != new:
        lines.append(f"tokens a step {old:,} -> {new:,}")
    return lines


def _between(old: dict[str, Any], new: dict[str, Any], section: str) -> Iterator[str]:
    for key in dict.fromkeys([*old, *new]):
        where = f"{section}.{key}" if section else key
        a, b, tag = old.get(key, ABSENT), new.get(key, ABSENT), CHOICES.get(where, "")
        if a == b:
            continue
        if where == "data.sources":
            yield from _mixture(a, b)
        elif isinstance(a, dict) and isinstance(b, dict) and a.get(tag) == b.get(tag):
            yield from _between(a, b, where)
        else:
            yield f"{NAMES.get(where, where)} {_format(where, a)} -> {_format(where, b)}"


def _mixture(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield sources that are added, removed, or have another share of the tokens; then their other differences."""
    before, after = _shares(old), _shares(new)
    for name in dict.fromkeys([*old, *new]):
        if before.get(name) != after.get(name):
            yield f"data {name} {before.get(name, ABSENT)} -> {after.get(name, ABSENT)}"
    for name in [name for name in old if name in new]:
        a, b = ({key: value for key, value in each[name].items() if key != "weight"} for each in (old, new))
        yield from _between(a, b, f"data.sources.{name}")


def _shares(sources: dict[str, Any]) -> dict[str, str]:
    """Return the share of the training tokens of each source."""
    total = sum(source["weight"] for source in sources.values())
    return {name: percent(source["weight"] / total) for name, source in sources.items()}


def _format(where: str, value: Any) -> str:
    """Format a value as a person would write it; a choice with its options."""
    if isinstance(value, dict):
        named = CHOICES.get(where)
        options = [f"{key} {_format('', v)}" for key, v in value.items() if key != named and not isinstance(v, dict)]
        name = str(value[named]) if named else ""
        return f"{name} ({', '.join(options)})".strip() if options else name
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and not where.endswith("seed"):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
