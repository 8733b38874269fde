"""`python -m data_prep` as a user meets it: verbs, help, settings that are wrong, exit codes."""

import importlib
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from coca_train.config.fields import options
from coca_train.config.messages import ConfigError
from coca_train.data.corpus_config import PREPARE, load
from coca_train.runtime.errors import DataError
from data_prep import __main__ as command
from data_prep.command_line import VERBS, markdown, overview

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"E-[A-Z]+-\d\d [^:].*: .+\. Fix: .+")
FILES = "corpus.sources.text.files=[a.jsonl]"
WITH_OVERRIDES = [name for name, verb in VERBS.items() if verb.sections]
SECOND = "+corpus.sources.b.files=[b.jsonl]"

T = "corpus.sources.text"
# words, code, and keys and values that the line names
WRONG: list[tuple[list[str], str, list[str]]] = [
    ([], "E-CFG-50", ["configs/corpus/files.yaml:", f"{T}.files=[]", "kind=auto", "'[raw/*.jsonl.gz]'"]),
    ([f"{T}.kind=hub"], "E-CFG-50", [f"{T}.hub=null", "text.hub=<name>"]),
    ([FILES, f"{T}.kind=hub", f"{T}.hub=x"], "E-CFG-62", [f"command line {T}.files=", f"write {T}.files=[]"]),
    ([FILES, f"{T}.hub=x"], "E-CFG-62", [f"{T}.hub=x", "text.hub=null"]),
    ([FILES, f"{T}.hub_files=[x]"], "E-CFG-62", ["text.hub_files=[]"]),
    ([f"{T}.files=['raw/*']"], "E-CFG-50", ["raw/*", "text.kind=text"]),
    (
        [f"{T}.files=[a.txt,b.jsonl,c.md]"],
        "E-CFG-50",
        ["a.txt and b.jsonl", "text.files='[a.txt,c.md]' +corpus.sources.text_more.files='[b.jsonl]'"],
    ),
    ([f"{T}.files=[a.txt]", f"{T}.join_field=x"], "E-CFG-64", [f"{T}.join_field=x", f"write {T}.join_field=folder"]),
    ([f"{T}.files=a.jsonl"], "E-CFG-04", ["is text", 'text.files=["a.jsonl"]']),
    ([f"{T}.files=[1]"], "E-CFG-04", [f"{T}.files", "[..]"]),
    ([f"{T}.files=[~/a]"], "E-CFG-16", ["not readable"]),
    ([f"{T}.files=['~/a']"], "E-CFG-29", ["~", "$HOME/a"]),
    ([f"{T}.files=['']"], "E-CFG-29", [f"{T}.files"]),
    ([FILES, f"{T}.kind=json"], "E-CFG-31", ["auto, jsonl, parquet, text, folder, hub", "kind=jsonl"]),
    ([FILES, f"{T}.textfield=x"], "E-CFG-01", ["unknown key", f"{T}.text_field"]),
    ([FILES, f"{T}.weight=0"], "E-STG-08", ["> 0", f"~{T}"]),
    ([FILES, f"{T}.group=code"], "E-CFG-52", ["it has text", "text.group=text"]),
    ([FILES, "+mix.groups.code.share=1"], "E-CFG-52", ["mix.groups.code.share=1", "~mix.groups.code"]),
    ([FILES, "mix.groups.text.share=0"], "E-CFG-05", ["mix.groups.text.share=0", "> 0"]),
    ([FILES, SECOND, "corpus.sources.b.weight=2"], "E-CFG-53", ["text.weight=null", "b.weight=2"]),
    (
        [FILES, f"{T}.weight=1", f"{T}.hold_out=all"],
        "E-CFG-53",
        ["text.weight=1", "hold_out=all", f"write {T}.weight=null"],
    ),
    ([FILES, "shard=3"], "E-CFG-04", ["command line work.shard=3", "write work.shard=0/1"]),
    ([FILES, "shard=3of4"], "E-CFG-51", ["command line work.shard=3of4", "i/n", "shard=0/16"]),
    ([FILES, "shard=16/16"], "E-CFG-51", ["work.shard=16/16", "15", "shard=15/16"]),
    *(([FILES, f"shard={shard}"], "E-CFG-51", [f"work.shard={shard}"]) for shard in ("-1/4", "0/0", "'٣/4'", "01/4")),
    ([FILES, "work.part_bytes=1000"], "E-CFG-54", ["work.part_bytes=1000", "write work.chunk_bytes=1000"]),
    ([FILES, "work.max_line_bytes=3000000000"], "E-CFG-63", ["work.max_line_bytes=3000000000", "2147483647"]),
    ([FILES, "work.chunk_bytes=3000000000"], "E-CFG-63", ["2147483647 bytes"]),
    ([FILES, "work.workers=0"], "E-CFG-05", ["work.workers=0", "> 0 or null"]),
    ([FILES, "work.workers=-1"], "E-CFG-05", ["work.workers=-1", "> 0 or null"]),
    ([FILES, "work.workers=1.5"], "E-CFG-07", ["work.workers=1.5"]),
    ([FILES, "work.workers=1e9"], "E-CFG-07", ["work.workers=1000000000"]),
    ([FILES, "work.workers=many"], "E-CFG-04", ["work.workers=many", "> 0 or null"]),
    ([FILES, "work.on_error=ignore"], "E-CFG-31", ["stop, skip"]),
    ([FILES, "work.max_reject_share=1.5"], "E-CFG-05", ["<= 1"]),
    ([FILES, "corpus.valid_share=1"], "E-CFG-05", ["corpus.valid_share=1", "< 1"]),
    ([FILES, "corpus.name=a/b"], "E-CFG-29", ["corpus.name=a/b"]),
    ([FILES, "corpus.name=embedded"], "E-CFG-59", ["corpus.name=embedded", "corpus.name=my_embedded"]),
    ([FILES, "corpus.dir='~/x'"], "E-CFG-29", ["corpus.dir='~/x'", "corpus.dir=$HOME/x"]),
    ([FILES, "tokenizer.path="], "E-CFG-29", ["tokenizer.path="]),
    ([FILES, "tokenizer.import_from='~/x'"], "E-CFG-29", ["tokenizer.import_from"]),
    ([FILES, "tokenizer.character_coverage=2"], "E-CFG-05", ["<= 1"]),
    (["corpus.sources={a b: {files: [x]}}"], "E-CFG-29", ["corpus.sources.a b"]),
    ([FILES, f"{T}.filter.languages=[en]"], "E-CFG-55", ["language_field=null", "language_field=<field>"]),
    ([FILES, f"{T}.filter.licences=[mit]"], "E-CFG-55", ["licence_field=<field>"]),
    ([FILES, f"{T}.filter.min_stars=1"], "E-CFG-55", ["stars_field=<field>"]),
    ([FILES, f"{T}.kind=text", f"{T}.filter.language_field=lang"], "E-CFG-64", ["language_field=null"]),
    (
        [FILES, f"{T}.filter.min_chars=9", f"{T}.filter.max_chars=8"],
        "E-CFG-56",
        ["min_chars=9", "max_chars=8", "max_chars=null"],
    ),
    ([FILES, "look.source=txt"], "E-CFG-57", ["'txt'", "look.source=text"]),
    ([FILES, "leakage.against=[x/y.idx]"], "E-CFG-58", ["x/y.idx", "leakage.against=[x/y]"]),
    ([FILES, "corpus=flies"], "E-CFG-32", ["files, ", "write corpus=files"]),
    ([FILES, "~corpus"], "E-CFG-16", ["corpus"]),
    ([FILES, "wrok.workers=2"], "E-CFG-01", ["work.workers"]),
    ([FILES, "work=2"], "E-CFG-34", ["is a section", "work.<option>"]),
    ([FILES, "work.workers=1,2"], "E-CFG-16", ["several values"]),
    ([FILES, "+corpus.sources.b=5"], "E-CFG-34", ["corpus.sources.b=5", "is a section"]),
    ([FILES, "+corpus.token=hf_CANARY45678901234567890"], "E-SEC-02", ["corpus.token=***"]),
    ([FILES, f"{T}._target_=os.system"], "E-SEC-01", ["_target_"]),
    ([f"{T}.files=['${{oc.env:HOME}}/a']"], "E-SEC-03", ["interpolation"]),
]


