"""A plan as text."""

from collections.abc import Sequence

from coca_train.planning.cost import Cluster, Cost
from coca_train.planning.gpus import GIB
from coca_train.planning.schedule import lora, share, table
from coca_train.positions.layers import in_words as layers
from coca_train.runtime import printing
from coca_train.runtime.printing import short

SHOWN = 0.005 * GIB  # a component below this is not listed
WINDOWS = "eval.extrapolation.multiples, or a smaller eval.extrapolation.micro_batch_tokens"


def plan(name: str, costs: Sequence[Cost], cluster: Cluster) -> str:
    """The schedule, what changes between stages, and each stage's cost."""
    stages, outlines = [cost.stage for cost in costs], [cost.outline for cost in costs]
    parts = [f"plan of {name}: {_cluster(cluster, costs)}\n\n", table(stages, outlines)]
    parts += [f"\n{_stage(cost, cluster)}" for cost in costs]
    if len(costs) > 1:
        parts.append(f"\nall stages: {short(sum(c.n_tokens for c in costs))} tokens, {_hours(costs, cluster)}\n")
    return "".join(parts)


def _cluster(cluster: Cluster, costs: Sequence[Cost]) -> str:
    return f"{cluster.n_gpus} x {cluster.gpu.device}, {cluster.mfu:.0%} MFU of {costs[0].peak.source}".replace(
        "%", " %"
    )


def _hours(costs: Sequence[Cost], cluster: Cluster) -> str:
    hours = sum(cost.hours for cost in costs)
    days = f" ({hours / 24:.1f} days)" if hours >= 48 else ""
    return f"{_number(hours)} hours{days}, {_number(hours * cluster.n_gpus)} GPU hours"


def _number(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _stage(cost: Cost, cluster: Cluster) -> str:
    outline, train, per_token = cost.outline, cost.stage.config.train, cost.per_token
    lines = [
        f"stage {cost.stage.name}",
        f"  trains    {share(outline)} of the parameters: {outline.n_trained:,} of {outline.n_parameters:,}",
        *([] if cost.stage.lora is None else [f"  LoRA      {lora(cost.stage)}"]),
        *(
            [f"  layers    {layers(stage.layers, stage.model.n_layers)}"]
            if (stage := cost.stage.config).layers.pattern
            else []
        ),
        f"  tokens    {short(cost.n_tokens)}: {cost.stage.max_steps:,} steps of "
        f"{train.global_batch_size:,} x {train.seq_len:,}",
        f"  FLOPs     a token: {short(per_token.forward)} forward + {short(per_token.backward)} backward; "
        f"in all {per_token.total * cost.n_tokens:.2e}",
        f"  time      {_hours([cost], cluster)}{_again(cost)}",
        f"  memory    of one GPU [GiB], micro batch {train.micro_batch_size} x {train.seq_len:,}, "
        f"{cost.stage.config.engine.dtype}, {_engine(cost)}",
        "",
        *(f"    {line}" for line in _memory(cost).splitlines()),
        "",
        f"  {_verdict(cost, cluster)}",
    ]
    return "\n".join(lines) + "\n"


def _again(cost: Cost) -> str:
    checkpoints = cost.stage.config.engine.activation_checkpointing
    return "; MFU leaves out the forward that checkpointing computes again" if checkpoints else ""


def _engine(cost: Cost) -> str:
    engine = cost.stage.config.engine
    return f"ZeRO {engine.zero_stage}" if engine.kind == "deepspeed" else "local engine"


def _memory(cost: Cost) -> str:
    """Components with and without activation checkpointing, their sum, then the most in each phase of a run."""
    as_set = cost.stage.config.engine.activation_checkpointing
    marks = {way: " (as set)" if way == as_set else "" for way in (False, True)}
    header = ("component", f"all activations{marks[False]}", f"checkpointing{marks[True]}")
    ways = [cost.memory[way] for way in (False, True)]
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
        as_set = cost.memory[cost.stage.config.engine.activation_checkpointing]
        late = as_set.report > cluster.gpu.usable
        return f"fits into {has:,.1f} GiB" + f"; ITS REPORT DOES NOT: shorter {WINDOWS}" * late
    if cost.change is None:
        return f"DOES NOT FIT into {has:,.1f} GiB, whatever is changed of micro batch, checkpointing, ZeRO and GPUs"
    stage, own = cost.stage, cost.stage.config.stages.get(cost.stage.name)
    alone = len(stage.config.stages) > 1 or bool(own and (own.train or own.engine))
    words = cost.change.typed(stage.name if alone else "")
    return f"DOES NOT FIT into {has:,.1f} GiB; the smallest change that fits: {words}"
