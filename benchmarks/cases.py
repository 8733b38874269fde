"""What is timed: each case is a name and a function that builds one repeatable unit of work.

Shape legend: B batch, T sequence, H heads, D head_dim, C d_model, V vocab_size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from coca_train.config.load import load
from coca_train.generation import generate
from coca_train.models.attention import Attention, AttentionContext
from coca_train.models.init import init_weights
from coca_train.models.kernels import KERNELS, Bias
from coca_train.models.transformer import Transformer
from coca_train.positions import AttentionShape, build

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Work = Callable[[], Any]


@dataclass(frozen=True)
class Setup:
    """Where and how large. Training and decoding take the model config by name; attention its own shape."""

    device: str
    dtype: str
    model: str = "neox_tiny"
    vocab_size: int = 8192
    seq_len: int = 512
    batch: int = 8
    attention_tokens: int = 8192  # B x T of the attention cases, the same at every T
    attention_heads: int = 2
    attention_head_dim: int = 64
    prompt_tokens: int = 128
    new_tokens: int = 64

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


def training(name: str, setup: Setup) -> Work:
    """One optimizer step: forward, loss, backward, fused AdamW. name: ours/<position> or transformers/<kernel>."""
    torch.manual_seed(0)
    model = _model(name, setup).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens_BT = torch.randint(setup.vocab_size, (setup.batch, setup.seq_len + 1), device=setup.device)

    def step() -> None:
        loss = _loss(name, model, tokens_BT)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _loss(name: str, model: nn.Module, tokens_BT: torch.Tensor) -> torch.Tensor:
    inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
    if name.startswith("transformers/"):
        return model(input_ids=inputs_BT, labels=inputs_BT, shift_labels=targets_BT.contiguous()).loss
    return model(inputs_BT, targets_BT) / targets_BT.numel()


def _model(name: str, setup: Setup) -> nn.Module:
    package, option = name.split("/")
    if package == "transformers":
        return _neox(setup, option)
    config = load([f"model={setup.model}", f"position={option}"]).config
    with torch.device(setup.device):
        model = Transformer(config.model, config.position, vocab_size=setup.vocab_size, max_seq_len=setup.seq_len)
    init_weights(model, config.model, seed=0)
    return model.to(setup.torch_dtype)


def _neox(setup: Setup, kernel: str) -> nn.Module:
    """The same shape in `transformers`: full rotary, no dropout."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    shape = load([f"model={setup.model}"]).config.model
    config = GPTNeoXConfig(
        vocab_size=setup.vocab_size,
        hidden_size=shape.d_model,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        intermediate_size=shape.d_ff,
        max_position_embeddings=max(2048, setup.seq_len),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        use_cache=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = kernel
    model: Any = GPTNeoXForCausalLM(config)
    return model.to(setup.device, setup.torch_dtype)


def decoding(name: str, setup: Setup) -> Work:
    """Greedy decoding of new_tokens after prompt_tokens, one sequence, with a cache."""
    torch.manual_seed(0)
    model = _model(name, setup).eval()
    prompt = torch.randint(setup.vocab_size, (setup.prompt_tokens,)).tolist()
    if not name.startswith("transformers/"):
        return lambda: generate(model, prompt, setup.new_tokens)

    @torch.no_grad()
    def decode() -> None:
        """A bare loop: less overhead than transformers' generate()."""
        tokens_BT, cache = torch.tensor([prompt], device=setup.device), None
        for _ in range(setup.new_tokens):
            out = model(input_ids=tokens_BT, past_key_values=cache, use_cache=True, logits_to_keep=1)
            tokens_BT, cache = out.logits[:, -1:].argmax(-1), out.past_key_values

    return decode


def attention(name: str, setup: Setup) -> Work:
    """Attention of one layer, forward and backward. name: <position>/<part>/<T>.

    part core: rotate and kernel on given q, k, v; layer: the projections too. The angle tables, which
    all layers of a forward share, are made outside.
    """
    option, part, length = name.split("/")
    n_tokens = int(length)
    torch.manual_seed(0)
    heads, width = setup.attention_heads, setup.attention_head_dim
    config = load([f"position={option}", f"train.seq_len={n_tokens}"]).config
    position = build(config.position, AttentionShape(heads, heads, width, n_tokens))
    batch = max(1, setup.attention_tokens // n_tokens)
    pos_BT = torch.arange(n_tokens, device=setup.device)[None]
    tables = position.tables(pos_BT, pos_BT, n_tokens)
    context = AttentionContext(
        position, KERNELS["auto"], tables, Bias(position.score_mod(pos_BT, pos_BT, tables)), None
    )
    options = {"device": setup.device, "dtype": setup.torch_dtype, "requires_grad": True}
    if part == "layer":
        shape = replace(config.model, d_model=heads * width, n_heads=heads, n_kv_heads=None, head_dim=None)
        layer = Attention(shape, 0, width, position.key_dim).to(setup.device, setup.torch_dtype)
        x_BTC = torch.randn(batch, n_tokens, heads * width, **options)
        return lambda: layer(x_BTC, context).sum().backward()
    q_BTHD, v_BTHD = (torch.randn(batch, n_tokens, heads, width, **options) for _ in range(2))
    k_BTHK = torch.randn(batch, n_tokens, heads, position.key_dim, **options)

    def work() -> None:
        q_BTHE, k_BTHE = position.rotate(q_BTHD, k_BTHK, context.tables)
        context.kernel(q_BTHE, k_BTHE, v_BTHD, width**-0.5, context.bias).sum().backward()

    return work


def long_forward(name: str, setup: Setup) -> Work:
    """Evaluation at a great length: rotate and kernel, no gradients. name: <position>/<T>."""
    option, length = name.split("/")
    config = load([f"position={option}", f"train.seq_len={length}"]).config
    heads, width, n_tokens = setup.attention_heads, setup.attention_head_dim, int(length)
    position = build(config.position, AttentionShape(heads, heads, width, n_tokens))
    options = {"device": setup.device, "dtype": setup.torch_dtype}
    q_BTHD, v_BTHD = (torch.randn(1, n_tokens, heads, width, **options) for _ in range(2))
    k_BTHK = torch.randn(1, n_tokens, heads, position.key_dim, **options)
    pos_BT = torch.arange(n_tokens, device=setup.device)[None]

    @torch.no_grad()
    def work() -> None:
        tables = position.tables(pos_BT, pos_BT, n_tokens)
        q_BTHE, k_BTHE = position.rotate(q_BTHD, k_BTHK, tables)
        KERNELS["auto"](q_BTHE, k_BTHE, v_BTHD, width**-0.5, Bias(position.score_mod(pos_BT, pos_BT, tables)))

    return work


KINDS: dict[str, Callable[[str, Setup], Work]] = {
    "training": training,
    "decoding": decoding,
    "attention": attention,
    "long_forward": long_forward,
}
