"""Decoding with a cache, token by token: for every scheme, frequency and attention pattern what POSITIONS.md section 2
says.

Text is forced, so that every step can be compared: 32 tokens behind a prompt, twice the training window.
"""

from functools import cache
from itertools import pairwise

import pytest
import torch

from coca_train.attention.kernels import sdpa
from coca_train.config.files import choices, config_dir
from coca_train.config.messages import ConfigError
from coca_train.models import generation
from coca_train.models.generation import _next_logits
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.settings import load
from coca_train.testing.parts import refused, shipped
from coca_train.vary import vary
from tests.cases import sampled, slow_unless

WINDOW, VOCAB, NEW = 16, 64, 32
SHAPE = ["model.d_model=32", "model.n_heads=2", "model.d_ff=64", f"train.seq_len={WINDOW}", "model.init_std=0.3"]
NEEDED = {"max_len": "position.max_len=128", "memory_len": "data.order=stream"}  # by settings that the scheme has
# Small enough that a cache of them loses tokens.
ATTENTION_PATTERNS = {
    "causal": [],
    "sliding_window": ["window=6"],
    "sinks": ["n_sink=2", "window=6"],
    "lambda_mask": ["n_global=3", "window=7", "max_distance=5"],
    "rerope": ["window=6"],
    "segments": ["length=9"],
}
HELD = {"sliding_window": 6, "sinks": 8, "lambda_mask": 10, "segments": 9}  # tokens
SHIPPED = dict(shipped())
SCHEMES = list(SHIPPED)
ROPE_SCALINGS = list(choices("position/rope_scaling", (config_dir(),)))
ROTARY = ["rope", "xpos", "coca", "coca_strict"]
PAIRS = [(s, v) for s in SCHEMES for v in ATTENTION_PATTERNS]
# Every scheme as it is, and with one other attention pattern, each time the next.
OTHERS = [[pair for pair in PAIRS if pair[0] == scheme and pair[1] != "causal"] for scheme in SCHEMES]
QUICK = [(scheme, "causal") for scheme in SCHEMES] + [pairs[n % len(pairs)] for n, pairs in enumerate(OTHERS)]


@cache
def trained(scheme, rope_scaling=None, n_layers=2):
    words = [
        f"position={scheme}",
        f"model.n_layers={n_layers}",
        *SHAPE,
        *(word for key, word in NEEDED.items() if key in SHIPPED[scheme]),
    ]
    return load([*words, *([f"position/rope_scaling={rope_scaling}"] if rope_scaling else [])]).config


def build(config, dtype=torch.float64):
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=VOCAB, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=3)
    return model.to(dtype).eval()


def visible(scheme, attention_pattern, rope_scaling=None, n_layers=2):
    """The scheme's configuration with an attention pattern of ATTENTION_PATTERNS."""
    words = [f"attention_pattern.{value}" for value in ATTENTION_PATTERNS[attention_pattern]]
    return vary(trained(scheme, rope_scaling, n_layers), [f"attention_pattern={attention_pattern}", *words])


def text(n_prompt):
    return torch.randint(0, VOCAB, (n_prompt + NEW,), generator=torch.Generator().manual_seed(n_prompt)).tolist()


@torch.no_grad()
def decode(model, n_prompt, mode="sequence", use_cache=True):
    """Logits of each of the NEW steps, (NEW, V)."""
    tokens, new, steps = text(n_prompt), [], []
    for logits in _next_logits(model, tokens[:n_prompt], new, NEW, mode, use_cache):
        steps.append(logits)
        new.append(tokens[n_prompt + len(new)])
    return torch.stack(steps)


@torch.no_grad()
def recompute(model, n_prompt, length=None):
    """The same from one forward over the whole text, at l = length."""
    tokens = torch.tensor([text(n_prompt)[:-1]])
    return model(tokens, length=length or n_prompt + NEW)[0, n_prompt - 1 :]


