"""`python -m benchmarks.ways_to_8x`: ways to eight times the window of one small LLaMA.

Every line is a command that a user would type: a base of windows of 128 tokens; what needs no training; 200 steps of
4,096 tokens of every way that trains (CoCA: 201 in three stages); models of other schemes from scratch, 1,500 steps as
the base; then evaluations at 128 to 1,024 tokens. Each command goes on where it stopped, so the same line does, after
hours or another day. At the end the table of docs/ways_to_8x.md is written, and its numbers as JSON.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import ROOT, say
from coca_train.evaluation import suites
from coca_train.evaluation.perplexity_page import losses
from coca_train.evaluation.results import ALL, RESULTS, AnyRow, Evaluation
from coca_train.evaluation.suites import SUITES
from coca_train.evaluation.verdict import judge_rows, words
from coca_train.runtime.durable import write_json, write_text
from coca_train.runtime.printing import markdown
from coca_train.settings import load_saved
from coca_train.statistics.intervals import OverDocuments
from coca_train.tracking.records import read_jsonl

WINDOW, TARGET = 128, 1024  # [tokens]
PAGE, FIGURES = "ways_to_8x.md", "ways_to_8x.json"
BEGIN, END = "<!-- python -m benchmarks.ways_to_8x -->", "<!-- end -->"
YARN = (
    "position/rope_scaling=yarn",
    "position.rope_scaling.factor=8",
    f"position.rope_scaling.original_seq_len={WINDOW}",
)
PI = ("position/rope_scaling=linear", "position.rope_scaling.factor=8")
SHORT = (f"train.seq_len={WINDOW}", "train.micro_batch_size=16", "train.global_batch_size=32")  # as many tokens a step


class Way(NamedTuple):
    """A row. words: of its training. variant: of a trained model, as evaluate names it, in place of a training."""

    title: str
    run: str
    words: tuple[str, ...] = ()
    variant: str = ""


BASE, SCRATCH = "llama_tiny", "coca_scratch"
TUNE = "+experiment=ways_to_8x"
STAGES = "+experiment=coca_llama_tiny"
WAYS = (
    Way("RoPE as it is", BASE, ("+experiment=llama_tiny",)),
    Way("PI", BASE, variant="linear@factor:8"),
    Way("NTK-aware", BASE, variant="ntk@factor:8"),
    Way("YaRN", BASE, variant=f"yarn@factor:8@original_seq_len:{WINDOW}"),
    Way("LongRoPE's search", BASE, variant="searched"),
    Way("Self-Extend", BASE, variant=f"self_extend@window:{WINDOW}@group:16"),
    Way("dual chunks", BASE, variant=f"dual_chunk@window:{WINDOW}"),
    Way("STRING", BASE, variant=f"string@window:{WINDOW}"),
    Way("windows of 128 tokens, as before", "control", (TUNE, *SHORT)),
    Way("PI, tuned", "pi", (TUNE, *PI)),
    Way("YaRN, tuned", "yarn", (TUNE, *YARN)),
    Way("LongRoPE, tuned", "longrope", (TUNE, "position/rope_scaling=searched")),
    Way("S² and PI", "s2", (TUNE, *PI, "attention_pattern=s2")),
    Way("PoSE and YaRN", "pose", (TUNE, *YARN, *SHORT, "data.placement.name=pose", f"data.placement.target={TARGET}")),
    Way("DroPE", "drope", (
        TUNE, *SHORT, "position=nope", "start.convert=[rope_to_nope]", "model.logit_scale.name=by_length",
        "model.logit_scale.beta=0.412",
    )),
    Way("CoCA in three stages", "coca", (STAGES, "start.path=${run.root}/llama_tiny", "train.max_steps=67")),
    Way("CoCA from scratch", SCRATCH, ("+experiment=llama_tiny", "position=coca")),
    Way("CoCA from scratch, dynamic NTK (α 4)", SCRATCH, variant="dynamic_ntk@alpha:4"),
    Way("PoPE from scratch", "pope", ("+experiment=llama_tiny", "position=pope")),
    Way("FoPE from scratch", "fope", ("+experiment=llama_tiny", "position=fope")),
)  # fmt: skip
EVERY_RUN = ("engine=deepspeed_fp32", "tracking.progress_bar=false")  # few CPUs have instructions for bfloat16
PATTERNS = ("self_extend", "dual_chunk", "string")
SUITES_ASKED = {"perplexity": (), "recall": ("eval.keys=common", "eval.values=common", "eval.n_cases=50")}
TOY_SUITES = {"perplexity": ["text.max_documents=4", "eval.bootstrap_resamples=20"], "recall": ["eval.n_cases=2"]}
TOY = (
    *("model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.d_ff=48", "train.max_steps=4"),
    *("checkpoint.save_every_steps=4", "eval.max_tokens=1024", "eval.every_steps=4", "optim.warmup_steps=1"),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ways_to_8x", description=__doc__)
    parser.add_argument(
        "--root", type=Path, default=ROOT / "runs" / "ways_to_8x", help="folder of runs and evaluations"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help=f"folder of {PAGE} and {FIGURES}")
    parser.add_argument("--toy", action="store_true", help="a rehearsal in miniature")
    options = parser.parse_args(arguments)
    commands = plan(options.root, options.toy)
    began = time.monotonic()
    for number, command in enumerate(commands, 1):
        say(f"[{(time.monotonic() - began) / 60:4.0f} min] {number}/{len(commands)} {shlex.join(['python', *command])}")
        done = subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
        if done.returncode:
            say(f"It ended with exit code {done.returncode}. The same command goes on from there.")
            return done.returncode
    publish(options.root, options.out)
    return 0


def plan(root: Path, toy: bool) -> list[list[str]]:
    """The commands, in their order."""
    search, common = root / "search", [f"run.root={root}", *EVERY_RUN]
    trained = {way.run: way for way in WAYS if way.words}
    small = TOY if toy else ()
    commands = [_train(trained[BASE], common, small, search)]
    few = ["rounds=1", "population=4", "documents=2"] if toy else []
    commands.append(["-m", "coca_train", "extend", f"run={root / BASE}", f"length={TARGET}", f"to={search}", *few])
    commands += [_train(way, common, small, search) for run, way in trained.items() if run != BASE]
    lengths = "grid.lengths=[1x,2x,4x,8x]"
    variants = {place: ",".join(["trained", *asked]) for place, asked in _variants().items()}
    for suite, options in SUITES_ASKED.items():
        for name, chosen in {
            "scalings": [f"checkpoint={root / BASE}", f"grid.rope_scalings=[{variants['scalings']}]"],
            "patterns": [f"checkpoint={root / BASE}", f"grid.attention_patterns=[{variants['patterns']}]"],
            SCRATCH: [f"checkpoint={root / SCRATCH}", f"grid.rope_scalings=[{variants[SCRATCH]}]"],
            "models": [f"checkpoint={','.join(str(root / run) for run in trained)}"],
        }.items():
            work = [f"work.root={root / 'evaluations'}", f"work.name={suite}_{name}", "work.progress_bar=false"]
            few = TOY_SUITES[suite] if toy else []
            verb = ["-m", "coca_train", "evaluate", "--config-dir", str(search)]
            commands.append([*verb, f"+eval={suite}", *options, *chosen, lengths, *work, *few])
    return commands


def _train(way: Way, common: Sequence[str], small: Sequence[str], search: Path) -> list[str]:
    folder = ["--config-dir", str(search)] if "position/rope_scaling=searched" in way.words else []
    return ["-m", "coca_train", *folder, *way.words, *small, f"run.name={way.run}", *common]


def _place(way: Way) -> str:
    """Return the evaluation that a way is in."""
    if not way.variant:
        return "models"
    return "patterns" if way.variant.startswith(PATTERNS) else "scalings" if way.run == BASE else way.run


def _variants() -> dict[str, list[str]]:
    """Return by evaluation the variants of one model, in the order of their rows."""
    asked: dict[str, list[str]] = {}
    for way in WAYS:
        if way.variant:
            asked.setdefault(_place(way), []).append(way.variant)
    return asked


class Found(NamedTuple):
    """What was measured of a way. perplexity: by length [tokens]. against: the loss at TARGET minus that of the base
    [nats per token], with its interval over documents; None of the base. reach: in tokens, by what was asked. recall:
    the share of values found, by length. cost: seconds and MiB of its training; None where there is none."""

    perplexity: Mapping[int, float]
    against: tuple[float, float, float] | None
    reach: Mapping[str, str]
    recall: Mapping[int, float]
    cost: tuple[float, float] | None


def publish(root: Path, out: Path) -> None:
    """Write the figures, and the table between the marks of the page."""
    found = {way.title: measured(way, root) for way in WAYS}
    write_json(out / FIGURES, {title: each._asdict() for title, each in found.items()})
    path = out / PAGE
    text = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    write_text(path, f"{before}{BEGIN}\n{table(found)}{END}{rest.partition(END)[2]}")
    print(table(found))


def measured(way: Way, root: Path) -> Found:
    place = _place(way)
    evaluation = _evaluation("perplexity", place, root)
    row, base = _row(evaluation, way), _row(_evaluation("perplexity", "models", root), WAYS[0])
    results = {int(point): result["sources"][ALL] for point, result in row.results.items()}
    against = None
    if way.title != WAYS[0].title and TARGET in results:
        pair = [losses(each) for each in (results[TARGET], base.results[TARGET]["sources"][ALL])]
        sums = [each.sums_SU2[0] for each in pair]
        assert pair[0].units == pair[1].units, "other texts"
        apart = np.stack((sums[0][:, 0] - sums[1][:, 0], sums[0][:, 1]), -1)
        bounds = OverDocuments(apart).interval()
        against = (bounds.estimate, bounds.low, bounds.high)
    return Found(
        {length: result["perplexity"] for length, result in results.items()},
        against,
        _reach(way, evaluation),
        {int(n): found["accuracy"] for n, found in _row(_evaluation("recall", place, root), way).results.items()},
        _cost(root / way.run) if way.words else None,
    )


def _evaluation(suite: str, place: str, root: Path) -> Evaluation[Any]:
    return Evaluation.from_json(json.loads((root / "evaluations" / f"{suite}_{place}" / RESULTS).read_text("utf-8")))


def _row(evaluation: Evaluation[Any], way: Way) -> AnyRow:
    """The row of a way, in an evaluation of the base's variants or of models as they were trained."""
    subject = next(each for each in evaluation.subjects if each.name == way.run)
    variant = subject.variants[1 + _variants()[_place(way)].index(way.variant) if way.variant else 0]
    return next(row for row in evaluation.rows() if row.name == (way.run, variant))


