"""`python -m benchmarks.complexity`: table 6 of the CoCA paper (arXiv 2309.08646, appendix C), measured.

The table gives, for plain attention and for CoCA, how time and memory of every step grow with N tokens, h heads of
width d. Here each step is computed as the table has it, forward, one sequence, in a process of its own: peak memory
above a warmed-up process, inputs included, and the fastest of a few repetitions. `expanded` is K_rot = Q ∘ T_rot
written out, N² d numbers; `contracted` is Eq. 19. The last two rows are all that happens to q, k or t, and v up to the
output in this package, where no step has N² numbers.

The exponent is that of N, a least-squares fit over all lengths.
"""

import argparse
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.cases import DTYPES, Setup
from benchmarks.measure import MIB, Alone, alone, machine, say
from coca_train.runtime.durable import write_text
from coca_train.runtime.printing import markdown

EXPANDED_UP_TO = 1024  # d times the memory of the scores: 1 GiB at 4 heads of 64 [tokens]
ABSENT = "–"
MANY, ENOUGH_S = 30, 3.0  # repetitions of a step, and the time after which there is no further one [s]


class Step(NamedTuple):
    """A row: the benchmark's case, who needs it, and what the paper's table has for its time and its memory."""

    kind: str
    name: str
    of: str
    time: str
    memory: str


STEPS = {
    "W_QKV or W_QTV": Step("step", "projections", "both", "3Nd²h", "Nd"),
    "T half": Step("step", "half", "CoCA", "Ndh", "Nd"),
    "T ReLU": Step("step", "relu", "CoCA", "Ndh", "Nd"),
    "rotation of Q and K or T": Step("step", "rotation", "both", "2Ndh", "Nd"),
    "K_rot = Q ∘ T_rot, expanded": Step("step", "expanded", "CoCA", "N²dh", "N²d"),
    "Q_rot K_rotᵀ": Step("step", "scores", "plain", "N²dh", "N²"),
    "Q_rot (Q ∘ T_rot)ᵀ, contracted": Step("step", "scores_coca", "CoCA", "N²dh", "N²"),
    "mask": Step("step", "mask", "both", "N²", "N²"),
    "softmax": Step("step", "softmax", "both", "N²", "N²"),
    "here, all of it": Step("long_forward", "rope", "plain", ABSENT, ABSENT),
    "here, all of CoCA": Step("long_forward", "coca", "CoCA", ABSENT, ABSENT),
}
PLAIN, COCA = "here, all of it", "here, all of CoCA"


def measure(lengths: Sequence[int], setup: Setup) -> dict[str, dict[int, Alone]]:
    """Every step at every length, short lengths first, a line for each on stderr."""
    costs: dict[str, dict[int, Alone]] = {row: {} for row in STEPS}
    begin = time.perf_counter()
    for n_tokens in lengths:
        for row, each in STEPS.items():
            if each.name == "expanded" and n_tokens > EXPANDED_UP_TO:
                continue
            one = costs[row][n_tokens] = alone(each.kind, f"{each.name}/{n_tokens}", setup, MANY, ENOUGH_S)
            text = f"{one.peak_bytes / MIB:,.1f} MiB, {one.seconds:.5f} s"
            say(f"[{time.perf_counter() - begin:5.0f} s] {row}, N = {n_tokens:,}: {text}")
    return costs


def exponent(by_length: Mapping[int, float]) -> float:
    """The power of N with which a number grows: least squares on logarithms; nan for one length."""
    if len(by_length) < 2:
        return math.nan
    logs = [math.log(n) for n in by_length], [math.log(max(y, 1e-9)) for y in by_length.values()]
    return statistics.linear_regression(*logs).slope


def table(costs: Mapping[str, Mapping[int, Alone]], lengths: Sequence[int]) -> str:
    """A row for each step: the paper's growth, the measured exponents, memory and time at each length."""
    header = ["step", "of", "paper: time", "N to the", "paper: memory", "N to the"]
    header += [f"ms, N = {n:,}" for n in lengths] + [f"MiB, N = {n:,}" for n in lengths]
    rows = []
    for row, by_length in costs.items():
        step = STEPS[row]
        seconds = {n: one.seconds for n, one in by_length.items()}
        held = {n: float(one.peak_bytes) for n, one in by_length.items()}
        growth = [step.time, _two(exponent(seconds)), step.memory, _two(exponent(held))]
        numbers = [f"{1000 * seconds[n]:,.2f}" if n in seconds else ABSENT for n in lengths]
        numbers += [f"{held[n] / MIB:,.1f}" if n in held else ABSENT for n in lengths]
        rows.append([row, step.of, *growth, *numbers])
    return markdown(header, rows, n_left=2)


def verdict(costs: Mapping[str, Mapping[int, Alone]]) -> str:
    """CoCA over plain attention, all of it, at the longest length."""
    n = max(costs[COCA])
    coca, plain = costs[COCA][n], costs[PLAIN][n]
    return (
        f"CoCA over plain attention at N = {n:,}: time {coca.seconds / plain.seconds:.2f}, "
        f"memory {coca.peak_bytes / plain.peak_bytes:.2f} (the paper, on its own implementation: time 1.05 to 1.10)."
    )


def _two(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:.2f}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.complexity", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=list(DTYPES), default="fp32")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096], help="N [tokens]")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch")
    parser.add_argument("--out", type=Path, default=None, help="also write the table here")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    setup = Setup(options.device, options.dtype, attention_heads=options.heads, attention_head_dim=options.head_dim)
    lengths = sorted(set(options.lengths))
    facts = "  ".join(f"{key}: {value}" for key, value in machine(setup).items())
    costs = measure(lengths, setup)
    text = "\n".join([facts, "", table(costs, lengths), verdict(costs)])
    print(text)
    if options.out:
        write_text(options.out, text + "\n")


if __name__ == "__main__":
    main()
