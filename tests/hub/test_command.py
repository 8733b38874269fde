"""The command line: verbs, exit codes, one line for an error."""

import sys

import pytest

from coca_train.commands import main


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
    ("words", "expected"),
    [
        (("fetch",), "E-CFG-38"),
        (("import", "source=x"), "E-CFG-11 name=???"),
        (("import", "source=/nowhere", "name=a"), "E-IOP-01"),
        (("import", "source=/nowhere", "name=a", "t_from_k=best"), "mean_of_halves, first_half, random"),
        (("import", "source=/nowhere", "name=a", "model.n_layers=3"), "E-CFG-01 command line model.n_layers=3"),
        (("import", "source=/nowhere", "name=a", "parity_tokens=0"), "parity_tokens=0"),
        (("export", "run=/nowhere", "to=x", "dtype=int8"), "as_run, fp32, bf16, fp16"),
        (("verify", "run=/nowhere", "against=/nowhere"), "E-IOP-01"),
    ],
)
def test_errors_are_one_line(words, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(*words) == 2
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


def test_without_transformers_in_words(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert call("import", f"source={model()}", "name=a", f"root={tmp_path}") == 2
    assert "pip install 'coca-train[interop]'" in capsys.readouterr().err
