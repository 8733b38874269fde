"""A transformers model around our own decoder (models/transformer.py), for what hub/export_files/ does not compute.

It adds padding, packed texts, cache and loss. `import coca_train.transformers` registers it.

Shape legend: B batch, T new tokens, S all tokens with those of the cache, C model width, G key/value heads, K and D key
and value width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults

from coca_train.attention.pattern import Keep
from coca_train.hub import config_json
from coca_train.hub.export_files.modeling_coca import CACHE, KNOWN, check_cache
from coca_train.models.cache import AttendedKeys, DecodeTables
from coca_train.models.init import init_parameter
from coca_train.models.layers import Head
from coca_train.positions.token_positions import Positions


class CocaTrainConfig(PretrainedConfig):
    """config.json of model_type coca_train.

    coca_train: the sections of the run's configuration that determine the model.
    """

    model_type = "coca_train"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012

    def __init__(
        self,
        coca_train: dict[str, object] | None = None,
        vocab_size: int = 0,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        self.coca_train = coca_train or {}
        self.vocab_size, self.use_cache = vocab_size, use_cache
        super().__init__(**kwargs)


class Past:
    """An adapter of transformers' cache to the interface of ours (models/cache.py), for one forward.

    Its first n layers hold keys before their rotation (of CoCA t, at half width) and values, one for each layer of the
    model. The next one holds the position of each token and whether it is text, as its `keys` and `values`; the others
    hold, in the order of the model's layers, what position schemes compute of a token. All tokens are kept, whatever
    window a layer has, and beam search can reorder them.

    keeps: of every layer of the model, as in our cache.
    """

    at_length: int | None = None  # a later forward may have another length,
    decode_tables: DecodeTables | None = None  # and other weights

    def __init__(self, cache: Cache, keeps: Sequence[Keep | None]) -> None:
        for layer in cache.layers:
            if type(layer) is not DynamicLayer:
                raise ValueError(f"this model's past is for a DynamicCache, not for layers of {type(layer).__name__}")
        self.cache, self.keeps = cache, keeps
        self._extra = len(keeps) + 1  # the next layer for what a scheme computes of tokens

    @property
    def length(self) -> int:
        """The number of cached tokens, padding included."""
        return self.cache.get_seq_length()

    @property
    def is_text_BS(self) -> Tensor | None:
        """Which cached tokens are text, not padding; None: the cache is empty."""
        doc_B1S1 = self._layer(len(self.keeps)).values
        return None if doc_B1S1 is None else doc_B1S1[:, 0, :, 0] == 1

    def advance(self, positions: Positions, doc_BT: Tensor | None = None) -> dict[Keep | None, AttendedKeys]:
        """Add tokens, as our cache does. doc_BT: 1 for tokens of the text; None: all tokens are, cached ones too."""
        pos_BT = positions.pos_BT
        own_BT = torch.ones_like(pos_BT) if doc_BT is None else doc_BT
        pos_B1S1, doc_B1S1 = self._layer(len(self.keeps)).update(pos_BT[:, None, :, None], own_BT[:, None, :, None])
        pos_BS, doc_BS = pos_B1S1[:, 0, :, 0], doc_B1S1[:, 0, :, 0]
        if doc_BT is None and bool((pos_BS == pos_BS[:1]).all()):
            pos_BS = pos_BS[:1]  # tables are made once, not for each row
        held_doc_BS = None if doc_BT is None else doc_BS
        return dict.fromkeys(self.keeps, AttendedKeys(Positions.of(pos_BS, held_doc_BS), held_doc_BS))

    def extend(self, layer: int, *new: Tensor) -> list[Tensor]:
        """Add keys, values and tokens of a layer, as our cache does; return all."""
        k_BTGK, v_BTGD, *tokens = new
        k_BGSK, v_BGSD = self.cache.update(k_BTGK.transpose(1, 2), v_BTGD.transpose(1, 2), layer)
        extended = [k_BGSK.transpose(1, 2), v_BGSD.transpose(1, 2)]
        for x_BT in tokens:
            flat_B1TN = x_BT.flatten(2)[:, None]
            held_B1SN, _ = self._layer(self._extra).update(flat_B1TN, flat_B1TN[..., :0])
            extended.append(held_B1SN[:, 0].unflatten(2, x_BT.shape[2:]))
            self._extra += 1
        return extended

    def _layer(self, index: int) -> DynamicLayer:
        """Return a layer of the cache; transformers creates only those of the model's layers."""
        while len(self.cache.layers) <= index:
            self.cache.layers.append(DynamicLayer())
        return self.cache.layers[index]  # pyright: ignore[reportReturnType]  # all are checked at the start


