"""What an import leaves is a run like any other, and an export has all that belongs to a model."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from coca_train import checkpoint, engine
from coca_train.checkpoint.format import ShardReader
from coca_train.checkpoint.opening import load_run, read_record
from coca_train.commands import main
from coca_train.config.load import FORMAT
from coca_train.data.mixture import tokenizer_digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import card, parity, publishing, tokenizer_files
from coca_train.hub.weights import open_source
from coca_train.models import generation
from coca_train.models.init import init_parameter
from coca_train.models.transformer import build_model, vocab_size
from coca_train.runtime.errors import DataError
from coca_train.settings import load, load_saved
from tests import states
from tests.data.vocabularies import byte_level, sentencepiece_model
from tests.fixes import fix_of, options_in
from tests.hub import models

TEXT = "The quick brown fox; jumps over 13 lazy dogs"


@pytest.fixture(params=["sentencepiece", "json"])
def worded(request, tmp_path):
    """A folder with a tokenizer, of either kind."""
    folder = models.write(tmp_path / "worded", "llama_gqa", vocab_size=512, tie_word_embeddings=True)
    if request.param == "sentencepiece":
        sentencepiece_model(folder / "tokenizer.model")
    else:
        byte_level().save(str(folder / "tokenizer.json"))
    (folder / "special_tokens_map.json").write_text("{}")
    return folder


def test_an_imported_run_writes_text(worded, import_run):
    """load_run, tied embeddings, greedy decoding: the tokens that transformers chooses."""
    run = load_run(import_run(worded), "cpu")
    tokens = run.tokenizer.encode(TEXT)[:6]
    ours = generation.generate(run.model, tokens, 8)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(worded, dtype=torch.float32).eval()
    ids = theirs.generate(torch.tensor([tokens]), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ours == ids[0, 6:].tolist()
    assert run.step == 0
    assert run.model.head.weight is run.model.embed.weight


@pytest.mark.parametrize("begins", [True, False])
def test_a_prompt_begins_as_the_folders_texts_do(begins, tmp_path, import_run, monkeypatch):
    """As transformers' tokenizer of the folder has it, unless `begin` says otherwise."""
    folder = models.write(tmp_path / "worded", "llama_gqa", vocab_size=512)
    sentencepiece_model(folder / "tokenizer.model")
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": begins}))
    run, asked = import_run(folder), []
    monkeypatch.setattr(generation, "generate", lambda model, tokens, *rest, **options: asked.append(tokens) or [])
    for words in ([], ["begin=none"], ["begin=bos"]):
        assert main(["generate", f"run={run}", "prompt=the dog", "device=cpu", *words]) == 0
    tokenizer = load_run(run, "cpu").tokenizer
    tokens = tokenizer.encode("the dog")
    with_it = [tokenizer.bos, *tokens]
    assert asked == [with_it if begins else tokens, tokens, with_it]


def test_a_card_has_both_figures_where_probes_were_compared_twice():
    once = parity.Result("p", 8, 8, 4e-5, 2.0, relative=2e-5)
    twice = replace(once, with_our_frequencies=7e-7, frequencies=1.2e-7)
    figures, rounded = (parity.Report("run", "class", [result]).lines() for result in (once, twice))
    assert "frequencies" not in figures and "frequencies differ by 1.2e-07, with equal ones 7.00e-07" in rounded
    assert card._rounded([once]) == "" and "1e-07" in card._rounded([once, twice])


def test_an_import_ignores_the_launcher(model, import_run, monkeypatch):
    """Seven ranks do not divide the default batch, which an import does not use."""
    monkeypatch.setenv("WORLD_SIZE", "7")
    import_run(model())


def test_the_record(worded, import_run):
    run = import_run(worded)
    record, config = read_record(run), load_saved(run).config
    assert record["imported"]["folder"] == str(worded.resolve())
    assert record["imported"]["parity"]["passed"]
    assert record["fingerprint"]["tokenizer"]["sha256"] == Tokenizer(config.data.tokenizer).digest
    assert (config.run.name, config.train.seq_len, config.model.vocab_size) == ("run", models.LENGTH, 512)
    assert config.data.prepare == "none"
    newest = checkpoint.find(run, record["run_id"])
    assert newest is not None
    assert newest.step == 0
    (entry,) = newest.manifest["files"]
    reader = ShardReader(newest.path / entry["name"])
    assert all(name.startswith("model/") for name in reader.spec())
    reader.close()


