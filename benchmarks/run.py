"""`python -m benchmarks.run`: one table of ratios, within one run on one machine.

Rows where "ours / peer" is a time or memory ratio: below 1 we are faster or leaner. Speeds are given as
tokens per second. Peers: transformers' GPTNeoXForCausalLM (the faster of sdpa and eager), in training a
plain GPT as well (benchmarks/plain_gpt.py), and RoPE's attention in this package.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import KINDS, Setup
from benchmarks.measure import MIB, interleaved_seconds, machine, median_ratio, peak_bytes, say
from coca_train.attention.tiled_attention import WIDENED
from coca_train.runtime.printing import markdown

Row = dict[str, Any]


def bench_training(setup: Setup, rounds: int, positions: list[str]) -> list[Row]:
    """Our training step against transformers', and against a plain GPT's."""
    peers, plain = ["transformers/sdpa", "transformers/eager"], "plain/gpt"
    names = [*(f"ours/{p}" for p in positions), *peers, plain]
    works = {name: KINDS["training"](name, setup) for name in names}
    seconds = interleaved_seconds(works, setup, rounds)
    works.clear()
    best = min(peers, key=lambda peer: statistics.median(seconds[peer]))
    memory = {name: peak_bytes("training", name, setup) for name in [*names[: len(positions)], best, plain]}
    tokens = setup.batch * setup.seq_len
    what = f"training {setup.dtype}, {setup.model}, {setup.batch} x {setup.seq_len}"
    ours = [
        row(what, name.removeprefix("ours/"), peer, seconds, memory[name], memory[peer], tokens)
        for peer in (best, plain)
        for name in names[: len(positions)]
    ]
    return ours + [row(what, peer, best, seconds, None, None, tokens) for peer in [*peers, plain]]


def bench_decoding(setup: Setup, rounds: int, positions: list[str]) -> list[Row]:
    """Greedy decoding with a cache against transformers'."""
    peers = ["transformers/sdpa", "transformers/eager"]
    names = [f"ours/{p}" for p in positions] + peers
    seconds = interleaved_seconds({name: KINDS["decoding"](name, setup) for name in names}, setup, rounds)
    best = min(peers, key=lambda peer: statistics.median(seconds[peer]))
    what = f"decoding {setup.dtype}, {setup.model}, {setup.prompt_tokens} + {setup.new_tokens}"
    return [row(what, name.removeprefix("ours/"), best, seconds, None, None, setup.new_tokens) for name in names]


def bench_attention(setup: Setup, rounds: int, positions: list[str], part: str, lengths: list[int]) -> list[Row]:
    """Attention of every scheme against RoPE's, forward and backward."""
    rows = []
    for length in lengths:
        names = [f"{p}/{part}/{length}" for p in ["rope", *positions]]
        works = {name: KINDS["attention"](name, setup) for name in names}
        seconds = interleaved_seconds(works, setup, rounds, at_least_s=0.3)
        works.clear()
        memory = {name: peak_bytes("attention", name, setup) for name in names}
        what = f"attention {part} {setup.dtype}, T = {length}"
        tokens = max(setup.attention_tokens, length)
        rows += [row(what, n.split("/")[0], names[0], seconds, memory[n], memory[names[0]], tokens, n) for n in names]
    return rows


def bench_long(setup: Setup, positions: list[str], length: int) -> list[Row]:
    """Evaluation at a great length: the memory it takes against one T x T score matrix."""
    matrix = length * length * torch.empty(0, dtype=setup.torch_dtype).element_size() * setup.attention_heads
    rows = []
    for name in positions:
        peak = peak_bytes("long_forward", f"{name}/{length}", setup)
        what = f"evaluation {setup.dtype}, T = {length}"
        rows.append(
            {
                "what": what,
                "who": name,
                "against": "T x T scores",
                "memory_mib": peak / MIB,
                "memory_ratio": peak / matrix,
            }
        )
    return rows


