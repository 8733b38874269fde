"""One Transformer that is GPT-NeoX or LLaMA by its config, never by copied files.

Shape legend: B batch, T time, S all positions with the cache's or the memory's, M memory, C d_model, V vocab_size.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from coca_train import positions
from coca_train.config.schema import OWN, LayersConfig, ModelConfig
from coca_train.models.attention import Attention, AttentionContext
from coca_train.models.cache import KVCache
from coca_train.models.kernels import KERNELS
from coca_train.models.layers import Block, build_norm
from coca_train.models.logit_scale import logit_scale
from coca_train.models.loss import summed_cross_entropy, token_nll
from coca_train.models.memory import Memory
from coca_train.positions import visibilities
from coca_train.positions.base import AttentionShape, Position
from coca_train.positions.layers import UNIFORM, Kind, kinds, kinds_of
from coca_train.positions.visibility import Visibility


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
    """Decoder-only language model with a pluggable position scheme, or one for each kind of layer.

    model: shape of the network. position: the scheme's settings. visibility: which keys are seen, its settings.
    layers: which layers differ from these two, and how (positions/layers.py). max_seq_len: training window [tokens].
    attention: name of the kernel (models/kernels.py). Weights are not initialised here: see models/init.py.
    """

    def __init__(
        self,
        model: ModelConfig,
        position: Any,
        visibility: Any,
        *,
        vocab_size: int,
        max_seq_len: int,
        layers: LayersConfig = UNIFORM,
        attention: str = "auto",
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        head_dim = model.head_dim or model.d_model // model.n_heads
        self.config, self.layers = model, layers
        self.kinds = kinds_of(layers, model.n_layers)  # of every layer, by name
        n_kv_heads = model.n_kv_heads or model.n_heads
        self.shape = AttentionShape(model.n_heads, n_kv_heads, head_dim, model.d_model, max_seq_len)
        self.attention = attention
        self.activation_checkpointing = activation_checkpointing
        self.position = positions.build(position, self.shape)
        self.visibilities, self.logit_scales = {OWN: visibilities.build(visibility)}, {}
        for name, kind in self.settings().items():
            self.logit_scales[name] = kind.logit_scale
            if name != OWN:
                self.add_module(module_name(name), positions.build(kind.position, self.shape))
                self.visibilities[name] = visibilities.build(kind.visibility)
        self.embed = nn.Embedding(vocab_size, model.d_model)
        self.blocks = nn.ModuleList(
            Block(model, layer, head_dim, position.key_dim, position.layer())
            for layer, position in enumerate(map(self.position_of, self.kinds))
        )
        self.final_norm = build_norm(model)
        self.head = Head(model.d_model, vocab_size)
        self.tie()

    def tie(self) -> None:
        """Let the head share the embedding where the config says so; `to_empty` parts them, so call it afterwards."""
        if self.config.tie_embeddings:
            assert isinstance(self.embed.weight, nn.Parameter)
            self.head.weight = self.embed.weight

    @property
    def visibility(self) -> Visibility:
        """The run's own."""
        return self.visibilities[OWN]

    def settings(self) -> dict[str, Kind]:
        """Of the kinds of layers that there are, in the order of their first layers."""
        return kinds(self.layers, self.config, self.position.settings, self.visibility.settings)

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
    def max_positions(self) -> int | None:
        """Positions there are, in the layers that have fewest; None: no end."""
        ends = [
            position.max_positions for position in (self.position, *map(self.position_of, dict.fromkeys(self.kinds)))
        ]
        return min((end for end in ends if end is not None), default=None)

    def set_position(self, settings: Any) -> None:
        """Exchange the run's position settings (other frequencies, say) on the same weights. Layers of other kinds
        follow in what they do not say themselves.

        Raises ValueError when the new settings need other parameters than there are.
        """
        self.position = _exchanged(self.position, settings)
        for name, kind in self.settings().items():
            if name != OWN:
                self.add_module(module_name(name), _exchanged(self.position_of(name), kind.position))

    def set_visibility(self, settings: Any) -> None:
        """Exchange which keys a query sees, in all layers that do not say it themselves."""
        self.visibilities[OWN] = visibilities.build(settings)
        others = {name: kind for name, kind in self.settings().items() if name != OWN}
        self.visibilities |= {name: visibilities.build(kind.visibility) for name, kind in others.items()}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Whatever settings are exchanged inside, afterwards the model has those of before."""
        before = {name: module for name, module in self.named_children() if isinstance(module, Position)}
        seen = dict(self.visibilities)
        try:
            yield
        finally:
            self.visibilities = seen
            for name, module in before.items():
                self.add_module(name, module)

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for texts of at most so many positions [tokens]; a layer with a window holds a window."""
        return KVCache([self.visibilities[kind].keep() for kind in self.kinds], capacity)

    def hidden(
        self,
        tokens_BT: Tensor,
        pos_BT: Tensor | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        cache: KVCache | None = None,
        memory: Memory | None = None,
        wanted: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Final hidden states x_BTC.

        pos_BT: integer positions; None counts on from the cache's end. doc_BT: document ids, when attention
        must not cross documents. length: the sequence length dynamic frequencies adapt to [tokens]; None: all
        positions in hand. memory: the previous segment's hidden states, and where the next ones are left; its
        tokens stand directly before this segment's, in the same document. wanted: stretches [begin, end) of the
        sequence, None: all of it; x_BTC are theirs, one after the other, and the last layer computes no more than
        keys and values for the rest.
        """
        if pos_BT is None:
            start = 0 if cache is None else cache.length
            pos_BT = torch.arange(start, start + tokens_BT.shape[1], device=tokens_BT.device)[None]
        pos_BS, doc_BS = pos_BT, doc_BT
        if memory is not None:
            assert cache is None, "a memory and a cache both stand before the segment"
            pos_BS, doc_BS = _behind(memory, pos_BT, doc_BT)
        contexts = self.contexts(pos_BT, pos_BS, doc_BS, length, cache)
        x_BTC = self.embedded(tokens_BT, pos_BT)
        for layer, block in enumerate(self.blocks[:-1] if wanted else self.blocks):
            context = contexts[self.kinds[layer]]
            past_BMC = None if memory is None else memory.hidden[layer]
            if memory is not None:
                memory.keep(x_BTC)
            if self.activation_checkpointing and self.training:
                x_BTC = checkpoint(block, x_BTC, context, past_BMC, use_reentrant=False)
            else:
                x_BTC = block(x_BTC, context, past_BMC)
        if wanted:
            assert cache is None, "a cache holds every layer"
            assert memory is None, "a memory is for training, where every position counts"
            x_BTC = self._stretches(x_BTC, wanted, pos_BT, doc_BT, length or pos_BT.shape[1])
        return self.final_norm(x_BTC)

    def _stretches(
        self, x_BTC: Tensor, wanted: Sequence[tuple[int, int]], pos_BT: Tensor, doc_BT: Tensor | None, length: int
    ) -> Tensor:
        """The last layer at the wanted positions; those before each stretch are keys and values only."""
        made = []
        for begin, end in wanted:
            doc_BS = None if doc_BT is None else doc_BT[:, :end]
            context = self._context(self.kinds[-1], pos_BT[:, begin:end], pos_BT[:, :end], doc_BS, length, None)
            made.append(self.blocks[-1](x_BTC[:, begin:end], context, x_BTC[:, :begin] if begin else None))
        return torch.cat(made, dim=1)

    def embedded(self, tokens_BT: Tensor, pos_BT: Tensor) -> Tensor:
        """What goes into the first layer, x_BTC."""
        text_BT, _, _ = self.visibility.place(pos_BT, pos_BT, None)
        return self.position.embed(self.embed(tokens_BT), text_BT)

    def contexts(
        self,
        pos_BT: Tensor,
        pos_BS: Tensor,
        doc_BS: Tensor | None = None,
        length: int | None = None,
        cache: KVCache | None = None,
    ) -> dict[str, AttentionContext]:
        """By kind, what its layers share when the queries are the last T of the S positions. cache: it is told the
        queries, and its positions take the place of pos_BS."""
        if cache is None:
            in_hand = dict.fromkeys((visibility.keep() for visibility in self.visibilities.values()), pos_BS)
        else:
            assert doc_BS is None, "a cache holds one document"
            in_hand = cache.advance(pos_BT)
        found = {}
        for kind in dict.fromkeys(self.kinds):
            pos_BS = in_hand[self.visibilities[kind].keep()]
            found[kind] = self._context(kind, pos_BT, pos_BS, doc_BS, length or pos_BS.shape[1], cache)
        return found

    def _context(
        self, kind: str, pos_BT: Tensor, pos_BS: Tensor, doc_BS: Tensor | None, length: int, cache: KVCache | None
    ) -> AttentionContext:
        """`contexts` of one kind, whose layers have these S positions in hand."""
        position, visibility = self.position_of(kind), self.visibilities[kind]
        layouts, length = visibility.layouts(pos_BT, pos_BS, doc_BS), visibility.length(length)
        views = [(position(layout.pos_BT, layout.pos_BS, length), layout) for layout in layouts]
        scale_BT = logit_scale(self.logit_scales[kind], layouts[0].text_BT, self.shape.max_seq_len)
        return AttentionContext(position, KERNELS[self.attention], views, cache, scale_BT)

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor | None = None,
        pos_BT: Tensor | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        cache: KVCache | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Float32 logits_BTV, or with targets the float32 sum of the losses [nats]; target -100 is ignored."""
        return self.head(self.hidden(tokens_BT, pos_BT, doc_BT, length, cache, memory), targets_BT)

    @torch.no_grad()
    def nll(self, hidden_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        """Loss of every token, nll_BT in float32 [nats]; 0 where the target is -100."""
        return self.head.nll(hidden_BTC, targets_BT)


def module_name(kind: str) -> str:
    """What the module with the shared parameters of a kind's scheme is called. That of `own` is as it was before there
    were others."""
    return "position" if kind == OWN else f"position_{kind}"


def _exchanged(position: Position, settings: Any) -> Position:
    """The scheme with other settings and the same parameters; ValueError where these do not fit."""
    if settings == position.settings:
        return position
    made = positions.build(settings, position.shape)
    shapes = [{n: p.shape for n, p in each.named_parameters()} for each in (made, position)]
    same_layers = made.layer_class is position.layer_class and made.key_dim == position.key_dim
    if not same_layers or shapes[0] != shapes[1]:
        raise ValueError(f"{settings.scheme} cannot replace {position.settings.scheme} on the same weights")
    for name, parameter in position.named_parameters():
        owner, _, leaf = name.rpartition(".")
        setattr(made.get_submodule(owner), leaf, parameter)
    return made.train(position.training)


def _behind(memory: Memory, pos_BT: Tensor, doc_BT: Tensor | None) -> tuple[Tensor, Tensor]:
    """Positions and documents of memory and segment; memory that is not there is a document nobody is in."""
    valid_BM = memory.valid_BM
    before_M = torch.arange(-memory.memory_len, 0, device=pos_BT.device)
    pos_BS = torch.cat((pos_BT[:, :1] + before_M, pos_BT), dim=1)
    if doc_BT is None:
        doc_BT = torch.zeros(valid_BM.shape[0], pos_BT.shape[1], dtype=torch.long, device=pos_BT.device)
    doc_BM = torch.where(valid_BM, doc_BT[:, :1], -1)
    return pos_BS, torch.cat((doc_BM, doc_BT), dim=1)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(all parameters, parameters without the embedding and the output head). Shared tensors count once."""
    sizes = {name: getattr(p, "ds_numel", p.numel()) for name, p in model.named_parameters()}
    outside = sum(size for name, size in sizes.items() if name in ("embed.weight", "head.weight"))
    return sum(sizes.values()), sum(sizes.values()) - outside
