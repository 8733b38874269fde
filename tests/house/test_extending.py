"""docs/extending.md and docs/tutorial.md are true: by their steps alone, things are added to a copy of the repository,
tested and used."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from coca_train.runtime.errors import UserError
from coca_train.testing import stubs
from tests.house.imports import ROOT

ADDED = Path(__file__).parent / "added"
BIN = Path(sys.executable).parent
TINY = [
    "model.n_layers=2", "model.d_model=32", "model.n_heads=4", "model.d_ff=64", "train.max_steps=2",
    "train.seq_len=32", "train.micro_batch_size=2", "train.global_batch_size=4", "optim.warmup_steps=1",
    "checkpoint.save_every_steps=2", "eval.every_steps=2", "eval.max_tokens=128", "eval.sample_tokens=2",
    "eval.extrapolation.multiples=[1,2]", "eval.extrapolation.max_documents=1", "engine.dtype=fp32",
]  # fmt: skip

GATED = (("coca_train/positions/schemes/", "py"), ("configs/position/", "yaml"), ("tests/positions/test_", "py"))


class Copy:
    """A copy of the repository, and commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = self.run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes((ROOT / name).read_bytes())
        self.before = self.files()

    def files(self) -> dict[str, bytes]:
        """Everything that is no cache."""
        paths = (p for p in self.folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in paths}

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            words, cwd=cwd or self.folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )

    def python(self, *words: str, cwd: Path | None = None) -> str:
        done = self.run(sys.executable, "-m", *words, cwd=cwd)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def make(self, kind: str, name: str) -> str:
        """The Makefile's target, with the Python that runs this test."""
        done = self.run("make", "-o", ".venv/installed", f"BIN={BIN}", kind, f"NAME={name}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def answer(self, source: str, name: str, config: str) -> None:
        """What is answered in the three files."""
        for file, to in (
            (f"{name}.py", f"coca_train/positions/{source}/{name}.py"),
            (f"{name}.yaml", f"configs/{config}/{name}.yaml"),
            (f"contract_of_{name}.py", f"tests/positions/test_{name}.py"),
        ):
            assert (self.folder / to).is_file(), "a stub is there"
            (self.folder / to).write_bytes((ADDED / file).read_bytes())


@pytest.mark.parametrize("word", ["scheme", "scaling", "pattern", "suite"])
def test_stubs_are_clean_and_say_what_they_must_answer(word, tmp_path):
    kind = stubs.kinds()[word]
    paths = stubs.write(kind, word, "novel", tmp_path, own_package=True)
    assert [str(p.relative_to(tmp_path)) for p in paths] == [
        "novel.py", f"configs/{kind.group}/novel.yaml", "test_novel.py"
    ]  # fmt: skip
    for tool in (["check", "--select", "E,F,I,UP,B"], ["format", "--check"]):
        code = subprocess.run(
            [BIN / "ruff", *tool, "--line-length", "120", *(p for p in paths if p.suffix == ".py")],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert code.returncode == 0, code.stdout
    assert "@" not in "".join(p.read_text(encoding="utf-8") for p in paths).replace("@dataclass", "").replace(
        "@package", ""
    )
    assert "NotImplementedError" in paths[2].read_text(encoding="utf-8")
    steps = stubs.steps(kind, "novel", paths, own_package=True)
    assert all(str(path) in step for path, step in zip(paths, steps, strict=False))
    with pytest.raises(UserError, match=r"E-EXT-03 .*exists"):
        stubs.write(kind, word, "novel", tmp_path, own_package=True)


def test_a_package_of_ones_own_is_whole(tmp_path):
    """Its pyproject.toml offers the module, its yaml is tested, and of a second module the steps say what to add."""
    kind = stubs.kinds()["scheme"]
    stubs.write(kind, "scheme", "novel", tmp_path, own_package=True)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))
    offered = project["project"]["entry-points"]
    assert offered == {"coca_train.schemes": {"novel": "novel"}}
    assert project["tool"]["setuptools"]["py-modules"] == ["novel"]
    info = tmp_path / "novel-0.1.dist-info"  # what an installation leaves
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: novel\nVersion: 0.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[coca_train.schemes]\nnovel = novel\n", encoding="utf-8")
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", "slow or not slow", "test_novel.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "test_settings_are_described_and_strict[novel]" in collected.stdout, collected.stdout + collected.stderr
    assert "test_settings_are_described_and_strict[case-2.0]" in collected.stdout
    paths = stubs.write(kind, "scheme", "other", tmp_path, own_package=True)
    said = stubs.steps(kind, "other", paths, own_package=True)
    assert any('other = "other" to [project.entry-points."coca_train.schemes"]' in step for step in said)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("rope", "E-EXT-02"),
        ("my-scheme", "E-EXT-01"),
        ("_mine", "E-EXT-01"),
        ("Mine", "E-EXT-01"),
        ("class", "E-EXT-01"),
    ],
)
def test_names_that_cannot_be_are_refused(name, code, tmp_path, capsys):
    assert stubs.main(["scheme", name, str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"{code} NAME={name}: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [[], ["scheme"], ["scheme", ""], ["layer", "mine"]])
def test_a_kind_and_a_name_are_needed(words, capsys):
    assert stubs.main(words) == 2
    assert capsys.readouterr().err.startswith("E-EXT-05 ")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def gated(copy, runs):
    """A run of a scheme with a hook, parameters and a cached tensor of every token: three files, from stubs on."""
    steps = copy.make("scheme", "gated")
    assert [line[:2] for line in steps.splitlines()] == [f"{i}." for i in range(1, 9)]
    stub = copy.run(sys.executable, "-m", "pytest", "-n0", "-q", "tests/positions/test_gated.py")
    assert "write the formula of gated" in stub.stdout and stub.returncode == 1
    words = [f"run.root={runs}", *TINY]
    copy.python("coca_train", "position=gated", "run.name=stub", *words, cwd=runs)  # does nothing, and trains
    copy.answer("schemes", "gated", "position")
    changed = {name for name, data in copy.files().items() if copy.before.get(name) != data and name[0] != "."}
    assert changed == {f"{folder}gated.{end}" for folder, end in GATED}
    copy.python("pytest", "-n0", "-q", "tests/positions/test_gated.py", "tests/positions/test_contract.py")
    copy.python("coca_train", "position=gated", "run.name=gated", *words, cwd=runs)
    return runs / "gated"


@pytest.mark.slow
def test_a_scheme_is_added_by_three_files(gated, copy, runs):
    """Held to the contract, trained (the fixture), evaluated."""
    text = runs / "text.jsonl"
    text.write_text('{"text": "' + "words and more words " * 40 + '"}\n', encoding="utf-8")
    words = [f"checkpoint={gated}", f"text.files=[{text}]", "grid.lengths=[1x]"]
    copy.python("coca_train", "evaluate", *words, cwd=runs)
    assert (runs / "evaluations" / "perplexity" / "report.html").is_file()


@pytest.mark.slow
def test_and_exported(gated, copy, runs):
    """And read again by transformers, logits compared."""
    copy.python("coca_train", "export", f"run={gated}", f"to={runs}/exported", cwd=runs)
    copy.python("coca_train", "verify", f"run={gated}", f"against={runs}/exported", cwd=runs)


@pytest.mark.slow
def test_frequencies_are_added_by_three_files(copy, runs):
    copy.make("scaling", "powered")
    copy.answer("rope_scaling", "powered", "position/rope_scaling")
    copy.python("pytest", "-n0", "-q", "tests/positions/test_powered.py", "tests/positions/test_contract.py")
    words = ["position=coca", "position/rope_scaling=powered", f"run.root={runs}", "run.name=powered", *TINY]
    copy.python("coca_train", *words, cwd=runs)


@pytest.mark.slow
def test_the_tutorial(copy, runs):
    """Its files as they stand there; its commands, with a small model."""
    copy.make("scheme", "soft_window")
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    files = re.findall(r"```\w+ title=(\S+)\n(.*?)```", tutorial, re.DOTALL)
    assert [name for name, _ in files] == [f"{folder}soft_window.{end}" for folder, end in GATED]
    for name, text in files:
        (copy.folder / name).write_text(text, encoding="utf-8")
    copy.python("pytest", "-n0", "-q", "tests/positions/test_soft_window.py")
    copy.python("ruff", "check", *(name for name, _ in files if name.endswith("py")))
    copy.python("coca_train", "schemes", "scheme=soft_window")
    words = ["schemes=soft_window,alibi,rope", f"run.root={runs}/compared", *TINY]
    copy.python("coca_train", "compare", *words, cwd=runs)
    assert list((runs / "compared" / "comparisons").glob("*/report.html"))
    copy.python("coca_train", "export", f"run={runs}/compared/soft_window", f"to={runs}/soft_window-hf", cwd=runs)
