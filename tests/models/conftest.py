"""Small models, built directly from settings."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from coca_train import positions
from coca_train.attention import kernels, patterns, tiled_attention
from coca_train.config.schema import ModelConfig
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.testing.parts import MODEL, shipped

NEOX = replace(
    MODEL,
    norm="layernorm",
    norm_eps=1e-5,
    activation="gelu",
    residual="parallel",
    bias=["qkv", "out", "mlp", "norm"],
    n_kv_heads=None,
)
LLAMA = MODEL
PLAIN = {"name": "plain", "theta": 10000.0}
SCHEMES: dict[str, dict[str, Any]] = {  # every one that is shipped, and forms that no yaml stands for
    **dict(shipped()),
    "rope_partial": {"scheme": "rope", "rotary_pct": 0.5, "rope_scaling": PLAIN},
    "alibi_plain": {"scheme": "alibi", "fold": "never"},
    "alibi_folded": {"scheme": "alibi", "fold": "always"},
    "coca_half": {
        "scheme": "coca",
        "variant": "slack",
        "t_width": "half",
        "rotary_pct": 1.0,
        "rope_scaling": PLAIN,
    },
}
CAUSAL = {"name": "causal"}


def settings(scheme: str | dict[str, Any], attention_pattern: dict[str, Any] = CAUSAL) -> tuple[Any, Any]:
    """Typed settings of a scheme (a name of SCHEMES, or the mapping itself) and of an attention pattern."""
    chosen = SCHEMES[scheme] if isinstance(scheme, str) else scheme
    return positions.settings(chosen), patterns.settings(attention_pattern)


def build(
    config: ModelConfig, scheme: str | dict[str, Any], attention_pattern: dict[str, Any] = CAUSAL, **options: Any
) -> Transformer:
    model = Transformer(config, *settings(scheme, attention_pattern), vocab_size=101, max_seq_len=32, **options)
    init_weights(model, config, seed=3)
    return model


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def tokens_BT() -> Callable[..., torch.Tensor]:
    return lambda batch=2, length=33: torch.randint(0, 101, (batch, length), generator=torch.Generator().manual_seed(5))


@pytest.fixture
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels go through every path on a handful of tokens."""
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
    monkeypatch.setattr(kernels, "MASK_BLOCK", 2)
    monkeypatch.setattr(kernels, "RECOMPUTE_ABOVE", 9)
    monkeypatch.setattr(tiled_attention, "QUERY_TILE", 3)
    monkeypatch.setattr(tiled_attention, "KEY_TILE", 4)
    monkeypatch.setattr(tiled_attention, "TILE_PAIRS", 0)
