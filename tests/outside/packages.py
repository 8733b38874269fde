"""The wheel and the sdist, each installed where no checkout is: `python -m tests.outside.packages`.

In an empty folder every verb shows its help, and a training, its evaluation and its text are made in small.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.outside import plain
from tests.outside.readme import PAGE, TRAINING

VERBS = "from coca_train.commands import verbs; print(*verbs())"


def typed(python: Path) -> list[list[str]]:
    """The commands, by their words."""
    listed = subprocess.run([python, "-c", VERBS], capture_output=True, text=True, check=True)
    main = [str(python.parent / "coca-train")]
    return [
        [*main, "--help"],
        *([*main, verb, "--help"] for verb in listed.stdout.split()),
        [str(python), "-m", "data_prep", "--help"],
        [*main, *TRAINING.split(), "run.name=small"],
        [*main, "evaluate", "checkpoint=runs/small", *PAGE.split()],
        [*main, "generate", "run=runs/small", "prompt=Once", "max_new_tokens=4"],
        [*main, "plan", "+experiment=coca_350m"],
    ]


def main() -> int:
    failed = []
    with tempfile.TemporaryDirectory() as dist:
        subprocess.run([plain.UV, "build", "--quiet", "-o", dist, plain.ROOT], env=plain.variables(), check=True)
        for package in sorted(path for path in Path(dist).iterdir() if path.name.endswith((".whl", ".tar.gz"))):
            kind = "wheel" if package.suffix == ".whl" else "sdist"
            (plain.FOLDER / kind / "ready").unlink(missing_ok=True)  # what was installed is another state's
            python = plain.environment(kind, [str(package)], plain.ROOT / "constraints.txt")
            with tempfile.TemporaryDirectory() as folder:
                for words in typed(python):
                    print(f"{kind}: {' '.join(words)}", flush=True)
                    done = subprocess.run(
                        words, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                        check=False,
                    )  # fmt: skip
                    if done.returncode:
                        failed.append(words)
                        print(f"  EXIT CODE {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
