"""What leaves a run is the model of the stage that made its newest weights, as the run itself opens it."""

import torch
import transformers

from coca_train.checkpoint.opening import load_run
from coca_train.hub import exporting
from coca_train.hub.options import EXPORT, given
from tests.stages.support import LLAMA, Runs, schedule, stage

LONGER = "max_steps: 2, train: {seq_len: 48, micro_batch_size: 2}, position: {frequencies: {name: linear, factor: 2.0}}"


def test_an_export_has_the_frequencies_and_the_window_of_its_stage(runs: Runs) -> None:
    run = runs.train("r", *schedule(stage("short", "max_steps: 2"), stage("long", LONGER)), *LLAMA)
    folder = exporting.run(given(EXPORT, run=str(run), to=str(runs.folder / "hf"), tokenizer="none", parity_tokens=16))
    exported = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert exported.config.rope_parameters["rope_type"] == "linear" and exported.config.rope_parameters["factor"] == 2
    assert exported.config.max_position_embeddings == 48
    card = (folder / "README.md").read_text()
    assert "| short | " in card and "| long  | " in card  # what each stage read
    tokens_BT = torch.arange(1, 41)[None]
    with torch.no_grad():
        theirs, ours = exported(input_ids=tokens_BT).logits, load_run(run, "cpu").model(tokens_BT)
    assert torch.allclose(theirs, ours, atol=1e-5)
