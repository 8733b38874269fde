"""Run the quick tests on another torch: `python -m tests.outside.torches 2.11.0 [pytest's words]`.

The build is the package index's (CUDA's, which computes on CPUs too); everything else is as constraints.txt has it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.outside import plain

# Brought by torch, or bounded by it: each version has its own.
BROUGHT = re.compile(r"(torch|triton|setuptools|nvidia-[\w-]+|cuda-[\w-]+)==")


def environment(version: str) -> Path:
    """The Python of an environment with this torch."""
    plain.FOLDER.mkdir(exist_ok=True)
    constraints = plain.FOLDER / f"torch-{version}.txt"
    lines = (plain.ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints.write_text("\n".join(line for line in lines if not BROUGHT.match(line)), encoding="utf-8")
    return plain.environment(f"torch-{version}", ["-e", f"{plain.ROOT}[dev]", f"torch=={version}"], constraints)


def main(words: list[str]) -> int:
    version, *others = words
    python = environment(version)
    code = "import torch; print('torch', torch.__version__)"
    subprocess.run([str(python), "-c", code], cwd=plain.ROOT, check=True)
    tests = [str(python), "-m", "pytest", "-n", "auto", "--dist", "worksteal", *others]
    return subprocess.run(tests, cwd=plain.ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
