"""Many prompts together against the plain loop: the whole sequence again for every new token, one prompt at a time."""

import random

import numpy as np
import pytest
import torch

from coca_train.models.continuations import continuations, count_common_prefix, plan
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.settings import load
from coca_train.vary import vary
from tests.cases import slow_unless

WINDOW, VOCAB, NEW = 16, 61, 8
SHAPE = ["model.d_model=32", "model.n_heads=2", "model.d_ff=64", f"train.seq_len={WINDOW}", "model.init_std=0.3"]
QUICK = [
    ("rope", "dynamic_ntk", ""),
    ("coca", "plain", ""),
    ("coca_strict", "dynamic_yarn", ""),
    ("alibi", None, ""),
    ("fox", None, "sliding_window window=7"),
    ("cope", None, ""),
    ("rope", "dynamic_ntk", "sinks n_sink=2 window=6"),
    ("coca", "plain", "lambda_mask window=6 max_distance=9"),
    ("rope", "plain", "rerope window=5"),
    ("rope", "plain", "segments length=9"),
]
SLOW = [("rope", "plain", ""), ("coca", "dynamic_ntk", ""), ("rope", "plain", "sliding_window window=7")]
SLOW += [(scheme, None, "") for scheme in ("t5", "fox", "dape", "fire")]


def build(position="rope", rope_scaling="plain", attention_pattern=""):
    words = [f"position={position}", "model.n_layers=2", *SHAPE]
    config = load([*words, *([f"position/rope_scaling={rope_scaling}"] if rope_scaling else [])]).config
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=VOCAB, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=3)
    if attention_pattern:
        words = f"attention_pattern={attention_pattern.replace(' ', ' attention_pattern.')}".split()
        model.set_attention_pattern(vary(config, words).attention_pattern)
    return model


def make_prompts():
    """Ten prompts of two lengths that leave one text at different places, two of them together, two all the same."""
    rng = random.Random(5)
    text = [rng.randrange(VOCAB) for _ in range(30)]
    prompts = []
    places = [(30, place) for place in (0, 4, 11, 11, 25, 30, 30)] + [(27, place) for place in (3, 19, 26)]
    for n_tokens, place in places:
        prompts.append(text[:place] + [rng.randrange(VOCAB) for _ in range(n_tokens - place)])
    rng.shuffle(prompts)
    return prompts


@torch.no_grad()
def plain_loop(model, prompt, length):
    tokens = list(prompt)
    for _ in range(NEW):
        tokens.append(int(model(torch.tensor([tokens]), length=length)[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(("position", "rope_scaling", "attention_pattern"), slow_unless(QUICK, QUICK + SLOW))
def test_it_equals_the_plain_loop(position, rope_scaling, attention_pattern):
    model, prompts = build(position, rope_scaling, attention_pattern), make_prompts()
    length = 30 + NEW
    texts = continuations(model, prompts, NEW, length=length, micro_batch_tokens=4 * length)
    expected = {index: plain_loop(model, prompt, length) for index, prompt in enumerate(prompts)}
    assert texts == expected
    assert len({tuple(row) for row in expected.values()}) >= 8  # of nine different prompts: the context matters


@pytest.mark.parametrize("n_ranks", [2, 3, 5])
def test_ranks_share_the_batches(n_ranks):
    model, prompts = build(), make_prompts()
    whole = continuations(model, prompts, NEW, length=42, micro_batch_tokens=84)
    parts = [
        continuations(model, prompts, NEW, length=42, micro_batch_tokens=84, rank=rank, n_ranks=n_ranks)
        for rank in range(n_ranks)
    ]
    assert sum(len(part) for part in parts) == len(prompts)
    assert {index: row for part in parts for index, row in part.items()} == whole
    assert all(parts)


def test_what_is_computed():
    """The trunk's 25 tokens once; then every prompt from where it leaves the trunk, equals in one pass."""
    prompts = [[1] * 25 + [2] * 5, [1] * 10 + [3] * 20, [1] * 10 + [4] * 20, [5] * 30]
    model, shapes = build(), []
    hidden = model.hidden
    model.hidden = lambda t, **k: shapes.append(tuple(t.shape)) or hidden(t, **k)  # type: ignore[method-assign]
    continuations(model, prompts, 3, length=33, micro_batch_tokens=4 * 33)
    trunk_and_rests = [(1, 30), (1, 10), (2, 20), (1, 19), (1, 1)]
    assert shapes == [*trunk_and_rests, (4, 1), (4, 1)]
    shapes.clear()
    continuations(model, prompts, 3, length=33, micro_batch_tokens=2 * 33, share=False)
    assert shapes == [(2, 30), (2, 1), (2, 1)] * 2


def test_batches_are_bounded_and_the_best_trunk_is_found():
    prompts = make_prompts()
    groups = plan(prompts, NEW, micro_batch_tokens=100, share=True)
    for group in groups:
        members = [np.array(prompt) for prompt in prompts if len(prompt) == len(group.trunk)]
        sums = {tuple(a.tolist()): sum(count_common_prefix(a, b) for b in members) for a in members}
        assert sums[tuple(group.trunk)] == max(sums.values())
        assert all(len(batch) * (len(group.trunk) + NEW) <= 100 for batch in group.batches)
        shared = [branch.shared for batch in group.batches for branch in batch]
        assert shared == sorted(shared)
        assert max(shared) < len(group.trunk)
    assert sorted(b.prompt for g in groups for batch in g.batches for b in batch) == list(range(10))


def test_the_end_of_the_document_ends_a_row_and_all_rows_end_the_batch():
    model, prompts = build(), make_prompts()
    texts = continuations(model, prompts, NEW, length=42, micro_batch_tokens=10**6)
    eod = texts[0][4]
    ended = continuations(model, prompts, NEW, length=42, micro_batch_tokens=10**6, eod=eod)
    assert ended == {i: text[: text.index(eod)] if eod in text else text for i, text in texts.items()}
    assert {len(text) for text in ended.values()} >= {NEW}
    widths = []
    head = model.head.forward
    model.head.forward = lambda x: widths.append(len(x)) or head(x)  # type: ignore[method-assign]
    continuations(model, [prompts[0]], NEW, length=42, micro_batch_tokens=42, eod=eod)
    assert len(widths) == texts[0].index(eod) + 1


def test_the_mode_of_the_model_comes_back_and_progress_is_told():
    model, shares = build().train(), []
    continuations(model, make_prompts(), 2, length=40, micro_batch_tokens=64, progress=shares.append)
    assert model.training
    assert shares == [done / 6 for done in range(1, 7)]  # seven prompts of 30 and three of 27, two at a time


@pytest.mark.parametrize(("prompts", "length", "named"), [([[]], 9, "prompt is empty"), ([[1, 2]], 4, "length=4 .* 5")])
def test_bad_calls_are_refused(prompts, length, named):
    with pytest.raises(ValueError, match=named):
        continuations(build(), prompts, 3, length=length, micro_batch_tokens=9)


def test_the_end_of_a_learned_table():
    config = load(["position=learned", "model.n_layers=1", *SHAPE]).config
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=VOCAB, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=3)
    with pytest.raises(ValueError, match="at most 2: learned has 16"):
        continuations(model, [[1] * 14], 3, length=17, micro_batch_tokens=17)
