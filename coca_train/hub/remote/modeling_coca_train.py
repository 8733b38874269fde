"""A decoder-only Transformer with the position scheme of position.py (by `python -m coca_train export`).

Needs torch and transformers only. There is no key/value cache: each new token recomputes the text.
Shape legend: B batch, T tokens, H query heads, G key/value heads, D head width, K key width, C model width.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_coca_train import CocaTrainConfig
from .position import LayerPosition, Position  # pyright: ignore[reportMissingImports]  # export puts it there


def norm(model):
    """LayerNorm or RMSNorm, as trained."""
    kind = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}[model["norm"]]
    return kind(model["d_model"], eps=model["norm_eps"])


class Attention(nn.Module):
    """Softmax of q' k' / sqrt(D) + bias over what the visibility shows."""

    def __init__(self, config):
        super().__init__()
        model = config.coca_train["model"]
        self.n_heads = model["n_heads"]
        self.n_kv_heads = model["n_kv_heads"] or model["n_heads"]
        self.head_dim = model["head_dim"] or model["d_model"] // model["n_heads"]
        self.key_dim = Position.key_dim(config, self.head_dim)
        width, bias = model["d_model"], model["bias"]
        self.q = nn.Linear(width, self.n_heads * self.head_dim, bias=bias)
        self.k = nn.Linear(width, self.n_kv_heads * self.key_dim, bias=bias)
        self.v = nn.Linear(width, self.n_kv_heads * self.head_dim, bias=bias)
        self.out = nn.Linear(self.n_heads * self.head_dim, width, bias=bias)
        self.position = LayerPosition(config)

    def forward(self, x, tables, seen):
        q_BTHD = self.q(x).unflatten(-1, (self.n_heads, self.head_dim))
        k_BTGK = self.k(x).unflatten(-1, (self.n_kv_heads, self.key_dim))
        v_BTGD = self.v(x).unflatten(-1, (self.n_kv_heads, self.head_dim))
        q, k, bias = self.position(self, q_BTHD, k_BTGK, tables)
        group = self.n_heads // self.n_kv_heads
        q = q.transpose(1, 2)
        k, v = (y.transpose(1, 2).repeat_interleave(group, dim=1) for y in (k, v_BTGD))
        scale = self.head_dim**-0.5
        if bias is None and seen is None and not self.position.rewrites:
            out = F.scaled_dot_product_attention(q, k, _padded(v, q), is_causal=True, scale=scale)[..., : v.shape[-1]]
        else:
            scores = (q @ k.transpose(-1, -2)) * scale
            scores = scores if bias is None else scores + bias.to(scores.dtype)
            shown = seen if seen is not None else _causal(scores)
            if self.position.rewrites:
                scores = self.position.scores(scores.float(), shown, x, q_BTHD, tables)
            weights = scores.masked_fill(~shown, float("-inf")).softmax(-1)
            out = weights.to(v.dtype) @ v + self.position.values_of(weights, tables)
        return self.out(out.transpose(1, 2).flatten(-2))


def _padded(v, q):
    """Fused kernels want one width for q, k and v."""
    return F.pad(v, (0, q.shape[-1] - v.shape[-1]))


def _causal(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()


class MLP(nn.Module):
    """gelu(x W_up) W_down, or SwiGLU."""

    def __init__(self, model):
        super().__init__()
        self.activation = model["activation"]
        self.up = nn.Linear(model["d_model"], model["d_ff"], bias=model["bias"])
        self.gate = nn.Linear(model["d_model"], model["d_ff"], bias=model["bias"]) if self.gated else None
        self.down = nn.Linear(model["d_ff"], model["d_model"], bias=model["bias"])

    @property
    def gated(self):
        return self.activation == "swiglu"

    def forward(self, x):
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x), approximate="tanh" if self.activation == "gelu_tanh" else "none"))


class Block(nn.Module):
    """Attention and feed-forward, side by side (GPT-NeoX) or one after the other (LLaMA)."""

    def __init__(self, config):
        super().__init__()
        model = config.coca_train["model"]
        self.parallel = model["residual"] == "parallel"
        self.attention_norm, self.attention = norm(model), Attention(config)
        self.mlp_norm, self.mlp = norm(model), MLP(model)

    def forward(self, x, tables, seen):
        attended = self.attention(self.attention_norm(x), tables, seen)
        if self.parallel:
            return x + attended + self.mlp(self.mlp_norm(x))
        x = x + attended
        return x + self.mlp(self.mlp_norm(x))


class CocaTrainForCausalLM(PreTrainedModel, GenerationMixin):
    """Next-token logits. Rows of a batch are texts of one length: there is no padding mask."""

    config_class = CocaTrainConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _tied_weights_keys = {"head.weight": "embed.weight"}  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        model = config.coca_train["model"]
        self.position = Position(config)
        self.embed = nn.Embedding(config.vocab_size, model["d_model"])
        self.blocks = nn.ModuleList(Block(config) for _ in range(model["n_layers"]))
        self.final_norm = norm(model)
        self.head = nn.Linear(model["d_model"], config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **kwargs):
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def forward(self, input_ids, position_ids=None, attention_mask=None, labels=None, **kwargs):
        """position_ids: (B, T), rising; None: 0, 1, ... Raises ValueError for padded batches."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError("padded batches are not supported: give texts of one length")
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        tables = self.position(position_ids, int(position_ids.max()) + 1)
        seen = self._seen(position_ids)
        x = self.position.embed(self.embed(input_ids), position_ids)
        for block in self.blocks:
            x = block(x, tables, seen)
        logits = self.head(self.final_norm(x)).float()
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return CausalLMOutput(loss=loss, logits=logits)

    def _seen(self, position_ids):
        """The pairs that are seen, (B, 1, T, T); None: causal and no more."""
        window = self.config.coca_train["visibility"].get("window")
        if window is None:
            return None
        distance = position_ids[:, :, None] - position_ids[:, None, :]
        index = torch.arange(position_ids.shape[1], device=position_ids.device)
        return ((index[:, None] >= index) & (distance < window))[:, None]
