"""The schedule as a person reads it: a table of the stages, and what changes from one to the next."""

from collections.abc import Sequence

from coca_train.planning.differences import differences
from coca_train.planning.outline import Outline, outline
from coca_train.runtime import printing
from coca_train.schedule import Stage

HEADER = ("stage", "steps", "trains", "seq_len", "batch", "tokens", "lr", "frequencies", "data")


def schedule(stages: Sequence[Stage], n_tokens: int | None = None) -> str:
    """The table, then under each border what differs, from before the first line to after the last.

    n_tokens: embedding rows; None: model.vocab_size or the tokenizer's (UserError when neither is known).
    """
    outlines = [outline(stage.config, stage.trainable, n_tokens, stage.lora) for stage in stages]
    return table(stages, outlines)


def table(stages: Sequence[Stage], outlines: Sequence[Outline]) -> str:
    """`schedule` for outlines that are there already."""
    rows = [_row(stage, each) for stage, each in zip(stages, outlines, strict=True)]
    parts = [printing.plain(HEADER, rows)]
    for i in range(1, len(stages)):
        parts.append(f"\n{stages[i - 1].name} -> {stages[i].name}\n")
        parts += [f"  {line}\n" for line in between(stages[i - 1 : i + 1], outlines[i - 1 : i + 1])]
    return "".join(parts)


def between(stages: Sequence[Stage], outlines: Sequence[Outline]) -> list[str]:
    """What differs between two stages, lines of text; the state of the optimizer always."""
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
    kept = "goes on with its state" if after.keeps_optimizer else "starts afresh"
    return [*lines, f"optimizer {kept}"]


def share(outline: Outline) -> str:
    """Trained parameters in per cent, one digit behind the point as papers give them."""
    return "100 %" if outline.n_trained == outline.n_parameters else f"{outline.share:.1%}".replace("%", " %")


def lora(stage: Stage) -> str:
    """The adapters of a stage in words."""
    return "none" if stage.lora is None else f"rank {stage.lora.rank}, alpha {stage.lora.alpha:g}"


def n_tokens(stage: Stage) -> int:
    """Tokens that a stage trains on."""
    train = stage.config.train
    return stage.max_steps * train.global_batch_size * train.seq_len


def _row(stage: Stage, outline: Outline) -> tuple[str, ...]:
    train, optim, data = stage.config.train, stage.config.optim, stage.config.data
    frequencies = getattr(stage.config.position, "frequencies", None)
    factor = getattr(frequencies, "factor", None)
    lr = f"{optim.lr:g}" if optim.schedule == "constant" else f"{optim.lr:g} {optim.schedule} {optim.min_lr:g}"
    return (
        stage.name,
        f"{stage.first_step:,}-{stage.first_step + stage.max_steps:,}",
        share(outline),
        f"{train.seq_len:,}",
        f"{train.global_batch_size:,}",
        printing.short(n_tokens(stage)),
        lr,
        "-" if frequencies is None else frequencies.name + (f" {factor:g}" if factor is not None else ""),
        ", ".join(data.sources) if len(data.sources) <= 2 else f"{len(data.sources)} sources",
    )