def row(
    what: str,
    who: str,
    against: str,
    seconds: dict[str, list[float]],
    memory: int | None,
    peer_memory: int | None,
    tokens: int,
    key: str | None = None,
) -> Row:
    mine = seconds[key or (who if who in seconds else f"ours/{who}")]
    ratio, low, high = median_ratio(mine, seconds[against])
    record = {"what": what, "who": who, "against": against.split("/core")[0].split("/layer")[0]}
    record |= {"tokens_per_s": tokens / statistics.median(mine), "time_ratio": ratio, "low": low, "high": high}
    if memory is not None and peer_memory is not None:
        record |= {"memory_mib": memory / MIB, "memory_ratio": memory / peer_memory}
    return record


def table(rows: list[Row]) -> str:
    """time: seconds of `who` over seconds of `against` (lowest to highest turn); memory likewise."""

    def cells(r: Row) -> list[str]:
        time_ratio = f"{r['time_ratio']:.2f} ({r['low']:.2f}-{r['high']:.2f})" if "time_ratio" in r else "-"
        speed = f"{r['tokens_per_s']:,.0f}" if "tokens_per_s" in r else "-"
        mib = f"{r['memory_mib']:,.0f}" if "memory_mib" in r else "-"
        memory = f"{r['memory_ratio']:.3f}" if "memory_ratio" in r else "-"
        return [r["what"], r["who"], r["against"], speed, time_ratio, mib, memory]

    header = ["what", "who", "against", "tokens/s", "time ratio (range)", "peak MiB", "memory ratio"]
    return markdown(header, [cells(r) for r in rows], n_left=3)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Speed and memory as ratios within one run."
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if gpu else "cpu")
    parser.add_argument("--only", nargs="+", choices=["training", "attention", "decoding", "long"], default=None)
    dtypes = ["bf16"] if gpu else ["fp32"] if WIDENED[torch.bfloat16] else ["fp32", "bf16"]
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=["fp32", "bf16"],
        default=dtypes,
        help="by default those this machine has instructions for: %(default)s",
    )
    parser.add_argument("--positions", nargs="+", default=["coca", "coca_strict", "alibi"], help="schemes beside rope")
    parser.add_argument("--model", default="neox_350m" if gpu else "neox_tiny", help="configs/model/<name>.yaml")
    parser.add_argument("--seq-len", type=int, default=512, help="training window [tokens]")
    parser.add_argument("--batch", type=int, default=16 if gpu else 4, help="training batch [sequences]")
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 2048, 8192], help="T of the attention rows")
    parser.add_argument("--long", type=int, default=32768, help="T of the evaluation row")
    parser.add_argument("--rounds", type=int, default=20 if gpu else 5, help="turns of each competitor")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch")
    parser.add_argument("--out", type=Path, default=None, help="also write the rows as JSON here")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    gpu = options.device == "cuda"
    setup = Setup(options.device, options.dtypes[0], options.model, seq_len=options.seq_len, batch=options.batch)
    setup = replace(setup, attention_heads=16, attention_tokens=32768) if gpu else setup
    facts = machine(setup) | {"transformers": version("transformers")}
    begin, rows = time.perf_counter(), []
    print("  ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    wanted = options.only or ["training", "attention", "decoding", "long"]
    for dtype in options.dtypes:
        setup = replace(setup, dtype=dtype)
        jobs = {
            "training": lambda s=setup: bench_training(s, options.rounds, ["rope", "coca"]),
            "attention": lambda s=setup: bench_attention(s, options.rounds, options.positions, "core", options.lengths),
            "decoding": lambda s=setup: bench_decoding(s, options.rounds, ["rope", "coca"]),
            "long": lambda s=setup: bench_long(s, ["rope", *options.positions], options.long),
        }
        for name in wanted:
            if name == "long" and dtype != options.dtypes[0]:
                continue
            say(f"[{time.perf_counter() - begin:4.0f} s] {name} {dtype}")
            rows += (new := jobs[name]())
            print(table(new), flush=True)
    print("time and memory ratios: below 1 is faster, leaner than `against`; medians over turns taken alternately")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
