"""No code of a folder runs, and nobody is asked whether it may: each plant would leave a file, the canary."""

import builtins
import json
import os
import shutil
import subprocess
import sys

import pytest
import transformers

from coca_train.evaluation.subject import open_folder
from coca_train.hub import exporting, forms, transformers_side
from coca_train.hub.options import VerifyConfig
from coca_train.hub.weights import open_source
from coca_train.runtime.errors import UserError
from tests.data.vocabularies import byte_level
from tests.fixes import fix_of, options_in
from tests.hub import models, planted


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A file that is not there at the end; no question was asked, to which the answer would be yes."""
    questions = []
    monkeypatch.setattr(builtins, "input", lambda words="": questions.append(words) or "y")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    yield tmp_path / "canary"
    assert not questions
    assert not (tmp_path / "canary").exists()


@pytest.fixture
def run_of_coca(tmp_path, import_run):
    """A run whose export needs our own form, and the export."""
    folder = models.write(tmp_path / "llama", "llama")
    return import_run(folder, "coca", position="coca")


def verify(run, against):
    return exporting.verify_export(VerifyConfig(run=str(run), against=str(against)))


@pytest.mark.parametrize("name", planted.PLANTS)
def test_code_next_to_the_weights_is_never_imported(name, run_of_coca, export_run, import_run, canary):
    """`verify` names the file that an export did not write, and passes without it; `import` needs none of them."""
    if name in planted.NEED_GCC:
        pytest.skip("needs gcc")
    out = export_run(run_of_coca)
    path = planted.PLANTS[name](out, canary)
    with pytest.raises(UserError, match="E-IOP-16") as raised:
        verify(run_of_coca, out)
    assert str(path) in str(raised.value)
    import_run(out, "again")
    if name != "changed":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert json.loads(verify(run_of_coca, out).read_text())["passed"]


def test_a_missing_modelling_file_is_a_difference(run_of_coca, export_run):
    out = export_run(run_of_coca)
    (out / f"{forms.MODELING}.py").unlink()
    with pytest.raises(UserError, match=rf"E-IOP-16 {out}/{forms.MODELING}.py"):
        verify(run_of_coca, out)


def test_an_export_holds_nothing_but_what_was_written(run_of_coca, export_run, monkeypatch):
    """No bytecode either: its check runs the code of the package."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    out = export_run(run_of_coca)
    assert not list(out.rglob("__pycache__"))
    assert len(list(out.glob("*.py"))) == 2


@pytest.mark.parametrize("share", [0.0, 1e9], ids=["streamed", "whole"])
def test_a_type_that_is_known_is_read_as_that_type(share, copy, import_run, canary, monkeypatch, capsys):
    """Whatever code the folder names: the parity is that of the class of transformers."""
    folder = copy("llama_gqa")
    planted.everything(folder, canary)
    planted.name_code(folder)
    monkeypatch.setattr(transformers_side, "SHARE", share)
    run = import_run(folder)
    figures = json.loads((run / "parity.json").read_text())
    assert "LlamaForCausalLM" in figures["against"]
    assert "auto_map" in capsys.readouterr().err
    assert json.loads(verify(run, folder).read_text())["passed"]


@pytest.mark.parametrize("words", [{}, {"coca_train": {}}], ids=["", "as ours"])
def test_an_unknown_type_is_refused_before_transformers_is_called(words, copy, import_run, canary, monkeypatch):
    folder = copy("llama_gqa")
    run = import_run(folder)
    planted.everything(folder, canary)
    planted.name_code(folder, "evil")
    models.edit(folder, **words)
    for name in ("AutoConfig", "AutoModelForCausalLM"):
        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", None)
    for read in (lambda: verify(run, folder), lambda: import_run(folder, "again"), lambda: open_source(folder)):
        with pytest.raises(UserError, match=r"E-IOP-04 .*config\.json model_type='evil'") as raised:
            read()
        assert "Fix:" in str(raised.value)


