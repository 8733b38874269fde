"""The counted step of a stage as a page: by part, before fusion; what fusion saves, rule by rule; beside it what a
step of this machine took."""

import textwrap
from collections.abc import Iterable, Sequence

from coca_train.planning.fusion import RULES
from coca_train.planning.rates import OF_LINKS, PUBLISHED, SHORTEST_S, Rates
from coca_train.planning.roofline import Row, Step
from coca_train.runtime import printing

GIGA, TERA = 1e9, 1e12


def page(step: Step, rates: Sequence[Rates], measured: dict[str, float] | None = None, noun: str = "GPU") -> list[str]:
    """Lines of text. measured: seconds of a step of this machine by part; None: it was not. noun: what computes it."""
    train, n_ranks = step.outline.config.train, step.outline.config.engine.sequence_parallel
    n, shared = step.n_micro_batches, f", each shared by {n_ranks}" if n_ranks > 1 else ""
    lines = [
        f"  roofline  a step of one {f'of {step.n_gpus} {noun}s' if step.n_gpus > 1 else noun}, counted: "
        f"{n} micro batch{'es' * (n > 1)} of "
        f"{train.micro_batch_size} x {train.seq_len:,}{shared}",
        "",
        *(f"    {line}" for line in _table(step, rates, measured).splitlines()),
        "",
    ]
    lines += [f"    {line}" for line in _notes(step, rates, noun)]
    return lines


def _table(step: Step, rates: Sequence[Rates], measured: dict[str, float] | None) -> str:
    own = [] if measured is None else ["this machine [ms]"]
    header = ("part", "kernels", "GB", "TFLOP", *(f"{each.name} [ms]" for each in rates), *own)
    rows, savings = step.rows(rates), step.savings(rates)
    table = [[name, *_cells(row), *_own(measured, name)] for name, row in rows.items()]
    total = _sum(rows.values(), len(rates))
    table.append(["device", *_cells(total), *("" for _ in own)])
    table += _steps(step, rates, _own(measured, None), compiled=False)
    for rule, row in savings.items():
        table.append([f"fused: {rule}", *(f"-{cell}" if cell else "" for cell in _cells(row)), *("" for _ in own)])
    if savings:
        less = total - _sum(savings.values(), len(rates))
        table.append(["device, fused", *_cells(less), *("" for _ in own)])
        table += _steps(step, rates, ["" for _ in own], compiled=True)
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


def _steps(step: Step, rates: Sequence[Rates], own: Sequence[str], compiled: bool) -> list[list[str]]:
    """The host's row, the longer of it and the device's, and what that is of the peak. own: a step of this machine."""
    seconds, how = [step.seconds(each, compiled) for each in rates], ", fused" if compiled else ""
    cells = {
        "host": [f"{1e3 * step.host_seconds(compiled):,.1f}" for _ in rates],
        "a step": [f"{1e3 * each:,.1f}" for each in seconds],
        "MFU": [_percent(step.mfu(*each)) for each in zip(rates, seconds, strict=True)],
    }
    return [
        [f"{name}{how}", "", "", "", *row, *(own if name == "a step" else [""] * len(own))]
        for name, row in cells.items()
    ]


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _beyond(step: Step, rates: Sequence[Rates]) -> list[str]:
    """Of each GPU on which the step as it is set would reach more than anybody has published."""
    notes = []
    for each in rates:
        mfu = step.mfu(each, step.seconds(each, step.is_compiled))
        known = PUBLISHED.get(each.gpu)
        if known is not None and mfu > known.mfu:
            notes.append(
                f"{_percent(mfu)} MFU on {each.name} is more than any published training that we know of reaches "
                f"({_percent(known.mfu)}: {known.training}); take it for a bound, or give mfu="
            )
    return notes


def _notes(step: Step, rates: Sequence[Rates], noun: str) -> list[str]:
    notes = [f"sent by each {noun}: {each.text}" for each in step.collectives]
    notes += [f"fused, {rule}: {RULES[rule]}" for rule in step.savings(rates)]
    places = ", ".join(f"{place} x {n}" if n > 1 else place for place, n in step.syncs.items())
    notes.append(f"the host waits for the device in forward and backward: {places or 'never'}")
    notes.append(
        "host: one thread launches the kernels and keeps the engine's books, as measured on a CPU (python -m "
        "benchmarks.host); a step is the longer of device and host"
    )
    notes += _beyond(step, rates)
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
