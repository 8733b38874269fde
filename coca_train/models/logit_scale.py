"""Scores that grow with the length: all that is added up before the softmax, times a number for each query.

The more keys there are, the more of them a softmax spreads its weight over; a growing factor keeps it as sharp as it
was. With m the query's position in its text or document, from 0 on, so that it sees at most m + 1 keys:

    log    max(1, ln(m + 1) / ln L)              Su, kexue.fm/archives/8823: entropy stays what it is at L keys;
                                                 ReRoPE's code evaluates with it, CLEX's with the keys of a
                                                 call in place of m + 1
    steps  1 + beta · ln(1 + floor((m + 1) / L))  Llama 4 (transformers' Llama4TextAttention), in its NoPE layers;
                                                 Scalable-Softmax (arXiv 2501.19399) is the source both name

L is `length`, or the training window. Where queries are scaled (Llama 4, Qwen) and nothing is added to the scores, this
is the same; terms and folded biases are scaled with them, so that the factor is a temperature whatever the scheme.

Shape legend: B batch, T queries.
"""

import math

import torch
from torch import Tensor

from coca_train.config.schema import LogitScaleConfig


def logit_scale(settings: LogitScaleConfig, text_BT: Tensor, max_seq_len: int) -> Tensor | None:
    """The factor of every query, float32 (B, T); None: one. text_BT: integer positions. max_seq_len: the training
    window [tokens]."""
    if settings.name == "none":
        return None
    length, n_keys_BT = settings.length or max_seq_len, text_BT + 1
    if settings.name == "log":
        return (n_keys_BT.float().log() / math.log(length)).clamp(min=1.0)
    return 1.0 + settings.beta * torch.log1p((n_keys_BT // length).float())
