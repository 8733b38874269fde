"""`python -m benchmarks.schemes`: memory and time of every scheme and attention pattern by length, forward and
backward.

Each number is that of one layer of attention with all that the scheme does for it, one sequence, in a process of its
own: peak memory above a warmed-up process, and the fastest of a few repetitions. Attention patterns are measured with
rope, their windows at 512 tokens. `rope:eager` is the reference, which holds the whole T x T matrix; up to 4,096
tokens.

slope: of log memory against log T, the larger of the fit over all lengths and the last step. 1 is linear.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import DTYPES, WINDOW, Setup
from benchmarks.measure import MIB, Alone, alone, machine, say
from coca_train.catalog.entries import entries
from coca_train.report.blocks import Line, Lines
from coca_train.report.render.pictures import picture
from coca_train.runtime.durable import write_bytes, write_json, write_text
from coca_train.runtime.printing import markdown

REFERENCE, REFERENCE_UP_TO = "rope:eager", 4096
ABSENT = "–"
BAR = 1.1  # slope that everything but the reference has to keep
ENOUGH_S = 5.0  # on the CPU a case is not repeated after this time

Results = dict[str, dict[int, Alone]]  # case -> T -> what it takes


def cases(schemes: Sequence[str], attention_patterns: Sequence[str]) -> list[str]:
    """Every scheme, rope under every attention pattern but plain causal, and the reference."""
    return [*schemes, *(f"rope:{name}" for name in attention_patterns if name != "causal"), REFERENCE]


def measure(names: Sequence[str], lengths: Sequence[int], setup: Setup) -> tuple[Results, list[str]]:
    """Everything, short lengths first, a line for each on stderr; and what failed."""
    costs: Results = {name: {} for name in names}
    failed, begin = [], time.perf_counter()
    jobs = [(n, t) for t in lengths for n in names if n != REFERENCE or t <= REFERENCE_UP_TO]
    repeats, enough_s = (5, math.inf) if setup.device == "cuda" else (3, ENOUGH_S)
    for number, (name, length) in enumerate(jobs, 1):
        try:
            one = costs[name][length] = alone("scheme", f"{name}/{length}", setup, repeats, enough_s)
            text = f"{one.peak_bytes / MIB:,.1f} MiB, {one.seconds:.3f} s"
        except RuntimeError as error:
            failed.append(str(error))
            text = f"failed: {str(error).splitlines()[0]}"
        say(f"[{time.perf_counter() - begin:5.0f} s] {number}/{len(jobs)} {name} T = {length:,}: {text}")
    return costs, failed


def slope(by_length: Mapping[int, Alone]) -> float:
    """Of log memory against log T: the larger of the least-squares fit and the last step; nan for one length."""
    points = [(math.log(t), math.log(max(1, one.peak_bytes))) for t, one in sorted(by_length.items())]
    if len(points) < 2:
        return math.nan
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    fit = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    (x0, y0), (x1, y1) = points[-2:]
    return max(fit, (y1 - y0) / (x1 - x0))


def table(costs: Results, lengths: Sequence[int]) -> str:
    """A row for each case: memory and time at each length, slope, time over rope's at the longest that both have."""
    header = [
        "scheme",
        *(f"MiB, T = {t:,}" for t in lengths),
        "slope",
        *(f"s, T = {t:,}" for t in lengths),
        "time/rope",
    ]
    rows = []
    for name, by_length in costs.items():
        memory = [f"{by_length[t].peak_bytes / MIB:,.1f}" if t in by_length else ABSENT for t in lengths]
        seconds = [f"{by_length[t].seconds:.3f}" if t in by_length else ABSENT for t in lengths]
        rows.append([name, *memory, _two(slope(by_length)), *seconds, _two(_over_rope(by_length, costs))])
    return markdown(header, rows)


def _two(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.2f}"


def _over_rope(by_length: Mapping[int, Alone], costs: Results) -> float:
    rope = costs.get("rope", {})
    both = [t for t in by_length if t in rope]
    return by_length[max(both)].seconds / rope[max(both)].seconds if both else math.nan