@pytest.mark.parametrize(("words", "id", "texts"), WRONG, ids=[" ".join(words) or "nothing" for words, *_ in WRONG])
def test_wrong_settings(words, id, texts):
    with pytest.raises(ConfigError) as caught:
        load(words)
    lines = caught.value.lines
    for line in lines:
        assert LINE.fullmatch(line), line
        assert "CANARY" not in line
    assert [line for line in lines if line.startswith(f"{id} ") and all(text in line for text in texts)], lines


RIGHT = [
    [FILES, SECOND],
    [FILES, SECOND, "corpus.sources.text.weight=1", "corpus.sources.b.weight=3"],
    [FILES, SECOND, "corpus.sources.text.weight=1", "corpus.sources.b.hold_out=all"],  # is in no group's shares
    [FILES, SECOND, "corpus.sources.text.weight=1", "corpus.sources.b.group=b", "+mix.groups.b.share=2"],
    [FILES, "shard=15/16"],
    [FILES, "shard=0/1", "work.chunk_bytes=1000", "work.part_bytes=1000", "work.max_line_bytes=2147483647"],
    [FILES, "look.source=text", "leakage.against=[x/y]"],
    [FILES, "corpus.sources.text.filter.min_chars=8", "corpus.sources.text.filter.max_chars=8"],
    [FILES, "corpus.sources.text.filter.languages=[en]", "corpus.sources.text.filter.language_field=meta.lang"],
    ["corpus.sources.text.kind=hub", "corpus.sources.text.hub=a/b"],
]


