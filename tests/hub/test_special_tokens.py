"""Special tokens, stops and chat templates: read from the folder's own statements, and the same again in an export."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from coca_train.data.corpus_config import load
from coca_train.data.special_tokens import RECORD
from coca_train.data.tokenizer import Tokenizer, main_file
from coca_train.hub import importing
from coca_train.hub.options import ImportConfig
from coca_train.runtime.errors import DataError
from data_prep.verbs import tokenizer as verb
from tests.data.vocabularies import SPECIAL, byte_tokenizer, sentencepiece_model
from tests.hub import models


def say(folder, name, **values):
    (folder / name).write_text(json.dumps(values))


@pytest.fixture
def bare(tmp_path):
    folder = tmp_path / "tok"
    folder.mkdir()
    byte_tokenizer(folder / "tokenizer.json")
    return folder


CHATML = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "pad_token": "<pad>", "chat_template": "{{ m }}"}
BASE = {"eos_token_id": 256}
# files, (eod, bos, pad), a word of who says the end
SAID = [
    ({}, (260, None, None), "name of the token"),
    ({"tokenizer_config.json": {"eos_token": "</s>"}}, (260, None, None), "tokenizer_config.json eos_token"),
    ({"tokenizer_config.json": {"eos_token": {"content": "</s>"}}}, (260, None, None), "tokenizer_config.json"),
    ({"special_tokens_map.json": {"eos_token": "</s>"}}, (260, None, None), "special_tokens_map.json"),
    ({"config.json": {"eos_token_id": 260}}, (260, None, None), "config.json eos_token_id"),
    ({"generation_config.json": {"eos_token_id": 260}}, (260, None, None), "generation_config.json"),
    ({"tokenizer_config.json": CHATML, "config.json": BASE}, (258, 257, 259), "tokenizer_config.json"),
    ({"tokenizer_config.json": CHATML, "generation_config.json": {"eos_token_id": [258, 256]}}, (258, 257, 259), ""),
    ({"tokenizer_config.json": {"eos_token": "</s>"}, "generation_config.json": {"eos_token_id": [258, 260]}},
     (260, None, None), "generation_config.json"),
    ({"tokenizer_config.json": {"eos_token": "</s>"}, "config.json": {"eos_token_id": [256, 260]}},
     (260, None, None), "config.json"),
    ({"tokenizer_config.json": {"eos_token": "</s>", "bos_token": None}, "config.json": {"bos_token_id": 257}},
     (260, None, None), ""),
    ({"config.json": {"eos_token_id": 3}}, (260, None, None), "is no special token"),
    ({"config.json": {"eos_token_id": 260, "pad_token_id": -1}}, (260, None, None), ""),
]  # fmt: skip


@pytest.mark.parametrize(("files", "tokens", "by"), SAID)
def test_who_says_what(files, tokens, by, bare):
    for name, values in files.items():
        say(bare, name, **values)
    found = Tokenizer(bare / "tokenizer.json")
    assert (found.eod, found.bos, found.pad) == tokens
    assert by in found.special.said["eod"]


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"tokenizer_config.json": {"eos_token": "</s>"}, "config.json": BASE}, "E-TKN-14"),
        ({"tokenizer_config.json": {"eos_token": "</s>"}, "special_tokens_map.json": {"eos_token": "<|im_end|>"}},
         "E-TKN-14"),
        ({"config.json": {"eos_token_id": [258, 260]}}, "E-TKN-14"),
        ({"config.json": {"eos_token_id": 258}, "generation_config.json": {"eos_token_id": 260}}, "E-TKN-14"),
        ({"tokenizer_config.json": {"eos_token": "<|nowhere|>"}}, "E-TKN-13"),
        ({"tokenizer_config.json": {"eos_token": 3}}, "E-TKN-13"),
        ({"config.json": {"eos_token_id": "2"}}, "E-TKN-13"),
        ({"config.json": {"eos_token_id": [True]}}, "E-TKN-13"),
        ({"config.json": {"eos_token_id": {"a": 1}}}, "E-TKN-13"),
    ],
)  # fmt: skip
def test_contradictions_and_nonsense_are_refused(files, code, bare):
    for name, values in files.items():
        say(bare, name, **values)
    with pytest.raises(DataError, match=f"^{code} .*Fix:"):
        Tokenizer(bare / "tokenizer.json")
    found = Tokenizer(bare / "tokenizer.json", {"eod": "</s>"}) if code == "E-TKN-14" else None
    assert found is None or found.eod == 260


def test_a_broken_file_is_no_traceback(bare):
    (bare / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match="E-TKN-13"):
        Tokenizer(bare / "tokenizer.json")


def test_the_fuller_of_two_files(tmp_path):
    model = sentencepiece_model(tmp_path / "tokenizer.model", user_defined_symbols=[])
    assert main_file(tmp_path) == model
    byte_tokenizer(tmp_path / "tokenizer.json")  # fewer tokens, whatever it makes of a text
    assert main_file(tmp_path) == model
    other = json.loads((tmp_path / "tokenizer.json").read_text())
    other["added_tokens"] += [
        {"id": 261 + i, "content": f"<{i}>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False} for i in range(300)
    ]  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(other))
    with pytest.raises(DataError, match="E-TKN-15"):
        main_file(tmp_path)


def test_a_damaged_file_beside_the_other_is_not_passed_over(tmp_path):
    """It may have been the fuller one."""
    sentencepiece_model(tmp_path / "tokenizer.model", user_defined_symbols=[])
    byte_tokenizer(tmp_path / "tokenizer.json")
    whole = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"E-TKN-15 .*tokenizer.json"):
        main_file(tmp_path)


@pytest.fixture
def chat(tmp_path):
    """A chat model of ChatML with several stops, a template and added tokens."""
    folder = models.write(tmp_path / "chat", "llama_gqa", vocab_size=272)
    byte_tokenizer(folder / "tokenizer.json")
    models.edit(folder, bos_token_id=257, eos_token_id=[258, 256, 260], pad_token_id=259)
    say(folder, "generation_config.json", bos_token_id=257, eos_token_id=[258, 260], do_sample=True, temperature=0.6)
    say(folder, "tokenizer_config.json", **CHATML, tokenizer_class="PreTrainedTokenizerFast", add_bos_token=False)
    say(folder, "special_tokens_map.json", eos_token="<|im_end|>")
    say(folder, "added_tokens.json", **{text: 256 + i for i, text in enumerate(SPECIAL)})
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def statements(folder):
    config = json.loads((folder / "config.json").read_text())
    said = {key: config.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id", "vocab_size")}
    generation = json.loads((folder / "generation_config.json").read_text())
    generation.pop("transformers_version", None)
    files = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    texts = {name: (folder / name).read_text() for name in (*files, "chat_template.jinja")}
    return said, generation, texts


def test_a_folder_says_the_same_after_import_and_export(chat, import_run, export_run, capsys):
    run = import_run(chat)
    out = capsys.readouterr().err
    for word in ("end of document 258", "generation stops at [258, 256, 260] (config.json)", "a chat template"):
        assert word in out
    assert statements(export_run(run)) == statements(chat)
    again = import_run(export_run(run, "first"), "again")
    assert statements(export_run(again, "second")) == statements(chat)


@pytest.mark.parametrize("form", ["native", "own"])
def test_and_in_either_form(form, chat, import_run, export_run):
    assert statements(export_run(import_run(chat), form=form)) == statements(chat)


@pytest.mark.slow
def test_a_training_between_import_and_export_keeps_it(chat, tmp_path, export_run):
    """As README has it: a start from the folder alone, with the quickstart's corpus in its tokens."""
    words = ["train.max_steps=2", "train.seq_len=24", "train.global_batch_size=4", "optim.warmup_steps=1"]
    command = [sys.executable, "-m", "coca_train", f"start.path={chat}", "engine.device=cpu", "run.name=r", *words]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    assert statements(export_run(tmp_path / "runs" / "r")) == statements(chat)


