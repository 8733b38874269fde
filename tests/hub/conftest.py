"""Models are made once a session; a test that spoils one takes a copy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Callable[..., Path]:
    """model(kind, scaling): a folder, not to be written to."""
    dirs: dict[tuple, Path] = {}

    def folder(kind: str = "llama_gqa", scaling: str = "plain") -> Path:
        from tests.hub import models

        if (kind, scaling) not in dirs:
            dirs[kind, scaling] = models.write(tmp_path_factory.mktemp("models") / f"{kind}-{scaling}", kind, scaling)
        return dirs[kind, scaling]

    return folder


@pytest.fixture
def copy(model, tmp_path) -> Callable[..., Path]:
    """The same, to be spoilt."""

    def folder(kind: str = "llama_gqa", scaling: str = "plain") -> Path:
        return Path(shutil.copytree(model(kind, scaling), tmp_path / "copy"))

    return folder


@pytest.fixture
def import_run(tmp_path) -> Callable[..., Path]:
    """import_run(folder, name="run", ...): import into a run directory."""

    def run(source: Path, name: str = "run", **options) -> Path:
        from coca_train.hub import importing
        from coca_train.hub.options import ImportConfig

        words = ImportConfig(source=str(source), name=name, root=str(tmp_path / "runs"), **options)
        return importing.import_weights(words)

    return run


@pytest.fixture
def export_run(tmp_path) -> Callable[..., Path]:
    """export_run(run, name="out", ...): export into a folder."""

    def run(source: Path, name: str = "out", **options) -> Path:
        from coca_train.hub import exporting
        from coca_train.hub.options import ExportConfig

        return exporting.export_run(ExportConfig(run=str(source), to=str(tmp_path / name), **options))

    return run
