"""Run tests on another version of a package: `python -m tests.outside.versions torch 2.11.0 [pytest's words]`.

The build of torch is the package index's (CUDA's, which computes on CPUs too); everything else is as constraints.txt
has it. Without paths among pytest's words the quick tests are run.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.outside import plain

# The package, and what it brings or bounds: each version has its own.
BROUGHT = {
    "torch": re.compile(r"(torch|triton|setuptools|nvidia-[\w-]+|cuda-[\w-]+)=="),
    "transformers": re.compile(r"(transformers|tokenizers|huggingface-hub)=="),
}


def environment(package: str, version: str) -> Path:
    """The Python of an environment with this version of a package."""
    plain.FOLDER.mkdir(exist_ok=True)
    constraints = plain.FOLDER / f"with-{package}-{version}.txt"
    lines = (plain.ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints.write_text("\n".join(line for line in lines if not BROUGHT[package].match(line)), encoding="utf-8")
    wanted = ["-e", f"{plain.ROOT}[dev]", f"{package}=={version}"]
    return plain.environment(f"with-{package}-{version}", wanted, constraints)


def main(words: list[str]) -> int:
    package, version, *others = words
    python = environment(package, version)
    code = f"import {package}; print('{package}', {package}.__version__)"
    subprocess.run([str(python), "-c", code], cwd=plain.ROOT, check=True)
    tests = [str(python), "-m", "pytest", "-n", "auto", "--dist", "worksteal", *others]
    return subprocess.run(tests, cwd=plain.ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
