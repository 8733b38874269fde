"""`python -m benchmarks.gpu`: the first hour on a GPU, and what it says to the counted figures.

Each part runs in a process of its own: one that fails, or takes too long, costs the others nothing, and what it has
told by then counts. It is ended with all processes that it has started. The figures are kept as they come; parts that
were measured before stay in the file until they are measured again, so that short sittings add up.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.cases import Setup
from benchmarks.gpu import group
from benchmarks.gpu.figures import Figure, table, verdict
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.scale import Scale
from benchmarks.measure import ROOT, machine, say
from coca_train.engine import process

JSON, PAGE = "gpu.json", "gpu.md"
MARK = "figure: "  # before each, on a part's standard output
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
MINUTES = 60.0
MACHINE = ("device", "cores", "torch", "python", "date")  # what is kept of where a part was measured
LEAST_S = 60  # with less time left no part is begun: its imports alone take a third of it


def main(arguments: list[str] | None = None) -> int:
    """0: every expected figure was met; of toys, every part ended well. 1: else. 2: no GPU, or a wrong word. 130:
    stopped."""
    options = parse(arguments)
    scale = Scale(toy=options.toy)
    if options.of_a_part:
        group.follow_parent()
        return part(options.of_a_part, scale, options.folder)
    if scale.device == "cpu" and not options.toy:
        print("No GPU is here. Fix: run it where one is, or rehearse with --toy", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    kept = read(options.out / JSON)
    parts = options.parts or list(PARTS)
    say(f"In this order, in at most {options.minutes:g} minutes: {order(parts)}")
    with group.signals_as_ctrl_c():
        done = sitting(parts, options, kept)
    print(shown(kept))
    if again := [name for name in parts if name not in done.ended]:
        say(f"Not measured to the end: {', '.join(again)}. Continue: {command(again, options)}")
    if done.stopped:
        return 130
    whole = [Figure(**figure) for each in kept["parts"].values() for figure in each["figures"]]
    failed = bool(again) or any(each["error"] for each in kept["parts"].values())
    # What a toy takes says nothing.
    return int(failed or (not options.toy and any(figure.met is False for figure in whole)))


class Done(NamedTuple):
    """ended: the parts that ended well. stopped: by a signal, in words; "": it was not."""

    ended: list[str]
    stopped: str


def sitting(parts: Sequence[str], options: argparse.Namespace, kept: dict[str, Any]) -> Done:
    """Run the parts in turn, as long as there is time, and write into `kept` and to the disk what each has told."""
    until, ended = time.monotonic() + 60 * options.minutes, []
    here = {key: value for key, value in machine(Setup(Scale(options.toy).device, "bf16")).items() if key in MACHINE}
    with tempfile.TemporaryDirectory(prefix="coca_gpu_") as folder:
        for name in parts:
            limit_s = int(min(PARTS[name].limit_s, until - time.monotonic()))
            if limit_s < min(LEAST_S, PARTS[name].limit_s):
                say(f"{name}: no time is left for it")
                continue
            say(f"{name}: at most {limit_s} s: {PARTS[name].holds}")
            began = time.monotonic()
            figures, error, stopped = measured(name, options.toy, Path(folder), limit_s)
            seconds = round(time.monotonic() - began)
            kept["parts"][name] = {"machine": here, "seconds": seconds, "error": error, "figures": figures}
            write(options.out, kept)
            shutil.rmtree(Path(folder, name), ignore_errors=True)  # its checkpoints; the next one needs the room
            if error:
                say(f"{name}: {error}")
            else:
                ended.append(name)
            if stopped:
                return Done(ended, error)
    return Done(ended, "")


def order(parts: Sequence[str]) -> str:
    return ", ".join(f"{name} ({PARTS[name].limit_s / 60:g})" for name in parts)


def command(parts: Sequence[str], options: argparse.Namespace) -> str:
    """What runs these parts, with the same figures kept."""
    words = ["--toy"] * options.toy + (["--out", str(options.out)] if options.out != ROOT / "docs" else [])
    return " ".join(["python -m benchmarks.gpu", *parts, *words])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which of {', '.join(PARTS)}; default: all")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for all parts together ({MINUTES:g})")
    parser.add_argument("--toy", action="store_true", help="a rehearsal in miniature, on a CPU too")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help=f"folder of {PAGE} and {JSON} (docs)")
    parser.add_argument("--of-a-part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]}; the parts are {', '.join(PARTS)}")
    return options


def part(name: str, scale: Scale, folder: Path) -> int:
    """Its figures on standard output, each as soon as it is known. folder: of all parts, for what they leave."""
    torch.manual_seed(0)
    if scale.device == "cuda":
        process.order_attention(torch.cuda.get_device_capability())
    own = folder / name
    own.mkdir(parents=True)
    for figure in PARTS[name].run(scale, own):
        print(MARK + json.dumps(figure.as_json()), flush=True)
        say(f"  {figure.what}: {figure.value:.4g} {figure.unit}")
    return 0


class Told(NamedTuple):
    """Figures of a part, and why there are no more of them; "": it ended well. stopped: so were we, by a signal."""

    figures: list[dict[str, Any]]
    error: str
    stopped: bool = False


def measured(name: str, toy: bool, folder: Path, limit_s: int) -> Told:
    command = [sys.executable, "-m", "benchmarks.gpu", "--of-a-part", name, "--folder", str(folder)]
    command += ["--toy"] if toy else []
    stopped = False
    with tempfile.TemporaryFile("w+") as told:
        try:
            code = group.run(command, limit_s, ROOT, told)
        except KeyboardInterrupt as by:
            error, stopped = f"stopped by {str(by) or 'Ctrl-C'}", True
        else:
            error = f"not done within {limit_s} s" if code is None else f"exit code {code}" if code else ""
        told.seek(0)
        lines = [line.removeprefix(MARK) for line in told if line.startswith(MARK) and line.endswith("\n")]
    return Told([json.loads(line) for line in lines], error, stopped)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"parts": {}}


def write(folder: Path, kept: dict[str, Any]) -> None:
    """The JSON, and the table between its marks in the page; the text around it stays."""
    (folder / JSON).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    page = folder / PAGE
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{shown(kept)}{END}{rest.partition(END)[2]}", encoding="utf-8")


def shown(kept: dict[str, Any]) -> str:
    figures = [Figure(**figure) for name in PARTS if name in kept["parts"] for figure in kept["parts"][name]["figures"]]
    by_machine: dict[str, list[str]] = {}
    for name, each in kept["parts"].items():
        by_machine.setdefault(", ".join(f"{key} {value}" for key, value in each["machine"].items()), []).append(name)
    lines = [f"* {', '.join(names)}: {where}" for where, names in by_machine.items()]
    lines += ["", verdict(figures), ""]
    lines += [f"{name}: {each['error']}" for name, each in kept["parts"].items() if each["error"]]
    return "\n".join([*lines, table(figures)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