@torch.no_grad()
def replay(model, n_prompt):
    """The steps of `step` mode without a cache: every token attends at the length of the step that brought it in.

    Straight from the hooks of the scheme, a token and a layer at a time; for schemes that only map q and k.
    """
    tokens = torch.tensor([text(n_prompt)[:-1]])
    pos = torch.arange(tokens.shape[1])[None]
    tables = [model.position(pos[:, i : i + 1], pos[:, : i + 1], max(n_prompt, i + 1)) for i in range(tokens.shape[1])]
    x_BTC = model.embed(tokens)
    for block in model.blocks:
        attention, h_BTC = block.attention, block.attention_norm(x_BTC)
        q, k = attention.project_q(h_BTC), attention.project_k(h_BTC)
        v = attention.v(h_BTC).unflatten(-1, (attention.n_kv_heads, -1))
        rows = []
        for i, table in enumerate(tables):
            q_1, k_S = model.position.rotate(q[:, i : i + 1], k[:, : i + 1], table)
            scores = torch.einsum("bthe,bshe->bhts", q_1.double(), k_S.double()) * attention.head_dim**-0.5
            rows.append(torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v[:, : i + 1]).flatten(-2))
        attended_BTC = attention.out(torch.cat(rows, dim=1))
        x_BTC = x_BTC + attended_BTC + block.mlp(block.mlp_norm(x_BTC))  # parallel: neox_tiny
    return model.head(model.final_norm(x_BTC))[0, n_prompt - 1 :]


def close(actual, expected, atol=1e-5):
    assert actual.shape == expected.shape == (NEW, VOCAB)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize(("scheme", "attention_pattern"), slow_unless(QUICK, PAIRS))
def test_every_scheme_and_attention_pattern_equals_full_recompute(scheme, attention_pattern):
    """Or the pair is refused."""
    if refused(visible("rope", attention_pattern).attention_pattern, build(trained(scheme)).position):
        with pytest.raises(ConfigError, match="E-CFG-44 "):
            visible(scheme, attention_pattern)
        return
    model = build(visible(scheme, attention_pattern))
    expected = recompute(model, 5)
    for mode in ("sequence", "step"):  # keys rotated in the cache, where they can be, and not
        close(decode(model, 5, mode), expected)
    assert (attention_pattern == "causal") == torch.allclose(expected, recompute(build(trained(scheme)), 5), atol=1e-3)


@pytest.mark.parametrize("scheme", slow_unless(["rope", "coca", "alibi", "cope", "tupe"], SCHEMES))
def test_float32(scheme):
    model = build(trained(scheme), torch.float32)
    close(decode(model, 5), recompute(model, 5), atol=1e-4)


@pytest.mark.parametrize("attention_pattern", ATTENTION_PATTERNS)
def test_prompts_that_fill_the_cache_or_nothing_of_it(attention_pattern):
    model = build(visible("rope", attention_pattern))
    for n_prompt in (1, 30):
        close(decode(model, n_prompt), recompute(model, n_prompt))


@pytest.mark.parametrize("attention_pattern", slow_unless(["causal", "segments"], ATTENTION_PATTERNS))
def test_without_a_cache(attention_pattern):
    model = build(visible("rope", attention_pattern))
    close(decode(model, 30, use_cache=False), recompute(model, 30))


@pytest.mark.parametrize("attention_pattern", ATTENTION_PATTERNS)
@torch.no_grad()
def test_several_tokens_at_a_time(attention_pattern):
    """Chunks longer than what is kept, and shorter."""
    model, at, parts = build(visible("rope", attention_pattern)), 0, []
    tokens = torch.tensor([text(5)[:-1]])
    kept = model.new_cache(tokens.shape[1])
    for n_tokens in (3, 1, 12, 4, 2, 14):
        parts.append(model(tokens[:, at : at + n_tokens], length=5 + NEW, cache=kept)[0])
        at += n_tokens
    assert at == tokens.shape[1]
    close(torch.cat(parts)[4:], recompute(model, 5))


