"""Without a C compiler nothing is compiled, that is said once with what mends it, and everything computes the same."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from coca_train.attention import kernels, scores
from coca_train.models import fused_loss
from coca_train.models.compiled import CompiledBlocks
from coca_train.models.loss import score_in_passes
from coca_train.models.recompute import CHECKPOINTING
from coca_train.runtime import machine
from coca_train.runtime.device import pretend_device
from tests.faults import real
from tests.models.test_compiled import SCHEDULE, SCHEMES, batch_of, model_of, steps
from tests.models.test_hooks import Case

REAL = shutil.which("g++")


def program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with Triton, and an empty folder for a PATH."""
    machine.can_compile.cache_clear()
    (path := tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    yield path
    machine.can_compile.cache_clear()


@pytest.mark.parametrize(
    ("device", "variable", "serving", "fix"),
    [("cuda", "CC", ["gcc", "clang"], "apt install gcc"), ("cpu", "CXX", ["g++"], "apt install g++")],
)
def test_what_triton_and_inductor_look_for(bare, monkeypatch, device, variable, serving, fix):
    assert machine.missing_compiler(device).fix == fix
    for name in serving:
        program(bare, name)
        assert machine.missing_compiler(device) is None
        monkeypatch.setenv(variable, "/nowhere/cc")  # then nothing else is tried
        assert f"{variable}=/nowhere/cc" in machine.missing_compiler(device).what
        monkeypatch.setenv(variable, program(bare, "another"))
        assert machine.missing_compiler(device) is None
        monkeypatch.delenv(variable)
        (bare / name).unlink()
    program(bare, "cc")
    assert machine.missing_compiler(device) is not None


def test_the_fix_of_a_wrong_variable(bare, monkeypatch):
    program(bare, "gcc")
    monkeypatch.setenv("CC", "gcc-99")
    assert machine.missing_compiler("cuda").fix.startswith("unset CC")
    monkeypatch.delenv("CC")
    assert machine.missing_compiler("cuda") is None


def test_triton_is_looked_for_too(bare, monkeypatch):
    program(bare, "gcc")
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert machine.missing_compiler("cuda").fix == "pip install triton"


def test_a_compiler_without_headers_is_none(bare):
    """As gcc of a small container, which has those of the C library neither."""
    for name in ("gcc", "g++"):
        program(bare, name, "#!/bin/sh\necho '<stdin>:1:10: fatal error: Python.h: No such file' >&2\nexit 1\n")
    for device in ("cpu", "cuda"):
        lacking = machine.missing_compiler(device)
        assert "Python.h: No such file" in lacking.what
        assert "libc6-dev" in lacking.fix and f"python3.{sys.version_info.minor}-dev" in lacking.fix


@pytest.mark.parametrize("text", ["", "#!/nowhere/sh\n"])
def test_a_compiler_that_does_not_run_is_none(bare, text):
    program(bare, "gcc", text)
    assert "gcc does not run" in machine.missing_compiler("cuda").what and "CC" in machine.missing_compiler("cuda").fix


@pytest.mark.skipif(REAL is None, reason="needs a C++ compiler")
def test_headers_are_where_triton_and_inductor_look(monkeypatch, tmp_path):
    """Debian's own Python has another default scheme, whose folder they do not take."""
    monkeypatch.delenv("CXX", raising=False)
    elsewhere = {"posix_prefix": sysconfig.get_path("include", "posix_prefix")}
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda name, scheme=None: elsewhere.get(scheme, str(tmp_path)))
    assert machine.missing_compiler("cpu") is None
    elsewhere.clear()
    assert "Python.h" in machine.missing_compiler("cpu").what


def test_the_loss_takes_its_passes(bare, monkeypatch, capsys):
    monkeypatch.setattr(fused_loss, "kernel", lambda: 1 / 0)
    logits, targets = torch.randn(7, 33), torch.randint(0, 33, (7,))
    for _ in range(2):
        with pretend_device("cuda"):
            nll, gradient = fused_loss.score(logits.clone(), targets)
    expected = score_in_passes(logits.clone(), targets)
    assert torch.equal(nll, expected[0]) and torch.equal(gradient, expected[1])
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "Fix: apt install gcc" in said


@pytest.mark.parametrize("has_compiler", [False, True])
def test_flex_gives_way_to_tiles(bare, monkeypatch, has_compiler):
    """By a tensor that says it is on CUDA."""
    if has_compiler:
        program(bare, "clang")
    monkeypatch.setattr(kernels, "is_supported", lambda parts: True)
    monkeypatch.setattr(kernels, "flex", lambda *given: "flex")
    monkeypatch.setattr(kernels, "blocked", lambda *given: "blocked")
    there = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    assert kernels.flex_or_blocked([], there, 1.0) == ("flex" if has_compiler else "blocked")  # type: ignore[arg-type]
    assert kernels.flex_or_blocked([], torch.zeros(1), 1.0) == "flex", "uncompiled, on the CPU"


class OnCuda(torch.Tensor):
    """Says that it is on CUDA."""

    device = property(lambda self: torch.device("cuda"))  # pyright: ignore[reportAssignmentType]
    is_cuda = True  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize("has_compiler", [False, True])
def test_a_hook_runs_as_it_is(bare, monkeypatch, has_compiler):
    """In tiles, by scores that say they are on CUDA."""
    if has_compiler:
        program(bare, "gcc")
    expected, made = Case("by_pair", 12, 12).run("blocked"), []
    summed = scores._sums
    monkeypatch.setattr(scores, "_sums", lambda *given: summed(*given).as_subclass(OnCuda))
    monkeypatch.setattr(scores, "_compiled", lambda function: made.append(function) or function)
    out, gradients = Case("by_pair", 12, 12).run("blocked")
    assert bool(made) == has_compiler
    for a, b in zip([out, *gradients], [expected[0], *expected[1]], strict=True):
        torch.testing.assert_close(a.as_subclass(torch.Tensor), b)


def test_blocks_stay_as_they_are_and_that_is_said_once(bare, capsys):
    """Of two kinds of layers."""
    model, batches = model_of(SCHEMES["rope"], layers=SCHEDULE), [batch_of(0, False)]
    expected = steps(model, batches)
    model.compiled = CompiledBlocks(CHECKPOINTING["none"])
    assert all(torch.equal(a, b) for a, b in zip(steps(model, batches), expected, strict=True))
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "Fix: apt install g++" in said


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"CXX": "/nowhere/g++", "CC": "/nowhere/gcc"}])
def test_a_training_goes_on(tmp_path, variables):
    """As from a shell that finds no program at all."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    environment |= {
        "PATH": str(tmp_path / "empty"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    options = ["engine=local", "engine.dtype=fp32", "engine.compile=blocks", "train.max_steps=3"]
    words = [*real.TINY, *real.prepare(tmp_path), *options, f"run.root={tmp_path}/runs"]
    done = subprocess.run(
        [sys.executable, "-m", "coca_train", *words], env=environment | variables, capture_output=True, text=True,
        cwd=tmp_path, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("WARNING no C++ compiler") == 1
    assert ("Fix: unset CXX" if variables else "Fix: apt install g++") in done.stderr
    assert (tmp_path / "runs" / "quickstart" / "checkpoints" / "step-00000003").is_dir()
