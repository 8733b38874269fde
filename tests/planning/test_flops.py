"""FLOPs of a token: the known formula where everything is trained, hand counts where parts are frozen."""

import pytest

from coca_train.attention import linear, patterns
from coca_train.planning.meta_step import count_flops
from coca_train.tracking.throughput import flops_per_token
from tests.flops import matmul_parameters
from tests.planning.conftest import LLAMA_7B, TINY, K, outlined

# llama_tiny by hand: C = 256, F = 704, V = 320, 6 layers, T = 64; k and v are half as wide (GQA).
C, F, V, L, T = 256, 704, 320, 6, 64
Q = OUT = C * C
KEY = VALUE = C * C // 2
MLP = 3 * C * F
BLOCK = Q + KEY + VALUE + OUT + MLP
ATTENTION = 4 * C * T / 2  # q'k' and the weighing of v over half of all pairs
FORWARD = 2 * (L * BLOCK + C * V) + L * ATTENTION


@pytest.mark.parametrize(
    "words",
    [
        (*TINY, "position=rope"),
        (*TINY, "position=rope", "engine.activation_checkpointing=full", "engine.zero_stage=3"),  # once all the same
        (*TINY, "position=coca", "model.tie_embeddings=true"),
        (
            *TINY,
            "model.norm=layernorm",
            "model.bias=[qkv,out,mlp,norm]",
            "model.residual=parallel",
            "model.activation=gelu",
        ),
        (*LLAMA_7B, "model.n_layers=3"),
        ("model=neox_350m", "model.n_layers=2", "position=alibi"),
    ],
)
def test_all_trained_is_6nd_and_attention(words: tuple[str, ...]) -> None:
    """PaLM, arXiv 2204.02311, appendix B: as throughput.py has it, and a third of it forward."""
    outline = outlined(*words)
    width = outline.model.shape.n_heads * outline.model.shape.head_dim
    seq_len = outline.config.train.seq_len
    known = flops_per_token(matmul_parameters(outline.model), outline.config.model.n_layers, width, seq_len)
    counted = count_flops(outline)
    assert counted.total == pytest.approx(known, rel=1e-12)
    assert counted.forward == pytest.approx(known / 3, rel=1e-12)


def of(*trainable: str) -> float:
    count = count_flops(outlined(*TINY, "position=rope", trainable=trainable))
    assert count.forward == FORWARD
    assert count.total == count.forward + count.backward
    return count.backward


def test_only_the_head_trained_runs_backward_through_nothing() -> None:
    assert of("head.weight") == 2 * C * V  # its own gradient


def test_below_the_lowest_trained_weight_nothing_runs_backward() -> None:
    assert of("blocks.5.mlp.down.weight") == 2 * C * V + 2 * C * F  # the head passes it on; one weight gradient
    assert of("blocks.5.mlp.up.weight") == 2 * C * V + 2 * C * F + 2 * C * F  # through down


def test_keys_of_all_layers_trained() -> None:
    """Below the keys of layer 0 nothing needs a gradient, and q, k, v of layer 0 pass none on."""
    passed_on = C * V + L * BLOCK - (Q + KEY + VALUE)
    assert of(*K) == 2 * passed_on + 2 * L * KEY + 2 * L * ATTENTION


def test_keys_of_the_last_layers_trained() -> None:
    passed_on = C * V + 2 * (OUT + MLP) + (Q + KEY + VALUE)
    assert of("blocks.[45].attention.k.weight") == 2 * passed_on + 2 * 2 * KEY + 2 * 2 * ATTENTION


def test_norms_and_embeddings_trained_cost_what_passes_through() -> None:
    assert of("embed.weight") == 2 * (L * BLOCK + C * V) + 2 * L * ATTENTION
    assert of("final_norm.weight") == 2 * C * V


def test_stage_1_of_coca_llama_7b() -> None:
    """Two of its layers, by hand: N weights are multiplied with (all but the embedding and the norms)."""
    c, layers, attention = 4096, 2, 4 * 4096 * 2048 / 2
    n = layers * (4 * c * c + 3 * c * 11008) + 32000 * c
    words = (*LLAMA_7B[:2], "model.n_layers=2", "position=coca")
    count = count_flops(outlined(*words, trainable=K))
    assert count.forward == 2 * n + layers * attention
    assert count.backward == 2 * (n - 3 * c * c) + 2 * layers * c * c + 2 * layers * attention


def test_layers_that_see_less_cost_less() -> None:
    """Two layers see everything, four a window of 16: each query its last 16 tokens, the first 16 fewer."""
    window = "{attention_pattern: {name: sliding_window, window: 16}}"
    types = f"layers={{pattern: [default, local, local], types: {{local: {window}}}}}"
    count = count_flops(outlined(*TINY, "position=rope", types))
    pairs = sum(min(m + 1, 16) for m in range(T)) / sum(m + 1 for m in range(T))
    assert count.forward == pytest.approx(2 * (L * BLOCK + C * V) + (2 + 4 * pairs) * ATTENTION, rel=1e-12)
    assert count.total == pytest.approx(3 * count.forward, rel=1e-12)


def test_a_state_costs_every_token_the_same() -> None:
    """Of a linear layer a chunk's pairs, reading the state, adding to it, however long the text is."""
    words, width = (*TINY, "position=linear_rope"), C // 8
    short, long = (count_flops(outlined(*words, f"train.seq_len={n}")) for n in (512, 2048))
    assert short == long
    of_attention = L * 8 * 2 * linear.products(width, width)
    assert short.forward == pytest.approx(2 * (L * BLOCK + C * V) + of_attention, rel=1e-12)


@pytest.mark.parametrize(
    ("attention_pattern", "pairs"),
    [
        ({"name": "causal"}, 210),
        ({"name": "sliding_window", "window": 6}, 6 * 14 + 21),
        ({"name": "sinks", "n_sink": 2, "window": 6}, 6 * 14 + 21 + 1 + 13 * 2),
        ({"name": "lambda_mask", "n_global": 2, "window": 6, "max_distance": 4}, 6 * 14 + 21 + 1 + 13 * 2),
        ({"name": "rerope", "window": 6}, 210),
        ({"name": "segments", "length": 6}, 3 * 21 + 3),
    ],
)
def test_pairs_that_a_attention_pattern_shows(attention_pattern: dict[str, object], pairs: int) -> None:
    """Of the 210 of 20 tokens, counted by hand."""
    assert patterns.build(patterns.settings(attention_pattern)).share(20) == pytest.approx(pairs / 210)
