"""A run's config.yaml and run.json carry a format number; one of another format is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coca_train.checkpoint.opening import read_record
from coca_train.config.load import FORMAT
from coca_train.runtime.errors import CheckpointError
from coca_train.settings import load, load_saved
from tests.states import begin_record


def begin(run_dir: Path) -> None:
    loaded = load([])
    begin_record(run_dir, loaded, {"data": "same"})


@pytest.mark.parametrize("format", [None, 1, FORMAT + 1])
@pytest.mark.parametrize("reader", [read_record, begin, load_saved])
def test_another_format_is_refused(tmp_path: Path, reader: Callable[[Path], object], format: int | None) -> None:
    begin(tmp_path)
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    reader(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text()) | {"format": format}
    (tmp_path / "run.json").write_text(json.dumps({key: value for key, value in record.items() if value is not None}))
    text = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(
        text.replace(f"format: {FORMAT}\n", f"format: {format}\n" if format else "", 1)
    )
    with pytest.raises(CheckpointError, match=rf"E-CKP-31 .*format {format or 1}.* {FORMAT}\). Fix: "):
        reader(tmp_path)
