"""The first hour on a GPU, rehearsed without one: every part runs in miniature, and its figures reach the page."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as hour
from benchmarks.gpu.__main__ import BEGIN, END, JSON, MARK, PAGE, Told, main, measured, write
from benchmarks.gpu.alone import Alone
from benchmarks.gpu.figures import COUNTED, Figure, counted, table, verdict
from benchmarks.gpu.parts import PARTS, exact, kernels, large, losses, micro, saves
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.timing import GIB
from benchmarks.measure import ROOT
from coca_train.planning.hardware import GPUS
from coca_train.settings import load
from coca_train.stages import resolve
from tests.gpu.test_group import gone, pids

NINE_MINUTES = 540
PROOFS = ("masks", "exact", "losses", "kernels", "attention_patterns", "score_options", "memory")


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


def test_no_part_takes_longer_than_a_lent_machine_allows_for_a_command() -> None:
    assert all(0 < part.limit_s <= NINE_MINUTES for part in PARTS.values())
    assert sum(part.limit_s for part in PARTS.values()) <= 2 * 60 * hour.MINUTES


def test_proofs_come_before_timings() -> None:
    names = list(PARTS)
    assert max(map(names.index, PROOFS)) < min(map(names.index, set(PARTS) - set(PROOFS)))


@pytest.mark.parametrize(
    ("seq_len", "recipe"), [(n, recipe) for n, recipes in large.RECIPES.items() for recipe in recipes]
)
def test_the_7b_recipes_compose_on_one_process_at_full_size_and_fit(seq_len: int, recipe: str) -> None:
    changed = large.WHOLE if seq_len > 2048 else ()
    full = Scale(toy=False)
    alone = Alone(full.words(f"+experiment={recipe}", *changed), large.RECIPES[seq_len][recipe], full)
    assert alone.seq_len == seq_len and alone.config.engine.sequence_parallel == 1
    assert all(word in alone.name for word in changed) and alone.name.startswith(recipe)
    assert 1.1 * alone.counted_gib() * GIB < GPUS["h100"].usable


@pytest.mark.parametrize("toy", [False, True])
@pytest.mark.parametrize("recipe", micro.RECIPES)
def test_the_350m_recipes_compose_on_one_process(recipe: str, toy: bool) -> None:
    assert Alone(Scale(toy).words(f"+experiment={recipe}"), 16, Scale(toy)).rows == (2 if toy else 16)


@pytest.mark.parametrize("toy", [False, True])
@pytest.mark.parametrize("part", [exact, losses, saves])
def test_every_training_of_a_part_composes_on_one_process(
    part: object, toy: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its words are accepted, as they are on a GPU and in miniature, up to where the training itself would begin."""
    composed = []

    class Enough(Exception):
        pass

    def train(folder: Path, name: str, words: Sequence[str]) -> None:
        composed.append(resolve(load([*words, "data.prepare=embedded"]).config))
        raise Enough

    monkeypatch.setattr(part, "train", train)
    with pytest.raises(Enough):
        list(part.run(Scale(toy), tmp_path))
    assert composed


def test_parts_measured_at_another_time_stay_and_so_does_the_text_around_the_table(tmp_path: Path) -> None:
    (tmp_path / PAGE).write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    one = Figure("micro", "x", 1.0, "ms").as_json()
    there, here = {"device": "toy", "date": "1"}, {"device": "toy", "date": "2"}
    kept = {"parts": {"micro": {"machine": there, "seconds": 1, "error": "", "figures": [one]}}}
    write(tmp_path, kept)
    kept["parts"]["flex"] = {"machine": here, "seconds": 1, "error": "not done within 300 s", "figures": []}
    write(tmp_path, kept)
    page = (tmp_path / PAGE).read_text()
    assert page.startswith("above\n") and page.endswith("\nbelow\n") and "old" not in page
    assert "flex: not done within 300 s" in page and page.count("| micro") == 1
    assert "* micro: device toy, date 1\n* flex: device toy, date 2\n" in page
    assert json.loads((tmp_path / JSON).read_text()) == kept


