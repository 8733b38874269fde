"""What is timed: each case is a name and a function that builds one repeatable unit of work.

Shape legend: B batch, T sequence, S keys, H heads, D head_dim, C d_model, V vocab_size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from benchmarks.plain_gpt import PlainGPT
from coca_train.attention import patterns
from coca_train.attention.kernels import KERNELS
from coca_train.attention.pattern import AttentionPattern, layouts_of_heads
from coca_train.attention.scores import part_of
from coca_train.catalog.entries import entries
from coca_train.catalog.facts import load_reference
from coca_train.models.generation import generate
from coca_train.models.init import init_weights
from coca_train.models.layers import Attention, AttentionContext
from coca_train.models.transformer import Transformer
from coca_train.positions import build, rotary
from coca_train.positions.base import AttentionShape, LayerPosition, Position, Projections
from coca_train.settings import load

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Work = Callable[[], Any]
WINDOW = 512  # training window of the attention patterns in `scheme`: how far they see [tokens]


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
    """One optimizer step: forward, loss, backward, fused AdamW. name: ours/<position>, transformers/<kernel> or
    plain/gpt."""
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
    if name.startswith("plain/"):
        return model(inputs_BT, targets_BT)
    return model(inputs_BT, targets_BT) / targets_BT.numel()


def _model(name: str, setup: Setup) -> nn.Module:
    package, option = name.split("/")
    if package == "transformers":
        return _neox(setup, option)
    if package == "plain":
        shape = load([f"model={setup.model}"]).config.model
        return PlainGPT(shape, setup.vocab_size, setup.seq_len).to(setup.device, setup.torch_dtype)
    config = load([f"model={setup.model}", f"position={option}"]).config
    with torch.device(setup.device):
        model = Transformer(
            config.model,
            config.position,
            config.attention_pattern,
            vocab_size=setup.vocab_size,
            max_seq_len=setup.seq_len,
        )
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
    model: Any = _model(name, setup).eval()
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
    torch.manual_seed(0)
    heads, width, n_tokens = setup.attention_heads, setup.attention_head_dim, int(length)
    d_model = heads * width
    position, layer = _scheme(option, setup, n_tokens)
    batch = max(1, setup.attention_tokens // n_tokens)
    pos_BT = torch.arange(n_tokens, device=setup.device)[None]
    (layout,) = AttentionPattern(None).layouts(pos_BT, pos_BT)
    with torch.no_grad():
        tables = position(pos_BT, pos_BT, n_tokens)
    context = AttentionContext(position, KERNELS["auto"], [(tables, layout)], None)
    options = {"device": setup.device, "dtype": setup.torch_dtype, "requires_grad": True}
    x_BTC = torch.randn(batch, n_tokens, d_model, **options)
    if part == "layer":
        module = _attention(position, layer, setup)
        return lambda: module(x_BTC, context).sum().backward()
    q_BTHD, v_BTHD = (torch.randn(batch, n_tokens, heads, width, **options) for _ in range(2))
    k_BTHK = torch.randn(batch, n_tokens, heads, position.key_dim, **options)
    project = _projections(position, setup)

    def work() -> None:
        tokens = layer.tokens(x_BTC)
        mapped = [
            (layer(position, q_BTHD, k_BTHK, tables, project, tokens), layout) for tables, layout in context.views
        ]
        context.kernel([part_of(*each) for each in mapped], v_BTHD, width**-0.5).sum().backward()

    return work


def long_forward(name: str, setup: Setup) -> Work:
    """Evaluation at a great length: rotate and kernel, no gradients. name: <position>/<T>."""
    option, length = name.split("/")
    heads, width, n_tokens = setup.attention_heads, setup.attention_head_dim, int(length)
    position, layer = _scheme(option, setup, n_tokens)
    options = {"device": setup.device, "dtype": setup.torch_dtype}
    q_BTHD, v_BTHD = (torch.randn(1, n_tokens, heads, width, **options) for _ in range(2))
    k_BTHK = torch.randn(1, n_tokens, heads, position.key_dim, **options)
    x_BTC = torch.randn(1, n_tokens, heads * width, **options)
    pos_BT = torch.arange(n_tokens, device=setup.device)[None]
    project = _projections(position, setup)

    @torch.no_grad()
    def work() -> None:
        (layout,) = AttentionPattern(None).layouts(pos_BT, pos_BT)
        tables = position(pos_BT, pos_BT, n_tokens)
        mapped = layer(position, q_BTHD, k_BTHK, tables, project, layer.tokens(x_BTC))
        KERNELS["auto"]([part_of(mapped, layout)], v_BTHD, width**-0.5)

    return work


def scheme(name: str, setup: Setup) -> Work:
    """One layer of attention and all that a scheme does for it, forward and backward: its embeddings, tables,
    projections and terms. One sequence. name: <position>[:<attention pattern>][:<kernel>]/<T>."""
    choices, length = name.split("/")
    torch.manual_seed(0)
    option, *others = choices.split(":")
    n_tokens, d_model = int(length), setup.attention_heads * setup.attention_head_dim
    attention_pattern = next((other for other in others if other in entries("attention_pattern")), "causal")
    kernel = next((other for other in others if other in KERNELS), "auto")
    position, layer = _scheme(option, setup, n_tokens)
    rules = patterns.build(load_reference(setup.model, WINDOW).pattern(entries("attention_pattern")[attention_pattern]))
    module = _attention(position, layer, setup)
    x_BTC = torch.randn(1, n_tokens, d_model, device=setup.device, dtype=setup.torch_dtype, requires_grad=True)
    pos_BT = torch.arange(n_tokens, device=setup.device)[None]

    def work() -> None:
        for leaf in (x_BTC, *position.parameters(), *module.parameters()):
            leaf.grad = None
        layouts = rules.layouts(pos_BT, pos_BT)
        views = [(position(layout.pos_BT, layout.pos_BS, n_tokens), layout) for layout in layouts]
        of_heads = layouts_of_heads(layouts, rules.in_training())
        context = AttentionContext(position, KERNELS[kernel], views, None, of_heads=of_heads)
        module(position.embed(x_BTC, layouts[0].text_queries), context).sum().backward()

    return work


def step(name: str, setup: Setup) -> Work:
    """One step of attention as table 6 of the CoCA paper has it, forward, one sequence. name: <step>/<T>."""
    which, length = name.split("/")
    torch.manual_seed(0)
    heads, width, n_tokens = setup.attention_heads, setup.attention_head_dim, int(length)
    works: dict[str, Work]
    options = {"device": setup.device, "dtype": setup.torch_dtype}
    if which in ("projections", "rotation", "half", "relu"):
        x_BTHD = torch.randn(1, n_tokens, heads, width, **options)
        linears = [nn.Linear(heads * width, heads * width, bias=False, **options) for _ in range(3)]
        rope: Any = _scheme("rope", setup, n_tokens)[0]
        turn = rotary.cos_sin(torch.arange(n_tokens, device=setup.device)[None], rope.rope_scaling(n_tokens))
        works = {
            "projections": lambda: [linear(x_BTHD.flatten(2)) for linear in linears],
            "half": lambda: x_BTHD.unflatten(-1, (2, -1)).mean(-2),
            "relu": lambda: x_BTHD.relu(),
            "rotation": lambda: [rotary.apply(x_BTHD, turn) for _ in range(2)],
        }
        return torch.no_grad()(works[which])
    if which in ("mask", "softmax"):
        scores_HTS = torch.randn(heads, n_tokens, n_tokens, **options)
        later_TS = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=setup.device).triu(1)
        works = {
            "mask": lambda: scores_HTS.masked_fill(later_TS, -torch.inf),
            "softmax": lambda: scores_HTS.softmax(-1),
        }
        return torch.no_grad()(works[which])
    # Of CoCA, q and t before and q after the rotation: Q_rot (Q ∘ T_rot)ᵀ, with Q ∘ T_rot written out or not (Eq. 19).
    q_HTD, turned_HTD, key_HSD = (torch.randn(heads, n_tokens, width, **options) for _ in range(3))
    works = {
        "expanded": lambda: q_HTD[:, :, None] * key_HSD[:, None],
        "scores": lambda: turned_HTD @ key_HSD.mT,
        "scores_coca": lambda: (q_HTD * turned_HTD) @ key_HSD.mT,
    }
    return torch.no_grad()(works[which])


def _scheme(option: str, setup: Setup, n_tokens: int) -> tuple[Position, LayerPosition]:
    """A scheme trained with windows of n_tokens and one layer's part of it, parameters N(0, 0.02)."""
    heads, width = setup.attention_heads, setup.attention_head_dim
    settings = load_reference(setup.model, n_tokens).scheme(entries("position")[option])
    position = build(settings, AttentionShape(heads, heads, width, heads * width, n_tokens))
    layer = position.layer()
    for parameter in (*position.parameters(), *layer.parameters()):
        nn.init.normal_(parameter, std=0.02)
    return position.to(setup.device, setup.torch_dtype), layer.to(setup.device, setup.torch_dtype)


def _attention(position: Position, layer: LayerPosition, setup: Setup) -> Attention:
    """A layer's projections around its scheme."""
    heads, width = setup.attention_heads, setup.attention_head_dim
    shape = {"d_model": heads * width, "n_heads": heads, "n_kv_heads": None, "head_dim": None}
    model = replace(load([f"model={setup.model}"]).config.model, **shape)
    return Attention(model, 0, width, position.projected_key_dim, layer).to(setup.device, setup.torch_dtype)


def _projections(position: Position, setup: Setup) -> Projections:
    """W_Q and W_K, for schemes that send positions through them."""
    heads, width = setup.attention_heads, setup.attention_head_dim

    def linear(key_dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
        module = nn.Linear(heads * width, heads * key_dim, bias=False).to(setup.device, setup.torch_dtype)
        return lambda x: module(x).unflatten(-1, (heads, key_dim))

    return Projections(linear(width), linear(position.key_dim))


KINDS: dict[str, Callable[[str, Setup], Work]] = {
    "training": training,
    "decoding": decoding,
    "attention": attention,
    "scheme": scheme,
    "long_forward": long_forward,
    "step": step,
}