def test_text_is_a_probe_where_there_is_a_tokenizer(worded, import_run, export_run):
    run = import_run(worded)
    copied = ["small copy, packed", "small copy, padded", "small copy, cached"]
    for folder, more in ((run, []), (export_run(run), copied)):
        names = [probe["probe"] for probe in json.loads((folder / "parity.json").read_text())["probes"]]
        assert names == ["random ids at 1x", "random ids at 4x", "text", *more]


def test_tokenizer_files_go_along(worded, import_run, export_run):
    out = export_run(import_run(worded))
    for path in worded.glob("*token*"):
        assert (out / path.name).read_bytes() == path.read_bytes()
    assert Tokenizer(tokenizer_files.find(open_source(out), "auto")).encode(TEXT)


def test_the_exported_tokenizer_gives_our_ids(worded, import_run, export_run):
    out = export_run(import_run(worded))
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    with open_source(out) as source:
        ours = Tokenizer(tokenizer_files.find(source, "auto"))
    assert theirs.encode(TEXT, add_special_tokens=False) == ours.encode(TEXT)
    assert theirs.eos_token_id == ours.eod
    generation_config = json.loads((out / "generation_config.json").read_text())
    assert generation_config["eos_token_id"] == ours.eod


@pytest.mark.parametrize("prefix", [True, False])
def test_a_tokenizer_trained_here(prefix, tmp_path, import_run, export_run):
    """A bare SentencePiece file, with a space in front of the text or without."""
    folder = models.write(tmp_path / "bare", "llama_gqa", vocab_size=512)
    sentencepiece_model(tmp_path / "mine.model", add_dummy_prefix=prefix, user_defined_symbols=[])
    out = export_run(import_run(folder, tokenizer=str(tmp_path / "mine.model")))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(out), Tokenizer(out / "tokenizer.model")
    assert theirs.encode(parity.TEXT, add_special_tokens=False) == ours.encode(parity.TEXT)


def test_a_tokenizer_that_transformers_reads_otherwise_is_refused(tmp_path, import_run, export_run):
    folder = models.write(tmp_path / "bare", "llama_gqa", vocab_size=512)
    sentencepiece_model(tmp_path / "mine.model", model_type="unigram")
    run = import_run(folder, tokenizer=str(tmp_path / "mine.model"))
    with pytest.raises(DataError, match="E-IOP-20") as raised:
        export_run(run)
    assert not (tmp_path / "out").exists()
    assert not (export_run(run, **options_in(fix_of(raised.value))) / "tokenizer.model").exists()


def test_none_and_another_tokenizer(worded, import_run, tmp_path):
    run = import_run(worded, tokenizer="none")
    assert not list(run.glob("tokenizer*"))
    other = sentencepiece_model(tmp_path / "mine.model")
    run = import_run(worded, "other", tokenizer=str(other))
    assert (run / "tokenizer.model").read_bytes() == other.read_bytes()