def verdict(costs: Results) -> str:
    """Whether memory grows linearly, in words."""
    slopes = {name: slope(by_length) for name, by_length in costs.items() if name != REFERENCE}
    steep = {name: value for name, value in slopes.items() if value > BAR}
    if steep:
        return f"Steeper than {BAR}: " + ", ".join(f"{name} ({value:.2f})" for name, value in steep.items())
    return f"Every slope but the reference's is at most {BAR}."


def document(costs: Results, lengths: Sequence[int], setup: Setup, facts: Mapping[str, Any], failed: list[str]) -> str:
    """The page: what was measured, on what, the table, the verdict."""
    lines = [
        "# Memory and time of every scheme",
        "",
        f"One layer of attention ({setup.attention_heads} heads x {setup.attention_head_dim}, one sequence, "
        f"{setup.dtype}), forward and backward, each in a process of its own: peak memory above a warmed-up process, "
        f"fastest repetition. Attention patterns with rope, windows of {WINDOW} tokens. rope:eager is the reference, "
        "the whole T x T matrix.",
        "",
        ", ".join(f"{key}: {value}" for key, value in facts.items()),
        "",
        table(costs, lengths),
        verdict(costs),
        *(["", "Failed:", "", *(f"* {text.splitlines()[0]}" for text in failed)] if failed else []),
    ]
    return "\n".join(lines) + "\n"


def figure(path: Path, costs: Results, lengths: Sequence[int], device: str) -> None:
    """Peak memory against length, both logarithmic, with a line of slope 1 for comparison."""
    curves = [
        Line(label=name, x=tuple(sorted(by)), y=tuple(by[t].peak_bytes / MIB for t in sorted(by)))
        for name, by in costs.items()
        if by
    ]
    low = min(curve.y[0] for curve in curves)
    guide = Line(label="slope 1", x=tuple(lengths), y=tuple(low * t / lengths[0] / 2 for t in lengths))
    block = Lines(
        name="memory",
        title=f"Peak memory of attention, forward and backward ({device})",
        alt="Peak memory against length, a curve for each scheme.",
        x_label="length T [tokens]",
        y_label="peak memory above a warmed-up process [MiB]",
        lines=(*curves, guide),
        x_log=True,
        y_log=True,
    )
    write_bytes(path, picture(block)["png"])


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schemes", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=list(DTYPES), default=None, help="fp32 on the CPU, bf16 on CUDA")
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=None, help="1024 4096 16384; on CUDA also 32768 [tokens]"
    )
    parser.add_argument("--schemes", nargs="*", default=list(entries("position")), help="choices of configs/position")
    parser.add_argument(
        "--attention-patterns",
        nargs="*",
        default=list(entries("attention_pattern")),
        help="of configs/attention_pattern",
    )
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/benchmarks"), help="folder for schemes-<device>.{md,json,png}"
    )
    options = parser.parse_args(arguments)
    for name, group in ((n, g) for g in ("schemes", "attention_patterns") for n in getattr(options, g)):
        if name not in entries("position" if group == "schemes" else "attention_pattern"):
            parser.error(f"--{group}: there is no {name!r}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 when something failed or grows faster than linearly."""
    options = parse(arguments)
    gpu = options.device == "cuda"
    if gpu and not torch.cuda.is_available():
        say("There is no CUDA device here: nothing was measured.")
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    lengths = sorted(set(options.lengths or [1024, 4096, 16_384, *([32_768] if gpu else [])]))
    shape = {"attention_heads": options.heads, "attention_head_dim": options.head_dim}
    setup = Setup(options.device, options.dtype or ("bf16" if gpu else "fp32"), **shape)
    facts = machine(setup)
    costs, failed = measure(cases(options.schemes, options.attention_patterns), lengths, setup)
    text = document(costs, lengths, setup, facts, failed)
    print(text)
    place = options.out / f"schemes-{options.device}"
    raw = {name: {str(t): vars(one) for t, one in by.items()} for name, by in costs.items()}
    write_text(place.with_suffix(".md"), text)
    write_json(place.with_suffix(".json"), {"machine": facts, "setup": vars(setup), "found": raw, "failed": failed})
    if any(costs.values()):
        figure(place.with_suffix(".png"), costs, lengths, f"{facts['device']}, {setup.dtype}")
    return int(bool(failed) or verdict(costs).startswith("Steeper"))


if __name__ == "__main__":
    sys.exit(main())
