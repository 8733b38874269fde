"""The GPU path without a GPU: `python -m tests.outside.pretended [VERSION …] [PROGRAM …]`.

On CUDA builds of torch from the package index, for which two small libraries pretend a GPU (tests/pretended_gpu/*.c):
placement of tensors, graphs, Inductor's kernels and their cubins are real, and nothing is computed. Ends with a table
of what was tried and what passed; what each case gave is in .outside/pretended-VERSION/*.log.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.outside import plain, torches

VERSIONS = ("2.11.0", "2.13.0")
H100, CAPABILITIES = "9.0", ("8.0", "9.0", "10.0")
# Each of tests/pretended_gpu, and the capabilities that it differs on.
PROGRAMS = {
    "plain": (H100,),
    "kernels": (H100,),
    "compiled": (H100,),
    "attention": CAPABILITIES,
    "deterministic": (H100,),
    "loss": CAPABILITIES,
}
SOURCES = plain.ROOT / "tests" / "pretended_gpu"


class Outcome(NamedTuple):
    """Of a program: its last line and its time."""

    version: str
    capability: str
    program: str
    passed: bool
    last: str
    seconds: float


def pretended(python: Path, folder: Path) -> dict[str, str]:
    """The environment variables of a process that has a GPU, but for PRETENDED_CAPABILITY."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    (headers,) = Path(packages).glob("nvidia/cu[0-9]*/include")
    # The headers of torch's own CUDA lack a folder that those of Triton have.
    include = ["-I", str(headers), "-idirafter", f"{packages}/triton/backends/nvidia/include"]
    runtime, driver = folder / "libruntime.so", folder / "libcuda.so.1"
    for source, library in ((SOURCES / "runtime.c", runtime), (SOURCES / "driver.c", driver)):
        named = f"-Wl,-soname,{library.name}"
        words = ["gcc", "-Wall", "-Wno-attribute-alias", "-shared", "-fPIC", *include, named]
        subprocess.run([*words, "-o", str(library), str(source)], check=True)
    return plain.variables() | {
        "LD_PRELOAD": str(runtime),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def run(version: str, programs: list[str]) -> list[Outcome]:
    python, folder = torches.environment(version), plain.FOLDER / f"pretended-{version}"
    folder.mkdir(exist_ok=True)
    variables, outcomes = pretended(python, folder), []
    for program in programs:
        for capability in PROGRAMS[program]:
            began, log = time.monotonic(), folder / f"{program}-{capability}.log"
            with log.open("w", encoding="utf-8") as out:
                done = subprocess.run(
                    [str(python), "-m", "tests.pretended_gpu", program],
                    cwd=plain.ROOT,
                    env=variables | {"PRETENDED_CAPABILITY": capability},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
            lines = log.read_text(encoding="utf-8").splitlines()
            print(*(line for line in lines if line.startswith("FAILS")), sep="\n", end="\n", flush=True)
            last = lines[-1] if lines else ""
            outcomes.append(Outcome(version, capability, program, done.returncode == 0, last, time.monotonic() - began))
            print(_row(outcomes[-1]), flush=True)
    return outcomes


def _row(one: Outcome) -> str:
    held = "holds" if one.passed else "FAILS"
    return f"{one.version:8s} {one.capability:>10s}  {one.program:14s} {held}  {one.last}  {one.seconds:,.0f} s"


def main(words: list[str]) -> int:
    if unknown := set(words) - {*VERSIONS, *PROGRAMS}:
        print(f"{', '.join(sorted(unknown))}: there are {', '.join((*VERSIONS, *PROGRAMS))}")
        return 2
    if shutil.which("gcc") is None or os.uname().machine != "x86_64":
        print("needs gcc and x86_64, which torch's CUDA builds are for")
        return plain.NOT_HERE
    versions = [version for version in VERSIONS if version in words] or list(VERSIONS)
    programs = [program for program in PROGRAMS if program in words] or list(PROGRAMS)
    outcomes = [outcome for version in versions for outcome in run(version, programs)]
    print(f"\n{'torch':8s} {'capability':>10s}  {'program':14s} outcome")
    print("\n".join(map(_row, outcomes)))
    return int(not all(outcome.passed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