@pytest.mark.parametrize(("scheme", "rope_scaling"), sampled(ROTARY, ROPE_SCALINGS))
def test_every_frequency_equals_full_recompute(scheme, rope_scaling):
    """Mode `sequence`, far beyond the training window."""
    model = build(trained(scheme, rope_scaling))
    expected = recompute(model, 5)
    close(decode(model, 5), expected)
    if not follows_length(model):
        close(decode(model, 5, "step"), expected)
    else:
        assert not torch.allclose(expected, recompute(model, 5, length=WINDOW), atol=1e-3)


@pytest.mark.parametrize(
    ("scheme", "rope_scaling", "attention_pattern"), sampled(ROTARY, ROPE_SCALINGS, ATTENTION_PATTERNS, strength=1)
)
@torch.no_grad()
def test_keys_that_are_rotated_once_are_those_that_are_rotated_anew(scheme, rope_scaling, attention_pattern):
    """Bit for bit in the first layer, several tokens at a time and one by one; decoding is the full computation."""
    if refused(visible("rope", attention_pattern).attention_pattern, build(trained(scheme)).position):
        return
    model, total = build(visible(scheme, attention_pattern, rope_scaling)), 5 + NEW
    tokens = torch.tensor([text(5)[:-1]])
    once, anew = model.new_cache(total, total), model.new_cache(total)
    settles = scheme != "xpos" and attention_pattern not in ("rerope", "lambda_mask")
    for begin, end in pairwise([0, 5, 12, *range(13, tokens.shape[1] + 1)]):
        contexts, mapped = {}, {}
        for held in (once, anew):
            pos = model.positions_of(tokens[:, begin:end], None, None, held)
            contexts[held] = model.contexts(pos, pos, None, total, held)["default"]
            x_BTC = model.blocks[0].attention_norm(model.add_positions(model.embed(tokens[:, begin:end]), pos))
            parts = watched(model.blocks[0].attention, x_BTC, contexts[held])
            mapped[held] = [part.k_BSGE for part in parts]
        assert contexts[once].rotated == settles and not contexts[anew].rotated
        for one, other in zip(mapped[once], mapped[anew], strict=True):
            assert torch.equal(one, other)
    close(decode(model, 5), recompute(model, 5))


def watched(attention, x_BTC, context):
    """What the kernel is given."""
    given = []
    attention(x_BTC, context._replace(kernel=lambda parts, v, scale: given.extend(parts) or sdpa(parts, v, scale)))
    return given


@pytest.mark.parametrize(("scheme", "rope_scaling"), sampled(["rope", "coca", "coca_strict"], ROPE_SCALINGS))
@pytest.mark.parametrize("attention_pattern", ["causal", "sliding_window"])
def test_tables_made_ahead_are_those_of_every_token(scheme, rope_scaling, attention_pattern, monkeypatch):
    """Some tokens at a time, and in a last stretch up to the length."""
    monkeypatch.setattr("coca_train.models.cache.AHEAD", 5)
    model = build(visible(scheme, attention_pattern, rope_scaling))
    made = []
    model.position.register_forward_hook(lambda _, given, tables: made.append(given[0].pos_BT.shape[1]))
    expected = recompute(model, 5)
    made.clear()
    close(decode(model, 5), expected)
    assert len(made) < NEW / 2 and max(made) == 5


@torch.no_grad()
def test_a_cache_for_one_length_takes_no_other():
    model = build(trained("rope", "dynamic_ntk"))
    with pytest.raises(AssertionError):
        model.hidden(torch.tensor([[1, 2]]), length=50, cache=model.new_cache(40, 40))
    short, long = (model.hidden(torch.tensor([text(5)]), length=length) for length in (40, 400))
    cached = model.hidden(torch.tensor([text(5)]), cache=model.new_cache(40, 400))  # its own length, if none is said
    torch.testing.assert_close(cached, long)
    assert not torch.allclose(cached, short, atol=1e-3)


