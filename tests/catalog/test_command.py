"""`python -m coca_train schemes`: what it prints, what it refuses."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coca_train.catalog.entries import entries, source
from coca_train.catalog.pages import Column, markdown, signed, some, terminal
from coca_train.commands import main


def run(*words):
    return main(["schemes", *words])


@pytest.fixture(scope="module")
def printed():
    """The three tables, once."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run("model=neox_tiny", "seq_len=64") == 0
    return out.getvalue()


def test_the_tables_fit_a_terminal_and_name_everything(printed):
    assert max(map(len, printed.splitlines())) <= 120
    for group in ("position", "position/rope_scaling", "attention_pattern"):
        for name in entries(group):
            assert re.search(rf"^{name} ", printed, re.M), name
    row = re.search(r"^shaw .*$", printed, re.M)[0].split()
    assert row == [
        "shaw",
        "yes",
        "+6,528",
        "blocked",
        "blocked",
        "2.00",
        "1.00",
        "1.00",
        "any",
        "–",
        "all",
        str(len(entries("attention_pattern"))),
        "1803.02155",
    ]
    assert "training window" in printed and "neox_tiny" in printed


def test_help_is_quick():
    """No torch: a second of processor time is far more than it takes."""
    code = (
        "import sys; from coca_train.commands import main; main(['schemes', '--help']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "scheme=alibi" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("scheme", ["tupe", "coca"])
def test_one_scheme_in_full(scheme, capsys):
    assert run(f"scheme={scheme}", "model=neox_tiny", "seq_len=64") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 120
    assert entries("position")[scheme].docstring in out
    assert f"python -m coca_train position={scheme}" in out
    assert "not sinks: " in out and "a relative scheme is needed" in out.replace("\n      ", " ")
    expected = {
        "tupe": [
            "position.max_len=${train.seq_len}",
            "position.p [64, 256]",
            "position.u_q [256, 256]",
            "https://arxiv.org/abs/2006.15595",
        ],
        "coca": ["position.rope_scaling.theta=10000.0", "position.t_width=full_mean", "position.variant=slack"],
    }
    assert [text for text in expected[scheme] if text not in out] == []


def test_work_and_memory_by_length(capsys):
    """rope at T = 1,024: T(T + 1)/2 pairs, 2·32 products, 8 heads; 3·8·32 numbers of two bytes a token."""
    run("scheme=rope", "model=neox_tiny", "seq_len=64")
    line = re.search(r"^  T =  1,024 .*$", capsys.readouterr().out, re.M)[0]
    assert f"{1024 * 1025 / 2 * 64 * 8 / 1e9:.1f} G multiply-adds" in line
    assert f"{1024 * 768 * 2 / 2**20:.1f} MiB" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["scheme=alibbi"],
            "E-CFG-31 command line scheme=alibbi: there is no such scheme; one of them is needed. "
            "Fix: write scheme=alibi",
        ),
        (["scheme=zzz"], "the schemes are alibi, coca, coca_strict, "),
        (["scheme=yarn"], "position/rope_scaling=yarn goes with a scheme"),
        (["scheme=sinks"], "attention_pattern=sinks goes with a scheme"),
        (["schemes=rope"], "E-CFG-01 command line schemes=rope: unknown key. Fix: did you mean scheme?"),
        (["rope"], "E-CFG-16 command line rope: not an override: there is no ="),
        (["model=neox_tinny"], "E-CFG-32 command line model=neox_tinny: there is no model neox_tinny"),
        (["seq_len=0"], "E-CFG-05 command line seq_len=0: it needs a whole number > 0"),
        (["seq_len=long"], "E-CFG-04 command line seq_len=long: is text; it needs a whole number > 0"),
        (["scheme=rope", "--markdown"], "E-CFG-02 command line --markdown"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_figures_go_to_the_folder_asked_for(tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr("coca_train.catalog.figures.write_figures", folders.append)
    assert run(f"figures={tmp_path}") == 0
    assert folders == [Path(tmp_path)]


def test_cells_wrap_and_columns_line_up():
    columns = [
        Column("name", 6, str),
        Column("a long title", 6, lambda row: "one two three" if row == "x" else "-", right=True),
    ]
    assert terminal(columns, ["x", "yy"]).splitlines() == [
        "name  a long",
        "       title",
        "----  ------",
        "x        one",
        "         two",
        "       three",
        "yy         -",
    ]
    assert markdown([Column("re- ason", 3, lambda row: "a|b", right=True)], ["x"]).splitlines() == [
        "| reason |",
        "| --: |",
        "| a\\|b |",
    ]


def test_words_for_numbers_and_choices():
    assert [signed(n) for n in (0, 768, -9_999, 52_224, 999_900, -12_595_200)] == [
        "0",
        "+768",
        "-9,999",
        "+52.2k",
        "+1M",
        "-12.6M",
    ]
    assert some(["a", "b"], ["a", "b"]) == "all 2"
    assert some(["a", "b"], ["a", "b", "c"]) == "all but c"
    assert some(["a"], ["a", "b", "c"]) == "a"
    assert some([], ["a"]) == "–"
    assert source("no source (2023)") == ""
    assert source("Su 2023, kexue.fm/archives/9708).") == "kexue.fm/archives/9708"
