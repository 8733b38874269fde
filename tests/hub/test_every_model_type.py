"""A tiny folder of every model type of transformers: read and equal, or refused with a reason; never wrong.

COCA_FOLDERS=<folder> takes the folders in it in place of those that the installed version makes: other versions write
them with `python -m tests.hub.tiny_folders <folder>`.
"""

import os
from collections import Counter
from pathlib import Path

import pytest

from coca_train.hub.families import FAMILIES
from coca_train.runtime.errors import UserError
from tests.hub import tiny_folders


@pytest.mark.slow
def test_no_folder_is_read_wrongly(tmp_path, import_run, capsys):
    given = os.environ.get("COCA_FOLDERS")
    folders = sorted(Path(given).iterdir()) if given else tiny_folders.write_all(tmp_path / "folders")
    outcomes, read = Counter(), set()
    for number, folder in enumerate(folders):
        try:
            import_run(folder, f"run{number}")
        except UserError as refused:
            error = str(refused)
        else:
            outcomes["read and equal"] += 1
            read.add(folder.name)
            continue
        # E-IOP-13 is a parity check that failed: read otherwise than its class reads it.
        outcomes["WRONG" if error.startswith("E-IOP-13") else "refused with a reason"] += 1
        assert error.startswith("E-IOP-0"), f"{folder.name}: {error}"
        assert "Fix:" in error
    with capsys.disabled():
        print(f"\n{len(folders)} model types: {dict(outcomes)}; read: {', '.join(sorted(read))}")
    assert FAMILIES.keys() & {folder.name for folder in folders} <= read
    assert outcomes["WRONG"] == 0