def _reach(way: Way, evaluation: Evaluation[Any]) -> dict[str, str]:
    """Return up to which length it holds its perplexity, and uses what it reads."""
    suite = SUITES.module(evaluation.suite).Evaluator(
        suites.settings({"suite": evaluation.suite, **evaluation.settings})
    )
    wanted = _row(evaluation, way).name
    judged = {each.row.name: each for each in judge_rows(evaluation, suite.reach_parts(evaluation))}
    parts = judged[wanted].parts() if wanted in judged else ()
    return {name: words(each).partition(" (")[0] for name, each in parts}


def _cost(run: Path) -> tuple[float, float]:
    """Seconds and peak memory [MiB] of a training."""
    records, train = read_jsonl(run / "metrics.jsonl"), load_saved(run).config.train
    timed = [record for record in records if "tokens_per_s" in record]
    tokens = max(record["step"] for record in timed) * train.global_batch_size * train.seq_len
    seconds = tokens / statistics.median(record["tokens_per_s"] for record in timed)
    return seconds, max(record["peak_memory_mib"] for record in timed)


def table(found: Mapping[str, Found]) -> str:
    lengths = sorted({length for each in found.values() for length in each.perplexity})
    asked = list(dict.fromkeys(name for each in found.values() for name in each.reach))
    header = [
        *("way", *(f"{length:,}" for length in lengths), "against RoPE as it is", *asked, "recall"),
        *("seconds", "MiB"),
    ]
    rows = []
    for title, each in found.items():
        cells = [f"{each.perplexity[n]:,.1f}" if n in each.perplexity else "-" for n in lengths]
        against = "" if each.against is None else "{:+.3f} ({:+.3f} to {:+.3f})".format(*each.against)
        cost = ["", ""] if each.cost is None else [f"{each.cost[0]:,.0f}", f"{each.cost[1]:,.0f}"]
        recall = f"{each.recall[TARGET]:.0%}" if TARGET in each.recall else "-"
        rows.append([title, *cells, against, *(each.reach.get(name, "") for name in asked), recall, *cost])
    return markdown(header, rows)


if __name__ == "__main__":
    sys.exit(main())
