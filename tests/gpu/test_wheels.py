"""`make wheels` takes along everything that a machine with torch and numpy lacks, and nothing that it has."""

import importlib.metadata
import re
import subprocess
from pathlib import Path

from packaging.requirements import Requirement

from tests.checkout import ROOT

NEEDED = ("coca-train", "pytest", "pytest-xdist")
THERE = ("torch", "numpy")  # with what they require, on a machine that has CUDA's build
OLDER = {"typing-extensions"}  # required by torch too, and by pydantic newer than torch's release may have brought it


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names: tuple[str, ...], without: set[str]) -> set[str]:
    """These packages and all that they require on Linux, extras left out."""
    found, left = set(), [plain(name) for name in names]
    while left:
        if (name := left.pop()) in found | without:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(plain(requirement.name))
    return found


def test_the_lists_are_what_the_packages_require() -> None:
    dry = subprocess.run(["make", "-n", "wheels"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    loaded, built = (line.split() for line in re.findall(r"-[dw] \.whl (.*)", dry.replace("\\\n", " ")))
    names = [plain(name) for name in (*loaded, *built)]
    assert len(names) == len(set(names))
    wanted = closure(NEEDED, closure(THERE, set())) - {"coca-train"} | OLDER
    assert set(names) == wanted


def test_every_package_is_pinned() -> None:
    dry = subprocess.run(["make", "-n", "wheels"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pinned = {plain(name) for name in re.findall(r"^([\w.-]+)==", Path(ROOT, "constraints.txt").read_text(), re.M)}
    listed = [name for line in re.findall(r"-[dw] \.whl (.*)", dry.replace("\\\n", " ")) for name in line.split()]
    assert {plain(name) for name in listed} <= pinned
