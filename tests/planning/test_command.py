"""`python -m coca_train plan`: what is printed, and what is refused in words."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from coca_train.commands import main
from coca_train.commands import plan as command
from coca_train.planning.as_text import plan as page
from coca_train.planning.cost import MOST_GPUS, Cluster, Cost, applied, plan_stage, typed
from coca_train.planning.hardware import GPUS, Gpu, find_gpu, peak_of
from coca_train.planning.memory import gpu_memory
from coca_train.planning.outline import outline
from coca_train.stages import Stage, resolve
from coca_train.tracking.throughput import gpu_peak
from tests.cases import slow_unless
from tests.planning.conftest import TINY, coca_llama_7b, configure

ONE = (*TINY, "model.n_layers=1", "position=rope")
A100 = Cluster(32, GPUS["a100_80gb"], 0.4)


def of(stage: Stage, cluster: Cluster = A100, stages: Sequence[Stage] = ()) -> Cost:
    return plan_stage(stage, outline(stage.config, stage.trainable), cluster, stages)


def gpu(memory: float) -> Gpu:
    """An A100 of which a run can have this much [bytes]."""
    return replace(GPUS["a100_80gb"], memory=memory / 0.97)


@pytest.fixture(scope="module")
def costs() -> list[Cost]:
    """The paper's stages of two layers."""
    return [of(stage) for stage in coca_llama_7b("model.n_layers=2", "model.vocab_size=2000")]


def test_hours(costs: list[Cost]) -> None:
    """tokens x FLOPs / (32 x 312 TFLOP/s x 0.4): by hand for the last stage, 6 N and attention."""
    n = 2 * (4 * 4096**2 + 3 * 4096 * 11008) + 2000 * 4096
    flops = 6 * n + 12 * 2 * 4096 * 2048 / 2
    assert costs[2].hours == pytest.approx(15_000 * 524_288 * flops / (32 * 312e12 * 0.4) / 3600)
    assert costs[0].hours < costs[1].hours < costs[2].hours
    text = page("two layers", costs, A100)
    assert f"  time      {costs[2].hours:.3g} hours, {32 * costs[2].hours:.3g} GPU hours" in text.splitlines()
    hours, total = sum(each.hours for each in costs), sum(each.per_token.total * each.n_tokens for each in costs)
    for amount in (f" {hours:.3g} hours", f" {32 * hours:,.0f} GPU hours", " 23.6B tokens", f" {total:.2e} FLOPs"):
        assert amount in text.splitlines()[0]


def test_what_fits_is_said_to_fit(costs: list[Cost]) -> None:
    assert all(each.fits and each.change is None for each in costs)
    lines = page("two layers", costs, A100).splitlines()
    most = max(each.memory[each.stage.config.engine.activation_checkpointing].total for each in costs) / 2**30
    assert lines[0].startswith("two layers fits on 32 x ")
    assert (
        lines[1].startswith(f"needs {most:.1f} of 76.7 GiB") and " 40 % MFU" in lines[1] and "312 TFLOP/s" in lines[1]
    )
    assert sum(line.startswith("  fits into 76.7 GiB") for line in lines) == 3
    assert all(len(line) <= 120 for line in lines)


def test_the_table_is_the_memory_as_set(costs: list[Cost]) -> None:
    """All activations, then both ways of checkpointing, in GiB; what is nothing is left out."""
    lines = page("two layers", costs[:1], A100).splitlines()
    ways = [costs[0].memory[way] for way in ("none", "selective", "full")]
    kept = [way.activations.kept for way in ways]
    assert kept[2] < kept[1] < kept[0]
    assert "ZeRO gathered weights" not in "".join(lines)
    for name, *sizes in (
        ("optimizer moments", *(way.states.moments for way in ways)),
        ("activations kept", *kept),
        ("a step needs", *(way.training for way in ways)),
        ("most in optimizer step", *(way.phases["optimizer step"] for way in ways)),
        ("most in the final report", *(way.report for way in ways)),
    ):
        shown = " ".join(f"{size / 2**30:,.2f}" for size in sizes)
        assert f"{name} {shown}" in [" ".join(line.split()) for line in lines]
    assert "component all activations (as set) selective full" in [" ".join(line.split()) for line in lines]
    tokens, per_token = costs[0].n_tokens, costs[0].per_token
    assert lines[lines.index("stage t") + 3].endswith(f" {tokens * (per_token.forward + per_token.backward):.2e}")
    assert lines[lines.index("stage t") + 5].endswith("micro batch 8 x 2,048, bf16, ZeRO 1")


