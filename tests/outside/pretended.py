"""The GPU path without a GPU: `python -m tests.outside.pretended [VERSION …] [PROGRAM …]`.

On CUDA builds of torch from the package index, for which two small libraries pretend a GPU (tests/pretended_gpu/*.c):
placement of tensors, graphs, Inductor's kernels and their cubins are real, and nothing is computed. Ends with a table
of what was tried and what passed; what each case gave is in .outside/pretended-VERSION/*.log.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

from coca_train.runtime import machine
from tests.outside import plain, versions

VERSIONS = ("2.11.0", "2.13.0")
H100, CAPABILITIES = "9.0", ("8.0", "8.6", "9.0", "10.0")
# Each of tests/pretended_gpu, and the capabilities that it differs on.
PROGRAMS = {
    "plain": (H100,),
    "kernels": (H100,),
    "compiled": (H100,),
    "attention": CAPABILITIES,
    "deterministic": (H100,),
    "loss": CAPABILITIES,
}
SHARES, MEMORY = 2, 4 * 1024**3  # of a program, and what a process takes of the host's
LAST = re.compile(r"^tried (\d+), passed (\d+)$", re.MULTILINE)
SOURCES = plain.ROOT / "tests" / "pretended_gpu"


class Share(NamedTuple):
    """Of a program on a capability: every SHARES-th case, in a process of its own."""

    version: str
    program: str
    capability: str
    number: int


class Outcome(NamedTuple):
    """How many cases a share tried, how many passed, and its time; none where it did not come to its end."""

    tried: int
    passed: int
    seconds: float


def pretended(version: str) -> tuple[Path, dict[str, str]]:
    """A Python with this torch, and the environment variables of its processes that have a GPU, but for
    PRETENDED_CAPABILITY."""
    python, folder = versions.environment("torch", version), plain.FOLDER / f"pretended-{version}"
    folder.mkdir(exist_ok=True)
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
    return python, plain.variables() | {
        "LD_PRELOAD": str(runtime),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def run(share: Share, python: Path, variables: dict[str, str]) -> Outcome:
    name = f"{share.program}-{share.capability}-{share.number}"
    began, log = time.monotonic(), plain.FOLDER / f"pretended-{share.version}" / f"{name}.log"
    with log.open("w", encoding="utf-8") as out:
        subprocess.run(
            [str(python), "-m", "tests.pretended_gpu", share.program, f"{share.number}/{SHARES}"],
            cwd=plain.ROOT,
            env=variables | {"PRETENDED_CAPABILITY": share.capability},
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    text = log.read_text(encoding="utf-8")
    counts = LAST.search(text)
    tried, passed = map(int, counts.groups()) if counts else (0, 0)
    outcome = Outcome(tried, passed, time.monotonic() - began)
    if not 0 < tried == passed:
        print(*(line for line in text.splitlines() if line.startswith("FAILS")), f"see {log}", sep="\n", flush=True)
    print(_row(share, [outcome]), flush=True)
    return outcome


def _row(share: Share, outcomes: list[Outcome]) -> str:
    tried, passed, seconds = (sum(column) for column in zip(*outcomes, strict=True))
    held = "holds" if all(0 < one.tried == one.passed for one in outcomes) else "FAILS"
    words = f"{held}  tried {tried}, passed {passed}  {seconds:,.0f} s"
    return f"{share.version:8s} {share.capability:>10s}  {share.program:14s} {words}"


def main(words: list[str]) -> int:
    if unknown := set(words) - {*VERSIONS, *PROGRAMS}:
        print(f"{', '.join(sorted(unknown))}: there are {', '.join((*VERSIONS, *PROGRAMS))}")
        return 2
    if shutil.which("gcc") is None or os.uname().machine != "x86_64":
        print("needs gcc and x86_64, which torch's CUDA builds are for")
        return plain.NOT_HERE
    versions = [version for version in VERSIONS if version in words] or list(VERSIONS)
    programs = [program for program in PROGRAMS if program in words] or list(PROGRAMS)
    given = {version: pretended(version) for version in versions}
    shares = [
        Share(version, program, capability, number)
        for program, version in product(programs, versions)
        for capability in PROGRAMS[program]
        for number in range(1, SHARES + 1)
    ]
    with ThreadPoolExecutor(max(1, min(SHARES, machine.cores(), machine.memory() // MEMORY))) as pool:
        outcomes = list(pool.map(lambda share: run(share, *given[share.version]), shares))
    print(f"\n{'torch':8s} {'capability':>10s}  {'program':14s} outcome")
    for at in range(0, len(shares), SHARES):
        print(_row(shares[at], outcomes[at : at + SHARES]))
    return int(not all(0 < one.tried == one.passed for one in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
