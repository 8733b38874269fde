"""`verify rope=…`: exact numbers of rope_scaling, against our code, transformers, and engines that are wrong."""

import json
import sys

import pytest

from coca_train.commands import main
from coca_train.hub import rope_check, rope_engines
from tests.golden import rope

VECTORS = rope_check.vectors()


@pytest.mark.parametrize("engine", ["coca_train", "transformers"])
@pytest.mark.parametrize("name", VECTORS)
def test_exact_numbers(name, engine):
    case = VECTORS[name]
    assert rope_check.outcome(case, rope_engines.ask(engine, case.config, case.lengths)) == "same"


def test_the_file_is_what_its_maker_writes():
    """Nobody edited a number by hand."""
    assert json.loads(json.dumps(rope.golden())) == json.loads(rope.TARGET.read_text(encoding="utf-8"))


def test_by_hand():
    """gpt-oss: pair j at 150000^(-j/32), the ramp from 8.0928 to 17.3980, s = 32, the temperature 0.1 ln 32 + 1."""
    case = VECTORS["yarn 32, truncate false (gpt-oss)"]
    ((*frequencies,),), (temperature,) = case.inv_freq, case.temperature
    assert frequencies[:9] == pytest.approx([150000 ** (-j / 32) for j in range(9)], rel=1e-15)
    assert frequencies[18:] == pytest.approx([150000 ** (-j / 32) / 32 for j in range(18, 32)], rel=1e-15)
    slowed = (10 - 8.0928) / (17.3980 - 8.0928)
    assert frequencies[10] == pytest.approx(150000 ** (-10 / 32) * (1 - slowed * 31 / 32), rel=1e-4)
    assert temperature == pytest.approx(1.3465735902799727, rel=1e-15)


@pytest.fixture
def planted(tmp_path):
    """planted(change): an interpreter whose engine answers the exact numbers after `change` of each case."""

    def plant(change):
        exact = {name: list(zip(case.inv_freq, case.temperature, strict=True)) for name, case in VECTORS.items()}
        answers = {name: change(name, answer) for name, answer in exact.items()}
        said = json.dumps({"version": "9.9", "answers": answers})
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\nprint({said!r})\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    return plant


def scaled(frequency=1.0, temperature=1.0, of=""):
    """Change the slowest pair and the temperature of one case at its last length."""

    def change(name, answer):
        *before, ((*fast, slow), factor) = answer
        return [*before, ([*fast, slow * frequency], factor * temperature)] if name == of else answer

    return change


WRONG = {
    "a frequency": (scaled(frequency=1.00001, of="dynamic 2"), "dynamic 2", "differs"),
    "a temperature": (scaled(temperature=1.00001, of="plain"), "plain", "differs"),
    "no number": (scaled(frequency=float("nan"), of="plain"), "plain", "differs"),
    "fewer pairs": (lambda name, a: [(f[:-1], t) for f, t in a] if name == "plain" else a, "plain", "differs"),
    "turning pairs": (
        lambda name, a: [([1e-9] * len(f), t) for f, t in a] if name == "proportional 0.5" else a,
        "proportional 0.5",
        "differs",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_engine_is_found(case, planted, capsys):
    change, name, way = WRONG[case]
    assert main(["verify", "rope=transformers", f"python={planted(change)}"]) == 4
    printed = capsys.readouterr()
    (line,) = [line for line in printed.out.splitlines() if line.startswith(f"{name}  ")]
    assert line[len(name) :].strip().startswith(way)
    assert printed.err.startswith("E-IOP-26 transformers 9.9: 1 of")


def test_an_engine_that_refuses_is_not_wrong(planted, capsys):
    python = planted(lambda name, answer: "KeyError: 'proportional'" if name.startswith("proportional") else answer)
    assert main(["verify", "rope=transformers", f"python={python}"]) == 0
    assert "3 refused" in capsys.readouterr().out


def test_an_engine_of_this_interpreter(capsys):
    assert main(["verify", "rope=coca_train"]) == 0
    assert f"{len(VECTORS)} same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["rope=mlx_lm", "python=/nowhere/python"], "E-IOP-25"),
        (["rope=mlx_lm"], "E-IOP-25"),  # it is not installed here
        (["rope=vllm"], "E-CFG-31"),
        (["rope=transformers", "run=a"], "E-CFG-31"),
        (["run=a"], "E-RUN-21"),
        (["run=a", "against=b", "python=c"], "E-CFG-31"),
    ],
)
def test_what_cannot_be_asked(words, code, capsys):
    assert main(["verify", *words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("E-")]
    assert line.startswith(code) and "Fix:" in line
