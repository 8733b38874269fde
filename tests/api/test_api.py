"""What docs/api.md shows is run as it stands there; what it promises of errors; that opening is light."""

import ast
import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coca_train import api
from coca_train.commands import main
from coca_train.hub.importing import import_weights
from coca_train.hub.options import ImportConfig
from coca_train.runtime.errors import UserError
from tests.generation.small_run import TEXT, write_run
from tests.hub import models

DOCS = Path(__file__).resolve().parents[2] / "docs" / "api.md"
ONE_CELL = ["grid.lengths=[256]", "grid.rope_scalings=[yarn@factor:8]", "eval.stride=64", "work.device=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """runs/quickstart, and two documents that fill a window of 4,096 tokens."""
    folder = tmp_path_factory.mktemp("api")
    (folder / "runs").mkdir()
    write_run(folder / "runs", "quickstart")
    text = " ".join(TEXT) + " "
    records = (json.dumps({"text": text[shift:] * 60}) + "\n" for shift in (0, 5))
    (folder / "books.jsonl").write_text("".join(records))
    return folder


@pytest.fixture
def model(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return api.open_model("runs/quickstart", device="cpu")


def test_the_page_as_it_stands(folder, monkeypatch):
    monkeypatch.chdir(folder)
    text = DOCS.read_text(encoding="utf-8").replace("```", "")
    test = doctest.DocTestParser().get_doctest(text, {}, "api.md", str(DOCS), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    messages: list[str] = []
    runner.run(test, out=messages.append)
    assert not runner.failures, "".join(messages)
    assert runner.tries > 15
    shown = {
        node.attr for e in test.examples for node in ast.walk(ast.parse(e.source)) if isinstance(node, ast.Attribute)
    }
    public = {name for name in vars(api.Model) if not name.startswith("_")}
    assert public <= shown, f"not shown: {public - shown}"
    assert set(api.__all__) == {"Model", "UserError", "open_model"}


def test_logits_are_the_networks_and_change_with_the_frequencies(model):
    tokens = model.encode(TEXT[0] * 8)
    with torch.no_grad():
        own = model.network(torch.tensor([tokens]))[0]
    assert torch.equal(model.logits(tokens), own)
    assert torch.equal(model.logits(TEXT[0] * 8), own)
    varied = model.vary("position/rope_scaling=linear", "position.rope_scaling.factor=4").logits(tokens)
    assert not torch.allclose(varied, own)
    longer = model.vary("model.logit_scale.name=log", "model.logit_scale.length=4").logits(tokens)
    assert torch.equal(longer[:4], own[:4])
    assert not torch.allclose(longer[4:], own[4:])
    assert torch.equal(model.vary().logits(tokens), own)


def test_generation_is_the_commands(model, capsys):
    assert main(["generate", "run=runs/quickstart", "prompt=def main", "max_new_tokens=8", "device=cpu"]) == 0
    assert capsys.readouterr().out == "def main" + model.generate("def main", 8) + "\n"


def test_a_cell_is_the_commands_and_leaves_the_model_as_it_was(model, tmp_path):
    model.vary("attention_pattern=sliding_window")
    before = model.network.position, model.network.attention_pattern
    options = {"files": ["books.jsonl"], "rope_scaling": "yarn@factor:8"}
    cell = model.evaluate("perplexity", 256, stride=64, **options)
    assert (model.network.position, model.network.attention_pattern) == before
    words = ["checkpoint=runs/quickstart", "text.files=[books.jsonl]", f"work.root={tmp_path}", *ONE_CELL]
    assert main(["evaluate", *words]) == 0
    (theirs,) = json.loads((tmp_path / "perplexity" / "results.json").read_text())["cells"]
    assert json.loads(json.dumps(cell)) == theirs["result"]


def test_special_tokens_in_a_prompt_are_text_or_tokens(model):
    eod = model.tokenizer.eod
    assert eod not in model.encode("a</s>b")
    assert model.encode("a</s>b", special_tokens="tokens") == [*model.encode("a"), eod, *model.encode("b")]
    assert model.generate(model.encode("def main"), 4) == model.generate("def main", 4)


def test_a_model_without_tokenizer_takes_token_ids(tmp_path):
    folder = models.write(tmp_path / "bare", "llama_gqa")
    run = import_weights(ImportConfig(source=str(folder), name="run", root=str(tmp_path), parity_tokens=8))
    logits = []
    for path in (folder, run):
        bare = api.open_model(path, device="cpu")
        assert "no tokenizer" in repr(bare)
        logits.append(bare.logits([1, 2, 3]))
        calls = ("encode", "a"), ("generate", [1, 2]), ("evaluate", "passkey", 20)
        for name, *arguments in calls:
            with pytest.raises(UserError, match=r"^E-EVAL-03 .*Fix: "):
                getattr(bare, name)(*arguments)
    assert torch.equal(*logits)
    assert main(["generate", f"run={run}", "prompt=a", "device=cpu"]) == 3


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda m: api.open_model("runs/quickstart", device="tpu"), "E-API-01"),  # type: ignore[arg-type]
        (lambda m: m.logits(""), "E-API-02"),
        (lambda m: m.logits([10_000]), "E-API-02"),
        (lambda m: m.generate("def", temperature=-1), "E-API-02"),
        (lambda m: m.vary("position/rope_scaling=clex"), "E-CFG-33"),
        (lambda m: m.evaluate("perplexity", "needle@12", files=["books.jsonl"]), "E-API-03"),
        (lambda m: m.evaluate("ruler", "needles@512", files=["books.jsonl"]), "E-API-03"),
        (lambda m: m.evaluate("passkey", 20, n_cases=1), "E-API-04"),
        (lambda m: m.evaluate("reach", 256), "E-API-05"),
        (lambda m: m.evaluate("perplexity", 64, files=["books.jsonl"], strid=3), "E-CFG-01"),
        (lambda m: m.evaluate("preplexity", 64), "E-CFG-32"),
        (lambda m: m.evaluate("perplexity", 64, files=["nowhere.jsonl"]), "E-RAW-01"),
        (lambda m: m.evaluate("perplexity", 64, files=["books.jsonl"], rope_scaling="yarm"), "E-CFG-32"),
    ],
)  # fmt: skip
def test_mistakes_are_user_errors(model, call, code):
    with pytest.raises(UserError, match=code):
        call(model)


def test_importing_it_imports_no_torch():
    light = "import sys, coca_train.api; sys.exit('torch' in sys.modules or 'hydra' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", light], check=False).returncode == 0
