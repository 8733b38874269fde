"""What a finished run gives away and says: folders for transformers, and what to do next."""

from pathlib import Path

import pytest
import torch
import transformers

import coca_train.transformers  # noqa: F401  # so that the Auto classes know our own form
from coca_train.checkpoint.opening import load_run
from coca_train.hub import exporting
from coca_train.hub.options import ExportConfig
from tests.stages.support import EXPORTABLE, Runs, begin, schedule, stage

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