def test_an_option_says_it_for_the_folder(chat, import_run, export_run):
    run = import_run(chat, eod="</s>", pad=256)
    assert Tokenizer(run / "tokenizer.json").eod == 260
    said = statements(export_run(run))[0]
    assert (said["eos_token_id"], said["bos_token_id"], said["pad_token_id"]) == (260, 257, 256)


def test_a_contradiction_is_mended_by_what_its_error_says(chat, tmp_path):
    say(chat, "tokenizer_config.json", eos_token="<|im_end|>")
    (chat / "chat_template.jinja").unlink()
    models.edit(chat, eos_token_id=256)
    words = {"source": str(chat), "name": "run", "root": str(tmp_path / "runs")}
    with pytest.raises(DataError, match=r"E-TKN-14 .*eod=258 for `import`"):
        importing.import_weights(ImportConfig(**words))
    importing.import_weights(ImportConfig(**words, eod=258))


def test_data_prep_ends_documents_as_the_folder_says(chat, tmp_path, capsys):
    """And keeps what an export needs, in a folder of its own; no verb has to be told that it is a tokenizer.json."""
    words = [f"corpus.dir={tmp_path / 'data'}", "corpus=files", "corpus.sources.text.files=[a.txt]"]
    config = load([*words, f"tokenizer.import_from={chat}"])
    assert config.tokenizer.path == str(tmp_path / "data" / "tokenizer.json")
    verb.run(config)
    assert "258" in (out := capsys.readouterr().out)
    assert "tokenizer_config.json eos_token" in out
    later = load(words)  # the other verbs
    found = Tokenizer(later.tokenizer.path)
    assert (found.eod, found.bos, found.pad) == (258, 257, 259)
    assert found.special.model["eos_token_id"] == [258, 256, 260]
    assert (tmp_path / "data" / "tokenizer" / RECORD).is_file()
    assert found.identity != found.digest
    verb.run(config)
    with pytest.raises(DataError, match="E-TKN-05"):
        verb.run(replace(config, tokenizer=replace(config.tokenizer, eod="</s>")))


def test_data_prep_takes_an_option(chat, tmp_path):
    words = [f"corpus.dir={tmp_path / 'data'}", "corpus=files", "corpus.sources.text.files=[a.txt]"]
    verb.run(
        load([*words, f"tokenizer.import_from={chat}/tokenizer.json", "tokenizer.eod='</s>'", "tokenizer.bos=256"])
    )
    found = Tokenizer(tmp_path / "data" / "tokenizer.json")
    assert (found.eod, found.bos) == (260, 256)
