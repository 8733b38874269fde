"""Hydra's internals are used in one file, for the version they were checked with."""

import re
from pathlib import Path

from coca_train.config import hydra_internals

ROOT = Path(__file__).resolve().parents[2]


def test_one_file_imports_them():
    importing = [
        str(path.relative_to(ROOT))
        for package in ("coca_train", "data_prep")
        for path in (ROOT / package).rglob("*.py")
        if "hydra._internal" in path.read_text(encoding="utf-8")
    ]
    assert importing == ["coca_train/config/hydra_internals.py"]


def test_the_version_it_was_checked_with_is_the_pinned_one():
    pinned = re.search(r"^hydra-core==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    assert f"Checked with hydra-core {pinned}." in hydra_internals.__doc__
