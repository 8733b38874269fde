"""Nothing secret of the environment gets to the disk or the terminal, and no place of this machine into an export."""

import importlib.util

import pytest

from coca_train.commands import main

# By the variables that hold them; of the forms that their owners give out.
SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef" * 2 + "01234567",
    "HF_TOKEN": "hf_" + "AbCdEfGhIj" * 3 + "KlMn",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYsecretkey",
    "HTTPS_PROXY": "http://someone:pass-of-someone@proxy.invalid:1",
}


@pytest.mark.slow
def test_no_secret_is_written_or_said(words, tmp_path, capfd, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    run, exported = tmp_path / "runs" / "quickstart", tmp_path / "hf"
    wandb = ["tracking=wandb"] if importlib.util.find_spec("wandb") else []
    codes = []
    for command in (
        [*words, *wandb, "engine=local", "train.max_steps=4"],
        ["evaluate", f"checkpoint={run}", "grid.lengths=[32]", "eval.bootstrap_resamples=10"],
        ["show", f"run={run}", "step=2"],
        ["export", f"run={run}", f"to={exported}"],
        ["doctor"],
        ["evaluate", f"checkpoint={tmp_path}/missing"],  # what is said of a mistake
    ):
        codes.append(main(command))
    said = "".join(capfd.readouterr())
    assert codes[:4] == [0, 0, 0, 0] and codes[-1] != 0, said
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert (exported / "README.md") in written and any(path.name == "metrics.jsonl" for path in written), said
    for value in (*SECRETS.values(), "pass-of-someone"):
        assert value not in said
        assert [path for path in written if value.encode() in path.read_bytes()] == []
    at = str(tmp_path).encode()
    assert [path.name for path in exported.rglob("*") if path.is_file() and at in path.read_bytes()] == []
