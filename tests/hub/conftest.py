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
def bring(tmp_path) -> Callable[..., Path]:
    """bring(folder, name="run", ...): import into a run directory."""

    def run(source: Path, name: str = "run", **options) -> Path:
        from coca_train.hub import importing
        from coca_train.hub.options import IMPORT, given

        given_options = given(IMPORT, source=str(source), name=name, root=str(tmp_path / "runs"), **options)
        return importing.import_weights(given_options)

    return run


@pytest.fixture
def send(tmp_path) -> Callable[..., Path]:
    """send(run, name="out", ...): export into a folder."""

    def run(source: Path, name: str = "out", **options) -> Path:
        from coca_train.hub import exporting
        from coca_train.hub.options import EXPORT, given

        return exporting.export_run(given(EXPORT, run=str(source), to=str(tmp_path / name), **options))

    return run
