"""A mistake is made, the fix is read out of the message and typed word by word, and the next attempt gets past it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from coca_train.commands import main
from coca_train.config.files import config_dir
from coca_train.config.messages import ConfigError
from coca_train.data.corpus_config import load as load_corpus
from coca_train.settings import load
from coca_train.testing import stubs
from data_prep.__main__ import main as prepare
from tests.fixes import first, fix_of, option

# What is wrong: the words, and the code that they are answered with.
MISTAKES = """
optim.warmup_steps=600 | E-CFG-23
optim.min_lr=1 | E-CFG-23
optim.schedule=wsd optim.warmup_steps=400 optim.cooldown=0.5 | E-CFG-23
model.n_heads=7 | E-CFG-20
model.n_kv_heads=4 | E-CFG-21
train.max_steps=1.5 | E-CFG-07
train.max_steps=abc | E-CFG-04
train.max_steps=0 | E-CFG-05
optim.lr=nan | E-CFG-06
engine.deterministic=yes | E-CFG-08
train.seq_len=1:30:00 | E-CFG-09
engine.dtype=bf32 | E-CFG-31
optim=adamv | E-CFG-32
position=ropee | E-CFG-32
checkpoint.every_steps=5 | E-CFG-01
train.lr=1 | E-CFG-01
trian.max_steps=3 | E-CFG-01
lr=3 | E-CFG-01
checkpoint.keep=1 | E-CFG-05
run.name=a/b | E-CFG-29
run.root=~/runs | E-CFG-16
run.root='~/runs' | E-CFG-29
position=alibi position/rope_scaling=yarn | E-CFG-33
engine.kind=deepspeed engine.zero_stage=0 engine.dtype=bf16 | E-CFG-35
engine.compile=blocks engine.zero_stage=3 | E-CFG-77
engine.overlap_communication=true | E-CFG-83
engine=local engine.dtype=fp16 | E-CFG-42
position=transformer_xl | E-CFG-43
data.packing=documents | E-CFG-60
data.packing=segments data.order=stream | E-CFG-60
data.upsample_from_tokens=5 | E-CFG-61
data.upsample_factor=3 | E-CFG-61
data.objective.share=0.3 | E-CFG-97
data.objective.name=masked_token attention_pattern=bidirectional data.objective.random=0.5 | E-CFG-97
attention_pattern=bidirectional position=rope | E-CFG-96
data.objective.name=masked_token position=rope | E-CFG-96
+experiment=encoder_tiny model.logit_scale.name=ssmax | E-CFG-96
+experiment=encoder_tiny eval.extrapolation.every_steps=50 | E-CFG-96
+experiment=encoder_tiny position=rope layers=gemma3 | E-CFG-96
+experiment=encoder_tiny layers.pattern=[default,a] layers.types.a.logit_scale.name=log | E-CFG-96
+experiment=encoder_tiny attention_pattern.window=9 data.placement.name=random data.placement.target=900 | E-CFG-90
+experiment=encoder_tiny data.objective.masked=0.1234564 data.objective.random=1 | E-CFG-97
+experiment=encoder_tiny position=fox | E-CFG-44
+experiment=encoder_tiny position=t5 position.n_buckets=7 | E-CFG-44
+experiment=encoder_tiny position=alibi position.fold=always | E-CFG-44
data.sources.code.path=${data.sources.text.path} | E-CFG-30
data.sources.code.valid_path=${data.sources.text.path} | E-CFG-30
run.seed=99999999999999999999 | E-CFG-05
layers.pattern=[far] | E-CFG-66
eval.extrapolation.rope_scalings=[yarnn] | E-CFG-32
engine.sequence_parallel=4 | E-CFG-80
engine=local engine.sequence_parallel=2 | E-CFG-80
model.d_ff=999999999999999 | E-CFG-72
train.seq_len=9999999999999 | E-CFG-72
train.max_steps=9999999999 | E-CFG-73
+train.max_steps=3 | E-CFG-16
position.scheme=rope | E-CFG-16
model.n_layers = | E-CFG-16
~optim.lr | E-CFG-16
data.sources.code.weight=0 | E-STG-08
attention_pattern=sinks | E-CFG-44
attention_pattern=segments | E-CFG-45
stages.all.optimizer=keep | E-STG-02
layers=gemma3 position=alibi | E-CFG-33
+experiment=transformer_xl data=embedded | E-CFG-43
+experiment=alibi_350m position/rope_scaling=yarn | E-CFG-33
+experiment=yarn_llama2_tiny_128k position=alibi | E-CFG-33
engine=local engine.dtype=fp16 engine.device=cpu | E-CFG-42
engine.dtype=fp16 | E-CFG-27
+experiment=transformer_xl layers.pattern=[default,b] +layers.types.b.attention_pattern.name=causal | E-CFG-67
layers.pattern=[default,a] +layers.types.a.position.scheme=sinusoidal | E-CFG-68
position=dape engine=deepspeed engine.sequence_parallel=2 | E-CFG-82
stages=coca_three_lora stages.qtv.optimizer=keep | E-STG-19
"""


@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_training(case: str) -> None:
    text, code = case.rsplit(" | ", 1)
    words = text.split() if " = " not in f"{text} " else [text]
    lines = refused(words)
    line = next(line for line in lines if line.startswith(f"{code} "))
    again = refused(corrected(words, line))
    assert not [each for each in again if each.startswith(f"{code} ")], [line, *again]


def corrected(words: list[str], line: str) -> list[str]:
    """The command line of somebody who did what the fix says: a word that is blamed is written anew."""
    if left := re.match(r"(?:omit|leave) ([^\s,]+)", fix_of(line)):
        return [word for word in words if option(word) != left[1]]
    fix, blamed = first(fix_of(line)), line.partition(": ")[0]
    renamed = " unknown key" in line or " follows from " in line
    wrong = [word for word in words if renamed and f"command line {word}" in blamed]
    kept = [word for word in words if word not in wrong and option(word) not in map(option, fix)]
    values = [word.partition("=")[2] for word in wrong]  # a name is suggested: with the value that was typed
    return [*kept, *(word if "=" in word or word[0] == "~" else f"{word}={values[0]}" for word in fix)]


def refused(words: list[str]) -> list[str]:
    """The lines of what is wrong; none: nothing."""
    try:
        load(words)
    except ConfigError as error:
        return error.lines
    return []


def printed(words: list[str], capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], int] = main) -> str:
    """What a command line says on stderr."""
    command(words)
    return capsys.readouterr().err


SHOWN = ["--cfg", "job"]


def test_data_that_mix_has_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COCA_TRAIN_DATA", raising=False)
    Path("data/mine/config/data").mkdir(parents=True)
    Path("data/mine/config/data/mine.yaml").write_text((config_dir() / "data/embedded.yaml").read_text())
    line = printed(["data=mine", *SHOWN], capsys)
    assert line.startswith("E-CFG-32 ")
    assert printed([*first(fix_of(line)), "data=mine", *SHOWN], capsys) == ""
    assert "data=diagnostics" in fix_of(printed(["data=other", *SHOWN], capsys))


# What is wrong with a corpus: the words, and the code that they are answered with.
CORPORA = """
work.shard=sixteen | E-CFG-51
work.shard=16/16 | E-CFG-51
corpus.sources.text.group=texts | E-CFG-52
+mix.groups.rest.share=1 | E-CFG-52
corpus.sources.text.hold_out=all corpus.sources.text.weight=1 | E-CFG-53
+corpus.sources.more.files=[b.jsonl] corpus.sources.text.weight=1 | E-CFG-53
work.part_bytes=1000 work.chunk_bytes=2000 | E-CFG-54
corpus.sources.text.filter.min_stars=3 | E-CFG-55
corpus.sources.text.filter.min_chars=9 corpus.sources.text.filter.max_chars=8 | E-CFG-56
look.source=texts | E-CFG-57
leakage.against=[data/other/text.bin] | E-CFG-58
corpus.name=embedded | E-CFG-59
corpus.sources.text.hub=some/set | E-CFG-62
corpus.sources.text.kind=text corpus.sources.text.filter.stars_field=stars | E-CFG-64
"""


@pytest.mark.parametrize("case", CORPORA.strip().splitlines())
def test_preparing(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"text": "a"}\n')
    text, code = case.rsplit(" | ", 1)
    words = ["corpus.sources.text.files=[a.jsonl]", *text.split()]
    line = next(line for line in unprepared(words) if line.startswith(f"{code} "))
    again = unprepared(corrected(words, line.replace("<field>", "meta.field")))
    assert not [each for each in again if each.startswith("E-")], [line, *again]


def unprepared(words: list[str]) -> list[str]:
    """The lines of what is wrong with a corpus."""
    try:
        load_corpus(words)
    except ConfigError as error:
        return error.lines
    return []


@pytest.mark.parametrize("words", ["data.path=texts data.prepare=embedded", "data.vocab_size=300"])
def test_a_folder_of_texts(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("one " * 900)
    Path("texts/b.txt").write_text("two " * 900)
    line = printed([*words.split(), *SHOWN], capsys)
    assert line.startswith("E-CFG-85 ")
    again = corrected(words.split(), line.replace("<folder>", "texts"))
    assert printed([*again, *SHOWN], capsys) == ""


def test_several_processes_of_the_local_engine(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    (line,) = refused(["engine=local"])
    assert line.startswith("E-CFG-36 ")
    assert refused(corrected(["engine=local"], line)) == []


def test_a_variable_that_is_not_set(monkeypatch):
    words = ["optim.lr=${oc.env:COCA_TRAIN_LR}"]
    (line,) = refused(words)
    assert line.startswith("E-CFG-12 ") and "export COCA_TRAIN_LR=" in fix_of(line)
    monkeypatch.setenv("COCA_TRAIN_LR", "0.001")
    assert refused(words) == []


# Words of a verb that start nothing, wrong as the code says.
VERBS = """
plan gpu=h1000 | E-CFG-31
plan gpus=0 | E-CFG-05
plan mfu=2 | E-CFG-05
plan mfus=0.5 | E-CFG-01
evaluate grid.checkpoints=runs/a | E-CFG-04
evaluate checkpoint=runs/a text.max_document=3 | E-CFG-01
evaluate checkpoint=runs/a +eval=passky | E-CFG-32
evaluate checkpoint=runs/a work.device=gpu | E-CFG-31
generate run=runs/a prompt=x temprature=1 | E-CFG-01
generate run=runs/a prompt=x top_p=2 | E-CFG-05
export run=runs/a to=x dtype=bf61 | E-CFG-31
schemes scheme=ropee | E-CFG-31
plan gpu=t4 engine.dtype=bf16 model.vocab_size=500 | E-PLN-03
plan +experiment=coca_350m model.vocab_size=null | E-PLN-01
plan +experiment=atlas | E-PLN-01
plan stages.all.lora.rank=999 model.vocab_size=500 | E-STG-17
"""


@pytest.mark.parametrize("case", VERBS.strip().splitlines())
def test_verbs(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text, code = case.rsplit(" | ", 1)
    words = text.split()
    line = next(line for line in printed(words, capsys).splitlines() if line.startswith(f"{code} "))
    again = [word.replace("<name>", "all") for word in corrected(words[1:], line)]
    again += NOTHING_BEGINS.get(words[0], []) if code.startswith("E-CFG-") else []
    assert code not in printed([words[0], *again], capsys)


# What keeps a verb whose words are right by now from its work.
NOTHING_BEGINS = {"plan": ["--cfg", "job"]}
DASHED = [["--position", "rope"], ["--position=rope"], ["--optim.warmup-steps", "3"], ["--hlep"]]


@pytest.mark.parametrize("words", DASHED)
def test_options_with_dashes(words, capsys):
    line = printed([*words, *SHOWN], capsys)
    assert line.startswith("E-CFG-38 ")
    fix = first(fix_of(line))
    assert fix in (["position=rope"], ["optim.warmup_steps=3"], ["--help"])
    assert printed([*fix, *SHOWN], capsys) == ""


def test_sources_of_any_name(tmp_path, monkeypatch, capsys):
    """The source that waits for files is not asked about where others are brought; alone, it is."""
    monkeypatch.chdir(tmp_path)
    Path("raw").mkdir()
    Path("raw/a.jsonl").write_text('{"text": "a"}\n')
    words = ["sources", "corpus.name=t"]
    assert printed([*words, "corpus.sources.t.files=[raw/*.jsonl]"], capsys, prepare) == ""
    sources = load_corpus(["corpus.name=t", "corpus.sources.t.files=[raw/*.jsonl]"]).corpus.sources
    assert list(sources) == ["t"]
    both = ["corpus.sources.text.files=[raw/a.jsonl]", "+corpus.sources.t.files=[raw/*.jsonl]"]
    assert list(load_corpus(both).corpus.sources) == ["text", "t"]
    line = printed(words, capsys, prepare)
    assert line.startswith("E-CFG-50 ") and "corpus.sources.text.files" in fix_of(line)
    assert "E-CFG-50" not in printed([*words, *first(fix_of(line))], capsys, prepare)


@pytest.mark.parametrize("command", [["evaluate", "checkpoint={}"], ["generate", "prompt=x", "run={}"]])
def test_a_folder_of_runs(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(f"runs/{name}/checkpoints").mkdir(parents=True)
    line = printed([word.format("runs") for word in command], capsys)
    assert line.startswith(("E-IOP-01 ", "E-CFG-15 ")) and "runs/" in fix_of(line)
    (named,) = first(fix_of(line))
    assert Path(named).parent == Path("runs")
    again = printed([word.format(named) for word in command], capsys)
    assert f" {named}" in again and not again.startswith("E-IOP-01 ")


def test_stubs_are_named_as_nothing_is_yet(capsys, tmp_path):
    """make hands on an empty name."""
    for kind in ("scheme", "scaling", "pattern", "suite"):
        line = printed([kind, ""], capsys, stubs.main)
        name = line.partition(f"Fix: make {kind} NAME=")[2].partition(",")[0]
        assert name.isidentifier()
        assert stubs.main([kind, name, str(tmp_path / kind)]) == 0


def test_several_values(capsys):
    for word in ("model=neox_tiny,neox_micro", "model.n_layers=2,3"):
        line = printed([word, *SHOWN], capsys)
        assert line.startswith("E-CFG-16 ") and "--multirun" in fix_of(line)
        assert printed(["--multirun", word, *SHOWN], capsys) == ""
