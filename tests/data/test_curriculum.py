"""Contexts that grow: how long pieces are, where they end, and that attention sees nothing beyond them."""

import pytest
import torch

from coca_train.commands._training import load
from coca_train.config.messages import ConfigError
from coca_train.config.schema import CurriculumConfig
from coca_train.data.batch import Batch
from coca_train.data.curriculum import cut, piece_length

# SkyLadder's own functions (lit_gpt/packed_dataset.py) for 32 to 8,192 tokens in 1,000 steps: linear, sin, exp.
THEIRS = {
    "linear": {0: 32, 1: 40, 250: 2072, 500: 4112, 999: 8183, 1000: 8192, 5000: 8192},
    "sine": {0: 32, 1: 44, 250: 3154, 500: 5801, 999: 8191, 1000: 8192},
    "exponential": {0: 32, 1: 32, 250: 128, 500: 512, 999: 8146, 1000: 8192},
}


@pytest.mark.parametrize("shape", THEIRS)
def test_pieces_are_as_long_as_the_authors_have_them(shape):
    config = CurriculumConfig(begin=32, steps=1000, shape=shape)
    assert {step: piece_length(config, 8192, step) for step in THEIRS[shape]} == THEIRS[shape]


def test_without_a_curriculum_rows_are_whole():
    assert piece_length(CurriculumConfig(), 64, 0) == 64


def batch(doc=None):
    tokens_BT = torch.arange(20).reshape(2, 10)
    return Batch(tokens_BT=tokens_BT, targets_BT=tokens_BT + 1, pos_BT=torch.arange(10).repeat(2, 1), doc_BT=doc)


def test_rows_are_cut():
    one = cut(batch(), 4)
    assert one.doc_BT.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1, 2, 2]] * 2
    assert torch.equal(one.targets_BT, batch().targets_BT)
    assert torch.equal(one.pos_BT, batch().pos_BT)
    assert cut(batch(), 10).doc_BT is None


def test_documents_end_pieces_too():
    doc_BT = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]])
    assert cut(batch(doc_BT), 4).doc_BT.tolist() == [[0, 0, 0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 1, 2, 2, 2, 3, 4, 4]]
    assert cut(batch(doc_BT), 64).doc_BT is doc_BT


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["data.curriculum.steps=3"], "data.curriculum.begin"),
        (["data.curriculum.begin=4"], "data.curriculum.steps"),
        (["data.curriculum.begin=128", "data.curriculum.steps=3"], "train.seq_len"),
        (["data.curriculum.begin=4", "data.curriculum.steps=1000000"], "train.max_steps"),
        (["data.curriculum.begin=4", "data.curriculum.steps=3", "data.order=stream"], "data.order"),
        (["data.curriculum.begin=4", "data.curriculum.steps=3", "data.length_of=document"], "data.length_of"),
        (["data.curriculum.shape=sine"], "data.curriculum.shape"),
        (["data.curriculum.begin=4", "data.curriculum.steps=3", "position=path"], "position.scheme"),
        (
            ["data.curriculum.begin=4", "data.curriculum.steps=3", "model.logit_scale.name=log"],
            "model.logit_scale.name",
        ),
        (["+experiment=atlas", "data.curriculum.begin=4", "data.curriculum.steps=3"], "data.answers.begin"),
    ],
)
def test_what_cannot_be_is_refused(words, key):
    with pytest.raises(ConfigError) as raised:
        load([*([] if "+experiment" in words[0] else ["train.seq_len=128"]), "position=rope", *words], ())
    assert any("E-CFG-95" in line and key in line for line in raised.value.lines)
