"""tests/outside/readme.py knows every command of README.md and of the page behind it. That they work, `python -m
tests.outside.readme` shows."""

import re
import time
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.outside import readme

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = readme.pages()
DOORS = ("My text", "My model", "My idea for positions")


def test_every_command_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert readme.main(["--list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert all(command in shown for command in readme.commands(PAGES))


def test_commands_are_found_in_order() -> None:
    found = readme.commands(PAGES)
    rows = re.findall(r"^\| `(.*?)` \|", PAGES, re.M)
    assert found[0] == "make quickstart" and len(rows) > 20 and set(rows) <= set(found)
    new = [row for row in rows if f"{row}" not in README]
    assert [command for command in found if command in new] == new


@pytest.mark.parametrize("door", DOORS)
def test_a_door_is_at_most_five_commands(door: str) -> None:
    section = README.partition(f"## {door}\n")[2].partition("\n## ")[0]
    assert 0 < len(section.split("```")[1].strip().splitlines()) <= 5


def test_an_unknown_command_and_a_part_that_is_gone_fail() -> None:
    with pytest.raises(LookupError, match="make dinner"):
        readme.shortened("make dinner")
    with pytest.raises(LookupError, match="torchrun --nproc-per-node 4"):
        readme.shortened("torchrun --nproc-per-node 4 -m coca_train")
    with pytest.raises(ValueError, match="step=120"):
        readme.shortened("python -m coca_train show run=runs/quickstart step=7")
    assert readme.shortened("make gpu") is None


def test_nothing_is_known_that_readme_does_not_have() -> None:
    found = readme.commands(PAGES)
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
