"""Run the commands of README.md and then of docs/commands.md in their order, in this clone, shortened where they take
long.

    python -m tests.outside.readme                    in a fresh clone, after make setup
    python -m tests.outside.readme --without-tests    the same; of make test only what it installs
    python -m tests.outside.readme --list             print what would be run

A command is run as the page has it, but for the words in SHORTENED, which are printed next to it. The script fails
where a command does not exit with 0, and where a page has one that neither runs nor has its reason in NOT_HERE.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"
PAGES = ("README.md", "docs/commands.md")
COMMAND = re.compile(r"(?:make|python|torchrun|pip|source|\.|\.venv/bin/\w+) \S.*|coca-train .*")
TIMEOUT_S = 1200.0

STEPS = "train.max_steps=4 optim.warmup_steps=1 train.global_batch_size=2 train.micro_batch_size=2"
PROBES = "eval.extrapolation.multiples=[1] eval.extrapolation.rope_scalings=[plain] eval.extrapolation.max_documents=1"
TRAINING = f"{STEPS} eval.max_tokens=512 eval.sample_tokens=4 {PROBES}"
PAGE = "grid.lengths=[1x] text.max_documents=1"


@dataclass(frozen=True)
class Short:
    """How a command is shortened: words at its end, parts of it that are replaced, and what stands in for them."""

    words: str = ""
    instead: tuple[tuple[str, str], ...] = ()
    before: str = ""

    def of(self, command: str) -> str:
        for old, new in self.instead:
            if old not in command:
                raise ValueError(f"{command}: has no {old} to replace")
            command = command.replace(old, new)
        return f"{self.before} {command} {self.words}".strip()


# A folder of weights as others have it, RoPE in a LLaMA, for the one that nobody here has.
LLAMA = (
    f"python -m coca_train model=llama_tiny position=rope run.name=llama {TRAINING} && "
    "python -m coca_train export run=runs/llama to=runs/llama-hf parity_tokens=64 &&"
)
TUNED = (("/models/Llama-2-7b-hf", "runs/llama-hf"), ("my_texts", "docs"))
LONGER = (*TUNED, ("train.seq_len=16384", "train.seq_len=512"))

# By the beginning of the command; the longest that fits counts.
SHORTENED = {
    "make quickstart": Short(f'WORDS="{TRAINING}"'),
    "make compare": Short(f'WORDS="{TRAINING}"', (("rope alibi coca kerple_log", "rope alibi"),)),
    "python -m coca_train": Short(TRAINING),
    "python -m coca_train data.path=my_texts": Short(TRAINING, (("my_texts", "docs"),)),
    "python -m coca_train generate run=runs/mine": Short("max_new_tokens=4"),
    "python -m coca_train -m": Short(TRAINING, (("rope,alibi,coca", "rope,coca"),)),
    "python -m coca_train +experiment=coca_350m": Short("--cfg job"),
    "python -m coca_train +experiment=sketch": Short("--cfg job"),
    "python -m coca_train position=rope": Short(TRAINING),
    'pip install -c constraints.txt -e ".[interop]"': Short(),
    "python -m coca_train plan": Short(),
    "python -m coca_train plan start.path=/models/Llama-2-7b-hf": Short("", LONGER, LLAMA),
    "python -m coca_train start.path=/models/Llama-2-7b-hf data.path=my_texts": Short(TRAINING, TUNED),
    "python -m coca_train start.path=/models/Llama-2-7b-hf data.path=my_texts position/rope_scaling=yarn": Short(
        TRAINING, LONGER
    ),
    "python -m coca_train launch": Short("", (("> train.sbatch", "> runs/train.sbatch"),)),
    "torchrun --nproc-per-node 8 -m coca_train doctor": Short(
        "disk_mib=8 reduce_mib=8",
        (("--nproc-per-node 8", "--nproc-per-node 1"), (" +experiment=coca_350m", "")),
    ),
    "python -m coca_train export": Short("parity_tokens=64"),
    "python -m coca_train export run=runs/long": Short("parity_tokens=64", (("to=long-hf", "to=runs/long-hf"),)),
    "python -m coca_train evaluate": Short(PAGE),
    "python -m coca_train evaluate +eval=passkey": Short("grid.lengths=[1x] eval.n_cases=2"),
    "python -m coca_train generate": Short("max_new_tokens=4"),
    "python -m coca_train extend": Short("rounds=1 population=4 documents=2"),
    "python -m coca_train compare": Short(TRAINING, (("rope,coca", "rope,alibi"), ("seeds=3", "seeds=2"))),
    "python -m coca_train schemes": Short(),
    "python -m coca_train atlas": Short(),
    "python -m coca_train atlas scheme=soft_window": Short(
        "engine=local seeds=2 rates=[1] sweep_steps=2 train.max_steps=3 n_cases=2 lengths=[63,128] model.d_model=32 "
        "model.n_heads=2 model.d_ff=48 optim.warmup_steps=1 eval.max_tokens=64",
        (("soft_window", "alibi name=soft_window"),),
    ),
    "python -m coca_train verify": Short(),
    "python -m coca_train --help": Short(),
    "python -m data_prep": Short(),
    "python -m coca_train show": Short("", (("step=120", "step=4"),)),
    "python -m coca_train compare +experiment=sketch": Short(TRAINING, (("soft_window,", ""),)),
    "source <(coca-train completion bash)": Short(),
    ". .venv/bin/activate": Short(),
    "make test": Short(),
}
NOT_HERE = {
    "torchrun --nproc-per-node 8 -m coca_train +experiment=coca_350m": "needs 8 GPUs",
    "python -m coca_train +experiment=yarn_llama2_7b_64k": "needs the weights of Llama 2 7B",
    "make gpu": "needs a GPU",
    "make bench": "takes half an hour; times say nothing on a shared machine",
    "make scheme": "adds files to the clone; tests/house/test_extending.py types it in a copy",
    "pip install": "make setup has done it",
    "make quickstart TORCH=cpu": "downloads from another index than the package index",
    "make setup": "makes the environment that is there",
}


def pages() -> str:
    """README.md, and behind it the page of all commands."""
    return "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)


def commands(text: str) -> list[str]:
    """Every command once, in its order: lines of blocks, and code in tables and sentences."""
    found, in_block = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            in_block = not in_block
        else:
            found += [line] if in_block else re.findall(r"`([^`]+)`", line)
    return list(dict.fromkeys(text for text in found if COMMAND.fullmatch(text)))


def _longest(command: str, beginnings: Iterable[str]) -> str:
    """The longest of the beginnings that fits; empty where none does."""
    return max((each for each in beginnings if f"{command} ".startswith(f"{each} ")), key=len, default="")


def shortened(command: str) -> str | None:
    """The command as it is run here; None: it is not. Raises LookupError where nothing is known of it."""
    runs, stays = _longest(command, SHORTENED), _longest(command, NOT_HERE)
    if not runs and not stays:
        raise LookupError(f"{' or '.join(PAGES)} has {command}, which is neither in SHORTENED nor in NOT_HERE")
    return SHORTENED[runs].of(command) if len(runs) > len(stays) else None


def run(command: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Return whether a command exits with 0, and show what it printed where it does not. Late, it is ended with all
    processes that it started."""
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    began = time.monotonic()
    with subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=timeout_s)
            outcome = f"EXIT CODE {process.returncode}" if process.returncode else "ok"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            outcome = "TOO LATE"
    print(f"  {outcome}, {time.monotonic() - began:.0f} s", flush=True)
    if outcome != "ok":
        print(printed[-4000:], flush=True)
    return outcome == "ok"


def main(words: list[str]) -> int:
    if unknown := set(words) - {"--without-tests", "--list"}:
        print(f"{' '.join(sorted(unknown))}: no such option\n\n{__doc__}")
        return 2
    failed = []
    for command in commands(pages()):
        without = command == "make test" and "--without-tests" in words
        typed = "make setup" if without else shortened(command)
        print(command, flush=True)
        if typed is None:
            print(f"  not here: {NOT_HERE[_longest(command, NOT_HERE)]}")
        else:
            if typed != command:
                print(f"  as: {typed}", flush=True)
            if "--list" not in words and not run(typed):
                failed.append(command)
    print("\n".join(["FAILED:", *failed]) if failed else "Every command of the pages that can run here works.")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
