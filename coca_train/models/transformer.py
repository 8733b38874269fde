"""The Transformer: one model that is GPT-NeoX or LLaMA by its settings, never by copied files; an encoder where its
attention is bidirectional.

Its settings may be exchanged on the same weights, and its attention computed by any kernel; it can remember a segment,
recompute activations where memory is short, and compute the last layer of some positions only.

Shape legend: B batch, T time, S all positions with the cache's or the memory's, M memory, C d_model, V vocab_size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from coca_train import positions
from coca_train.attention import PatternSettings, patterns
from coca_train.attention.kernels import KERNELS
from coca_train.attention.layer_types import UNIFORM, LayerType, layer_types, layer_types_of
from coca_train.attention.pattern import AttentionPattern, Keep, layouts_of_heads
from coca_train.config.schema import DEFAULT, Config, LayersConfig, LogitScaleConfig, LoraConfig, ModelConfig
from coca_train.models.cache import AttendedKeys, Cache, KVCache
from coca_train.models.compiled import CompiledBlocks
from coca_train.models.layers import Attention, AttentionContext, Block, Head, build_norm
from coca_train.models.memory import Memory, prepend_memory
from coca_train.models.recompute import CHECKPOINTING
from coca_train.models.score_options import logit_scale
from coca_train.models.trainable import adapt
from coca_train.models.ulysses import SequenceShare
from coca_train.positions import SchemeSettings
from coca_train.positions.base import AttentionShape, LayerPosition, Position
from coca_train.positions.token_positions import Positions
from coca_train.runtime import IGNORE
from coca_train.runtime.errors import DataError

VOCAB_MULTIPLE = 64  # embedding rows are rounded up to this: matrix kernels like round numbers


class Transformer(nn.Module):
    """A language model with a position scheme, or one for each layer type.

    model: shape of the network. position: the scheme's settings. attention_pattern: which keys are visible, its
    settings. layers: which layers differ from these two, and how (attention/layer_types.py). max_seq_len: training
    window [tokens]. attention: name of the kernel (attention/kernels.py). activation_checkpointing:
    models/recompute.py. compile_blocks: in training (models/compiled.py). Weights are not initialised here: see
    models/init.py.
    """

    position: Position  # of the type `default`

    def __init__(
        self,
        model: ModelConfig,
        position: SchemeSettings,
        attention_pattern: PatternSettings,
        *,
        vocab_size: int,
        max_seq_len: int,
        layers: LayersConfig = UNIFORM,
        attention: str = "auto",
        activation_checkpointing: str = "none",
        compile_blocks: bool = False,
        mlp_tile: int | None = None,
    ) -> None:
        super().__init__()
        self.config = self.base_config = model
        self.layers, self.layer_types = layers, layer_types_of(layers, model.n_layers)
        self.shape = AttentionShape.of(model, max_seq_len)
        self.attention_patterns, self.logit_scales = {}, {}
        own = {DEFAULT: LayerType(position, attention_pattern, model.logit_scale)}
        for name, layer_type in (own | layer_types(layers, model, position, attention_pattern)).items():
            self.attention_patterns[name] = seen = patterns.build(layer_type.attention_pattern)
            shape = self.shape._replace(bidirectional=seen.bidirectional)
            self.add_module(module_name(name), positions.build(layer_type.position, shape))
            self.logit_scales[name] = layer_type.logit_scale
        self.embed = nn.Embedding(vocab_size, model.d_model)
        self.blocks = nn.ModuleList(
            Block(model, layer, self.shape.head_dim, position.projected_key_dim, position.layer(), mlp_tile)
            for layer, position in enumerate(map(self.position_of, self.layer_types))
        )
        self.embedding_norm = build_norm(model) if model.embedding_norm else nn.Identity()
        self.final_norm = build_norm(model)
        self.head = Head(model, vocab_size)
        self.tie()
        self.attention = attention
        self.activation_checkpointing = activation_checkpointing
        self.compiled = CompiledBlocks(CHECKPOINTING[activation_checkpointing]) if compile_blocks else None
        self.sequence: SequenceShare | None = None  # set where several ranks share each sequence (ulysses.py)
        self.gathers_weights = False  # set where ranks gather sharded weights: each runs the same modules as often

    def tie(self) -> None:
        """Let the head share the embedding where the config says so; `to_empty` parts them, so call it afterwards."""
        if self.config.tie_embeddings:
            assert isinstance(self.embed.weight, nn.Parameter)
            self.head.weight = self.embed.weight

    def position_of(self, layer_type: str) -> Position:
        """Return the position scheme of the layers of a type."""
        position = self.get_submodule(module_name(layer_type))
        assert isinstance(position, Position)
        return position

    @property
    def first_attention(self) -> Attention:
        """The attention of the first block."""
        return self.attention_of(self.layer_types[0])

    @property
    def positions_of_layers(self) -> list[LayerPosition]:
        """What each layer has of its position scheme."""
        held = [block.get_submodule("attention.position") for block in self.blocks]
        return [layer for layer in held if isinstance(layer, LayerPosition)]

    def attention_of(self, layer_type: str) -> Attention:
        """Return the attention of the first layer of a type."""
        attention = self.blocks[self.layer_types.index(layer_type)].get_submodule("attention")
        assert isinstance(attention, Attention)
        return attention

    @property
    def keeps(self) -> list[Keep | None]:
        """The keys that a cache has to keep, for every layer."""
        return [self.keep_of(layer_type) for layer_type in self.layer_types]

    def keep_of(self, layer_type: str) -> Keep | None:
        """Return the keys that a cache has to keep for the layers of a type, those that a key's own token needs too;
        None: all."""
        keep, halo = self.attention_patterns[layer_type].keep(), self.position_of(layer_type).halo
        return keep if keep is None or not halo else keep._replace(last=keep.last + halo)

    @property
    def attention_pattern(self) -> AttentionPattern:
        """The run's own attention pattern."""
        return self.attention_patterns[DEFAULT]

    def settings(self) -> dict[str, LayerType]:
        """Return the settings of the layer types that occur, in the order of their first layers."""
        return layer_types(self.layers, self.config, self.position.settings, self.attention_pattern.settings)

    @property
    def bidirectional(self) -> bool:
        """Whether what a token has become depends on later ones."""
        return any(self.attention_patterns[layer_type].bidirectional for layer_type in self.layer_types)

    @property
    def max_positions(self) -> int | None:
        """Number of positions in the layers that have fewest; None: unlimited."""
        positions = [self.position, *map(self.position_of, dict.fromkeys(self.layer_types))]
        ends = [position.max_positions for position in positions]
        return min((end for end in ends if end is not None), default=None)

    def set_position(self, settings: SchemeSettings) -> None:
        """Exchange the run's position settings (another RoPE scaling, say) on the same weights. Layers of other types
        follow in what they do not set themselves.

        Raises ValueError when the new settings need other parameters than there are.
        """
        self.position = _with_settings(self.position, settings)
        for name, layer_type in self.settings().items():
            if name != DEFAULT:
                self.add_module(module_name(name), _with_settings(self.position_of(name), layer_type.position))

    def set_attention_pattern(self, settings: PatternSettings) -> None:
        """Exchange which keys a query sees, in all layers that do not set it themselves."""
        self.attention_patterns[DEFAULT] = patterns.build(settings)
        others = {name: layer_type for name, layer_type in self.settings().items() if name != DEFAULT}
        self.attention_patterns |= {
            name: patterns.build(layer_type.attention_pattern) for name, layer_type in others.items()
        }

    def set_logit_scale(self, settings: LogitScaleConfig | None) -> None:
        """Exchange how scores grow with the length, in all layers that do not set it themselves. None: as built."""
        settings = settings or self.base_config.logit_scale
        self.config = replace(self.config, logit_scale=settings)
        others = {name: layer_type.logit_scale for name, layer_type in self.settings().items() if name != DEFAULT}
        self.logit_scales |= {DEFAULT: settings, **others}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the position, attention pattern and logit scale after the block, whatever was exchanged in it."""
        before = {name: module for name, module in self.named_children() if isinstance(module, Position)}
        seen, scales, config = dict(self.attention_patterns), dict(self.logit_scales), self.config
        try:
            yield
        finally:
            self.attention_patterns, self.logit_scales, self.config = seen, scales, config
            for name, module in before.items():
                self.add_module(name, module)

    def new_cache(self, capacity: int, at_length: int | None = None) -> KVCache:
        """Create an empty cache for texts of at most so many positions [tokens]; a layer with a window holds a window.

        at_length: what dynamic frequencies adapt to, as long as the cache is used [tokens]; None: that may change.
        """
        return KVCache(self.keeps, capacity, at_length)

    def hidden(
        self,
        tokens_BT: Tensor,
        pos_BT: Tensor | Positions | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        cache: Cache | None = None,
        memory: Memory | None = None,
        wanted: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Return the final hidden states x_BTC; where ranks share a sequence those of this rank's slice (with a cache
        every rank has all of it).

        pos_BT: integer positions; None counts on from the cache's end. doc_BT: document ids, when attention must not
        cross documents. length: the sequence length that dynamic frequencies adapt to [tokens]; None: all positions
        attended to.

        memory: the previous segment's hidden states, to which the next ones are added; its tokens directly precede this
        segment's, in the same document. wanted: ranges [begin, end) of the sequence, None: all of it; x_BTC are theirs,
        one after the other, and the last layer computes no more than keys and values for the rest.
        """
        assert not (memory and cache), "a memory and a cache both precede the segment"
        assert not (self.bidirectional and (memory or cache or wanted)), "every token of every layer sees all others"
        assert not (wanted and (memory or cache)), "both need every position of every layer"
        positions = self.positions_of(tokens_BT, pos_BT, doc_BT, cache)
        shared = self.sequence if cache is None else None
        if shared is not None:
            assert not (wanted or memory), "both cut sequences in their own way"
            length = length or tokens_BT.shape[1]
            whole = shared.whole(tokens_BT.shape[1]) == tokens_BT.shape[1]
            assert whole or not self.bidirectional, "what fills a row up is seen by what comes before it"
            tokens_BT, positions, doc_BT = shared.rows(tokens_BT, positions, doc_BT)
        keys, doc_BS = (positions, doc_BT) if memory is None else prepend_memory(memory, positions, doc_BT)
        contexts = self.contexts(positions, keys, doc_BS, length, cache)
        of_rank = positions
        if shared is not None:
            contexts = {layer_type: context.shared_by(shared) for layer_type, context in contexts.items()}
            tokens_BT, of_rank = shared.own(tokens_BT), positions._replace(pos_BT=shared.own(positions.pos_BT))
        call = CHECKPOINTING[self.activation_checkpointing if self.training else "none"]
        if self.compiled is not None and self.training and torch.is_grad_enabled() and cache is None:
            call = self.compiled
        drops = self.training and self.config.dropout > 0
        with shared.own_randomness(tokens_BT.device) if shared and drops else nullcontext():
            x_BTC = self.add_positions(self.embed(tokens_BT), of_rank)
            for layer_type, block in zip(self.layer_types[: -1 if wanted else None], self.blocks, strict=False):
                # Outside of the call: what is computed again in the backward pass must not leave its memory twice.
                past_BMC = None if memory is None else memory.exchange(x_BTC)
                x_BTC = call(block, x_BTC, contexts[layer_type], past_BMC)
        if wanted:
            x_BTC = self._last_layer(x_BTC, wanted, positions, doc_BT, length or positions.pos_BT.shape[1])
        return self.final_norm(x_BTC)

    def _last_layer(
        self,
        x_BTC: Tensor,
        wanted: Sequence[tuple[int, int]],
        positions: Positions,
        doc_BT: Tensor | None,
        length: int,
    ) -> Tensor:
        """Return the last layer at the wanted positions; those before each range are keys and values only."""
        parts = []
        for begin, end in wanted:
            # Stretch by stretch, each with the keys up to its end: kernels take the queries to be the last ones of
            # their keys.
            queries, keys = positions.part(begin, end, doc_BT), positions.part(0, end, doc_BT)
            doc_BS = None if doc_BT is None else doc_BT[:, :end]
            context = self.context(self.layer_types[-1], queries, keys, doc_BS, length, None)
            parts.append(self.blocks[-1](x_BTC[:, begin:end], context, x_BTC[:, :begin] if begin else None))
        return torch.cat(parts, dim=1)

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor | None = None,
        pos_BT: Tensor | Positions | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        cache: Cache | None = None,
        memory: Memory | None = None,
        wanted: Sequence[tuple[int, int]] | None = None,
        by_token: bool = False,
    ) -> Tensor:
        """Return float32 logits_BTV, or with targets the float32 sum of the losses [nats]; target -100 is ignored.
        Where ranks share a sequence, the sum is that of this rank's slice. by_token: see `losses`."""
        shared = self.sequence if cache is None else None
        # Later, where the last layer cannot be run for some positions only, or not as often on every rank.
        whole = shared is not None or self.gathers_weights or self.bidirectional
        now, later = (None, wanted) if whole else (wanted, None)
        asked = [] if targets_BT is None or by_token or not self.training else self.positions_of_layers
        for layer in asked:
            layer.is_asked = True
        whole_BT = targets_BT
        if targets_BT is not None:
            targets_BT = _select(targets_BT, now) if shared is None else shared.targets(targets_BT)
        x_BTC = self.hidden(tokens_BT, pos_BT, doc_BT, length, cache, memory, now)
        out = self.head(x_BTC, targets_BT, by_token=by_token)
        if whole_BT is not None and not by_token:
            return self._penalised(out, whole_BT, asked)
        return _select(out if shared is None else shared.gathered(out)[:, : tokens_BT.shape[1]], later)

    def _penalised(self, loss: Tensor, targets_BT: Tensor, layers: Sequence[LayerPosition]) -> Tensor:
        """Return the summed loss as it is, with gradients of what these layers add to it. targets_BT: of whole rows."""
        penalties = [layer.penalty for layer in layers if layer.penalty is not None]
        for layer in layers:
            layer.penalty, layer.is_asked = None, False
        if not penalties:
            return loss
        n_targets = (targets_BT != IGNORE).sum() / (1 if self.sequence is None else self.sequence.size)
        penalty = n_targets * torch.stack(penalties).mean()
        return loss + (penalty - penalty.detach()).to(loss.dtype)

    @torch.no_grad()
    def losses(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        pos_BT: Tensor | Positions | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        wanted: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Return the loss of every token, nll_BT in float32 [nats]; 0 where the target is -100. wanted: as in `hidden`.
        Where ranks share sequences, every rank returns all of it.

        It calls the module itself, as `forward` does, since a sharded engine gathers the weights for that call.
        """
        return self(tokens_BT, targets_BT, pos_BT, doc_BT, length, wanted=wanted, by_token=True)

    @torch.no_grad()
    def nll(self, hidden_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the loss of every token, nll_BT in float32 [nats]; 0 where the target is -100."""
        return self.head.nll(hidden_BTC, targets_BT)

    # ---- what layers share

    def positions_of(
        self, tokens_BT: Tensor, pos_BT: Tensor | Positions | None, doc_BT: Tensor | None, cache: Cache | None
    ) -> Positions:
        """Return the positions of tokens: those passed, else counted on from the cache's end, (1, T)."""
        if pos_BT is not None:
            return Positions.of(pos_BT, doc_BT)
        start = 0 if cache is None else cache.length
        return Positions.counted(start, start + tokens_BT.shape[1], tokens_BT.device)

    def add_positions(self, x_BTC: Tensor, pos_BT: Tensor | Positions) -> Tensor:
        """Return embeddings of tokens scaled, normalised and with what the position scheme adds to them: the input of
        the first layer."""
        positions = Positions.of(pos_BT)
        # An attention pattern may number positions from 0 again (segments), and a table of positions is looked up by
        # that.
        placed, _, _ = self.attention_patterns[DEFAULT].place(positions, positions, None)
        if self.config.embedding_multiplier != 1:
            # In the dtype of the embeddings, as Gemma rounds it.
            x_BTC = x_BTC * torch.tensor(self.config.embedding_multiplier, dtype=x_BTC.dtype)
        return self.position.embed(self.embedding_norm(x_BTC), placed)

    def contexts(
        self,
        queries: Tensor | Positions,
        keys: Tensor | Positions,
        doc_BS: Tensor | None = None,
        length: int | None = None,
        cache: Cache | None = None,
    ) -> dict[str, AttentionContext]:
        """Return the context of each layer type, when the queries are the last T of the S keys. cache: it takes the
        queries in, and its positions and documents take the place of those of the keys."""
        measured_keys = Positions.of(keys, doc_BS)
        measured = measured_keys if queries is keys else Positions.of(queries)
        if cache is None:
            attended = dict.fromkeys(self.keeps, AttendedKeys(measured_keys, doc_BS))
        else:
            attended = cache.advance(measured, doc_BS)
            assert cache.at_length is None or length in (None, cache.at_length), (length, cache.at_length)
            length = length or cache.at_length
        contexts = {}
        for layer_type in dict.fromkeys(self.layer_types):
            of_type, documents = attended[self.keep_of(layer_type)]
            n_tokens = of_type.pos_BT.shape[1] if cache is None else cache.length  # a cache of a window holds fewer
            contexts[layer_type] = self.context(layer_type, measured, of_type, documents, length or n_tokens, cache)
        return contexts

    def context(
        self,
        layer_type: str,
        queries: Positions,
        keys: Positions,
        doc_BS: Tensor | None,
        length: int,
        cache: Cache | None,
    ) -> AttentionContext:
        """Return the context of one layer type, whose layers attend to these keys."""
        position, attention_pattern = self.position_of(layer_type), self.attention_patterns[layer_type]
        layouts, n_tokens = attention_pattern.layouts(queries, keys, doc_BS), length
        length = attention_pattern.length(length)
        rotated = cache is not None and cache.at_length is not None
        rotated = rotated and position.caches_rotated_keys and attention_pattern.caches_rotated_keys
        one_token = queries.pos_BT.numel() == 1 and not torch.is_grad_enabled()
        decode = cache.decode_tables if cache is not None and rotated and one_token else None
        views = []
        for layout in layouts:
            of_keys = layout.new_keys if rotated else layout.keys
            if decode is not None and of_keys is layout.queries:
                tables = decode.tables(position, of_keys, length)
            else:
                tables = position(layout.queries, of_keys, length)
            views.append((tables, layout))
        # Any of the layouts: they differ in what is seen and how far it seems, the place in the text is the same in
        # all.
        text_BT, window = layouts[0].text_queries.pos_BT, self.shape.max_seq_len
        most_seen = attention_pattern.most_seen(self.training)
        scale_BT = logit_scale(self.logit_scales[layer_type], text_BT, window, n_tokens, most_seen)
        of_heads = layouts_of_heads(layouts, attention_pattern.in_training() if self.training else ())
        return AttentionContext(
            position, KERNELS[self.attention], views, cache, rotated, scale_BT, layer_type, of_heads=of_heads
        )


def module_name(layer_type: str) -> str:
    """Return the name of the module with the shared parameters of a layer type's scheme."""
    return "position" if layer_type == DEFAULT else f"position_{layer_type}"


def _with_settings(position: Position, settings: SchemeSettings) -> Position:
    """Build the scheme with other settings and the same parameters; ValueError where these do not fit."""
    if settings == position.settings:
        return position
    other = positions.build(settings, position.shape)
    shapes = [{n: p.shape for n, p in each.named_parameters()} for each in (other, position)]
    widths = [(each.projected_key_dim, each.key_dim) for each in (other, position)]
    if other.layer_class is not position.layer_class or widths[0] != widths[1] or shapes[0] != shapes[1]:
        raise ValueError(f"{settings.scheme} cannot replace {position.settings.scheme} on the same weights")
    for name, parameter in position.named_parameters():
        owner, _, leaf = name.rpartition(".")
        other.get_submodule(owner).register_parameter(leaf, parameter)
    return other.train(position.training)


def _select(x_BT: Tensor, wanted: Sequence[tuple[int, int]] | None) -> Tensor:
    """Select the wanted ranges, one after the other; None: everything."""
    return x_BT if wanted is None else torch.cat([x_BT[:, begin:end] for begin, end in wanted], dim=1)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Return (all parameters, parameters without the embedding and the output head). Shared tensors count once."""
    sizes = {name: getattr(p, "ds_numel", p.numel()) for name, p in model.named_parameters()}
    outside = sum(size for name, size in sizes.items() if name in ("embed.weight", "head.weight"))
    return sum(sizes.values()), sum(sizes.values()) - outside


def vocab_size(
    model: ModelConfig, n_pieces: int, tokenizer: str, other_data: Callable[[], str | None] = lambda: None
) -> int:
    """Return the embedding rows [tokens]: as configured, else n_pieces, the tokenizer's size, rounded up to 64.

    tokenizer: its file, for the error. other_data: the fix where the rows are those of trained weights, to which no
    setting adds any; None: they are not.
    """
    rows = model.vocab_size or -(-n_pieces // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    if rows < n_pieces:
        fix = other_data() or "model.vocab_size=null, which takes the tokenizer's size"
        raise DataError(
            f"E-TOK-09 model.vocab_size={rows}: the tokenizer {tokenizer} has {n_pieces} "
            f"tokens and needs as many rows. Fix: {fix}"
        )
    return rows


def build_model(
    config: Config, n_tokens: int, trainable: Sequence[str] = (), lora: LoraConfig | None = None
) -> Transformer:
    """Build the Transformer of a config with n_tokens embedding rows, weights not yet initialised.

    lora: adapters for what matches the patterns `trainable`; None: without. Raises UserError where adapters do not fit
    (E-STG-14, 16, 17) or peft is missing (E-STG-18).
    """
    model = Transformer(
        config.model,
        config.position,
        config.attention_pattern,
        vocab_size=n_tokens,
        max_seq_len=config.train.seq_len,
        layers=config.layers,
        attention=config.engine.attention,
        activation_checkpointing=config.engine.activation_checkpointing,
        compile_blocks=config.engine.compile == "blocks",  # auto: not before it was measured on a GPU
        mlp_tile=config.engine.mlp_tile,
    )
    if lora is not None:
        adapt(model, trainable, lora)
    return model
