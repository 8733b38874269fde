"""Resolve what README's commands install, on the package index alone: no wheels of this machine, nothing installed.

    python -m tests.outside.resolve          constraints.txt is what uv makes of pyproject.toml; the bare install and
                                             [dev] for every supported Python on x86_64
    python -m tests.outside.resolve --all    every extra alone too, and on aarch64

The supported Pythons are the classifiers of pyproject.toml.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.outside.plain import ROOT, UV, variables

PROJECT, CONSTRAINTS = ROOT / "pyproject.toml", ROOT / "constraints.txt"


def pythons() -> list[str]:
    """The supported versions, oldest first."""
    metadata = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    found = [re.search(r"Python :: (3\.\d+)$", each) for each in metadata["classifiers"]]
    versions = [match[1] for match in found if match]
    assert metadata["requires-python"] == f">={versions[0]}", "the oldest classifier is the floor"
    return versions


def cases(everything: bool) -> Iterator[tuple[str, str, str]]:
    """(Python, platform, extra; "": the bare install)."""
    extras = list(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"])
    for platform in ("x86_64", "aarch64") if everything else ("x86_64",):
        for python in pythons():
            for extra in ("", *extras) if everything else ("", "dev"):
                yield python, platform, extra


def compiled(*words: str) -> subprocess.CompletedProcess[str]:
    """`uv pip compile` with these words."""
    command = [str(UV), "pip", "compile", "--quiet", *words]
    return subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True, check=False)


def resolved(python: str, platform: str, extra: str) -> str:
    """What the index says against it; "": it resolves."""
    words = ["-c", CONSTRAINTS.name, *(["--extra", extra] if extra else []), PROJECT.name, "-o", os.devnull]
    target = ["--python-version", python, "--python-platform", f"{platform}-manylinux_2_28"]
    result = compiled(*target, *words)
    return "" if result.returncode == 0 else result.stderr


def made_by_hand() -> str:
    """What differs between constraints.txt and what `make constraints` would leave of it; "": nothing."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, CONSTRAINTS.name)
        copy.write_bytes(CONSTRAINTS.read_bytes())
        listed = subprocess.run(
            ["make", "--dry-run", "constraints"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        words = re.search(r"uv pip compile --quiet (.*?)-o constraints\.txt", listed.replace("\\\n", " "), re.DOTALL)
        assert words is not None, listed
        command = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', words[1])]
        result = compiled(*command, "-o", str(copy))
        if result.returncode:
            return result.stderr
        before, after = (set(path.read_text().splitlines()) for path in (CONSTRAINTS, copy))
        return "\n".join(sorted(f"{'-' if line in before else '+'} {line}" for line in before ^ after))


def main(words: list[str]) -> int:
    failed = 0
    by_hand = made_by_hand()
    print(f"{'differs: ' if by_hand else 'the same'} constraints.txt, against make constraints\n{by_hand}".rstrip())
    for python, platform, extra in cases("--all" in words):
        start = time.monotonic()
        problem = resolved(python, platform, extra)
        what = f"python {python} {platform} {f'[{extra}]' if extra else 'bare'}"
        print(f"{'FAILED  ' if problem else 'resolves'} {what:34s} {time.monotonic() - start:5.1f} s", flush=True)
        print(problem, end="")
        failed += bool(problem)
    return 1 if failed or by_hand else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