def test_a_faster_way_of_checkpointing_is_named() -> None:
    (stage,) = stages_of(*ONE, "engine=local", "engine.activation_checkpointing=full", "train.global_batch_size=16")
    text = page("small", [of(stage, Cluster(1, GPUS["a100_80gb"], 0.4))], Cluster(1, GPUS["a100_80gb"], 0.4))
    assert "local engine\n" in text and "full (as set)" in text
    assert "engine.activation_checkpointing=none" in text


def test_long_runs_are_given_in_days_too(costs: list[Cost]) -> None:
    for hours, amounts in ((47.9, ["47.9 hours", "1,533 GPU hours"]), (60, ["60 hours (2.5 days)", "1,920 GPU hours"])):
        text = page("long", [replace(costs[0], hours=hours)], A100)
        assert all(amount in text for amount in amounts)


def test_what_does_not_fit_is_said_with_a_change_that_fits() -> None:
    stage = coca_llama_7b("model.n_layers=2", "model.vocab_size=2000", "train.seq_len=8192")[2]
    cluster = Cluster(32, GPUS["rtx_3090"], 0.4)
    cost = of(stage, cluster)
    assert not cost.fits and cost.change is not None
    text = page("8k", [cost], cluster)
    most = cost.memory[stage.config.engine.activation_checkpointing].total / 2**30
    assert text.startswith("8k DOES NOT FIT on ") and f"\nneeds {most:.1f} of 22.8 GiB" in text
    assert re.search(rf"^  DOES NOT FIT into 22.8 GiB; .*: {re.escape(typed(cost.change))}$", text, re.M)
    changed = applied(cost.change, stage.config)
    again = of(replace(stage, config=changed), cluster)
    assert again.fits and again.change is None
    assert again.memory[changed.engine.activation_checkpointing].total <= cluster.gpu.usable


SHARDED = ("engine.zero_stage=3", "engine.bucket_size=1000", "engine.activation_checkpointing=full")
SMALL = (*ONE, *SHARDED, "train.micro_batch_size=1", "train.global_batch_size=64")


def stages_of(*words: str) -> tuple[Stage, ...]:
    return resolve(configure(*words))


def test_only_what_a_run_can_have_counts() -> None:
    """And validations need no more than a step: ZeRO 3 gathers weights as they are needed."""
    words = (*SHARDED, "model.n_layers=1", "model.d_ff=120000", "train.seq_len=8", "train.micro_batch_size=1")
    words = (*words, "train.global_batch_size=64")
    (stage,) = stages_of("model=llama_7b", *words)
    cost = of(stage)
    needed = cost.as_set
    assert needed.phases["validation"] < needed.training == needed.total
    for share, fits in ((1.0001, True), (0.9999, False), (0.98, False)):
        assert replace(cost, cluster=Cluster(32, gpu(share * needed.total), 0.4)).fits is fits
    most = gpu_memory(cost.outline, MOST_GPUS, "cuda", cost.watch).total
    little = Cluster(1, gpu(0.5 * most), 0.4)
    cost = of(stage, little)  # not even with as many GPUs as there may be
    assert not cost.fits and cost.change is None
    text = page("small", [cost], little)
    sizes = " ".join(f"{cost.memory[way].training / 2**30:,.2f}" for way in ("none", "selective", "full"))
    assert f"a step needs {sizes}" in " ".join(text.split())
    assert "\n  DOES NOT FIT into " in text and "gpus=" not in text


def test_it_must_fit_as_it_is_set() -> None:
    (stage,) = stages_of(*ONE, "model.n_layers=2", "train.global_batch_size=16", "train.seq_len=512")
    cost = of(stage, Cluster(1, gpu(1), 0.4))
    full, none = (cost.memory[way].total for way in ("full", "none"))
    assert full < none
    assert not replace(cost, cluster=Cluster(1, gpu((full + none) / 2), 0.4)).fits