class CocaTrainForCausalLM(PreTrainedModel, GenerationMixin):
    """Next-token logits. `model` is the Transformer of a run."""

    config_class = CocaTrainConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Transformer"]  # noqa: RUF012  # what layers share stays on one device
    _skip_keys_device_placement = ["past_key_values", "cache"]  # noqa: RUF012
    _supports_sdpa = True
    _tied_weights_keys = {"model.head.weight": "model.embed.weight"}  # noqa: RUF012

    def __init__(self, config: CocaTrainConfig) -> None:
        super().__init__(config)
        sections, vocab_size = config.coca_train, config.vocab_size
        self.architecture = config_json.architecture_of_sections(config_json.NAME, sections, vocab_size)
        self.model = self.architecture.build()
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embed

    def set_input_embeddings(self, value: nn.Embedding) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.model.embed = value

    def get_output_embeddings(self) -> Head:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: Head) -> None:
        self.model.head = new_embeddings

    def _get_resized_lm_head(
        self, old_lm_head: Head, new_num_tokens: int | None = None, *args: object, **kwargs: object
    ) -> Head:
        """Resize the head as an embedding, since it is no Linear."""
        n_rows, width = old_lm_head.weight.shape
        rows = nn.Embedding(n_rows, width, _weight=old_lm_head.weight.detach())
        old_lm_head.weight = nn.Parameter(self._get_resized_embeddings(rows, new_num_tokens).weight.detach())
        return old_lm_head

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as a run with seed 0; modules outside of the model (added rows) as embeddings."""
        a = self.architecture
        prefix = next((name for name, each in self.model.named_modules() if each is module), "embed")
        for name, parameter in module.named_parameters(recurse=False):
            if not getattr(parameter, "_is_hf_initialized", False):
                init_parameter(f"{prefix}.{name}", parameter, a.model, a.position, 0, a.layers)

    @can_return_tuple
    @merge_with_config_defaults
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        logits_to_keep: int | Tensor = 0,
        length: int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, and the loss where there are labels.

        attention_mask: (B, S), 0 where a token is padding, on either side. position_ids: of the text's tokens; None:
        from 0 in each row; where they jump and there is no mask, another document begins. cache: the name of
        past_key_values in some versions of transformers. length: what dynamic frequencies adapt to [tokens]; None: the
        longest row so far. logits_to_keep, labels: as in transformers' own classes.

        Raises ValueError and TypeError for arguments that cannot be combined.
        """
        if unknown := sorted(kwargs.keys() - KNOWN):
            raise TypeError(f"{type(self).__name__}.forward() got an unexpected keyword argument {unknown[0]!r}")
        if kwargs.get("output_attentions"):
            raise ValueError("output_attentions=True: the kernels of coca_train do not store attention weights")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds is needed")
        x_BTC = self.model.embed(input_ids) if inputs_embeds is None else inputs_embeds
        cache = past_key_values if cache is None else cache
        checkpointed = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        check_cache(cache, checkpointed)
        if use_cache and cache is None:
            cache = DynamicCache()
        is_empty = cache is None or cache.get_seq_length() == 0
        doc_BT = _documents(position_ids) if attention_mask is None and is_empty else None
        if checkpointed or doc_BT is not None:
            cache = None  # a recomputed layer would extend it again; packed texts do not continue
        past = None if cache is None else Past(cache, self.model.keeps)
        pos_BT = position_ids
        if doc_BT is None:
            pos_BT, doc_BT = _place_tokens(x_BTC, attention_mask, position_ids, past)
        assert pos_BT is not None
        if length is None:
            length = int((pos_BT if past is None or doc_BT is None else pos_BT.masked_fill(doc_BT != 1, 0)).max()) + 1
        if past is None and doc_BT is None and bool((pos_BT == pos_BT[:1]).all()):
            pos_BT = pos_BT[:1]  # tables are computed once, not for each row
        states: list[Tensor] = []
        contexts = self.model.contexts(pos_BT, pos_BT, doc_BT, length, past)
        x_BTC = self.model.add_positions(x_BTC, pos_BT)
        for kind, block in zip(self.model.layer_types, self.model.blocks, strict=True):
            states.append(x_BTC)
            # Never reentrant: what layers share (tables) may have gradients too.
            inputs = x_BTC, contexts[kind]
            x_BTC = checkpoint(block, *inputs, use_reentrant=False) if checkpointed else block(*inputs)
        x_BTC = self.model.final_norm(x_BTC)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self.model.head(x_BTC[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        wanted = kwargs.get("output_hidden_states", self.config.output_hidden_states)
        held: dict[str, Any] = {CACHE: cache if use_cache else None}
        return CausalLMOutputWithPast(
            loss=loss, logits=logits_BTV, hidden_states=(*states, x_BTC) if wanted else None, **held
        )


def _documents(position_ids: Tensor | None) -> Tensor | None:
    """Return the text of each token, (B, T), where positions jump; None: one text a row."""
    if position_ids is None:
        return None
    jumps_BT = torch.nn.functional.pad(position_ids[:, 1:] - position_ids[:, :-1] != 1, (1, 0))
    return jumps_BT.cumsum(1) if bool(jumps_BT.any()) else None


def _place_tokens(
    x_BTC: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past: Past | None
) -> tuple[Tensor, Tensor | None]:
    """Return position and document of every new token, (B, T): the text is document 1, padding before it 0 and after it
    2, so that the text does not see padding. No documents where no row has padding, now or before."""
    n_new = x_BTC.shape[1]
    is_text_BS = torch.ones(x_BTC.shape[:2], dtype=torch.bool, device=x_BTC.device)
    if attention_mask is not None:
        if attention_mask.ndim != 2:
            raise ValueError(f"attention_mask of {attention_mask.ndim} dimensions; a mask of tokens, (B, S), is needed")
        is_text_BS = attention_mask[:, -n_new:].bool()
    if past is not None and past.is_text_BS is not None:
        is_text_BS = torch.cat((past.is_text_BS, is_text_BS), dim=1)
    n_text_BS = is_text_BS.cumsum(1)
    pos_BT = (n_text_BS - 1)[:, -n_new:]
    is_text_BT = is_text_BS[:, -n_new:]
    if position_ids is not None:
        pos_BT = torch.where(is_text_BT, position_ids[:, -n_new:], pos_BT)
    if bool(is_text_BS.all()):
        return pos_BT, None
    # Padding is numbered too, one by one: attention is faster where positions rise in every document.
    n_padding_BT = (~is_text_BS).cumsum(1)[:, -n_new:].clamp(max=n_text_BS.max())
    doc_BT = torch.where(is_text_BT, 1, torch.where(n_text_BS[:, -n_new:] == 0, 0, 2))
    return torch.where(is_text_BT, pos_BT, n_padding_BT - 1), doc_BT
