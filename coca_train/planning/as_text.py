"""A plan as text: a summary, the schedule, what changes between stages, and each stage's cost and counted step."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from coca_train.attention.layer_types import describe_layers
from coca_train.config.schema import Config
from coca_train.planning.cost import Cluster, Cost, Row, Step, n_tokens, typed
from coca_train.planning.hardware import GIB, OF_LINKS, ON_PAGE, PUBLISHED, SHORTEST_S, Rates
from coca_train.planning.outline import Outline
from coca_train.runtime import printing
from coca_train.runtime.printing import percent, short
from coca_train.stages import Stage

SHORT = {"none": "all activations", "selective": "selective", "full": "full"}
SHOWN = 0.005 * GIB  # a component below this is not listed
WINDOWS = "eval.extrapolation.multiples, or a smaller eval.extrapolation.micro_batch_tokens"


def plan(name: str, costs: Sequence[Cost], cluster: Cluster, export: str = "") -> str:
    """Return the page. export: what an export will be; "": not known."""
    head = [*_filled(_summary(name, costs, cluster)), _basis(cluster, costs)]
    head += _filled(f"export: {export}") if export else []
    stages = table([cost.stage for cost in costs], [cost.outline for cost in costs])
    return "\n".join([*head, "", stages, *(_stage(cost, cluster) for cost in costs)])


def _filled(line: str, width: int = printing.WIDTH) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent="  ")


def _summary(name: str, costs: Sequence[Cost], cluster: Cluster) -> str:
    """Return whether all stages fit, and hours, tokens and FLOPs of all together."""
    if not all(cost.fits for cost in costs):
        fits = "DOES NOT FIT on"
    else:
        fits = "fits on" if all(cost.report_fits for cost in costs) else "fits, BUT NOT ITS REPORT, on"
    hours = _hours(costs, cluster)
    amounts = [*([hours] if hours else []), f"{short(sum(cost.n_tokens for cost in costs))} tokens"]
    return f"{name} {fits} {cluster.n_gpus} x {cluster.gpu.device}: {', '.join(amounts)}, {_flops(costs):.2e} FLOPs"


def _flops(costs: Sequence[Cost]) -> float:
    return sum(cost.per_token.total * cost.n_tokens for cost in costs)


def _basis(cluster: Cluster, costs: Sequence[Cost]) -> str:
    """Return the memory of the stage that needs most, and where the hours come from."""
    most, has = max(cost.as_set.total for cost in costs) / GIB, cluster.gpu.usable / GIB
    report = max(cost.as_set.report for cost in costs) / GIB
    also = f" ({report:,.1f} for its final report)" if report > most else ""
    needs, source = f"needs {most:,.1f} of {has:,.1f} GiB each{also}", costs[0].peak.source
    seconds = 3600 * sum(cost.hours or 0.0 for cost in costs)
    if not seconds:
        return f"{needs}; no hours: the speed of this {cluster.gpu.noun} is not known; mfu=0.4 assumes 40 % of its peak"
    if cluster.mfu is not None:
        return f"{needs}; hours at {_percent(cluster.mfu)} MFU of {source}"
    mfu = _percent(_flops(costs) / (seconds * cluster.n_gpus * costs[0].peak.flops))
    return f"{needs}; hours by the counted step, {mfu} MFU of {source}"


def _percent(share: float, digits: int = 0) -> str:
    return f"{share:.{digits}%}".replace("%", " %")


def _hours(costs: Sequence[Cost], cluster: Cluster) -> str:
    """Return the hours of all of them; "": not known."""
    known = [cost.hours for cost in costs if cost.hours is not None]
    if not known:
        return ""
    hours = sum(known)
    days = f" ({hours / 24:.1f} days)" if hours >= 48 else ""
    one, all_gpus = (f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in (hours, hours * cluster.n_gpus))
    return f"{one} hours{days}, {all_gpus} {cluster.gpu.noun} hours"


# ---- one stage


def _stage(cost: Cost, cluster: Cluster) -> str:
    outline, stage, config, per_token = cost.outline, cost.stage, cost.stage.config, cost.per_token
    train, engine, noun = config.train, config.engine, cluster.gpu.noun
    again = {"none": "", "selective": "what is elementwise", "full": "the forward"}[cost.checkpointing]
    left_out = f"; MFU leaves out {again} that checkpointing computes again" if again else ""
    engine_text = f"ZeRO {engine.zero_stage}" if engine.kind == "deepspeed" else "local engine"
    rows = {
        "trains": f"{share(outline)} of the parameters: {outline.n_trained:,} of {outline.n_parameters:,}",
        "LoRA": "" if stage.lora is None else lora(stage),
        "layers": describe_layers(config.layers, config.model.n_layers) if config.layers.pattern else "",
        "tokens": f"{short(cost.n_tokens)}: {stage.max_steps:,} steps of "
        f"{train.global_batch_size:,} x {train.seq_len:,}",
        "FLOPs": f"a token: {short(per_token.forward)} forward + {short(per_token.backward)} backward; "
        f"in all {_flops([cost]):.2e}",
        "time": (_hours([cost], cluster) or "not known") + left_out,
        "memory": f"of one {noun} [GiB], micro batch {train.micro_batch_size} x {train.seq_len:,}, {engine.dtype}, "
        f"{engine_text}",
    }
    lines = [
        f"stage {stage.name}",
        *(f"  {name:<8}  {text}" for name, text in rows.items() if text),
        "",
        *_indented(_memory(cost)),
        "",
        f"  {_verdict(cost, cluster)}",
        "",
        *roofline_lines(cost.step, ON_PAGE if cluster.gpu.kind == "cuda" else (), noun),
    ]
    return "\n".join(lines) + "\n"


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def _memory(cost: Cost) -> str:
    """Return components by activation checkpointing, their sum, then the most in each phase of a run."""
    header = ["component", *(SHORT[way] + " (as set)" * (way == cost.checkpointing) for way in cost.memory)]
    ways = list(cost.memory.values())
    rows = {name: [memory.rows[name] for memory in ways] for name in ways[0].rows}
    rows = {name: sizes for name, sizes in rows.items() if max(map(abs, sizes)) >= SHOWN}
    rows["a step needs"] = [memory.training for memory in ways]
    rows |= {f"most in {name}": [memory.phases[name] for memory in ways] for name in ways[0].phases}
    if ways[0].report:
        rows["most in the final report"] = [memory.report for memory in ways]
    return printing.plain(header, [[name, *(f"{size / GIB:,.2f}" for size in sizes)] for name, sizes in rows.items()])


def _verdict(cost: Cost, cluster: Cluster) -> str:
    has = f"{cluster.gpu.usable / GIB:,.1f} GiB"
    if cost.fits:
        way = cost.fastest
        other = way is not None and way != cost.checkpointing
        faster = f"; engine.activation_checkpointing={way} fits too, and computes less again" if other else ""
        return f"fits into {has}{faster}" + ("" if cost.report_fits else f"; ITS REPORT DOES NOT: shorter {WINDOWS}")
    if cost.change is None:
        return f"DOES NOT FIT into {has}, whatever is changed of micro batch, checkpointing, ZeRO and GPUs"
    stage, own = cost.stage, cost.stage.config.stages.get(cost.stage.name)
    alone = len(stage.config.stages) > 1 or bool(own and (own.train or own.engine))
    words = typed(cost.change, stage.name if alone else "")
    return f"DOES NOT FIT into {has}; the smallest change that fits: {words}"


# ---- the counted step


def roofline_lines(step: Step, rates: Sequence[Rates], noun: str = "GPU") -> list[str]:
    """Return the counted step by part, as lines. noun: GPU or CPU."""
    train, n_ranks = step.outline.config.train, step.outline.config.engine.sequence_parallel
    n, shared = step.n_micro_batches, f", each shared by {n_ranks}" if n_ranks > 1 else ""
    title = (
        f"  roofline  a step of one {f'of {step.n_gpus} {noun}s' if step.n_gpus > 1 else noun}, counted: "
        f"{n} micro batch{'es' * (n > 1)} of {train.micro_batch_size} x {train.seq_len:,}{shared}"
    )
    notes = [line for note in _notes(step, rates, noun) for line in _filled(note, printing.WIDTH - 4)]
    return [title, "", *_indented(_roofline(step, rates)), "", *_indented("\n".join(notes))]


def _roofline(step: Step, rates: Sequence[Rates]) -> str:
    parts = step.rows(rates)
    at_rates = zip(*(row.seconds for row in parts.values()), strict=True)
    device = Row(
        sum(row.kernels for row in parts.values()),
        sum(row.nbytes for row in parts.values()),
        sum(row.flops for row in parts.values()),
        tuple(map(sum, at_rates)),
    )
    rows = [[name, *_cells(row)] for name, row in (parts | {"device": device}).items()]
    seconds = [step.seconds(each) for each in rates]
    mfus = [step.mfu(each, taken) for each, taken in zip(rates, seconds, strict=True)]
    rows += [["host", "", "", "", *(_ms(step.host_seconds) for _ in rates)]]
    rows += [["a step", "", "", "", *map(_ms, seconds)]]
    rows += [["MFU", "", "", "", *map(_percent, mfus)]]
    return printing.plain(["part", "kernels", "GB", "TFLOP", *(f"{each.name} [ms]" for each in rates)], rows)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"


def _cells(row: Row) -> list[str]:
    flops = f"{row.flops / 1e12:,.2f}" if row.flops else ""
    return [f"{row.kernels:,.0f}", f"{row.nbytes / 1e9:,.1f}", flops, *map(_ms, row.seconds)]


def _notes(step: Step, rates: Sequence[Rates], noun: str) -> Iterator[str]:
    for each in step.collectives:
        yield f"sent by each {noun}: {each.text}"
    if step.outline.config.engine.compile == "blocks":
        yield "compiled blocks take less than this: what they save is not counted"
    places = ", ".join(f"{place} x {n}" if n > 1 else place for place, n in step.syncs.items())
    yield f"the host waits for the device in forward and backward: {places or 'never'}"
    yield (
        "host: one thread launches the kernels and does the engine's bookkeeping, as measured on a CPU (python -m "
        "benchmarks.host); a step is the longer of device and host"
    )
    for each in rates:
        mfu, (highest, training) = step.mfu(each, step.seconds(each)), PUBLISHED.get(each.gpu, (1.0, ""))
        if mfu > highest:
            yield (
                f"{_percent(mfu)} MFU on {each.name} is more than any published training that we know of reaches "
                f"({_percent(highest)}: {training}); read it as a bound, or set mfu="
            )
    yield (
        f"checkpoint: {printing.n_bytes(step.saved)} every {step.outline.config.checkpoint.save_every_steps:,} steps, "
        f"{printing.n_bytes(round(step.saved / step.n_gpus))} for each {noun}; no disk's rate is assumed"
    )
    if rates:
        shared = f"a kernel {SHORTEST_S * 1e6:g} us or more; links at {_percent(OF_LINKS)}"
        yield f"rates: {'; '.join(each.text for each in rates)}; {shared} of their data sheets (assumed)"


# ---- the schedule, and what differs between stages


def table(stages: Sequence[Stage], outlines: Sequence[Outline]) -> str:
    """Return the table of stages, then what differs from each stage to the next."""
    header = ("stage", "steps", "trains", "seq_len", "batch", "tokens", "lr", "rope_scaling", "data")
    parts = [printing.plain(header, [_row(stage, each) for stage, each in zip(stages, outlines, strict=True)])]
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
    return [*lines, f"optimizer {'keeps its state' if after.keeps_optimizer else 'starts afresh'}"]


def share(outline: Outline) -> str:
    """Write the share of trained parameters in per cent with one digit, as papers do."""
    return "100 %" if outline.n_trained == outline.n_parameters else _percent(outline.share, 1)


def lora(stage: Stage) -> str:
    """Write the adapters of a stage."""
    return "none" if stage.lora is None else f"rank {stage.lora.rank}, alpha {stage.lora.alpha:g}"


def _row(stage: Stage, outline: Outline) -> list[str]:
    train, optim, sources = stage.config.train, stage.config.optim, stage.config.data.sources
    scaling = getattr(stage.config.position, "rope_scaling", None)
    factor = getattr(scaling, "factor", None)
    return [
        stage.name,
        f"{stage.first_step:,}-{stage.first_step + stage.max_steps:,}",
        share(outline),
        f"{train.seq_len:,}",
        f"{train.global_batch_size:,}",
        short(n_tokens(stage)),
        f"{optim.lr:g}" if optim.schedule == "constant" else f"{optim.lr:g} {optim.schedule} {optim.min_lr:g}",
        "-" if scaling is None else scaling.name + ("" if factor is None else f" {factor:g}"),
        ", ".join(sources) if len(sources) <= 2 else f"{len(sources)} sources",
    ]


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
Options = Mapping[str, object]


def differences(before: Config, after: Config) -> list[str]:
    """Return a line for each difference, in the order of the configuration; none where the two are equal.

    >>> differences(stage_1.config, stage_2.config)
    ['rope_scaling plain (theta 10000) -> linear (theta 10000, factor 16)', 'seq_len 2,048 -> 32,768',
     'tokens a step 4,194,304 -> 2,097,152']
    """
    lines = list(_between(_tree(before), _tree(after), ""))
    old, new = (config.train.seq_len * config.train.global_batch_size for config in (before, after))
    if old != new:
        lines.append(f"tokens a step {old:,} -> {new:,}")
    return lines


def _tree(config: Config) -> Options:
    """Return all options; in place of the weights of sources their shares of the training tokens, as `data.mixture`."""
    tree, sources = asdict(config), config.data.sources
    total = sum(source.weight for source in sources.values())
    for source in tree["data"]["sources"].values():
        del source["weight"]
    tree["data"]["mixture"] = {name: percent(source.weight / total) for name, source in sources.items()}
    return tree


def _between(old: Options, new: Options, section: str) -> Iterator[str]:
    for key in dict.fromkeys([*old, *new]):
        where = f"{section}.{key}" if section else key
        a, b, tag = old.get(key, ABSENT), new.get(key, ABSENT), CHOICES.get(where, "")
        if a == b or (section == "data.sources" and ABSENT in (a, b)):  # the mixture names those that come and go
            continue
        if isinstance(a, dict) and isinstance(b, dict) and a.get(tag) == b.get(tag):
            yield from _between(a, b, where)
        else:
            name = NAMES.get(where, where.replace("data.mixture.", "data "))
            yield f"{name} {_format(where, a)} -> {_format(where, b)}"


def _format(where: str, value: object) -> str:
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
