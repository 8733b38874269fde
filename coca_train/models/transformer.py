"""One Transformer that is GPT-NeoX or LLaMA by its config, never by copied files.

Shape legend: B batch, T time, S all positions with the cache's, C d_model, V vocab_size.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from coca_train import positions
from coca_train.config.schema import ModelConfig
from coca_train.models.attention import AttentionContext
from coca_train.models.cache import KVCache
from coca_train.models.kernels import KERNELS, Bias
from coca_train.models.layers import Block, build_norm
from coca_train.models.loss import summed_cross_entropy, token_nll
from coca_train.positions.base import AttentionShape


class Head(nn.Module):
    """The output projection: logits, or the summed loss without ever holding all logits."""

    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))

    def forward(self, x_BTC: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        if targets_BT is None:
            return (x_BTC @ self.weight.T).float()
        return summed_cross_entropy(x_BTC.flatten(0, 1), self.weight, targets_BT.flatten())

    def nll(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        return token_nll(x_BTC.flatten(0, 1), self.weight, targets_BT.flatten()).view_as(targets_BT)


class Transformer(nn.Module):
    """Decoder-only language model with a pluggable position scheme.

    model: shape of the network. position: the scheme's settings. max_seq_len: training window [tokens].
    attention: name of the kernel (models/kernels.py). Weights are not initialised here: see models/init.py.
    """

    def __init__(
        self,
        model: ModelConfig,
        position: Any,
        *,
        vocab_size: int,
        max_seq_len: int,
        attention: str = "auto",
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        head_dim = model.head_dim or model.d_model // model.n_heads
        self.config = model
        self.shape = AttentionShape(model.n_heads, model.n_kv_heads or model.n_heads, head_dim, max_seq_len)
        self.attention = attention
        self.activation_checkpointing = activation_checkpointing
        self.position = positions.build(position, self.shape)
        self.embed = nn.Embedding(vocab_size, model.d_model)
        self.blocks = nn.ModuleList(
            Block(model, layer, head_dim, self.position.key_dim) for layer in range(model.n_layers)
        )
        self.final_norm = build_norm(model)
        self.head = Head(model.d_model, vocab_size)
        if model.tie_embeddings:
            assert isinstance(self.embed.weight, nn.Parameter)
            self.head.weight = self.embed.weight

    def set_position(self, settings: Any) -> None:
        """Exchange the position scheme's settings (other frequencies, say) on the same weights."""
        position = positions.build(settings, self.shape)
        if position.key_dim != self.position.key_dim or any(True for _ in position.parameters()):
            raise ValueError(f"{settings.scheme} cannot replace {self.position.settings.scheme} on the same weights")
        self.position = position

    def hidden(
        self,
        tokens_BT: Tensor,
        pos_BT: Tensor | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Final hidden states x_BTC.

        pos_BT: integer positions; None counts on from the cache's end. doc_BT: document ids, when attention
        must not cross documents. length: the sequence length dynamic frequencies adapt to [tokens]; None: all
        positions in hand.
        """
        if pos_BT is None:
            start = 0 if cache is None else cache.length
            pos_BT = torch.arange(start, start + tokens_BT.shape[1], device=tokens_BT.device)[None]
        pos_BS = pos_BT if cache is None else cache.advance(pos_BT)
        tables = self.position.tables(pos_BT, pos_BS, length or pos_BS.shape[1])
        bias = Bias(self.position.score_mod(pos_BT, pos_BS, tables), doc_BT)
        context = AttentionContext(self.position, KERNELS[self.attention], tables, bias, cache)
        x_BTC = self.position.embed(self.embed(tokens_BT), pos_BT)
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                x_BTC = checkpoint(block, x_BTC, context, use_reentrant=False)
            else:
                x_BTC = block(x_BTC, context)
        return self.final_norm(x_BTC)

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor | None = None,
        pos_BT: Tensor | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Float32 logits_BTV, or with targets the float32 sum of the losses [nats]; target -100 is ignored."""
        return self.head(self.hidden(tokens_BT, pos_BT, doc_BT, length, cache), targets_BT)

    @torch.no_grad()
    def nll(self, hidden_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        """Loss of every token, nll_BT in float32 [nats]; 0 where the target is -100."""
        return self.head.nll(hidden_BTC, targets_BT)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(all parameters, parameters without the embedding and the output head). Shared tensors count once."""
    sizes = {name: getattr(p, "ds_numel", p.numel()) for name, p in model.named_parameters()}
    outside = sum(size for name, size in sizes.items() if name in ("embed.weight", "head.weight"))
    return sum(sizes.values()), sum(sizes.values()) - outside
