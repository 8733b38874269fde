"""The import contract: kept, and broken by a planted violation, as a statement or as a string."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.imports import ROOT, forbidden


def contract(house: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=house, capture_output=True, text=True, env={"PYTHONPATH": str(house)})


def plant(house: Path, line: str) -> None:
    file = house / "coca_train" / "config" / "strict.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as source:
        source.write(f"\n\ndef planted():\n    {line}\n")


def test_every_import_can_be_seen():
    assert not forbidden(ROOT)


def test_an_import_statement_that_goes_up_breaks_the_contract(tmp_path):
    for part in ("coca_train", "data_prep"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    plant(tmp_path, "from coca_train import positions")
    broken = contract(tmp_path)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "coca_train.config.strict -> coca_train.positions" in broken.stdout


@pytest.mark.parametrize(
    "call",
    [
        'importlib.import_module("coca_train.positions")',
        'import_module(f"coca_train.{name}")',
        '__import__("coca_train.positions")',
    ],
)
def test_a_string_that_goes_up_is_found(tmp_path, call):
    plant(tmp_path, f"return {call}")
    assert forbidden(tmp_path) == [f"coca_train/config/strict.py:4: {call.replace(chr(34), chr(39))}"]
