"""Run the quick tests on another torch: `python -m tests.outside.torches 2.11.0 [pytest's words]`.

An environment of its own is made under .outside/, for the Python that runs this, with the build of the package index
(CUDA's, which computes on CPUs too) and everything else as constraints.txt has it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".outside"
UV = ROOT / ".venv" / "bin" / "uv"
BROUGHT = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")  # by torch, each version its own


def environment(version: str) -> Path:
    """The Python of an environment with this torch, made where it is not there yet."""
    folder = FOLDER / f"torch-{version}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        constraints = FOLDER / f"torch-{version}.txt"
        lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        constraints.write_text("\n".join(line for line in lines if not BROUGHT.match(line)), encoding="utf-8")
        install = ["pip", "install", "--quiet", "--no-config", "-p", str(python), "-c", str(constraints)]
        elsewhere = ("UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_TORCH_BACKEND")
        plain = {name: value for name, value in os.environ.items() if name not in elsewhere}
        for words in (
            ["venv", "--quiet", "--clear", "--no-config", "-p", sys.executable, str(folder)],
            [*install, "-e", f"{ROOT}[dev]", f"torch=={version}"],
        ):
            subprocess.run([str(UV), *words], cwd=ROOT, env=plain, check=True)
        (folder / "ready").touch()
    return python


def main(words: list[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    version, *others = words
    python = environment(version)
    code = "import torch; print('torch', torch.__version__)"
    subprocess.run([str(python), "-c", code], cwd=ROOT, check=True)
    tests = [str(python), "-m", "pytest", "-n", "auto", "--dist", "worksteal", *others]
    return subprocess.run(tests, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
