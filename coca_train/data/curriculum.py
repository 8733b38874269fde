"""Contexts that grow within a stage (SkyLadder, arXiv 2503.15450, section 3): the rows of a batch are cut into pieces
that do not see each other, short ones at the first step and whole rows at the last of the curriculum.

Tokens, targets and positions stay what they are, and every row is a function of the step, so a run resumes exactly.
A step is not faster for it: the mask of pieces is that of documents. Where these are masked, a piece ends at the end of
a document too.

Shape legend: B sequences, T tokens.
"""

import math
from dataclasses import replace

import torch

from coca_train.config.schema import CurriculumConfig
from coca_train.data.batch import Batch


def piece_length(config: CurriculumConfig, seq_len: int, step: int) -> int:
    """Return how many tokens a piece has at a step of the stage, from 0; seq_len where rows are whole."""
    if config.begin is None or config.steps is None or step >= config.steps:
        return seq_len
    progress = step / config.steps
    if config.shape == "exponential":
        return int(config.begin * (seq_len / config.begin) ** progress)
    share = math.sin(math.pi / 2 * progress) if config.shape == "sine" else progress
    return config.begin + int((seq_len - config.begin) * share)


def cut(batch: Batch, length: int) -> Batch:
    """Cut every row into pieces of `length` tokens, the last one what is left; the batch as it is where rows are no
    longer."""
    n_tokens = batch.tokens_BT.shape[1]
    if length >= n_tokens:
        return batch
    piece_T = torch.arange(n_tokens) // length
    doc_BT = torch.zeros_like(batch.tokens_BT) if batch.doc_BT is None else batch.doc_BT
    begins_BT = (doc_BT.diff(dim=1) != 0) | (piece_T.diff() != 0)
    return replace(batch, doc_BT=torch.nn.functional.pad(begins_BT.long().cumsum(1), (1, 0)))
