"""What a finished run gives away and says: folders for transformers, adapters for peft, and what to do next."""

from pathlib import Path

import pytest
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file

import coca_train.transformers  # noqa: F401  # so that the Auto classes know our own form
from coca_train.checkpoint.opening import load_run
from coca_train.hub import exporting
from coca_train.hub.adapters import export_adapters
from coca_train.hub.options import ExportConfig
from coca_train.runtime.errors import UserError
from tests.stages.support import EXPORTABLE, Runs, begin, schedule, stage, weights

QV = "trainable: ['blocks.*.attention.[qv].*', 'blocks.*.mlp.down.*'], lora: {rank: 4, alpha: 8}"
FULL, ADAPTED = stage("full", "max_steps: 2"), stage("adapted", f"max_steps: 3, {QV}")


LONGER = (
    "max_steps: 2, train: {seq_len: 48, micro_batch_size: 2}, position: {rope_scaling: {name: linear, factor: 2.0}}"
)


def export(run: Path, to: str, **options: object) -> Path:
    words = {"tokenizer": "none", "parity_tokens": 16} | options
    return exporting.export_run(ExportConfig(run=str(run), to=str(run.parent / to), **words))


def test_an_export_has_the_frequencies_and_the_window_of_its_stage(runs: Runs) -> None:
    run = runs.train("r", *schedule(stage("short", "max_steps: 2"), stage("long", LONGER)), *EXPORTABLE)
    folder = export(run, "hf")
    exported = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert exported.config.rope_parameters["rope_type"] == "linear" and exported.config.rope_parameters["factor"] == 2
    assert exported.config.max_position_embeddings == 48
    card = (folder / "README.md").read_text()
    assert "| short | " in card and "| long  | " in card  # what each stage read
    tokens_BT = torch.arange(1, 41)[None]
    with torch.no_grad():
        theirs, ours = exported(input_ids=tokens_BT).logits, load_run(run, "cpu").model(tokens_BT)
    assert torch.allclose(theirs, ours, atol=1e-5)


@pytest.mark.parametrize("words", [EXPORTABLE, [*EXPORTABLE, "position=coca"]], ids=["native", "own form"])
def test_peft_puts_exported_adapters_on_the_exported_base(runs: Runs, words: list[str]) -> None:
    """A run, then a LoRA stage from it: transformers with the base, peft with the adapters, our merged model."""
    base = export(runs.train("base", *schedule(FULL), *words), "base-hf")
    run = runs.train("tuned", *schedule(ADAPTED), *words, f"start.path={runs.folder}/base")
    folder = export_adapters(run, runs.folder / "adapters", "auto")
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    tokens_BT = torch.arange(20)[None]
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    with torch.no_grad():
        before = plain(input_ids=tokens_BT).logits.clone()
        theirs = PeftModel.from_pretrained(plain, str(folder)).eval()(input_ids=tokens_BT).logits
        ours = load_run(run, "cpu").model(tokens_BT)
    assert torch.allclose(theirs, ours, atol=1e-5)
    assert not torch.allclose(before, ours, atol=1e-3)
    assert len(load_file(folder / "adapter_model.safetensors")) == 2 * 2 * 3


@pytest.mark.parametrize(
    ("stages", "words", "why"),
    [
        ([FULL], EXPORTABLE, "its newest checkpoint is not of a stage with lora.rank"),
        (
            [stage("a", "max_steps: 1, trainable: ['*.q.weight', '*norm*'], lora: {rank: 2}")],
            EXPORTABLE,
            r"in full as well",
        ),
        (
            [stage("a", "max_steps: 1, trainable: ['*.q.weight'], lora: {rank: 2}")],
            ["position=rope"],
            "other matrices",
        ),
    ],
    ids=["no adapters", "norms", "fused"],
)
def test_adapters_that_peft_could_not_put_anywhere(runs: Runs, stages: list[str], words: list[str], why: str) -> None:
    run = runs.train("r", *schedule(*stages), *words)
    with pytest.raises(UserError, match=rf"E-IOP-21 .*merge=false: .*{why}.*Fix: merge=true"):
        export_adapters(run, runs.folder / "out", "auto")
    assert weights(run, 2 if why.startswith("its") else 1) and not (runs.folder / "out").exists()


def test_summary_of_a_single_run_of_stages_and_of_a_tuned_run(
    runs: Runs, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = stage("a", "max_steps: 1"), stage("b", "max_steps: 1")
    runs.train("single")
    single = capsys.readouterr().err
    assert "train.max_steps" in single
    assert "position=coca run.name=coca\n" in single and "coca_train compare schemes=" in single
    runs.train("staged", *schedule(a, b))
    staged = capsys.readouterr().err
    assert "one more stage" in staged and "report/a  " in staged and "report/b  " not in staged
    begin(runs, llama)
    tuned = capsys.readouterr().err
    assert f"evaluate checkpoint={llama}," in tuned
    for err in (staged, tuned):
        assert "run.name=coca" not in err
        assert "python -m coca_train export run=" in err
