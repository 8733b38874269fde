"""The training of an encoder: it resumes bit for bit, its report is about losses, and what asks it for next tokens says
why not."""

import pytest

from coca_train.api import open_model
from coca_train.commands import main
from coca_train.runtime.errors import UserError
from coca_train.tracking.throughput import Throughput
from coca_train.vary import vary
from tests.stages.support import weights

ENCODER = ("attention_pattern=bidirectional", "data.objective.name=masked_token", "data.objective.mask='<unk>'")
FEW = (*ENCODER, "train.max_steps=4", "checkpoint.save_every_steps=2")


def test_it_resumes_bit_for_bit(runs):
    whole = runs.train("whole", *FEW, "position=coca")
    runs.train("cut", *FEW, "position=coca", crash_at=3)
    assert weights(runs.train("cut", *FEW, "position=coca"), 4) == weights(whole, 4)


def test_its_speed_is_that_of_reading(runs, monkeypatch):
    """Of the four rows of 24 tokens of a step, not of those that were hidden."""
    counted = []
    monkeypatch.setattr(Throughput, "add", lambda self, tokens, seconds: counted.append(tokens))
    runs.train("run", *FEW, "position=rope")
    assert counted == [4 * 24] * 4


def test_what_asks_for_next_tokens_says_why_not(runs, capsys):
    run = runs.train("run", *FEW, "position=rope", "eval.extrapolation.enabled=true", "eval.sample_tokens=8")
    said = "".join(capsys.readouterr())
    assert "report    page" in said and "sample text" not in said and "how far" not in said
    refused = {
        "E-RUN-35": [["generate", f"run={run}", "prompt=time"], ["extend", f"run={run}", "length=64"]],
        "E-IOP-15": [["export", f"run={run}", f"to={run}-hf"]],
        "E-RUN-22": [["compare", f"runs={run},{run}-2"]],
        "E-EVAL-07": [["evaluate", f"checkpoint={run}", "grid.lengths=[32]", f"work.root={run}/evaluations"]],
    }
    for code, commands in refused.items():
        for words in commands:
            capsys.readouterr()
            assert main(words) != 0
            said = capsys.readouterr().err
            assert code in said and "Traceback" not in said, said
    model = open_model(run)
    assert model.logits([5, 6, 7]).shape[0] == 3
    with pytest.raises(UserError, match="E-RUN-35"):
        model.generate([5, 6, 7])
    with pytest.raises(UserError, match="E-CFG-96"):
        vary(model.config, ["model.logit_scale.name=log"])
    with pytest.raises(UserError, match=r"E-CFG-44 .* cannot read in one direction"):
        vary(model.config, ["attention_pattern=causal"])


def test_an_encoder_begins_from_an_encoder_alone(runs):
    run = runs.train("run", *FEW, "position=t5")
    causal = ["train.max_steps=2", "position=t5", f"start.path={run}"]
    with pytest.raises(UserError, match=r"E-STA-02 .* attention_pattern=bidirectional"):
        runs.train("causal", *causal)
    assert runs.train("encoder", *FEW, "position=t5", f"start.path={run}").is_dir()


def test_the_anomaly_of_both_sides_is_measured(runs, capsys):
    run = runs.train("run", *FEW, "position=rope")
    words = ["evaluate", "+eval=anomaly", f"checkpoint={run}", "grid.lengths=[16]", f"work.root={run}/evaluations"]
    assert main(words) == 0, capsys.readouterr().err
