"""The counted step of a stage as a page: by part, before fusion; what fusion saves, rule by rule; beside it what a
step of this machine took."""

import textwrap
from collections.abc import Iterable, Sequence

from coca_train.planning.fusion import RULES
from coca_train.planning.rates import OF_LINKS, SHORTEST_S, Rates
from coca_train.planning.roofline import Row, Step
from coca_train.runtime import printing

GIGA, TERA = 1e9, 1e12


def page(step: Step, rates: Sequence[Rates], measured: dict[str, float] | None = None) -> list[str]:
    """Lines of text. measured: seconds of a step of this machine by part; None: it was not."""
    train, n_ranks = step.outline.config.train, step.outline.config.engine.sequence_parallel
    n, shared = step.n_micro_batches, f", each shared by {n_ranks}" if n_ranks > 1 else ""
    lines = [
        f"  roofline  a step of one {f'of {step.n_gpus} GPUs' if step.n_gpus > 1 else 'GPU'}, counted: "
        f"{n} micro batch{'es' * (n > 1)} of "
        f"{train.micro_batch_size} x {train.seq_len:,}{shared}",
        "",
        *(f"    {line}" for line in _table(step, rates, measured).splitlines()),
        "",
    ]
    lines += [f"    {line}" for line in _notes(step, rates)]
    return lines


def _table(step: Step, rates: Sequence[Rates], measured: dict[str, float] | None) -> str:
    own = [] if measured is None else ["this machine [ms]"]
    header = ("part", "kernels", "GB", "TFLOP", *(f"{each.name} [ms]" for each in rates), *own)
    rows, savings = step.rows(rates), step.savings(rates)
    table = [[name, *_cells(row), *_own(measured, name)] for name, row in rows.items()]
    total = _sum(rows.values(), len(rates))
    table.append(["a step", *_cells(total), *_own(measured, None)])
    table.append(_mfu("MFU", step, rates, total, own))
    for rule, row in savings.items():
        table.append([f"fused: {rule}", *(f"-{cell}" if cell else "" for cell in _cells(row)), *("" for _ in own)])
    if savings:
        less = total - _sum(savings.values(), len(rates))
        table.append(["a step, fused", *_cells(less), *("" for _ in own)])
        table.append(_mfu("MFU, fused", step, rates, less, own))
    return printing.plain(header, table)


def _sum(rows: Iterable[Row], n_rates: int) -> Row:
    return sum(rows, Row(seconds=(0.0,) * n_rates))


def _cells(row: Row) -> list[str]:
    counted = [f"{row.kernels:,.0f}", f"{row.nbytes / GIGA:,.1f}", f"{row.flops / TERA:,.2f}" if row.flops else ""]
    return [*counted, *(f"{1e3 * each:,.1f}" for each in row.seconds)]


def _own(measured: dict[str, float] | None, part: str | None) -> list[str]:
    if measured is None:
        return []
    seconds = sum(measured.values()) if part is None else measured.get(part, 0.0)
    return [f"{1e3 * seconds:,.1f}"]


def _mfu(name: str, step: Step, rates: Sequence[Rates], total: Row, own: Sequence[str]) -> list[str]:
    shares = [
        f"{step.mfu(each, seconds):.0%}".replace("%", " %") for each, seconds in zip(rates, total.seconds, strict=True)
    ]
    return [name, "", "", "", *shares, *("" for _ in own)]


def _notes(step: Step, rates: Sequence[Rates]) -> list[str]:
    notes = [f"sent by each GPU: {each.text}" for each in step.collectives]
    notes += [f"fused, {rule}: {RULES[rule]}" for rule in step.savings(rates)]
    places = ", ".join(f"{place} x {n}" if n > 1 else place for place, n in step.syncs.items())
    notes.append(f"the host waits for the device in forward and backward: {places or 'never'}")
    every = step.outline.config.checkpoint.save_every_steps
    notes.append(
        f"checkpoint: {printing.n_bytes(step.saved)} every {every:,} steps, "
        f"{printing.n_bytes(round(step.saved / step.n_gpus))} for each GPU; no disk's rate is assumed"
    )
    if rates:
        shared = f"a kernel {SHORTEST_S * 1e6:g} us or more; links at {OF_LINKS:.0%}".replace("%", " %")
        notes.append(f"rates: {'; '.join(each.text for each in rates)}; {shared} of their data sheets (assumed)")
    wrapped = [textwrap.wrap(note, printing.WIDTH - 4, subsequent_indent="  ") for note in notes]
    return [line for lines in wrapped for line in lines]