def test_more_gpus_where_nothing_else_is_left_and_every_stage_can_have_them() -> None:
    (stage,) = stages_of(*SMALL)
    cost = of(stage, Cluster(8, gpu(1)))
    needed = gpu_memory(cost.outline, 16, "cuda", cost.watch).total
    enough, less = (replace(cost, cluster=Cluster(8, gpu(memory))) for memory in (needed, needed - 1))
    assert enough.change == {"gpus": 16}
    assert less.change == {"gpus": 32}
    train = replace(stage.config.train, global_batch_size=8)
    other = replace(stage.config, train=train)
    assert replace(enough, others=(other,)).change is None  # its 8 sequences do not go to 16
    (wide,) = stages_of(*SMALL, "train.micro_batch_size=2", "train.global_batch_size=16")
    assert of(wide, enough.cluster, (wide,)).change == {"gpus": 16}  # where a micro batch of 2 is one of 1


def test_a_report_that_does_not_fit_is_said_and_costs_no_change() -> None:
    (stage,) = stages_of(*SMALL, "eval.extrapolation.multiples=[1,1024]")
    cost = of(stage, Cluster(1, gpu(1), 0.4))
    cluster = Cluster(1, gpu(1.01 * cost.as_set.total), 0.4)
    cost = replace(cost, cluster=cluster)
    assert cost.fits and cost.memory["full"].report > cluster.gpu.usable
    text = page("small", [cost], cluster)
    assert "REPORT" in text.splitlines()[0] and "eval.extrapolation.multiples" in text


THREE = ("stages=coca_three", "optim.min_lr=1e-5")


def test_a_change_of_one_stage_is_typed_so_that_it_has_an_effect() -> None:
    """Of several stages only one is to be changed, and what a stage says of itself a run cannot change."""
    for words, change in (
        (THREE, "stages.t.train.micro_batch_size=2"),
        (("stages.all.train.micro_batch_size=8",), "stages.all.train.micro_batch_size=2"),
        ((), "train.micro_batch_size=2"),
    ):
        cost = of(stages_of(*ONE, *words)[0], Cluster(1, gpu(1)))
        vars(cost)["change"] = {"train.micro_batch_size": 2}
        assert f": {change}\n" in page("small", [cost], cost.cluster)
        assert resolve(configure(*ONE, *words, change))[0].config.train.micro_batch_size == 2


@pytest.mark.slow
def test_the_page_of_the_papers_stages() -> None:
    lines = page("coca_llama_7b", [of(stage) for stage in coca_llama_7b()], A100).splitlines()
    for beginning, end in (
        ("  trains 8.0 % -> 23.9 %", ""),
        ("  trains 23.9 % -> 100 %", ""),
        ("  trains    8.0 %", "536,870,912 of 6,738,415,616"),
        ("  trains    23.9 %", "1,610,612,736 of 6,738,415,616"),
        ("  tokens    7.86B: 15,000 steps", "256 x 2,048"),
        ("  DOES NOT FIT into 76.7 GiB", " train.micro_batch_size=2"),
    ):
        assert any(line.startswith(beginning) and line.endswith(end) for line in lines), beginning


