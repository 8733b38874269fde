"""The first hour on a GPU, rehearsed without one: every part runs in miniature, and its figures reach the page."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import BEGIN, END, JSON, MARK, PAGE, main, measured, write
from benchmarks.gpu.figures import COUNTED, Figure, counted, table, verdict
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.scale import Scale

MINUTES = 40


def test_a_figure_is_met_within_its_bounds() -> None:
    assert Figure("p", "w", 3.0, "ms").met is None
    assert Figure("p", "w", 3.0, "ms", low=1.0, high=3.0, by="x").met is True
    assert Figure("p", "w", 3.1, "ms", high=3.0, by="x").met is False
    assert counted("p", "w", 124.0, "ms", 100.0).met and not counted("p", "w", 126.0, "ms", 100.0).met
    assert COUNTED == 0.25


def test_the_table_says_what_was_expected_and_by_whom() -> None:
    figures = [counted("micro", "x", 130.0, "ms", 100.0), Figure("saves", "y", 2.0, "s")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(figures).splitlines()[2:]]
    assert rows == [
        ["micro", "x", "130 ms", "75 to 125", "counted by plan", "**no**"],
        ["saves", "y", "2 s", "-", "", ""],
    ]
    assert verdict(figures) == "0 of 1 expected figures met, 2 measured"


def test_all_parts_fit_into_the_hour() -> None:
    assert sum(part.limit_s for part in PARTS.values()) <= MINUTES * 60


def test_parts_measured_at_another_time_stay_and_so_does_the_text_around_the_table(tmp_path: Path) -> None:
    (tmp_path / PAGE).write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    one = Figure("micro", "x", 1.0, "ms").as_json()
    kept = {"machine": {"device": "toy"}, "parts": {"micro": {"seconds": 1, "error": "", "figures": [one]}}}
    write(tmp_path, kept)
    kept["parts"]["flex"] = {"seconds": 1, "error": "not done within 300 s", "figures": []}
    write(tmp_path, kept)
    page = (tmp_path / PAGE).read_text()
    assert page.startswith("above\n") and page.endswith("\nbelow\n") and "old" not in page
    assert "flex: not done within 300 s" in page and page.count("| micro") == 1
    assert json.loads((tmp_path / JSON).read_text()) == kept


def test_what_a_part_has_told_counts_when_it_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = MARK + json.dumps(Figure("p", "w", 1.0, "ms").as_json())
    (tmp_path / "python").write_text(f"#!/bin/sh\necho '{line}'\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    figures, error = measured("micro", True, tmp_path, limit_s=1)
    assert error == "not done within 1 s" and [figure["what"] for figure in figures] == ["w"]


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if Scale(toy=False).device == "cuda":
        pytest.skip("a GPU is here")
    assert main(["--out", str(tmp_path)]) == 2
    assert "No GPU is here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_hour_in_miniature(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["--toy", "--out", str(tmp_path)])
    kept = json.loads((tmp_path / JSON).read_text())["parts"]
    told = capfd.readouterr().err
    assert {name: part["error"] for name, part in kept.items()} == dict.fromkeys(PARTS, ""), told[-4000:]
    for name, part in kept.items():
        figures = [Figure(**figure) for figure in part["figures"]]
        assert figures and all(figure.part == name for figure in figures), name
        assert all(figure.met is not False for figure in figures if name in ("losses", "exact", "flex")), figures