@pytest.mark.parametrize("words", RIGHT, ids=" ".join)
def test_settings_that_are_right(words):
    load(words)


KINDS = {
    "[a.jsonl]": "jsonl",
    "['x/**/*.JSONL.gz',b.jsonl.zst]": "jsonl",
    "[a.parquet]": "parquet",
    "[a.txt,'notes/*.md']": "text",
}


@pytest.mark.parametrize("files", KINDS)
def test_how_a_source_is_read_is_in_the_endings_of_its_files(files):
    assert load([f"corpus.sources.text.files={files}"]).corpus.sources["text"].kind == KINDS[files]
    named = load([f"corpus.sources.text.files={files}", "corpus.sources.text.kind=text"])
    assert named.corpus.sources["text"].kind == "text"


def test_a_corpus_of_ones_own_needs_no_more_than_its_files(tmp_path):
    (tmp_path / "corpus").mkdir()
    text = "# @package _global_\ncorpus: {name: own, sources: {a: {files: [a.txt], group: prose}}}\n"
    (tmp_path / "corpus" / "own.yaml").write_text(text)
    config = load(["corpus=own"], (tmp_path,))
    assert (config.corpus.sources["a"].kind, config.mix.tokens) == ("text", None)
    assert {name: group.share for name, group in config.mix.groups.items()} == {"prose": 1}
    second = "+corpus.sources.b.files=[b.jsonl]"  # of the group text
    shares = ["+mix.groups.prose.share=0.5", "+mix.groups.text.share=0.5"]
    with pytest.raises(ConfigError, match="2 groups, prose, text") as caught:
        load(["corpus=own", second], (tmp_path,))
    assert " ".join(shares) in str(caught.value)
    assert set(load(["corpus=own", second, *shares], (tmp_path,)).mix.groups) == {"prose", "text"}


def test_the_shorthand_for_shards():
    assert load([FILES, "shard=3/16"]).work.shard == "3/16"
    assert load([FILES, "work.shard=3/16"]).work.shard == "3/16"


@pytest.fixture
def stub(monkeypatch):
    """Put a verb's module in place that does what it is told; returns what it was called with."""

    def install(verb, act, name="run"):
        called = []

        def do(argument):
            called.append(argument)
            return act()

        module = types.ModuleType(f"data_prep.verbs.{verb}", "  What it does.\n")
        setattr(module, name, do)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return called

    return install


