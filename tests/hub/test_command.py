"""The command line: verbs, exit codes, one line for an error, and a help that loads nothing heavy."""

import subprocess
import sys

import pytest

from coca_train.commands import main
from coca_train.config.fields import fields_of
from coca_train.hub.options import EXPORT, IMPORT, VERIFY


def call(*words: str) -> int:
    return main(list(words))


def test_there_and_back(model, tmp_path, capsys):
    root = f"root={tmp_path}"
    assert call("import", f"source={model()}", "name=a", root) == 0
    assert call("export", f"run={tmp_path}/a", f"to={tmp_path}/out") == 0
    assert call("verify", f"run={tmp_path}/a", f"against={tmp_path}/out") == 0
    err = capsys.readouterr().err
    assert err.count("random ids at 4x") == 3
    assert "from_pretrained" in err


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("fetch",), 2, "no such verb"),
        (("import", "source=x"), 2, "name=???: it has no value yet"),
        (("import", "source=/nowhere", "name=a"), 2, "E-IOP-01"),
        (("import", "source=/nowhere", "name=a", "t_from_k=best"), 2, "one of mean_of_halves, first_half, random"),
        (
            ("import", "source=/nowhere", "name=a", "model.n_layers=3"),
            2,
            "model.n_layers=3: unknown key",
        ),
        (("import", "source=/nowhere", "name=a", "parity_tokens=0"), 2, "parity_tokens=0"),
        (("export", "run=/nowhere", "to=x", "dtype=int8"), 2, "as_run, fp32, bf16, fp16"),
        (("verify", "run=/nowhere", "against=/nowhere"), 2, "E-IOP-01"),
    ],
)
def test_errors_are_one_line(words, code, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(*words) == code
    err = capsys.readouterr().err
    assert expected in err
    assert "Fix:" in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_failed_check_fails_the_command(model, tmp_path, capsys, monkeypatch):
    """Nothing appears under the final name."""
    from coca_train.hub import parity

    monkeypatch.setattr(parity, "BOUND", 1e-12)
    assert call("import", f"source={model()}", "name=a", f"root={tmp_path}") == 4
    assert "E-IOP-13" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("root", [IMPORT, EXPORT, VERIFY], ids=lambda root: root.name)
def test_help_is_quick_and_complete(root):
    script = (
        f"import sys; from coca_train.commands import main; main([{root.name!r}, '--help']);"
        "assert not {'torch', 'transformers', 'hydra'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(f"    {name}=" in done.stdout for name in fields_of(root.schema))


def test_without_transformers_in_words(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert call("import", f"source={model()}", "name=a", f"root={tmp_path}") == 2
    assert "pip install 'coca-train[interop]'" in capsys.readouterr().err