def test_sharded_in_and_out(tmp_path, import_run, export_run, monkeypatch):
    folder = models.write(tmp_path / "sharded", "llama_gqa", max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    monkeypatch.setattr(publishing, "LIMIT", 40_000)
    run = import_run(folder)
    assert len(list(run.glob("checkpoints/*/*.safetensors"))) > 2
    out = export_run(run)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(out.glob("model-*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(sum(t.nbytes for t in load_file(f).values()) <= 40_000 for f in files)
    assert set(index["weight_map"].values()) == {file.name for file in files}
    for name, file in index["weight_map"].items():
        with safe_open(out / file, "pt") as opened:
            assert name in opened.keys()  # noqa: SIM118
    assert index["metadata"]["total_size"] == sum(t.nbytes for f in files for t in load_file(f).values())
    assert models.same(models.logits(out, 60), models.logits(folder, 60))


def test_a_tensor_larger_than_a_file_has_its_own():
    shapes = {"a": (4,), "b": (100,), "c": (4,), "d": (4,)}
    float32 = dict.fromkeys(shapes, torch.float32)
    before, publishing.LIMIT = publishing.LIMIT, 64
    try:
        assert publishing.split_into_shards(shapes, float32) == [["a"], ["b"], ["c", "d"]]
    finally:
        publishing.LIMIT = before
    assert publishing.split_into_shards(shapes, float32) == [list(shapes)]


@pytest.mark.parametrize(
    ("model_type", "first", "argument"),
    [
        ("llama", "from transformers", ""),
        ("coca", "from transformers", ", trust_remote_code=True"),
        ("coca_train", "import coca_train.transformers", ""),
    ],
)
def test_code_of_its_own_is_allowed_where_there_is_any(model_type, first, argument):
    lines = card.loading_lines("there", model_type, "AutoTokenizer")
    assert lines[0].startswith(first)
    assert lines[-1] == f'tokenizer = AutoTokenizer.from_pretrained("there"{argument})'


def test_the_card_says_where_it_comes_from(worded, import_run, export_run):
    run = import_run(worded)
    text = (export_run(run) / "README.md").read_text()
    record = read_record(run)
    for words in (
        record["run_id"],
        "step: `0`",
        f"folder: `{worded.name}`",
        "random ids at 4x",
        "LlamaForCausalLM",
        "rotary_pct: 1.0",
        'tokenizer = AutoTokenizer.from_pretrained("',
    ):
        assert words in text
    assert Tokenizer(run / next(run.glob("tokenizer.*")).name).digest in text
    assert text.startswith("---\nlibrary_name: transformers\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run directory as a training leaves it: float32 weights and moments, the vocabulary taken from the tokenizer."""
    folder = tmp_path_factory.mktemp("trained")
    tokenizer = sentencepiece_model(folder / "tokenizer.model")
    sizes = ("n_layers=2", "d_model=32", "n_heads=2", "d_ff=48", "n_kv_heads=1")
    words = [
        "model=llama_tiny",
        *(f"model.{size}" for size in sizes),
        "position=rope",
        "engine=local",
        "train.seq_len=16",
    ]
    loaded = load([*words, "engine.dtype=fp32", f"run.root={folder}", "run.name=demo", f"data.tokenizer={tokenizer}"])
    config, run = loaded.config, folder / "demo"
    run.mkdir()
    (run / "config.yaml").write_text(loaded.record)
    fingerprint = {"tokenizer": tokenizer_digest(str(tokenizer)), "sources": {}}
    (run / "run.json").write_text(json.dumps({"format": FORMAT, "run_id": "r", "fingerprint": fingerprint}))
    build = partial(build_model, config, vocab_size(config.model, Tokenizer(tokenizer).vocab_size, ""))
    init = partial(init_parameter, model=config.model, position=config.position, seed=5)
    runner = engine.build(config.engine, config.optim, build, init, trainable=["*"], micro_batch_size=1, accumulation=1)
    assert states.save(run, 3, runner, checkpoint.Meta("r", "m", fingerprint, {})) is None
    weights = {name: parameter.detach().clone() for name, parameter in runner.model.named_parameters()}
    runner.close()
    return run, weights


def test_a_run_of_ours_with_moments(trained, import_run, export_run):
    """Weights only, by our names, in float32; exported natively, converted to CoCA, and that exported."""
    run, weights = trained
    with open_source(run) as source:
        assert set(source.names) == set(weights)
        assert all(torch.equal(source.read(name), weights[name]) for name in weights)
        assert source.architecture.n_rows == weights["embed.weight"].shape[0]
        assert source.origin["step"] == 3
    out = export_run(run)
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"
    theirs = load_file(out / "model.safetensors")
    assert torch.equal(theirs["model.layers.1.self_attn.k_proj.weight"], weights["blocks.1.attention.k.weight"])
    converted = import_run(run, "coca", position="coca")
    assert load_run(converted, "cpu").model.position.settings.scheme == "coca"
    config = json.loads((export_run(converted, "coca-out") / "config.json").read_text())
    assert config["model_type"] == "coca"


def test_memory_while_reading_is_one_tensor(model, monkeypatch):
    """Nothing is read before it is asked for, and one read is one tensor of theirs."""
    from coca_train.hub.safetensors_folder import Folder

    seen = []
    real = Folder.read
    monkeypatch.setattr(Folder, "read", lambda self, name: seen.append(name) or real(self, name))
    with open_source(model("gpt_neox")) as source:
        assert not seen
        source.read("blocks.1.attention.v.weight")
        assert seen == ["gpt_neox.layers.1.attention.query_key_value.weight"]
