"""`data.answers`: which predictions are scored, by hand and pair by pair."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coca_train.config.schema import AnswersConfig, SourceConfig
from coca_train.data.answers import Marks, marks_of, score_answers
from coca_train.data.batch import collate
from coca_train.data.held_out import HeldOut, Validation
from coca_train.data.mixture import Mixture, fingerprint_diff
from coca_train.data.packing import Edges, Row
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import IGNORE
from coca_train.runtime.errors import DataError, UserError
from coca_train.settings import load
from data_prep.verbs.diagnostics import write_tokenizer

BEGIN, END = 8, 9


def scored(ids: list[int], starts: list[int] | None, end: int | None = END) -> list[int]:
    """The targets that count, of one row."""
    batch = collate([Row(np.array(ids), len(ids) - 1, starts)])
    return [int(each) for each in score_answers(batch, Marks(BEGIN, end)).targets_BT[0] if each != IGNORE]


def test_answers_and_what_ends_them():
    assert scored([1, 2, BEGIN, 3, 4, END, 5, BEGIN, 6, END, 7], None) == [3, 4, END, 6, END]
    assert scored([1, 2, 3], None) == []


def test_an_answer_without_an_end_goes_on_to_the_end_of_its_document():
    ids = [1, BEGIN, 3, 4, 1, 2, BEGIN, 5]
    assert scored(ids, None, end=None) == [3, 4, 1, 2, BEGIN, 5]
    # The first token of a document is never a target, and the answer of the document before is over.
    assert scored(ids, [4], end=None) == [3, 4, 5]
    assert scored([1, BEGIN, 3, 1, 2, END, 4], [3]) == [3]


def test_against_a_loop():
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids, starts = rng.integers(5, 10, 20), sorted(rng.choice(np.arange(1, 19), 3, replace=False).tolist())
        batch = collate([Row(ids, 17, starts)])
        expected, on = [], False
        for at in range(19):
            on = False if at in starts else on
            on = True if ids[at] == BEGIN else False if ids[at] == END else on
            expected.append(int(batch.targets_BT[0, at]) if on else IGNORE)
        assert score_answers(batch, Marks(BEGIN, END)).targets_BT[0].tolist() == expected


def test_a_batch_keeps_all_else():
    batch = collate([Row(np.array([1, BEGIN, 3, END]), 3, [])])
    of_answers = score_answers(batch, Marks(BEGIN, END))
    assert torch.equal(of_answers.tokens_BT, batch.tokens_BT)
    assert torch.equal(of_answers.pos_BT, batch.pos_BT)


@pytest.fixture
def of_diagnostics(data_config, tmp_path):
    path = tmp_path / "diagnostics.model"
    write_tokenizer(path)
    return replace(data_config(), tokenizer=str(path), answers=AnswersConfig(begin="=", end=";"))


def test_a_piece_has_to_be_a_token(data_config, of_diagnostics):
    assert marks_of(data_config()) is None
    assert marks_of(of_diagnostics) == Marks(*(Tokenizer(of_diagnostics.tokenizer).encode("= ;")))
    with pytest.raises(DataError, match=r"E-MIX-05 data.answers.begin='the answer'.*Fix"):
        marks_of(replace(of_diagnostics, answers=AnswersConfig(begin="the answer")))


@pytest.fixture
def recalling(of_diagnostics, write_dataset, tmp_path):
    """Four documents of 23 tokens, as configuration."""
    symbols = "recall din kon ban lun don lin | ban = lun ; din = kon ; don = lin ;"
    ids = np.array([*Tokenizer(of_diagnostics.tokenizer).encode(symbols), 2])
    path = write_dataset(tmp_path / "one", [ids] * 4)
    source = SourceConfig(path=path, valid_path=path, weight=1)
    return replace(of_diagnostics, sources={"one": source}, packing="documents", document_mask=True)


EDGES = Edges(1, 2)


def test_what_is_scored_is_part_of_the_data(recalling):
    """A run goes on with the same predictions scored, or not at all."""
    scored, other = (
        Mixture(replace(recalling, answers=answers), 32, edges=EDGES).fingerprint()
        for answers in (recalling.answers, AnswersConfig(begin="="))
    )
    assert "order.answers.end" in (fingerprint_diff(scored, other) or "")


def answered(config, batch) -> str:
    return Tokenizer(config.tokenizer).decode(batch.targets_BT[batch.targets_BT != IGNORE].tolist())


def test_training_and_validation_score_alike(recalling):
    """Also where a window of the held-out text would begin within a document."""
    assert answered(recalling, Mixture(recalling, 24, edges=EDGES).samples(0, 1)) == "lun ; kon ; lin ;"
    for batch in Validation(HeldOut(recalling), 24, 72, 1).batches()["one"]:
        assert answered(recalling, batch) == "lun ; kon ; lin ;"


def test_data_without_an_answer_are_refused(recalling):
    with pytest.raises(DataError, match=r"E-MIX-06 data.answers.begin='copy'.*data.sources.one.*Fix"):
        Mixture(replace(recalling, answers=AnswersConfig(begin="copy")), 24, edges=EDGES)


def test_an_unknown_piece_is_no_mark(of_diagnostics):
    with pytest.raises(DataError, match="E-MIX-05"):
        marks_of(replace(of_diagnostics, answers=AnswersConfig(begin="typo")))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.answers.begin=null"], "data.answers.end"),
        (["data.answers.end='='"], "an answer would end where it begins"),
        (["data.packing=windows"], "windows cut documents"),
    ],
)
def test_answers_that_cannot_be_learned(words, said):
    with pytest.raises(UserError, match=f"E-CFG-93(.|\n)*{said}(.|\n)*Fix|{said}(.|\n)*E-CFG-93(.|\n)*Fix"):
        load(["+experiment=atlas", *words], launch=False)
