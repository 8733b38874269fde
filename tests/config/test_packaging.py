"""`pip install .` must carry every package and the configs; setuptools is told both by name."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_is_listed():
    listed = set(
        re.findall(r'"((?:coca_train|data_prep)[\w.]*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    )
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("coca_train", "data_prep")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert packages <= listed, f"add to [tool.setuptools] packages: {sorted(packages - listed)}"
    assert "coca_train.configs" in listed
