"""tests/outside/readme.py knows every command of README.md. That they work, `python -m tests.outside.readme` shows."""

import re
import time
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.outside import readme

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert readme.main(["--list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert all(command in shown for command in readme.commands(README))


def test_the_commands_of_blocks_and_table_are_found_in_order() -> None:
    found = readme.commands(README)
    blocks = [block for block in re.findall(r"^```\n(.*?)\n```$", README, re.M | re.S) if block.startswith("make")]
    table = README.partition("## Everyday commands")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(.*?)` \|", table, re.M)
    assert blocks == found[:2] == ["make quickstart", "make test"]
    assert len(rows) > 20 and set(rows) <= set(found)
    before = README.partition("## Everyday commands")[0]
    new = [row for row in rows if f"`{row}`" not in before]
    assert [command for command in found if command in new] == new


def test_an_unknown_command_and_a_part_that_is_gone_fail() -> None:
    with pytest.raises(LookupError, match="make dinner"):
        readme.shortened("make dinner")
    with pytest.raises(LookupError, match="torchrun --nproc-per-node 4"):
        readme.shortened("torchrun --nproc-per-node 4 -m coca_train")
    with pytest.raises(ValueError, match="step=120"):
        readme.shortened("python -m data_prep show run=runs/quickstart step=7")
    assert readme.shortened("make gpu") is None


def test_nothing_is_known_that_readme_does_not_have() -> None:
    found = readme.commands(README)
    for beginning in (*readme.SHORTENED, *readme.NOT_HERE):
        assert any(command.startswith(beginning) for command in found), beginning


def test_a_late_command_fails_and_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert not readme.run("echo begun; sh -c 'sleep 3; touch late'; true", 1.0)
    assert "TOO LATE" in (out := capsys.readouterr().out) and "begun" in out
    time.sleep(3)
    assert not (tmp_path / "late").exists()
    assert readme.run("true") and not readme.run("false")
