"""What a model computes: one decoder-only Transformer that is GPT-NeoX or LLaMA by its settings, never by copied files.

It is told the settings of every kind of layer in full, and imports nothing of configurations, training and their
engines; models/transformer.py adds what training and evaluation need.

Shape legend: B batch, T time, S all positions with the cache's or the memory's, C d_model, V vocab_size.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from coca_train import positions
from coca_train.attention import visibilities
from coca_train.attention.kernels import Kernel, sdpa
from coca_train.attention.layer_types import Kind
from coca_train.attention.visibility import Keep
from coca_train.config.schema import OWN, ModelConfig
from coca_train.models.cache import AttendedKeys, Cache
from coca_train.models.layers import Attention, AttentionContext, Block, build_norm, logit_scale
from coca_train.models.loss import Score, score_in_passes, summed_cross_entropy, token_nll
from coca_train.positions.base import AttentionShape, Position
from coca_train.positions.known import Extent, note


class Head(nn.Module):
    """The output projection: logits, or the summed loss without ever holding all logits."""

    def __init__(self, d_model: int, vocab_size: int, score: Score) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.score = score

    def forward(
        self, x_BTC: Tensor, targets_BT: Tensor | None = None, device: str = "", by_token: bool = False
    ) -> Tensor:
        """Logits; or the sum of the losses; or by_token each of them, without gradients.

        device: cpu or cuda, as the loss is computed there; "": where x is.
        """
        if targets_BT is None:
            return (x_BTC @ self.weight.T).float()
        if by_token:
            return self.nll(x_BTC, targets_BT)
        return summed_cross_entropy(x_BTC.flatten(0, 1), self.weight, targets_BT.flatten(), self.score, device)

    def nll(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        return token_nll(x_BTC.flatten(0, 1), self.weight, targets_BT.flatten()).view_as(targets_BT)


class Decoder(nn.Module):
    """Decoder-only language model with a pluggable position scheme, or one for each kind of layer.

    model: shape of the network. kinds: the kind of every layer. settings: position, visibility and logit scale of every
    kind that occurs, and of `own`. max_seq_len: training window [tokens]. Weights are not initialised.
    """

    position: Position  # of the kind `own`

    def __init__(
        self,
        model: ModelConfig,
        kinds: Sequence[str],
        settings: Mapping[str, Kind],
        *,
        vocab_size: int,
        max_seq_len: int,
    ) -> None:
        super().__init__()
        head_dim, n_kv_heads = model.head_dim or model.d_model // model.n_heads, model.n_kv_heads or model.n_heads
        self.config, self.kinds = model, tuple(kinds)
        self.shape = AttentionShape(model.n_heads, n_kv_heads, head_dim, model.d_model, max_seq_len)
        self.visibilities, self.logit_scales = {}, {}
        for name, kind in settings.items():
            self.add_module(module_name(name), positions.build(kind.position, self.shape))
            self.visibilities[name] = visibilities.build(kind.visibility)
            self.logit_scales[name] = kind.logit_scale
        self.embed = nn.Embedding(vocab_size, model.d_model)
        self.blocks = nn.ModuleList(
            Block(model, layer, head_dim, position.projected_key_dim, position.layer())
            for layer, position in enumerate(map(self.position_of, self.kinds))
        )
        self.final_norm = build_norm(model)
        self.head = Head(model.d_model, vocab_size, self.score())
        self.tie()

    def tie(self) -> None:
        """Let the head share the embedding where the config says so; `to_empty` parts them, so call it afterwards."""
        if self.config.tie_embeddings:
            assert isinstance(self.embed.weight, nn.Parameter)
            self.head.weight = self.embed.weight

    def position_of(self, kind: str) -> Position:
        """The position scheme of the layers of this kind."""
        position = self.get_submodule(module_name(kind))
        assert isinstance(position, Position)
        return position

    @property
    def first_attention(self) -> Attention:
        """The attention of the first block."""
        return self.attention_of(self.kinds[0])

    def attention_of(self, kind: str) -> Attention:
        """The attention of the first layer of this kind."""
        attention = self.blocks[self.kinds.index(kind)].get_submodule("attention")
        assert isinstance(attention, Attention)
        return attention

    @property
    def keeps(self) -> list[Keep | None]:
        """For every layer, what a cache has to keep for it."""
        return [self.visibilities[kind].keep() for kind in self.kinds]

    def kernel(self) -> Kernel:
        """What computes attention: torch's fused kernel where that can, else one that can do everything."""
        return sdpa

    def score(self) -> Score:
        """What makes losses and gradients of logits."""
        return score_in_passes

    def hidden(
        self,
        tokens_BT: Tensor,
        pos_BT: Tensor | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Final hidden states x_BTC.

        pos_BT: integer positions; None counts on from the cache's end. doc_BT: document ids, when attention
        must not cross documents. length: the sequence length dynamic frequencies adapt to [tokens]; None: all
        positions in hand.
        """
        pos_BT = self.places(tokens_BT, cache) if pos_BT is None else pos_BT
        contexts = self.contexts(pos_BT, pos_BT, doc_BT, length, cache)
        return self.final_norm(self.through(self.embedded(tokens_BT, pos_BT), contexts))

    def through(
        self,
        x_BTC: Tensor,
        contexts: Mapping[str, AttentionContext],
        n_layers: int | None = None,
        run: Callable[[nn.Module, Tensor, AttentionContext], Tensor] = nn.Module.__call__,
    ) -> Tensor:
        """What the first n_layers make of x_BTC, None: all of them. run: calls a block, the first one first."""
        for kind, block in zip(self.kinds[:n_layers], self.blocks, strict=False):
            x_BTC = run(block, x_BTC, contexts[kind])
        return x_BTC

    def places(self, tokens_BT: Tensor, cache: Cache | None) -> Tensor:
        """Positions that count on from the cache's end, (1, T)."""
        start = 0 if cache is None else cache.length
        end = start + tokens_BT.shape[1]
        return note(torch.arange(start, end, device=tokens_BT.device)[None], Extent(start, end - 1), rising=True)

    def embedded(self, tokens_BT: Tensor, pos_BT: Tensor) -> Tensor:
        """What goes into the first layer, x_BTC."""
        return self.placed(self.embed(tokens_BT), pos_BT)

    def placed(self, x_BTC: Tensor, pos_BT: Tensor) -> Tensor:
        """Embeddings of tokens with what the position scheme adds to them."""
        # A visibility may number positions anew (segments), and a table of positions is looked up by what it says.
        text_BT, _, _ = self.visibilities[OWN].place(pos_BT, pos_BT, None)
        return self.position.embed(x_BTC, text_BT)

    def contexts(
        self,
        pos_BT: Tensor,
        pos_BS: Tensor,
        doc_BS: Tensor | None = None,
        length: int | None = None,
        cache: Cache | None = None,
    ) -> dict[str, AttentionContext]:
        """By kind, what its layers share when the queries are the last T of the S positions. cache: it is told the
        queries, and its positions and documents take the place of those of S."""
        if cache is None:
            in_hand = dict.fromkeys(self.keeps, AttendedKeys(pos_BS, doc_BS))
        else:
            in_hand = cache.advance(pos_BT, doc_BS)
            assert cache.at_length is None or length in (None, cache.at_length), (length, cache.at_length)
            length = length or cache.at_length
        contexts = {}
        for kind in dict.fromkeys(self.kinds):
            pos_BS, doc_BS = in_hand[self.visibilities[kind].keep()]
            contexts[kind] = self.context(kind, pos_BT, pos_BS, doc_BS, length or pos_BS.shape[1], cache)
        return contexts

    def context(
        self, kind: str, pos_BT: Tensor, pos_BS: Tensor, doc_BS: Tensor | None, length: int, cache: Cache | None
    ) -> AttentionContext:
        """`contexts` of one kind, whose layers have these S positions in hand."""
        position, visibility = self.position_of(kind), self.visibilities[kind]
        layouts, length = visibility.layouts(pos_BT, pos_BS, doc_BS), visibility.length(length)
        settled = cache is not None and cache.at_length is not None
        settled = settled and position.caches_rotated_keys and visibility.caches_rotated_keys
        one_token = pos_BT.numel() == 1 and not torch.is_grad_enabled()
        kept = cache.decode_tables if cache is not None and settled and one_token else None
        views = []
        for layout in layouts:
            keys = layout.text_BT if settled else layout.pos_BS
            if kept is not None and keys is layout.pos_BT:
                tables = kept.tables(position, keys, length)
            else:
                tables = position(layout.pos_BT, keys, length)
            views.append((tables, layout))
        # Any of the layouts: they differ in what is seen and how far it seems, the place in the text is the same in
        # all.
        scale_BT = logit_scale(self.logit_scales[kind], layouts[0].text_BT, self.shape.max_seq_len)
        return AttentionContext(position, self.kernel(), views, cache, settled, scale_BT, kind)


def module_name(kind: str) -> str:
    """What the module with the shared parameters of a kind's scheme is called. That of `own` is as it was before there
    were others."""
    return "position" if kind == OWN else f"position_{kind}"
