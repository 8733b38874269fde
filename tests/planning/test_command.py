"""`python -m coca_train.plan`: what is printed, and what is refused in words."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coca_train import plan
from coca_train.planning.cost import Cluster, Cost, cost
from coca_train.planning.gpus import GPUS, find, peak_of
from coca_train.planning.outline import outline
from coca_train.planning.pages import plan as page
from coca_train.stages import Stage
from coca_train.throughput import gpu_peak
from tests.planning.conftest import TINY, coca_llama_7b

A100 = Cluster(32, GPUS["a100_80gb"], 0.4)


def of(stage: Stage) -> Cost:
    return cost(stage, outline(stage.config, stage.trainable), A100)


@pytest.fixture(scope="module")
def costs() -> list[Cost]:
    """The paper's stages of two layers."""
    return [of(stage) for stage in coca_llama_7b("model.n_layers=2")]


def test_hours(costs: list[Cost]) -> None:
    """tokens x FLOPs / (32 x 312 TFLOP/s x 0.4): by hand for the last stage, 6 N and attention."""
    n = 2 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    flops = 6 * n + 12 * 2 * 4096 * 2048 / 2
    assert costs[2].hours == pytest.approx(15_000 * 524_288 * flops / (32 * 312e12 * 0.4) / 3600)
    assert costs[0].hours < costs[1].hours < costs[2].hours
    text = page("two layers", costs, A100)
    assert f"  time      {costs[2].hours:.3g} hours, {32 * costs[2].hours:.3g} GPU hours" in text.splitlines()
    assert "all stages: 23.6B tokens" in text


def test_what_fits_is_said_to_fit(costs: list[Cost]) -> None:
    assert all(each.fits and each.change is None for each in costs)
    text = page("two layers", costs, A100)
    assert text.startswith(
        "plan of two layers: 32 x NVIDIA A100-SXM4-80GB, 40 % MFU of NVIDIA A100-SXM4-80GB: 312 TFLOP/s"
    )
    assert text.count("  fits into 76.7 GiB") == 3
    assert all(len(line) <= 120 for line in text.splitlines())


def test_what_does_not_fit_is_said_with_a_change_that_fits() -> None:
    stage = coca_llama_7b("model.n_layers=8", "train.seq_len=8192")[2]
    found = of(stage)
    assert not found.fits and found.change is not None
    assert f"  DOES NOT FIT into 76.7 GiB; the smallest change that fits: {found.change.typed()}" in page(
        "8k", [found], A100
    )
    changed = found.change.applied(stage.config)
    again = of(replace(stage, config=changed))
    assert again.fits and again.change is None
    assert again.memory[changed.engine.activation_checkpointing].total <= A100.gpu.usable


@pytest.mark.slow
def test_the_page_of_the_papers_stages() -> None:
    lines = page("coca_llama_7b", [of(stage) for stage in coca_llama_7b()], A100).splitlines()
    for line in (
        "  trains 8.0 % -> 23.9 % of the parameters",
        "  trains 23.9 % -> 100 % of the parameters",
        "  trains    8.0 % of the parameters: 536,870,912 of 6,738,415,616",
        "  trains    23.9 % of the parameters: 1,610,612,736 of 6,738,415,616",
        "  tokens    7.86B: 15,000 steps of 256 x 2,048",
        "  DOES NOT FIT into 76.7 GiB; the smallest change that fits: train.micro_batch_size=2",
    ):
        assert line in lines


def test_help_is_quick_and_without_torch() -> None:
    code = "import sys; from coca_train import plan; plan._main(['--help']); assert 'torch' not in sys.modules"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.startswith("`python -m coca_train.plan")) == (0, True), found.stderr
    assert all(name in found.stdout for name in GPUS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpus=0",), "E-PLN-04 command line gpus=0: a run needs one at least. Fix: gpus=1"),
        (("gpus=two",), "E-CFG-02 command line gpus=two: must be a whole number"),
        (("mfu=40",), "E-PLN-05 command line mfu=40: a share of the peak, above 0 and at most 1. Fix: mfu=0.4"),
        (("mfu=0",), "E-PLN-05"),
        (
            ("gpu=a100",),
            "E-PLN-02 command line gpu=a100: there is no such GPU. Fix: did you mean a100_40gb or a100_80gb?",
        ),
        (("gpu=v100_32gb",), "E-PLN-03 engine.dtype=bf16: Tesla V100"),
        (
            ("gpus=3",),
            "E-CFG-19 train.global_batch_size=32, train.micro_batch_size=16: 32 sequences are",
        ),
        (("train.seq_length=5",), "E-CFG-01"),
        (("engine=local", "gpus=2"), "E-CFG-36"),
        (("engine.zero_stage=0",), "E-CFG-35"),
        (("--nonsense",), "E-CFG-38"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = plan.run(plan._main, [*TINY, *words])
    assert (code, capsys.readouterr().err[: len(said)]) == (2, said)


def test_every_gpu_is_one_that_throughput_knows() -> None:
    for name, gpu in GPUS.items():
        assert gpu_peak(gpu.device, "fp16", tf32=False) is not None, name
        assert find(name) is gpu
        assert gpu.usable == pytest.approx(0.97 * gpu.memory)
    assert peak_of(GPUS["a100_80gb"], "bf16").flops == 312e12
    assert find("cpu").memory == int(Path("/proc/meminfo").read_text().split()[1]) * 1024