@pytest.mark.parametrize("verb", WITH_OVERRIDES)
def test_every_verb_gets_the_checked_configuration(verb, stub):
    called = stub(verb, lambda: None)
    assert command.main([verb, FILES, "shard=1/2", "corpus.dir=/x"]) == 0
    assert called == [load([FILES, "work.shard=1/2", "corpus.dir=/x"])]


def test_exit_codes(stub, capsys):
    def fail(error):
        def act():
            raise error

        return act

    stub("verify", lambda: 3)
    assert command.main(["verify", FILES]) == 3
    stub("verify", fail(DataError("E-TOK-08 x: y. Fix: z")))
    assert command.main(["verify", FILES]) == 3
    assert capsys.readouterr().err == "E-TOK-08 x: y. Fix: z\n"
    assert command.main(["verify", FILES, "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err
    stub("verify", fail(KeyboardInterrupt()))
    assert command.main(["verify", FILES]) == 130
    assert capsys.readouterr().err.startswith("Interrupted")
    stub("verify", fail(RuntimeError("oops")))
    assert command.main(["verify", FILES]) == 1
    assert "This is a bug" in capsys.readouterr().err


def test_wrong_settings_start_nothing(stub, capsys):
    called = stub("tokenize", lambda: None)
    assert command.main(["tokenize", "work.workers=0"]) == 2
    captured = capsys.readouterr()
    assert (called, captured.out) == ([], "")
    assert captured.err.splitlines()[-1] == "2 problems; nothing was started."


def test_a_verb_with_options_of_its_own(capsys):
    verb, word = "embedded", "vocab_size=512"
    assert command.main([verb, word, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"  python -m data_prep {verb}" in shown
    assert f"    {word}   (a whole number > 0" in shown
    assert command.main([verb, "a=b"]) == 2
    assert "E-CFG-01 command line a=b: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_there(verb):
    module = importlib.import_module(f"data_prep.verbs.{verb}")
    assert callable(module.run if VERBS[verb].sections else module.VERB.main)


def test_cfg_job_shows_the_checked_configuration(stub, capsys):
    called = stub("tokenize", lambda: None)
    assert command.main(["tokenize", FILES, "shard=1/2", "--cfg", "job"]) == 0
    out = capsys.readouterr().out
    assert "shard: 1/2" in out
    assert "path: data/mine/tokenizer.model" in out
    assert "${" not in out
    assert command.main(["tokenize", FILES, "shard=2/2", "--cfg", "job"]) == 2
    assert command.main(["tokenize", FILES, "--cfg", "hydra"]) == 2
    assert "write --cfg job" in capsys.readouterr().err
    assert called == []


def test_corpora_of_ones_own(tmp_path, stub, capsys):
    (tmp_path / "corpus").mkdir()
    text = "# @package _global_\n# My own texts\ncorpus: {name: own, sources: {a: {files: [x.txt]}}}\n"
    (tmp_path / "corpus" / "own.yaml").write_text(text + "mix: {groups: {text: {share: 1}}}\n")
    called = stub("sources", lambda: None)
    assert command.main(["sources", "--config-dir", str(tmp_path), "corpus=own"]) == 0
    assert called[0].corpus.sources["a"].files == ["x.txt"]
    assert command.main(["sources", f"--config-dir={tmp_path}", "corpus=own", "--help"]) == 0
    out = capsys.readouterr().out
    assert "   * own                    My own texts" in out
    assert 'corpus.sources.<name>.files=["x.txt"]' in out
    assert command.main(["sources", "--config-dir", "/nowhere"]) == 2


def test_the_overview(capsys):
    for words in ([], ["--help"], ["-h"]):
        assert command.main(words) == 0
        assert capsys.readouterr().out == overview() + "\n"
    for name, verb in VERBS.items():
        assert re.search(rf"^  {name} +{re.escape(verb.does)}$", overview(), re.MULTILINE)
    walk = re.findall(r"^  python -m (\w+) (\S+)", overview().split("VERBS")[0], re.MULTILINE)[1:]
    assert walk == [
        ("data_prep", "tokenizer"),
        ("data_prep", "tokenize"),
        ("data_prep", "verify"),
        ("data_prep", "mix"),
        ("coca_train", "--config-dir"),
    ]
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("coca_train ")


@pytest.mark.parametrize("verb", WITH_OVERRIDES)
def test_help_of_a_verb(verb, capsys):
    assert command.main([verb, "--help", "corpus=paper_miniature"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{verb}: {VERBS[verb].does}\n")
    assert f"\n  python -m data_prep {verb} " in out
    assert "   * paper_miniature " in out
    for option in options(PREPARE):
        assert (f"    {option.key}=" in out) == (option.key.split(".")[0] in VERBS[verb].sections), option.key
    assert "    corpus.valid_share=0.05   (a number >= 0 and < 1 or null)\n        share of" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tokenise"], "sources, tokenizer, "),
        (["tokenise"], "Fix: write python -m data_prep tokenize"),
        (["corpus=files"], "python -m data_prep <verb> ..."),
        (["--config-dir", "x", "tokenize"], "python -m data_prep <verb> ..."),
        (["--tokenize"], "Fix: write python -m data_prep tokenize"),
        (["jsonl"], "Fix: see python -m data_prep"),
        (["tokenize", "--multirun"], "--help, --version, --cfg job, --config-dir, --debug"),
        (["tokenize", "--hydra-help"], "--hydra-help"),
        (["tokenize", "--work.workers=2"], "write work.workers=2"),
    ],
)
def test_command_lines_that_are_none(words, text, capsys):
    assert command.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("E-CFG-38 ")
    assert LINE.fullmatch(line)
    assert text in line


@pytest.mark.parametrize("words", [[], ["tokenize", "--help"]], ids=["overview", "verb"])
def test_help_is_torch_free(words):
    code = (
        f"import sys; from data_prep.__main__ import main; code = main({words});"
        "assert code == 0;"
        "assert not {'torch', 'deepspeed', 'datasets', 'pyarrow', 'sentencepiece'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_real_command_line(tmp_path):
    words = [sys.executable, "-m", "data_prep", "tokenize", "work.workers=0"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "E-CFG-05 command line work.workers=0: " in done.stderr


def test_every_option_is_described():
    rows = [line.split(" | ") for line in markdown().splitlines() if re.match(r"\| `[a-z_]+\.", line)]
    assert len(rows) == len(options(PREPARE)) > 50
    for row in rows:
        assert all(cell.strip(" |") for cell in (row[0], row[2], row[3])), row


def test_docs_are_up_to_date():
    assert (ROOT / "docs" / "data_configuration.md").read_text(encoding="utf-8") == markdown(), "run: make docs"


def test_fixes_lead_from_texts_to_a_mixture(tmp_path, monkeypatch, capsys):
    """Whoever begins at the end and types what each message says arrives: every verb once, then the first one again."""
    monkeypatch.chdir(tmp_path)
    words = Path(re.__file__).read_text().split()  # some English
    texts = [" ".join(words[i::7]) for i in range(7)] + [" ".join(words[i : i + 300]) for i in range(0, 1500, 100)]
    Path("a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    words = [FILES, "corpus.name=mine"]
    todo, typed = ["mix"], []
    while todo:
        assert len(typed) < 9, typed
        typed.append(todo[-1])
        if command.main([todo[-1], *words]) == 0:
            todo.pop()
            continue
        fix = capsys.readouterr().err.strip().splitlines()[-1].rpartition("Fix: ")[2]
        if verb := re.search(r"python -m data_prep ([a-z_]+)", fix):
            todo.append(verb[1])
        else:
            words.append(fix.partition(",")[0])
    assert list(dict.fromkeys(typed)) == ["mix", "tokenize", "tokenizer"]
    capsys.readouterr()
    assert command.main(["retrieval", *words]) == 3
    line = capsys.readouterr().err
    assert line.startswith("E-RAW-31 ") and "corpus=retrieval_miniature" in line
    assert command.main(["retrieval", "corpus=retrieval_miniature", "--cfg", "job"]) == 0