@pytest.mark.parametrize(("words", "beginning"), [
    (("gpus=0",), "E-CFG-05 command line gpus=0: "),
    (("gpus=two",), "E-CFG-04 command line gpus=two: "),
    (("mfu=40",), "E-CFG-05 command line mfu=40: "),
    (("mfu=0",), "E-CFG-05 command line mfu=0"),
    (("gpu=a100",), "E-CFG-31 command line gpu=a100: "),
    (("gpuss=8",), "E-CFG-01 command line gpuss=8: "),
    (("gpu=v100_32gb",), "E-PLN-03 engine.dtype=bf16: "),
    (("gpus=3",), "E-CFG-19 train.global_batch_size=32: "),
    (("train.seq_length=5",), "E-CFG-01"),
    (("engine=local", "gpus=2"), "E-CFG-36"),
    (("engine.zero_stage=0",), "E-CFG-35"),
    (("--nonsense",), "E-CFG-38"),
])  # fmt: skip
def test_what_is_refused(words: tuple[str, ...], beginning: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", *TINY, *words])
    assert (code, capsys.readouterr().err[: len(beginning)]) == (2, beginning)


def test_all_that_is_refused_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coca_train.planning.outline.build_model", None)
    for words in (("gpu=v100_32gb",), ("gpus=3",), ("engine=local", "gpus=2")):
        assert main(["plan", *TINY, *words]) == 2


RECIPES = {
    "coca_llama_7b": (32, "4 sources", "2,048", ("t -> qtv", "qtv -> all")),
    "pi_llama_7b_32k": (32, "linear 16", "32,768", ()),
    "yarn_llama2_7b_128k": (8, "yarn 32", "65,536", ("all -> to_128k",)),
    "yarn_mistral_7b_128k": (8, "yarn 16", "16,384", ("all -> to_128k",)),
}


def output(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", slow_unless(["coca_llama_7b"], RECIPES))
def test_a_recipe_of_one_layer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    n_gpus, of_row, seq_len, borders = RECIPES[name]
    small = ("model.n_layers=1", "model.vocab_size=2000")
    text = output(f"+experiment={name}", *small, f"gpus={n_gpus}", capsys=capsys)
    assert text.startswith(f"{name} fits on {n_gpus} x ")
    assert re.search(r"counted.* \d+ % MFU .*: 312 ", text)
    assert of_row in text and seq_len in text
    assert [line for line in text.splitlines() if " -> " in line and not line.startswith(" ")] == list(borders)
    assert text.count("  fits into 76.7 GiB") == len(borders) + 1


def test_the_command_line_reaches_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    local = (*ONE, "engine=local")
    text = output(*local, capsys=capsys)
    assert text.startswith("quickstart fits on 1 x NVIDIA A100-SXM4-80GB: ")
    assert re.search(r"counted.* \d+ % MFU of NVIDIA A100-SXM4-80GB: 19.5 TFLOP/s dense fp32", text)
    assert text.count("  roofline  ") == 1
    assert "100 % MFU of NVIDIA H200" in output(*local, "gpu=h200", "mfu=1", "engine.device=cuda", capsys=capsys)
    on_cpu = output(*local, "gpu=h200", "engine.device=cpu", capsys=capsys)
    assert " 1 x this host's CPU: " in on_cpu and "no hours: " in on_cpu
    assert "  time      not known\n" in on_cpu and "hours at" not in on_cpu and "A100" not in on_cpu
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nrun:\n  name: mine\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    fp16 = (*ONE, "engine.dtype=fp16", "gpus=2")  # is not refused where there is no GPU
    with_folder = output(*fp16, "gpu=t4", "+experiment=mine", f"--config-dir={tmp_path}", capsys=capsys)
    assert with_folder.startswith("mine fits on 2 x Tesla T4") and "no hours: " in with_folder


def test_every_stage_is_planned_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(*ONE, *THREE, "stages.qtv.train.seq_len=128", capsys=capsys)
    rows = re.findall(r"FLOPs     a token: (\S+) forward.*?micro batch 16 x (\d+),", text, re.S)
    assert [length for _, length in rows] == ["64", "128", "64"]
    assert rows[0][0] == rows[2][0] != rows[1][0]


def test_every_gpu_is_one_that_throughput_knows() -> None:
    assert get_args(command.PlanConfig.__annotations__["gpu"]) == (*GPUS, "cpu")
    for name, gpu in GPUS.items():
        assert gpu_peak(gpu.device, "fp16", tf32=False) is not None, name
        assert find_gpu(name) is gpu
        assert gpu.usable == pytest.approx(0.97 * gpu.memory)
    assert [peak_of(GPUS["a100_80gb"], dtype).flops for dtype in ("bf16", "fp32")] == [312e12, 19.5e12]
    assert GPUS["a100_80gb"].memory == 79.1 * 1024**3
    assert find_gpu("cpu").memory == int(Path("/proc/meminfo").read_text().split()[1]) * 1024
