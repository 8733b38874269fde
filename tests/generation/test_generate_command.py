import json

import pytest
import torch

from coca_train.checkpoint.opening import load_run
from coca_train.commands import main
from coca_train.commands.generate import GENERATE
from coca_train.config.fields import fields_of
from coca_train.config.load import assemble
from coca_train.config.load import load as load_options
from coca_train.models import generation
from coca_train.runtime.errors import CheckpointError, DataError, UserError
from tests.generation.small_run import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs"), "demo")


def test_load_run_gives_the_saved_weights(run):
    run_dir, weights = run
    loaded = load_run(run_dir, "cpu")
    assert loaded.step == 7
    assert not loaded.model.training
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(parameter, weights[name])
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("the dog")) == "the dog"


def test_the_command_prints_prompt_and_continuation(run, capsys):
    assert main(["generate", f"run={run[0]}", "prompt=the dog = x", "max_new_tokens=5", "device=cpu"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("the dog = x")  # the value may hold '='
    assert "step 7" in err


@pytest.mark.parametrize(
    ("words", "code", "phrase"),
    [
        (["prompt=x", "max_new_token=3"], 2, "max_new_tokens?"),
        (["prompt=x", "run=/nowhere"], 2, "/nowhere"),
        (["prompt=", "device=cpu"], 2, "prompt is empty"),
        (["prompt=x", "max_new_tokens=many"], 2, "a whole number"),
        (["prompt=x", "temperature=-1", "device=cpu"], 2, "temperature=-1: "),
        (["prompt=x", "dynamic_length=both"], 2, "sequence, step"),
        (["prompt=x", "use_cache=maybe"], 2, "true or false"),
        (["prompt=x", "attention_patern=causal"], 2, "attention_pattern?"),
        (["prompt=x", "attention_pattern=sink"], 2, "write attention_pattern=sinks"),
        (["prompt=x", "attention_pattern=lambda_mask", "attention_pattern.window=0"], 2, "attention_pattern.window=0"),
        (["prompt=x", "attention_pattern=sinks"], 2, "E-CFG-44"),  # slack coca
        (["prompt=x", "position=rope"], 2, "position=rope"),
        (["prompt=x", "position/rope_scaling=clex"], 2, "clex"),
        ([], 2, "prompt=???: "),
    ],
)
def test_mistakes_are_one_line(run, capsys, words, code, phrase):
    words = words if any(w.startswith("run=") for w in words) else [f"run={run[0]}", *words]
    assert main(["generate", *words]) == code
    err = capsys.readouterr().err
    assert phrase in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_another_attention_pattern_and_frequencies_on_the_same_weights(run, capsys, monkeypatch):
    models = []
    original = generation.generate
    monkeypatch.setattr(generation, "generate", lambda model, *a, **k: models.append(model) or original(model, *a, **k))
    words = [f"run={run[0]}", "prompt=the dog", "max_new_tokens=5", "device=cpu"]
    assert main(["generate", *words]) == 0
    words += ["attention_pattern=lambda_mask", "attention_pattern.window=8", "position/rope_scaling=yarn"]
    assert main(["generate", *words]) == 0
    assert capsys.readouterr().out.count("the dog") == 2
    own, other = models
    assert (own.attention_pattern.settings.name, own.position.settings.rope_scaling.name) == ("causal", "plain")
    assert (other.attention_pattern.settings.name, other.attention_pattern.settings.window) == ("lambda_mask", 8)
    assert other.attention_pattern.settings.max_distance == 128  # the run's train.seq_len
    assert other.position.settings.rope_scaling.name == "yarn"
    weights = dict(other.named_parameters())
    assert all(torch.equal(weights[name], parameter) for name, parameter in own.named_parameters())


def test_help(capsys):
    assert main(["generate", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"    {name}=" in text for name in fields_of(GENERATE.schema))


@pytest.mark.parametrize(
    "prompt",
    [
        "b=c",
        "def main(x: dict[str, int]) -> None:",
        "he said \"it's [1, {2: 3}], isn't it?\"",
        "${train.seq_len} \\ $HOME",
        " ends with spaces  ",
        "null",
        "007",
        "a\nb\t!",
        "https://me:secret@example.org",
    ],
)
def test_a_prompt_is_taken_as_it_is_typed(prompt):
    words = ["run=a", f"prompt={prompt}", "top_p=0.9", "use_cache=False", "seed=3"]
    options = load_options(assemble(GENERATE, words)).config
    assert options.prompt == prompt
    assert (options.top_p, options.use_cache, options.seed) == (0.9, False, 3)


def copy_run(run, tmp_path):
    import shutil

    target = tmp_path / "demo"
    shutil.copytree(run[0], target)
    return target


def test_another_tokenizer_is_refused(run, tmp_path):
    target = copy_run(run, tmp_path)
    record = json.loads((target / "run.json").read_text())
    record["fingerprint"]["tokenizer"]["sha256"] = "0" * 64
    (target / "run.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match="not the tokenizer"):
        load_run(target, "cpu")


def test_a_damaged_or_missing_checkpoint_is_refused(run, tmp_path):
    target = copy_run(run, tmp_path)
    (shard,) = (target / "checkpoints" / "step-00000007").glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-5] ^= 4
    shard.write_bytes(data)
    with pytest.raises(CheckpointError):
        load_run(target, "cpu")
    import shutil

    shutil.rmtree(target / "checkpoints")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_run(target, "cpu")


def test_no_run_directory(tmp_path):
    with pytest.raises(UserError):
        load_run(tmp_path, "cpu")
