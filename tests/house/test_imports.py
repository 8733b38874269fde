"""The import contract: kept, and broken by a planted violation, as a statement or as a string."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.imports import ROOT, forbidden


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the sources with their contract."""
    for part in ("coca_train", "data_prep"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def contract(house: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=house, capture_output=True, text=True, env={"PYTHONPATH": str(house)})


def plant(house: Path, line: str) -> None:
    file = house / "coca_train" / "config" / "strict.py"
    file.write_text(f"{file.read_text(encoding='utf-8')}\n\ndef planted():\n    {line}\n", encoding="utf-8")


def test_every_import_can_be_seen():
    assert not forbidden(ROOT)


def test_an_import_statement_that_goes_up_breaks_the_contract(house):
    plant(house, "from coca_train import positions")
    broken = contract(house)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "coca_train.config.strict -> coca_train.positions" in broken.stdout


@pytest.mark.parametrize(
    "line",
    [
        'return importlib.import_module("coca_train.positions")',
        'return import_module(f"coca_train.{name}")',
        'return __import__("coca_train.positions")',
    ],
)
def test_a_string_that_goes_up_is_found(house, line):
    plant(house, line)
    assert [line for line in forbidden(house) if line not in forbidden(ROOT)]
    assert forbidden(house)[0].startswith("coca_train/config/strict.py:")
