"""`python -m coca_train schemes`: what it prints, what it refuses."""

import contextlib
import io
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from coca_train.catalog.entries import entries, source
from coca_train.catalog.pages import Column, abbreviate, format_count, format_table, markdown
from coca_train.commands import main
from coca_train.positions import SCHEMES


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
    numbers = ["2.00", "1.00", "1.00", "any", "–", "all", str(len(entries("attention_pattern"))), "1803.02155"]
    assert row == ["shaw", "yes", "+6,528", "blocked", "blocked", *numbers]
    assert "training window" in printed and "neox_tiny" in printed


def test_a_plugin(tmp_path, monkeypatch, capsys):
    """Its numbers are measured as those of any other, and its command says where its yaml is."""
    module = tmp_path / "mine_of_another.py"
    module.write_text(SCHEMES.source("alibi").read_text().replace('Literal["alibi"]', 'Literal["mine"]'))
    yaml = tmp_path / "configs" / "position" / "mine.yaml"
    yaml.parent.mkdir(parents=True)
    yaml.write_text("# Mine: nothing new (arXiv 2611.00001)\nscheme: mine\nfold: auto\n")
    monkeypatch.setitem(SCHEMES._points, "mine", EntryPoint("mine", "mine_of_another", SCHEMES.plugins))
    monkeypatch.syspath_prepend(tmp_path)
    words = ["model=neox_tiny", "seq_len=64", "--config-dir", str(tmp_path / "configs")]
    assert run("scheme=mine", *words) == 0
    out = capsys.readouterr().out
    assert f"python -m coca_train position=mine --config-dir {tmp_path / 'configs'}" in out and "2611.00001" in out
    assert run(*words) == 0
    rows = capsys.readouterr().out.splitlines()
    mine, alibi = (next(row.split() for row in rows if row.startswith(f"{name} ")) for name in ("mine", "alibi"))
    assert mine[1:8] == alibi[1:8]


BROKEN = {
    "scheme: ours": "E-CFG-31 .*ours.yaml: scheme: 'ours' is not one of .*Fix: pip install -e",
    "scheme: [ours]": "E-CFG-31 .*ours.yaml: scheme: ",
    "scheme: {": "E-CFG-13 .*ours.yaml",
    "defaults:\n- rope_scaling: nowhere\n- _self_\nscheme: rope": "E-CFG-32 position/rope_scaling=nowhere: .*Fix: ",
    "": "E-CFG-31 .*ours.yaml: scheme: 'None' is not one of",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_choice_that_cannot_be_read(text, tmp_path, capsys):
    (tmp_path / "position").mkdir()
    (tmp_path / "position" / "ours.yaml").write_text(f"# Ours: a rope\n{text}\n")
    assert run("scheme=ours", "--config-dir", str(tmp_path)) == 2
    assert re.match(BROKEN[text], capsys.readouterr().err)


def test_a_choice_that_inherits(tmp_path, capsys):
    (tmp_path / "position").mkdir()
    (tmp_path / "position" / "ours.yaml").write_text("# Ours: a rope\ndefaults: [rope, _self_]\nrotary_pct: 0.5\n")
    assert run("scheme=ours", "model=neox_tiny", "seq_len=64", "--config-dir", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "position.rotary_pct=0.5" in out and "position.rope_scaling.theta=10000.0" in out


@pytest.mark.parametrize("scheme", ["tupe", "coca"])
def test_one_scheme_in_full(scheme, capsys):
    assert run(f"scheme={scheme}", "model=neox_tiny", "seq_len=64") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 120
    assert entries("position")[scheme].docstring in out
    assert f"python -m coca_train position={scheme}" in out
    assert "not sinks: " in out
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
        (["scheme=alibbi"], "Fix: write scheme=alibi"),
        (["scheme=zzz"], "alibi, coca, coca_strict, "),
        (["scheme=yarn"], "position/rope_scaling=yarn"),
        (["scheme=sinks"], "attention_pattern=sinks"),
        (["schemes=rope"], "E-CFG-01 command line schemes=rope: unknown key. Fix: did you mean scheme?"),
        (["rope"], "E-CFG-16 command line rope: "),
        (["model=neox_tinny"], "E-CFG-32 command line model=neox_tinny: "),
        (["seq_len=0"], "E-CFG-05 command line seq_len=0: "),
        (["seq_len=long"], "E-CFG-04 command line seq_len=long: "),
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
    rows = [
        "name  a long",
        "       title",
        "----  ------",
        "x        one",
        "         two",
        "       three",
        "yy         -",
    ]
    assert format_table(columns, ["x", "yy"]).splitlines() == rows
    assert markdown([Column("re- ason", 3, lambda row: "a|b", right=True)], ["x"]).splitlines() == [
        "| reason |",
        "| --: |",
        "| a\\|b |",
    ]


def test_words_for_numbers_and_choices():
    numbers = {0: "0", 768: "+768", -9_999: "-9,999", 52_224: "+52.2k", 999_900: "+1M", -12_595_200: "-12.6M"}
    assert {n: format_count(n) for n in numbers} == numbers
    assert abbreviate(["a", "b"], ["a", "b"]) == "all 2"
    assert abbreviate(["a", "b"], ["a", "b", "c"]) == "all but c"
    assert abbreviate(["a"], ["a", "b", "c"]) == "a"
    assert abbreviate([], ["a"]) == "–"
    assert source("no source (2023)") == ""
    assert source("Su 2023, kexue.fm/archives/9708).") == "kexue.fm/archives/9708"
