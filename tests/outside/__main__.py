"""What the world outside this checkout says of it: `make outside`.

    python -m tests.outside              every part that has not passed on this commit, then one table
    python -m tests.outside NAME …       these parts, whether they have passed or not; word=value goes to each of them
    python -m tests.outside --list       the parts, and what each of them holds; --list=json: their names alone

A part is one command. How it ended is kept in .outside/, so that a run which is stopped continues with the part it was
in. What a part prints is in .outside/NAME.log.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tests.outside.plain import FOLDER, NOT_HERE, ROOT
from tests.outside.resolve import pythons

PYTHON = str(ROOT / ".venv" / "bin" / "python")


@dataclass(frozen=True)
class Part:
    """A command, after PYTHON, and what holds where it ends with 0."""

    holds: str
    words: tuple[str, ...]


OWN_FORM = ("tests/hub/test_modeling_coca.py", "tests/hub/test_own_form.py")
RECIPES = ("tests/rehearsal/test_as_written.py", "tests/engine/test_checkpointing.py")
PARTS = {
    "index": Part("the package index resolves every extra, Python, platform", ("-m", "tests.outside.resolve", "--all")),
    "packages": Part("the wheel and the sdist work where no checkout is", ("-m", "tests.outside.packages")),
    "extras": Part("each extra, alone, does what it is for; without it, it is named", ("-m", "tests.outside.extras")),
    "recipes": Part(
        "every experiment trains in its own engine on 1, 2 and 4 processes",
        ("-m", "pytest", "-m", "slow or not slow", *RECIPES),
    ),
    "rotations": Part(
        "exports rotate alike in eight versions of transformers; engines compute what docs/conformance.md says",
        ("-m", "tests.outside.rotations"),
    ),
    "families": Part(
        "folders of three versions of transformers are imported as those compute them, or refused, in every family",
        ("-m", "tests.outside.families"),
    ),
    "gguf": Part("llama.cpp computes the run's logits of an export (path=)", ("-m", "tests.outside.gguf")),
    "torch-2.11": Part(
        "the quick tests pass on torch 2.11, the oldest", ("-m", "tests.outside.versions", "torch", "2.11.0")
    ),
    **{
        f"transformers-{version}": Part(
            f"models of our own form work with transformers {version}, {which}",
            ("-m", "tests.outside.versions", "transformers", f"{version}.0", *OWN_FORM),
        )
        for version, which in (("5.4", "the oldest"), ("5.24", "the newest"))
    },
    "transformers-mixins": Part(
        "transformers' own tests of a model pass on our class, on its oldest, pinned and newest version",
        ("-m", "tests.outside.mixins"),
    ),
    "pretended-gpu": Part(
        "a pretended GPU gets steps on one device, whole graphs and kernels that fit, on torch 2.11 and the pin",
        ("-m", "tests.outside.pretended"),
    ),
    **{
        f"python-{version}": Part(
            f"README's commands work in README's order, in a fresh clone, on Python {version} and the index's packages",
            ("-m", "tests.outside.clone", version),
        )
        for version in pythons()
    },
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


def run(name: str, settings: Sequence[str] = ()) -> Ending:
    began, log = time.monotonic(), FOLDER / f"{name}.log"
    (FOLDER / f"{name}.json").unlink(missing_ok=True)
    print(f"{name}: {PARTS[name].holds}; {log.relative_to(ROOT)}", flush=True)
    with log.open("wb") as out:
        done = subprocess.run(
            [PYTHON, *PARTS[name].words, *settings], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False
        )
    ending = Ending(done.returncode, round(time.monotonic() - began, 1), commit())
    (FOLDER / f"{name}.json").write_text(json.dumps(asdict(ending)), encoding="utf-8")
    print(f"  {outcome(ending)}, {ending.seconds:,.0f} s", flush=True)
    return ending


def outcome(ending: Ending) -> str:
    return {0: "holds", NOT_HERE: "not here"}.get(ending.code, f"FAILED {ending.code}")


def main(words: list[str]) -> int:
    if "--list=json" in words:
        print(json.dumps(list(PARTS)))
        return 0
    if "--list" in words:
        print("\n".join(f"{name:19s} {part.holds}" for name, part in PARTS.items()))
        return 0
    settings = [word for word in words if "=" in word]
    words = [word for word in words if word not in settings]
    if unknown := set(words) - set(PARTS):
        print(f"{', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
        return 2
    FOLDER.mkdir(exist_ok=True)
    now = commit()
    for name in words or PARTS:
        last = ended(name)
        if words or last is None or last.code or last.commit != now or "changes" in now:
            run(name, settings)
    print(f"\n{'part':19s} {'ended':10s} {'time':>8s}  commit")
    endings = {name: ended(name) for name in PARTS}
    for name, ending in endings.items():
        if ending is None:
            print(f"{name:19s} not run")
        else:
            print(f"{name:19s} {outcome(ending):10s} {ending.seconds:7,.0f}s  {ending.commit}")
    asked = [endings[name] for name in words or PARTS]
    return int(any(ending is None or ending.code not in (0, NOT_HERE) for ending in asked))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
