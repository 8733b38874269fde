"""What the world outside this checkout says of it: `make outside`.

    python -m tests.outside              every part that has not passed on this commit, then one table
    python -m tests.outside NAME …       these parts, whether they have passed or not
    python -m tests.outside --list       the parts, and what each of them holds

A part is one command. How it ended is kept in .outside/, so that a run which is stopped continues with the part it was
in. What a part prints is in .outside/NAME.log.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".outside"
PYTHON = str(ROOT / ".venv" / "bin" / "python")


@dataclass(frozen=True)
class Part:
    """A command, after PYTHON, and what holds where it ends with 0."""

    holds: str
    words: tuple[str, ...]


RECIPES = ("tests/rehearsal/test_as_written.py", "tests/engine/test_checkpointing.py")
PARTS = {
    "index": Part("the package index resolves every extra, Python, platform", ("-m", "tests.outside.resolve", "--all")),
    "readme": Part("README's commands work in README's order in a fresh clone", ("-m", "tests.outside.clone")),
    "recipes": Part(
        "every experiment trains in its own engine on 1, 2 and 4 processes",
        ("-m", "pytest", "-m", "slow or not slow", *RECIPES),
    ),
    "torch-2.10": Part("the quick tests pass on torch 2.10, the oldest", ("-m", "tests.outside.torches", "2.10.0")),
    "torch-2.11": Part("the quick tests pass on torch 2.11", ("-m", "tests.outside.torches", "2.11.0")),
    "torch-2.13": Part("they pass on the package index's build of the pin", ("-m", "tests.outside.torches", "2.13.0")),
}  # fmt: skip


@dataclass(frozen=True)
class Ending:
    """Of a part: its exit code, its time, and the commit it ran on; with changes, that is said."""

    code: int
    seconds: float
    commit: str


def commit() -> str:
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    return head.stdout.strip() + (" with changes" if changed.stdout else "")


def ended(name: str) -> Ending | None:
    """How a part ended when it ran last; None: it has not, or not to its end."""
    path = FOLDER / f"{name}.json"
    return Ending(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def run(name: str) -> Ending:
    began, log = time.monotonic(), FOLDER / f"{name}.log"
    (FOLDER / f"{name}.json").unlink(missing_ok=True)
    print(f"{name}: {PARTS[name].holds}; {log.relative_to(ROOT)}", flush=True)
    with log.open("wb") as out:
        done = subprocess.run([PYTHON, *PARTS[name].words], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False)
    ending = Ending(done.returncode, round(time.monotonic() - began, 1), commit())
    (FOLDER / f"{name}.json").write_text(json.dumps(asdict(ending)), encoding="utf-8")
    print(f"  {'holds' if ending.code == 0 else f'exit code {ending.code}'}, {ending.seconds:,.0f} s", flush=True)
    return ending


def main(words: list[str]) -> int:
    if "--list" in words:
        print("\n".join(f"{name:11s} {part.holds}" for name, part in PARTS.items()))
        return 0
    if unknown := set(words) - set(PARTS):
        print(f"{', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
        return 2
    FOLDER.mkdir(exist_ok=True)
    now = commit()
    for name in words or PARTS:
        last = ended(name)
        if words or last is None or last.code or last.commit != now or "changes" in now:
            run(name)
    print(f"\n{'part':11s} {'ended':8s} {'time':>8s}  commit")
    endings = {name: ended(name) for name in PARTS}
    for name, ending in endings.items():
        if ending is None:
            print(f"{name:11s} not run")
        else:
            print(f"{name:11s} {'holds' if not ending.code else 'FAILED':8s} {ending.seconds:7,.0f}s  {ending.commit}")
    return int(any(ending is None or ending.code for ending in endings.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
