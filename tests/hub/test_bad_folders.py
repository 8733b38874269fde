"""What cannot be imported is refused in words, before anything is written, and nothing is left behind."""

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from coca_train.config.load import assemble, load
from coca_train.hub import importing
from coca_train.hub.options import IMPORT
from coca_train.hub.publishing import new_folder
from coca_train.hub.weights import open_source
from coca_train.runtime import durable
from coca_train.runtime.errors import CheckpointError, DataError, StorageError, UserError
from tests.data.vocabularies import sentencepiece_model
from tests.hub import models


def rewrite(folder, change):
    """Change the tensors of a folder."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path, {"format": "pt"})


def halve(tensors):
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:24].clone()


CASES = {
    "missing": (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "E-IOP-05", "model.layers.1.mlp.up_proj.weight"),
    "extra": (lambda t: t.update(surprise=torch.zeros(2)), "E-IOP-06", "surprise"),
    "shape": (halve, "E-IOP-07", "model.norm.weight [24], not [48]"),
    "no head": (lambda t: t.pop("lm_head.weight"), "E-IOP-09", "tie_word_embeddings=false"),
    "not finite": (lambda t: t["model.norm.weight"].fill_(float("nan")), "E-IOP-19", "finite"),
    "precision": (lambda t: t.update({"model.norm.weight": torch.ones(48, dtype=torch.float64)}), "E-IOP-18", "F64"),
}


@pytest.mark.parametrize("case", CASES)
def test_tensors(case, copy, import_run, tmp_path):
    change, error, words = CASES[case]
    folder = copy()
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=error) as raised:
        import_run(folder)
    assert words in str(raised.value)
    assert "Fix:" in str(raised.value)
    assert not list(tmp_path.glob("runs/*"))
    assert not list(tmp_path.glob("runs/.tmp*"))


def test_tables_of_older_versions_are_no_extra_tensors(copy):
    folder = copy()
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6).double()}))
    with open_source(folder) as source:
        assert not any("inv_freq" in name for name in source.names)


def test_tied_in_words_and_apart_in_fact(copy):
    folder = copy()
    models.edit(folder, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match="E-IOP-09"):
        open_source(folder)
    rewrite(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    with open_source(folder) as source:
        assert "head.weight" not in source.names


@pytest.mark.parametrize("keep", [0, 7, 100, 5000, -1])
def test_truncated(keep, copy):
    path = copy() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="E-IOP-08"):
        open_source(path.parent)


def test_pickles_are_not_opened(copy):
    folder = copy()
    (folder / "model.safetensors").unlink()

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(folder / "trapped"),)

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UserError, match="E-IOP-02"):
        open_source(folder)
    assert not (folder / "trapped").exists()


def test_no_folder_and_no_weights(copy, tmp_path):
    with pytest.raises(UserError, match="E-IOP-01"):
        open_source(tmp_path / "nowhere")
    folder = copy()
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="E-IOP-01"):
        open_source(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "nonsense"])
def test_config_that_is_no_object(text, copy):
    folder = copy()
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match="E-IOP-03"):
        open_source(folder)


INDICES = [
    {},
    {"weight_map": {}},
    {"weight_map": {"x": "../model.safetensors"}},
    {"weight_map": {"x": "absent.safetensors"}},
    {"weight_map": {"x": "model.safetensors"}},
    {"weight_map": {"x": 3}},
    [],
]


@pytest.mark.parametrize("index", INDICES)
def test_index_that_leads_nowhere(index, copy):
    folder = copy()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="E-IOP-08"):
        open_source(folder)


def test_a_tensor_in_two_files(copy):
    folder = copy()
    shutil.copy(folder / "model.safetensors", folder / "a.safetensors")
    (folder / "model.safetensors").rename(folder / "b.safetensors")
    with pytest.raises(CheckpointError, match="E-IOP-08"):
        open_source(folder)


def test_vocabulary_that_does_not_fit(copy, import_run):
    folder = copy()
    sentencepiece_model(folder / "tokenizer.model")
    with pytest.raises(DataError, match=r"E-IOP-10.*101 rows"):
        import_run(folder)


def test_what_exists_is_not_touched(model, import_run, export_run):
    run = import_run(model())
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(UserError, match="E-IOP-11"):
        import_run(model())
    out = export_run(run)
    with pytest.raises(UserError, match="E-IOP-11"):
        export_run(run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert (out / "README.md").exists()


def test_what_a_killed_process_left_is_removed(tmp_path):
    killed = (
        "import os, pathlib, sys; from coca_train.hub.publishing import new_folder\n"
        "with new_folder(pathlib.Path(sys.argv[1]), 0): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", killed, tmp_path / "out"], check=False)
    (left,) = tmp_path.iterdir()
    with new_folder(tmp_path / "another", 0), new_folder(tmp_path / "out", 0):
        assert not left.exists() and len(list(tmp_path.iterdir())) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"out", "another"}


@pytest.mark.parametrize("name", ["a/b", "", "..", "a b"])
def test_a_name_that_no_run_can_have(name, model, tmp_path):
    with pytest.raises(UserError, match=r"name=.*needs a name of letters"):
        load(assemble(IMPORT, [f"source={model()}", f'name="{name}"', f"root={tmp_path / 'runs'}"]))


def test_disk_too_small(model, import_run, monkeypatch, tmp_path):
    real = os.statvfs(tmp_path)
    small = os.statvfs_result([*real[:3], 10, 10, *real[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    with pytest.raises(StorageError, match="E-IOP-12"):
        import_run(model())
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize("after", [0, 1, 3])
def test_disk_full_in_the_middle(after, model, import_run, monkeypatch, tmp_path):
    left = [after]

    def write_all(descriptor, data):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.write(descriptor, data)

    monkeypatch.setattr(durable, "write_all", write_all)
    with pytest.raises(StorageError, match="E-IOP-12"):
        import_run(model())
    assert not [path for path in (tmp_path / "runs").iterdir()]


def test_an_interrupt_leaves_nothing(model, import_run, monkeypatch, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(importing, "_write_checkpoint", interrupt)
    with pytest.raises(KeyboardInterrupt):
        import_run(model())
    assert not [path for path in (tmp_path / "runs").iterdir()]


def test_weights_that_overflow_a_narrow_export(copy, import_run, export_run, tmp_path):
    folder = copy()
    rewrite(folder, lambda t: t["model.layers.0.mlp.up_proj.weight"].mul_(1e6))
    run = import_run(folder)
    with pytest.raises(CheckpointError, match=r"E-IOP-19.*float16"):
        export_run(run, dtype="fp16")
    assert not (tmp_path / "out").exists()