def python(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Instead of a part, a shell script runs."""
    (folder / "python").write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    (folder / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


LINE = MARK + json.dumps(Figure("p", "w", 1.0, "ms").as_json())


def test_what_a_part_has_told_counts_when_it_is_ended_and_nothing_of_it_lives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "sh -c 'sleep 300 & echo $$ $! >> pids; wait' &"
    python(tmp_path, monkeypatch, f"cd {tmp_path}; printf '%s ' $$ > pids", code, f"echo '{LINE}'", "exec sleep 60")
    figures, error, stopped = measured("micro", True, tmp_path, limit_s=2)
    assert error == "not done within 2 s" and [figure["what"] for figure in figures] == ["w"] and not stopped
    assert gone(pids(tmp_path / "pids"))


def test_half_a_line_of_a_part_that_is_ended_is_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python(tmp_path, monkeypatch, f"echo '{LINE}'", f"printf '%s' '{LINE[:30]}'", "exec sleep 60")
    assert len(measured("micro", True, tmp_path, limit_s=1).figures) == 1


def test_when_the_time_is_over_what_is_left_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count(step=250.0)
    monkeypatch.setattr(hour.time, "monotonic", lambda: next(clock))
    limits: list[int] = []

    def told(name: str, toy: bool, folder: Path, limit_s: int) -> Told:
        limits.append(limit_s)
        return Told([Figure(name, "w", 1.0, "ms").as_json()], "" if name != "losses" else "exit code 3")

    monkeypatch.setattr(hour, "measured", told)
    words = ["micro", "losses", "exact", "saves", "masks"]
    assert main([*words, "--toy", "--minutes", "20", "--out", str(tmp_path)]) == 1
    # Each part reads the clock three times. Begun at 250, 1000 of 1200 s; the third would have 0 s and less.
    assert limits == [240, 200]
    printed = capsys.readouterr().err
    continued = re.search(r"Continue: python -m benchmarks\.gpu (.*)", printed)
    assert continued and continued[1].split() == ["losses", "exact", "saves", "masks", "--toy", "--out", str(tmp_path)]
    assert printed.index("micro (4), losses (8)") < printed.index("micro: at most")
    limits.clear()
    clock = itertools.count()  # typed as it is printed, it goes on
    assert main(continued[1].split()) == 1 and len(limits) == 4
    assert set(json.loads((tmp_path / JSON).read_text())["parts"]) == set(words)


def test_a_part_that_is_stopped_is_kept_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = (
        "import sys; from benchmarks.gpu.__main__ import main; sys.executable = sys.argv[1]; exit(main(sys.argv[2:]))"
    )
    (tmp_path / "python").write_text(f"#!/bin/sh\necho '{LINE}'\n: > {tmp_path}/begun\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    words = ["micro", "saves", "--toy", "--out", str(tmp_path / "out")]
    whole = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "python"), *words], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 120
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < until and whole.poll() is None
        time.sleep(0.05)
    os.kill(whole.pid, signal.SIGTERM)
    _, printed = whole.communicate(timeout=60)
    assert whole.returncode == 130 and "python -m benchmarks.gpu micro saves --toy" in printed
    kept = json.loads((tmp_path / "out" / JSON).read_text())["parts"]
    assert (
        list(kept) == ["micro"]
        and kept["micro"]["error"] == "stopped by SIGTERM"
        and len(kept["micro"]["figures"]) == 1
    )


def test_what_a_part_leaves_on_the_disk_is_gone_before_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two checkpoints of the 350M recipe are 16 GB."""
    seen = []

    def told(name: str, toy: bool, folder: Path, limit_s: int) -> Told:
        seen.append([path.name for path in folder.iterdir()])
        (folder / name).mkdir()
        (folder / "data").mkdir(exist_ok=True)
        return Told([], "")

    monkeypatch.setattr(hour, "measured", told)
    main(["saves", "exact", "--toy", "--out", str(tmp_path)])
    assert seen == [[], ["data"]]


@pytest.mark.parametrize(
    ("printed", "code", "figures"),
    [
        ("PASSED a::test_x[1]\nFAILED a::test_x[2]\nERROR a::test_x[3]\n", 1, [1, 2]),
        ("SKIPPED a::test_x[1] (needs a GPU)\n", 0, [0, 0]),
        ("No module named pytest\n", 1, None),
        ("no tests ran\n", 5, None),
    ],
)
def test_tests_that_do_not_run_are_no_tests_that_pass(
    printed: str, code: int, figures: list[int] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python(tmp_path, monkeypatch, f"printf '{printed}'", f"exit {code}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def run() -> Iterator[float]:
        return (figure.value for figure in kernels.schemes(Scale(toy=True), tmp_path))

    if figures is None:
        with pytest.raises(RuntimeError, match="no test has run"):
            list(run())
    else:
        assert list(run()) == figures


def test_outcomes_of_pytest_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here, and the tests would run")
    said: list[str] = []
    monkeypatch.setattr(kernels, "say", said.append)
    assert [figure.value for figure in kernels.attention_patterns(Scale(toy=True), tmp_path)] == [0, 0]
    assert len(said) > 15 and all(line.split()[0].startswith("test_every_attention_pattern[") for line in said)


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
        assert all(figure.met is not False for figure in figures if name in PROOFS), figures
