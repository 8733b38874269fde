"""The model of a run: what it computes (models/decoder.py), and what training and evaluation do with it.

Its settings may be exchanged on the same weights, its attention computed by any kernel; it remembers a segment, keeps
no activations where memory is short, and can compute the last layer of some positions only.

Shape legend: B batch, T time, S all positions with the cache's or the memory's, M memory, C d_model, V vocab_size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coca_train import positions
from coca_train.attention import visibilities
from coca_train.attention.kernels import KERNELS, Kernel
from coca_train.attention.layer_types import UNIFORM, Kind, kinds, kinds_of
from coca_train.attention.visibility import Visibility
from coca_train.config.schema import OWN, Config, LayersConfig, LogitScaleConfig, LoraConfig, ModelConfig
from coca_train.models import fused_loss
from coca_train.models.cache import Cache, KVCache
from coca_train.models.compiled import CompiledBlocks
from coca_train.models.decoder import Decoder, module_name
from coca_train.models.layers import MLP, AttentionContext
from coca_train.models.loss import Score
from coca_train.models.memory import Memory, prepend_memory
from coca_train.models.recompute import WAYS
from coca_train.models.trainable import adapt
from coca_train.models.ulysses import SequenceShare
from coca_train.positions.base import Position
from coca_train.runtime.errors import DataError

VOCAB_MULTIPLE = 64  # embedding rows are rounded up to this: matrix kernels like round numbers


class Transformer(Decoder):
    """A decoder whose layers are as a configuration says.

    model: shape of the network. position: the scheme's settings. visibility: which keys are seen, its settings.
    layers: which layers differ from these two, and how (attention/layer_types.py). max_seq_len: training window
    [tokens].
    attention: name of the kernel (attention/kernels.py). activation_checkpointing: models/recompute.py. compile_blocks:
    in training (models/compiled.py). Weights are not initialised here: see models/init.py.
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
        activation_checkpointing: str = "none",
        compile_blocks: bool = False,
        mlp_tile: int | None = None,
    ) -> None:
        own = {OWN: Kind(position, visibility, model.logit_scale)}
        super().__init__(
            model,
            kinds_of(layers, model.n_layers),
            own | kinds(layers, model, position, visibility),
            vocab_size=vocab_size,
            max_seq_len=max_seq_len,
        )
        self.layers, self.built_with = layers, model
        self.attention = attention
        self.activation_checkpointing = activation_checkpointing
        self.compiled = CompiledBlocks(WAYS[activation_checkpointing]) if compile_blocks else None
        self.sequence: SequenceShare | None = None  # set where several ranks share each sequence (engine/sequence.py)
        self.lent = False  # set where ranks gather sharded weights: each runs the same modules as often
        for module in self.modules():
            if isinstance(module, MLP):
                module.tile = mlp_tile

    def kernel(self) -> Kernel:
        return KERNELS[self.attention]

    def score(self) -> Score:
        return fused_loss.score

    @property
    def visibility(self) -> Visibility:
        """The run's own."""
        return self.visibilities[OWN]

    def settings(self) -> dict[str, Kind]:
        """Of the kinds of layers that there are, in the order of their first layers."""
        return kinds(self.layers, self.config, self.position.settings, self.visibility.settings)

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

    def set_logit_scale(self, settings: LogitScaleConfig | None) -> None:
        """Exchange how scores grow with the length, in all layers that do not say it themselves. None: as built."""
        settings = settings or self.built_with.logit_scale
        self.config = replace(self.config, logit_scale=settings)
        others = {name: kind.logit_scale for name, kind in self.settings().items() if name != OWN}
        self.logit_scales |= {OWN: settings, **others}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Whatever settings are exchanged inside, afterwards the model has those of before."""
        before = {name: module for name, module in self.named_children() if isinstance(module, Position)}
        seen, scales, config = dict(self.visibilities), dict(self.logit_scales), self.config
        try:
            yield
        finally:
            self.visibilities, self.logit_scales, self.config = seen, scales, config
            for name, module in before.items():
                self.add_module(name, module)

    def new_cache(self, capacity: int, at_length: int | None = None) -> KVCache:
        """An empty cache for texts of at most so many positions [tokens]; a layer with a window holds a window.

        at_length: what dynamic frequencies adapt to, as long as the cache is used [tokens]; None: that may change.
        """
        return KVCache(self.keeps, capacity, at_length)

    def hidden(
        self,
        tokens_BT: Tensor,
        pos_BT: Tensor | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        cache: Cache | None = None,
        memory: Memory | None = None,
        wanted: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Final hidden states x_BTC, as the decoder's; of a sequence that ranks share those of this rank's slice (with
        a cache every rank has all of it).

        memory: the previous segment's hidden states, and where the next ones are left; its tokens stand directly before
        this segment's, in the same document. wanted: stretches [begin, end) of the sequence, None: all of it; x_BTC are
        theirs, one after the other, and the last layer computes no more than keys and values for the rest.
        """
        assert not (memory and cache), "a memory and a cache both stand before the segment"
        assert not (wanted and (memory or cache)), "both need every position of every layer"
        call = WAYS[self.activation_checkpointing if self.training else "none"]
        if self.compiled is not None and self.training and torch.is_grad_enabled() and cache is None:
            call = self.compiled
        pos_BT = self.places(tokens_BT, cache) if pos_BT is None else pos_BT
        shared = self.sequence if cache is None else None
        if shared is not None:
            assert not (wanted or memory), "both cut sequences in their own way"
            length = length or tokens_BT.shape[1]
            tokens_BT, pos_BT, doc_BT = shared.rows(tokens_BT, pos_BT, doc_BT)
        pos_BS, doc_BS = (pos_BT, doc_BT) if memory is None else prepend_memory(memory, pos_BT, doc_BT)
        contexts = self.contexts(pos_BT, pos_BS, doc_BS, length, cache)
        if shared is not None:
            contexts = {kind: shared.context(context) for kind, context in contexts.items()}
            tokens_BT, pos_BT = shared.own(tokens_BT), shared.own(pos_BT)

        def run(block: nn.Module, x_BTC: Tensor, context: AttentionContext) -> Tensor:
            # Here, as what is computed again in the backward pass must not leave its memory a second time.
            past_BMC = None if memory is None else memory.exchange(x_BTC)
            return call(block, x_BTC, context, past_BMC)

        with shared.own_randomness(tokens_BT.device) if shared and self._drops else nullcontext():
            x_BTC = self.through(self.embedded(tokens_BT, pos_BT), contexts, -1 if wanted else None, run)
        if wanted:
            x_BTC = self._stretches(x_BTC, wanted, pos_BT, doc_BT, length or pos_BT.shape[1])
        return self.final_norm(x_BTC)

    @property
    def _drops(self) -> bool:
        return self.training and self.config.dropout > 0

    def _stretches(
        self, x_BTC: Tensor, wanted: Sequence[tuple[int, int]], pos_BT: Tensor, doc_BT: Tensor | None, length: int
    ) -> Tensor:
        """The last layer at the wanted positions; those before each stretch are keys and values only."""
        parts = []
        for begin, end in wanted:
            # Stretch by stretch, each with the keys up to its end: kernels take the queries to be the last ones of
            # their keys.
            doc_BS = None if doc_BT is None else doc_BT[:, :end]
            context = self.context(self.kinds[-1], pos_BT[:, begin:end], pos_BT[:, :end], doc_BS, length, None)
            parts.append(self.blocks[-1](x_BTC[:, begin:end], context, x_BTC[:, :begin] if begin else None))
        return torch.cat(parts, dim=1)

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor | None = None,
        pos_BT: Tensor | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        cache: Cache | None = None,
        memory: Memory | None = None,
        wanted: Sequence[tuple[int, int]] | None = None,
        by_token: bool = False,
    ) -> Tensor:
        """Float32 logits_BTV, or with targets the float32 sum of the losses [nats]; target -100 is ignored. Of a
        sequence that ranks share, the sum is that of this rank's slice. by_token: see `losses`."""
        shared = self.sequence if cache is None else None
        # Later, where the last layer cannot be run for some positions only, or not as often on every rank.
        now, later = (None, wanted) if shared is not None or self.lent else (wanted, None)
        if targets_BT is not None:
            targets_BT = _taken(targets_BT, now) if shared is None else shared.targets(targets_BT)
        x_BTC = self.hidden(tokens_BT, pos_BT, doc_BT, length, cache, memory, now)
        out = self.head(x_BTC, targets_BT, by_token=by_token)
        if targets_BT is not None and not by_token:
            return out
        return _taken(out if shared is None else shared.gathered(out)[:, : tokens_BT.shape[1]], later)

    @torch.no_grad()
    def losses(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        pos_BT: Tensor | None = None,
        doc_BT: Tensor | None = None,
        length: int | None = None,
        wanted: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Loss of every token, nll_BT in float32 [nats]; 0 where the target is -100. wanted: as in `hidden`. On every
        rank all of it, where ranks share sequences.

        A call of the module itself, as `forward` is: where a sharded engine lends the weights.
        """
        return self(tokens_BT, targets_BT, pos_BT, doc_BT, length, wanted=wanted, by_token=True)

    @torch.no_grad()
    def nll(self, hidden_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        """Loss of every token, nll_BT in float32 [nats]; 0 where the target is -100."""
        return self.head.nll(hidden_BTC, targets_BT)


def _exchanged(position: Position, settings: Any) -> Position:
    """The scheme with other settings and the same parameters; ValueError where these do not fit."""
    if settings == position.settings:
        return position
    other = positions.build(settings, position.shape)
    shapes = [{n: p.shape for n, p in each.named_parameters()} for each in (other, position)]
    widths = [(each.projected_key_dim, each.key_dim) for each in (other, position)]
    if other.layer_class is not position.layer_class or widths[0] != widths[1] or shapes[0] != shapes[1]:
        raise ValueError(f"{settings.scheme} cannot replace {position.settings.scheme} on the same weights")
    for name, parameter in position.named_parameters():
        owner, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(owner), leaf, parameter)
    return other.train(position.training)


def _taken(x_BT: Tensor, wanted: Sequence[tuple[int, int]] | None) -> Tensor:
    """The wanted stretches, one after the other; None: everything."""
    return x_BT if wanted is None else torch.cat([x_BT[:, begin:end] for begin, end in wanted], dim=1)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(all parameters, parameters without the embedding and the output head). Shared tensors count once."""
    sizes = {name: getattr(p, "ds_numel", p.numel()) for name, p in model.named_parameters()}
    outside = sum(size for name, size in sizes.items() if name in ("embed.weight", "head.weight"))
    return sum(sizes.values()), sum(sizes.values()) - outside


def vocab_size(
    model: ModelConfig, n_pieces: int, tokenizer: str, other_data: Callable[[], str | None] = lambda: None
) -> int:
    """Embedding rows [tokens]: as configured, else n_pieces, the tokenizer's size, rounded up to 64.

    tokenizer: its file, for the error. other_data: the fix where the rows are those of trained weights, which no
    setting adds to; None: they are not.
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
    """The Transformer of a config with n_tokens embedding rows, weights not yet initialised.

    lora: adapters for what matches the patterns `trainable`; None: without. Raises UserError where adapters do not fit
    (E-STG-14, 16, 17) or peft is missing (E-STG-18).
    """
    model = Transformer(
        config.model,
        config.position,
        config.visibility,
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