def test_a_type_of_transformers_that_is_none_of_ours_is_not_refused(tmp_path, import_run):
    """Phi-3, published with auto_map: `verify` reads it natively, and says that its logits are others."""
    sizes = models.SHARED | {"num_key_value_heads": 4, "pad_token_id": 0}
    folder = tmp_path / "phi3"
    transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes)).save_pretrained(folder)
    models.edit(folder, auto_map={"AutoConfig": "configuration_phi3.C", "AutoModelForCausalLM": "modeling_phi3.M"})
    run = import_run(models.write(tmp_path / "llama", "llama"))
    with pytest.raises(UserError, match=r"E-IOP-13.*logits differ"):
        verify(run, folder)


@pytest.fixture
def with_tokenizer(tmp_path):
    folder = models.write(tmp_path / "worded", "llama_gqa", vocab_size=512)
    byte_level().save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("name", ["T", "AutoTokenizer", "AutoModelForCausalLM", "pipeline"])
def test_a_tokenizer_of_the_folder_is_not_exported(name, with_tokenizer, import_run, export_run, canary):
    """Its tokenizer.json is all we read; an export would have to be read by transformers."""
    planted.everything(with_tokenizer, canary)
    planted.name_tokenizer(with_tokenizer, name)
    run = import_run(with_tokenizer)
    config = run / "tokenizer" / "tokenizer_config.json"
    with pytest.raises(UserError, match="E-IOP-23") as raised:
        export_run(run)
    assert f"{config} tokenizer_class='{name}'" in str(raised.value)
    assert not (export_run(run, **options_in(fix_of(raised.value))) / "tokenizer.json").exists()
    config.write_text(config.read_text().replace(f'"{name}"', '"PreTrainedTokenizerFast"'))
    assert (export_run(run, "mended") / "tokenizer.json").exists()


def test_a_known_tokenizer_loses_the_code_it_names(with_tokenizer, import_run, export_run, canary):
    planted.everything(with_tokenizer, canary)
    planted.name_tokenizer(with_tokenizer, "PreTrainedTokenizerFast")
    out = export_run(import_run(with_tokenizer))
    kept = json.loads((out / "tokenizer_config.json").read_text())
    assert kept["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "auto_map" not in kept
    text = "the quick brown fox"
    theirs = transformers.AutoTokenizer.from_pretrained(out, trust_remote_code=True)
    assert theirs.encode(text, add_special_tokens=False) == transformers_side.token_ids(out, text)


def test_evaluation_reads_weights_and_tokenizer_only(with_tokenizer, canary):
    planted.everything(with_tokenizer, canary)
    planted.name_code(with_tokenizer)
    planted.name_tokenizer(with_tokenizer, "T")
    assert open_folder(str(with_tokenizer), "cpu", "auto").kind == "huggingface"
    planted.name_code(with_tokenizer, "evil")
    with pytest.raises(UserError, match="E-IOP-04"):
        open_folder(str(with_tokenizer), "cpu", "auto")


@pytest.mark.parametrize("kind", [pytest.param("own", marks=pytest.mark.slow), "evil"])
def test_commands_in_the_folder_itself(kind, run_of_coca, import_run, export_run, copy, canary, tmp_path):
    """As typed, in the hostile folder, with nobody to answer. What Python imports from there itself (`-m`: a torch.py,
    say) is not ours to refuse."""
    run, folder, code = run_of_coca, tmp_path / "out", "E-IOP-16"
    if kind == "own":
        planted.package(export_run(run_of_coca), canary)
    else:
        run, folder, code = import_run(copy()), tmp_path / "copy", "E-IOP-04"
        for name in ("modeling_evil", "configuration_evil"):
            (folder / f"{name}.py").write_text(planted.trap(canary))
        planted.name_code(folder, "evil")
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "coca_train", "verify", f"run={run}", f"against={folder}"],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert code in done.stderr
    assert "y/N" not in done.stdout + done.stderr
