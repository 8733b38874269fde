"""One command: its verbs, the forms it had before, one dialect for all."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from coca_train import __version__, commands
from coca_train.commands import main, verb_of, verbs
from coca_train.config.fields import fields_of

ROOT = Path(__file__).resolve().parents[2]
SMALL = tuple(sorted(set(verbs()) - {"evaluate", "train"}))


def test_the_verbs_are_the_files_of_the_folder():
    files = {path.stem.rstrip("_") for path in Path(commands.__file__).parent.glob("[a-z]*.py")}
    assert list(verbs()) == sorted(files)
    assert {"train", "evaluate", "import", "export"} <= files


def test_help_without_a_verb_lists_the_verbs_and_tells_of_the_training(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in verbs():
        assert re.search(rf"^  {name} +[A-Z].*[^.]$", shown, re.M), name
    assert main(["train", "--help"]) == 0
    assert shown.endswith(capsys.readouterr().out)


@pytest.mark.parametrize("name", sorted([*SMALL, "evaluate", "train"]))
def test_help_names_every_option(name, capsys):
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"coca_train {name} " in shown or f"coca-train {name} " in shown or name == "train"
    for option in fields_of(verb_of(name).root.schema) if name in SMALL else ():
        assert re.search(rf"^    {option}[=.]", shown, re.M), option


def test_help_imports_no_torch():
    """Nor Hydra, where nothing is composed: completion, which answers at every key, composes nothing either."""
    code = (
        "import sys; from coca_train.commands import main\n"
        "def call(*words, heavy=('torch', 'transformers', 'deepspeed')):\n"
        "    assert main([*words]) == 0; assert not set(heavy) & set(sys.modules), words\n"
        f"for name in {SMALL}: call(name, '--help', heavy=('torch', 'transformers', 'deepspeed', 'hydra'))\n"
        "call('completion', '--', 'position=', heavy=('torch', 'hydra'))\n"
        "call('evaluate', '--help'); call('train', '--help'); call('--help')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["evalute", "checkpoint=x"], "E-CFG-38 .*evalute: .*Fix: write python -m coca_train evaluate$"),
        (["generate", "run=x", "prompt=x", "seed=1,2"], "E-CFG-16 command line seed=1,2: .*Fix: write one"),
        (["evaluate", "eval=passkey,ruler", "checkpoint=x"], "E-CFG-16 .*Fix: write eval="),
        (["position=rope,coca"], "E-CFG-16 .*position=rope,coca: .*Fix: add --multirun"),
        (["nonsense"], "E-CFG-38 command line nonsense: .*verbs are atlas, .*--help$"),
        (["optim.lr"], "E-CFG-16 command line optim.lr: "),
        (["train", "optim.lr=abc"], "E-CFG-04 command line optim.lr=abc: "),
        (["generate", "--config-dir", "."], "E-CFG-38 command line --config-dir: "),
        (["generate", "run=a", "prompt=x", "run=b"], "E-CFG-89 command line run=a run=b: .*Fix: "),
        (["plan", "--cfg", "hydra"], "E-CFG-38 command line --cfg hydra: .*Fix: write --cfg job"),
    ],
)
def test_one_line_for_a_mistake(words, line, capsys):
    assert main(words) == 2
    (shown,) = capsys.readouterr().err.splitlines()
    assert re.search(line, shown), shown


@pytest.mark.parametrize("name", SMALL)
def test_one_dialect(name, capsys):
    """The same words about the same mistakes, whatever the verb."""
    option = next(iter(fields_of(verb_of(name).root.schema)))
    for word, line in (
        (f"{option}z=1", f"E-CFG-01 command line {option}z=1: .*Fix: did you mean {option}"),
        (f"{option}.x=1", "E-CFG-(01|16) "),
        ("--nosuchflag", "E-CFG-38 command line --nosuchflag: .*Fix: flags are --help, --version"),
    ):
        assert main([name, word]) == 2
        assert re.search(line, capsys.readouterr().err), (word, line)
    assert main([name, "--version"]) == 0
    assert capsys.readouterr().out == f"coca_train {__version__}\n"


@pytest.mark.parametrize("name", SMALL)
def test_every_option_is_described(name):
    fields = fields_of(verb_of(name).root.schema)
    assert all(field.description or field.annotation.__doc__ for field in fields.values())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["plan", "gpus=8", "train.seq_len=64"], {"gpus": 8, "gpu": "a100_80gb", "mfu": None}),
        (
            ["compare", "schemes=rope coca:clex", "train.max_steps=3", "run.root=/x"],
            {"schemes": ["rope", "coca:clex"], "runs": [], "seeds": 1, "run": {"root": "/x"}},
        ),
        (
            ["verify", "run=a", "against='b (1)'"],
            {
                "run": "a",
                "against": "b (1)",
                "rope": None,
                "python": None,
                "tokenizer": "auto",
                "parity_tokens": 2048,
            },
        ),
    ],
)
def test_cfg_job_shows_a_verb_s_own_configuration(words, shown, capsys):
    assert main([*words, "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == shown