@pytest.mark.parametrize("rope_scaling", slow_unless(["ntk", "dynamic_yarn", "clex", None], [*ROPE_SCALINGS, None]))
@torch.no_grad()
def test_a_segment_is_a_text_by_itself(rope_scaling):
    """Also to frequencies that follow the length: l is the segment's."""
    model = build(visible("rope" if rope_scaling else "learned", "segments", rope_scaling))
    logits_TV = recompute(model, 5)
    model.set_attention_pattern(trained("rope").attention_pattern)  # causal
    tokens = torch.tensor([text(5)[:-1]])
    parts = [model(tokens[:, at : at + 9], length=9)[0] for at in range(0, tokens.shape[1], 9)]
    close(torch.cat(parts)[4:], logits_TV)


@pytest.mark.parametrize(("held", "same"), [(8, ["plain"]), (32, ["ntk", "factor=2"])])
def test_dynamic_frequencies_follow_the_cache_of_sinks(held, same):
    """Positions count in the cache: l is what it holds, half the training window or twice, and not the text's."""
    config = vary(visible("rope", "sinks", "dynamic_ntk"), [f"attention_pattern.window={held - 2}"])
    name, *values = same
    fixed = vary(config, [f"position/rope_scaling={name}", *(f"position.rope_scaling.{value}" for value in values)])
    close(decode(build(config), 5), recompute(build(fixed), 5))


@pytest.mark.parametrize(("scheme", "rope_scaling"), sampled(ROTARY[::-1], ROPE_SCALINGS))
def test_step_mode_equals_its_steps_replayed(scheme, rope_scaling):
    model = build(trained(scheme, rope_scaling))
    logits_TV = decode(model, 5, "step")
    close(logits_TV, replay(model, 5))
    within = WINDOW - 5 + 1  # steps up to l = L: nothing is dynamic yet
    assert torch.allclose(logits_TV[:within], recompute(model, 5, length=WINDOW)[:within], atol=1e-5)
    if follows_length(model):  # a deep model remembers what it was at shorter lengths
        assert not torch.allclose(logits_TV, decode(model, 5, "step", use_cache=False), atol=1e-3)


@pytest.mark.parametrize(
    ("scheme", "rope_scaling"), sampled(ROTARY, [name for name in ROPE_SCALINGS if name == "clex" or "dynamic" in name])
)
def test_step_mode_equals_full_recompute_in_one_layer(scheme, rope_scaling):
    model = build(trained(scheme, rope_scaling, n_layers=1))
    assert follows_length(model)
    expected = [recompute(model, 5, length=5 + step)[step] for step in range(NEW)]
    logits_TV = decode(model, 5, "step")
    close(logits_TV, torch.stack(expected))
    close(decode(model, 5, "step", use_cache=False), torch.stack(expected))
    assert not torch.allclose(logits_TV[-20:-1], recompute(model, 5)[-20:-1], atol=1e-3)  # the modes can be told apart


@torch.no_grad()
def follows_length(model):
    short, long = (model.position.rope_scaling(length).inv_freq_J for length in (WINDOW, 4 * WINDOW))
    return not torch.equal(short, long)


@pytest.mark.parametrize("attention_pattern", ATTENTION_PATTERNS)
def test_memory_of_a_cache(attention_pattern, monkeypatch):
    """Constant where tokens are forgotten: the same after 120 tokens as after 10, and no more than is seen."""
    model, caches = build(visible("rope", attention_pattern, n_layers=1)), []
    made = Transformer.new_cache
    monkeypatch.setattr(model, "new_cache", lambda *given: caches.append(made(model, *given)) or caches[-1])
    for n_tokens in (10, 120):
        generation.generate(model, [1, 2, 3], n_tokens)
    short, long = (kept.n_bytes for kept in caches)
    if attention_pattern not in HELD:
        assert long > 9 * short
        return
    one_token = 2 * 32 * 8  # keys and values, width, float64
    assert short == long == HELD[attention_pattern] * one_token
