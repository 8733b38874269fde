import math

import pytest
import torch

from coca_train.models.generation import generate, pick
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.settings import load
from coca_train.vary import vary

WINDOW, VOCAB = 16, 61
PROMPT = [5, 9, 2, 33, 7]
SHAPE = ["model.d_model=32", "model.n_heads=2", "model.d_ff=64", f"train.seq_len={WINDOW}", "model.init_std=0.3"]


def build(position="rope", n_layers=2, rope_scaling="dynamic_ntk"):
    words = [f"position={position}", f"model.n_layers={n_layers}", *SHAPE]
    config = load([*words, *([f"position/rope_scaling={rope_scaling}"] if rope_scaling else [])]).config
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=VOCAB, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=3)
    return model


@torch.no_grad()
def replay(model, n, length_of):
    """Greedy decoding the plain way: the whole text again for every token, at l = length_of(tokens so far)."""
    tokens = list(PROMPT)
    for _ in range(n):
        logits = model(torch.tensor([tokens]), length=length_of(len(tokens)))
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize(("position", "rope_scaling"), [("rope", "dynamic_ntk"), ("alibi", None)])
@pytest.mark.parametrize("use_cache", [True, False])
def test_sequence_mode_equals_full_recompute_beyond_the_window(position, rope_scaling, use_cache):
    """The tokens; that the logits do for every scheme is in test_decoding."""
    model = build(position, rope_scaling=rope_scaling)
    expected = replay(model, 40, lambda held: len(PROMPT) + 40)
    assert generate(model, PROMPT, 40, use_cache=use_cache) == expected
    assert len(set(expected)) > 2  # says something


@torch.no_grad()
def test_the_length_each_step_sees():
    model, seen = build(), []
    hidden = model.hidden
    model.hidden = lambda *a, **k: seen.append(k["length"]) or hidden(*a, **k)  # type: ignore[method-assign]
    generate(model, PROMPT, 3)
    generate(model, PROMPT, 3, dynamic_length="step")
    assert seen == [8, 8, 8, 5, 6, 7]


def test_with_a_cache_each_token_is_computed_once():
    model, widths = build(), []
    hidden = model.hidden
    model.hidden = lambda t, **k: widths.append(t.shape[1]) or hidden(t, **k)  # type: ignore[method-assign]
    generate(model, PROMPT, 4)
    assert widths == [5, 1, 1, 1]


def test_the_end_of_the_document_ends_it_and_is_left_out():
    model = build()
    text = generate(model, PROMPT, 20)
    eod = text[6]
    assert generate(model, PROMPT, 20, eod=eod) == text[: text.index(eod)]


def test_sampling_is_reproducible_and_the_mode_of_the_model_comes_back():
    model = build().train()

    def sample(seed):
        return generate(model, PROMPT, 20, temperature=1.0, generator=torch.Generator().manual_seed(seed))

    assert sample(1) == sample(1) != sample(2)
    assert model.training


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}])
def test_narrow_sampling_is_greedy(options):
    model = build()
    assert generate(model, PROMPT, 10, **{"temperature": 1.0, **options}) == generate(model, PROMPT, 10)


LOGITS = torch.tensor([0.1, 0.5, 0.05, 0.25, 0.1]).log()


def draws(n=20000, **options):
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | options
    generator = torch.Generator().manual_seed(0)
    picked = [pick(LOGITS, **settings, generator=generator) for _ in range(n)]
    return torch.bincount(torch.tensor(picked), minlength=5) / n


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_follow_the_probabilities(temperature):
    assert torch.allclose(draws(temperature=temperature), (LOGITS / temperature).softmax(0), atol=0.012)
    assert pick(LOGITS, 0.0, 0, 1.0, None) == 1  # greedy


def test_top_k_keeps_the_k_likeliest_and_renormalises():
    shares = draws(5000, top_k=2)
    assert shares.nonzero().flatten().tolist() == [1, 3]
    assert shares[1] == pytest.approx(2 / 3, abs=0.03)


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, [1]), (0.51, [1, 3]), (0.75, [1, 3]), (0.9, [0, 1, 3, 4])])
def test_top_p_keeps_the_fewest_that_reach_p(top_p, kept):
    tokens = draws(3000, top_p=top_p).nonzero().flatten().tolist()
    # two tokens have probability 0.1: either may be the one that reaches 0.9 within rounding
    assert tokens == kept or (top_p == 0.9 and set(tokens) >= {1, 3} and len(tokens) in (3, 4))


@pytest.mark.parametrize(
    ("prompt", "options", "named"),
    [
        ([], {}, "prompt is empty"),
        (PROMPT, {"temperature": -1.0}, "temperature=-1.0"),
        (PROMPT, {"temperature": math.nan}, "temperature=nan"),
        (PROMPT, {"top_k": -1}, "top_k=-1"),
        (PROMPT, {"top_p": 0.0}, "top_p=0.0"),
        (PROMPT, {"top_p": 1.5}, "top_p=1.5"),
    ],
)
def test_bad_options_are_refused(prompt, options, named):
    with pytest.raises(ValueError, match=named):
        generate(build(), prompt, 5, **options)


@pytest.mark.parametrize("position", ["learned", "tupe"])
def test_the_end_of_a_learned_table(position):
    """Refused before the first token, not at the last."""
    config = load([f"position={position}", "model.n_layers=1", *SHAPE]).config
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=VOCAB, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=3)
    assert len(generate(model, PROMPT, WINDOW - len(PROMPT))) == WINDOW - len(PROMPT)
    with pytest.raises(ValueError, match=f"max_new_tokens=12 .* at most 11: {position} has 16 positions"):
        generate(model, PROMPT, WINDOW - len(PROMPT) + 1)
    model.set_attention_pattern(vary(config, ["attention_pattern=segments"]).attention_pattern)
    assert len(generate(model, PROMPT, 40)) == 40
