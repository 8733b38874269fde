"""A training whose contexts grow: it resumes bit for bit, and its short steps see nothing beyond their pieces."""

import torch

from coca_train.checkpoint.opening import load_run
from coca_train.commands._training_step import show
from coca_train.data.loader import Loader
from tests.stages.support import weights

GROWING = ("data.curriculum.begin=4", "data.curriculum.steps=3", "train.max_steps=4", "checkpoint.save_every_steps=2")


def test_it_resumes_bit_for_bit(runs, capsys):
    whole = runs.train("whole", *GROWING)
    runs.train("cut", *GROWING, crash_at=3)
    assert weights(runs.train("cut", *GROWING), 4) == weights(whole, 4)
    assert weights(runs.train("plain", *GROWING[2:]), 4) != weights(whole, 4)
    assert "in pieces of 4 that do not see each other" in show(str(whole), 1, 1, 20, "")
    assert "in pieces" not in show(str(whole), 4, 1, 20, "")


def test_a_model_sees_its_piece_alone(runs, monkeypatch):
    """What it says of every piece is what it says of the piece by itself, at its own positions."""
    batches, step = [], Loader.step
    monkeypatch.setattr(Loader, "step", lambda self, n: batches.append(step(self, n)) or batches[-1])
    model = load_run(runs.train("seen", *GROWING, "position=rope"), "cpu").model
    batch = batches[0][0]
    whole_BTV = model(batch.tokens_BT, pos_BT=batch.pos_BT, doc_BT=batch.doc_BT)
    for begin in range(0, batch.tokens_BT.shape[1], 4):
        piece = slice(begin, begin + 4)
        alone_BTV = model(batch.tokens_BT[:, piece], pos_BT=batch.pos_BT[:, piece])
        torch.testing.assert_close(whole_BTV[:, piece], alone_BTV, rtol=0, atol=2e-5)
