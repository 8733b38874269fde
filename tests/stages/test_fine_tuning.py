"""`start.path` without an experiment: fine-tuning's values, and one block that says what is otherwise, and why."""

from pathlib import Path

import pytest

from coca_train.commands import _fine_tuning, main
from coca_train.commands._training import load
from coca_train.config.files import config_dir
from coca_train.config.places import read_yaml
from coca_train.runtime import machine
from tests.faults import real
from tests.stages.support import STILL, Runs


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that computes in bf16."""
    monkeypatch.setattr(_fine_tuning, "_computes_bf16", lambda device: True)


def block(*words: str) -> list[str]:
    """The lines that say what is otherwise."""
    (note,) = load(list(words), launch=False).notes
    assert note.startswith("CHANGED ")
    return [line.strip() for line in note.splitlines()]


def test_the_values_are_those_of_fine_tuning(llama: Path) -> None:
    config = load([f"start.path={llama}"]).config
    optim, train = config.optim, config.train
    assert (optim.name, optim.lr, optim.weight_decay, optim.schedule) == ("adamw", 2e-5, 0.0, "constant")
    assert (optim.warmup_steps, train.micro_batch_size, train.global_batch_size) == (20, 1, 16)
    assert (train.seq_len, config.engine.dtype) == (24, "bf16")
    assert config == load([f"start={{path: {llama}}}"]).config
    model = load([f"start.path={llama}", "model=neox_tiny"]).config  # a model of one's own choice
    assert (model.optim, model.engine.dtype, model.model.d_model) == (optim, "bf16", 256)


def test_words_win(llama: Path) -> None:
    start = f"start.path={llama}"
    typed = load(["optim=muon_quick", start, "train.micro_batch_size=4", "engine.dtype=fp32", "data=embedded"]).config
    values = read_yaml(config_dir() / "optim" / "muon_quick.yaml")
    assert (typed.optim.name, typed.optim.lr, typed.optim.warmup_steps) == ("muon", values["lr"], 40)
    assert (typed.train.micro_batch_size, typed.engine.dtype) == (4, "fp32")
    assert load([start, "engine=deepspeed_fp32"]).config.engine.dtype == "fp32"
    assert load([start, "optim.lr=1e-4"]).config.optim.warmup_steps == 20
    assert load(["+experiment=quickstart", start, "model=from_start"]).config.optim.name == "muon"
    assert load([start, "start.path=null"]).config.optim.name == "muon"


def test_one_block_says_what_is_otherwise_and_how_to_have_it_back(llama: Path, capsys: pytest.CaptureFixture) -> None:
    start = f"start.path={llama}"
    lines = block(start)
    backs = [line.partition("(back: ")[2].rstrip(")") for line in lines if "(back: " in line]
    assert f"because of {start}," in lines[0] and "2e-05" in lines[1]
    assert "optim=muon_quick" in backs and "train.seq_len=128" in backs and "engine.dtype=fp32" in backs
    text = "\n".join(lines)
    assert "data=embedded" in text and "data.path=" in text and "train.max_steps=380" in text
    back = load([start, *backs]).config
    usual = load([]).config
    assert (back.optim, back.train, back.engine) == (usual.optim, usual.train, usual.engine)
    rest = "\n".join(block(start, *backs, "data=embedded", "train.max_steps=381"))
    assert "(back:" not in rest and "data=" not in rest and "those of the weights" in rest and "steps" not in rest
    assert main([start, "--cfg", "job"]) == 0
    assert capsys.readouterr().err.count("CHANGED ") == 1
    assert load(["+experiment=llama_tiny"]).notes == load([]).notes == ()


def test_text_of_ones_own_is_not_called_the_quickstarts(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text.")
    assert "embedded" not in "\n".join(block(f"start.path={llama}", f"data.path={tmp_path}"))


def test_it_says_where_frequencies_reach_further_than_what_is_trained(llama: Path) -> None:
    words = [f"start.path={llama}", "position/rope_scaling=yarn", "position.rope_scaling.factor=4"]
    assert "train.seq_len=96" in "\n".join(block(*words))
    assert "train.seq_len=96" not in "\n".join(block(*words, "train.seq_len=96"))
    assert "stretches" not in "\n".join(block(words[0]))


def test_a_run_keeps_the_precision_that_it_began_with(
    runs: Runs, llama: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from coca_train.training.run import train

    small = [word for word in real.TINY if not word.startswith(("model", "train.seq_len", "engine", "position"))]
    rest = [*small, "eval.max_tokens=48", *STILL[2:], *corpus, f"run.root={runs.folder}", "run.name=a"]
    words = [*rest, "engine.kind=local", "engine.zero_stage=0", f"start.path={llama}", "train.max_steps=1"]
    monkeypatch.setattr(_fine_tuning, "_computes_bf16", lambda device: False)
    assert load(words).config.engine.dtype == "fp32"
    train(load(words))
    monkeypatch.setattr(_fine_tuning, "_computes_bf16", lambda device: True)
    assert load(words).config.engine.dtype == "fp32"
    assert load([*words, "run.name=b"]).config.engine.dtype == "bf16"


def test_a_plan_is_for_the_gpus_it_names(llama: Path, capsys: pytest.CaptureFixture) -> None:
    for gpu, dtype in (("a100_80gb", "bf16"), ("t4", "fp32")):
        assert main(["plan", f"start.path={llama}", f"gpu={gpu}", "engine.device=auto"]) == 0
        assert ("engine.dtype=bf16" in capsys.readouterr().err) == (dtype == "bf16")


@pytest.mark.parametrize(("capabilities", "able"), [("8.0\n9.0\n", True), ("7.5\n9.0\n", False), ("", True)])
def test_gpus_are_asked_for_their_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capabilities: str, able: bool
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nprintf '{capabilities}'\n" if capabilities else "#!/bin/sh\nexit 9\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert machine.gpus_compute_bfloat16() == able


@pytest.mark.parametrize(
    ("line", "able"),
    [
        ("flags\t\t: fpu sse avx512_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu avx512f", False),
        ("model name\t: bf16", False),
    ],
)
def test_a_cpu_says_its_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, able: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.cpu_computes_bfloat16() == able
