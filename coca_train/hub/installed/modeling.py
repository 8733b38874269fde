"""Our Transformer as a class of transformers: padding, packed texts, cache, loss; what it computes is not said again.

Shape legend: B batch, T tokens, S all tokens with those of the cache, C model width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults

from coca_train.hub import config_json
from coca_train.hub.export_files.modeling_coca import CACHE, KNOWN, check_cache
from coca_train.hub.installed.configuration import CocaTrainConfig
from coca_train.hub.installed.past import Past
from coca_train.models.init import init_parameter


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
        sections = config.coca_train
        model = sections.get("model", {}) | {"vocab_size": config.vocab_size}
        self.architecture = config_json.of_sections(config_json.NAME, sections | {"model": model})
        self.model = self.architecture.build()
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.model.embed

    def set_input_embeddings(self, value: Any) -> None:
        self.model.embed = value

    def get_output_embeddings(self) -> Any:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.model.head = new_embeddings

    def _get_resized_lm_head(
        self, old_lm_head: Any, new_num_tokens: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Our head is no Linear: its rows are resized as those of an embedding."""
        rows = nn.Embedding(*old_lm_head.weight.shape, _weight=old_lm_head.weight.detach())
        old_lm_head.weight = nn.Parameter(self._get_resized_embeddings(rows, new_num_tokens).weight.detach())
        return old_lm_head

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As a run with seed 0 begins. What is no part of the model (rows that are added) as embeddings do."""
        a, prefix = (
            self.architecture,
            next((name for name, each in self.model.named_modules() if each is module), "embed"),
        )
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
        """attention_mask: (B, S), 0 where a token is padding, on whatever side. position_ids: of the tokens that are no
        padding; None: 0 at the first one of each row, and so on; where they jump and there is no mask, another document
        begins. cache: what versions of transformers call past_key_values or cache. length: what dynamic frequencies
        adapt to [tokens]; None: the longest row so far. logits_to_keep, labels: as transformers' own classes.

        Raises ValueError and TypeError for what cannot be done, in words.
        """
        if unknown := sorted(kwargs.keys() - KNOWN):
            raise TypeError(f"{type(self).__name__}.forward() got an unexpected keyword argument {unknown[0]!r}")
        if kwargs.get("output_attentions"):
            raise ValueError("output_attentions=True: the kernels of coca_train never hold the weights of attention")
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
            cache = None  # what is computed again would extend it again; packed texts do not go on
        past = None if cache is None else Past(cache, self.model.keeps)
        pos_BT = position_ids
        if doc_BT is None:
            pos_BT, doc_BT = _placed(x_BTC, attention_mask, position_ids, past)
        assert pos_BT is not None
        if length is None:
            length = int((pos_BT if past is None or doc_BT is None else pos_BT.masked_fill(doc_BT != 1, 0)).max()) + 1
        if past is None and doc_BT is None and bool((pos_BT == pos_BT[:1]).all()):
            pos_BT = pos_BT[:1]  # tables are made once, not for each row
        states: list[Tensor] = []
        contexts = self.model.contexts(pos_BT, pos_BT, doc_BT, length, past)
        x_BTC = self.model.add_positions(x_BTC, pos_BT)
        for kind, block in zip(self.model.kinds, self.model.blocks, strict=True):
            states.append(x_BTC)
            # Not with reentrant ones, whatever was asked for: what layers share (tables) may have gradients too.
            given = x_BTC, contexts[kind]
            x_BTC = checkpoint(block, *given, use_reentrant=False) if checkpointed else block(*given)
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
    """Which text each token is of, (B, T), where positions jump; None: there is one text a row."""
    if position_ids is None:
        return None
    jumps_BT = torch.nn.functional.pad(position_ids[:, 1:] - position_ids[:, :-1] != 1, (1, 0))
    return jumps_BT.cumsum(1) if bool(jumps_BT.any()) else None


def _placed(
    x_BTC: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past: Past | None
) -> tuple[Tensor, Tensor | None]:
    """Position and document of every new token, (B, T): the text is document 1, padding before it 0 and behind it 2, so
    that no token of the text sees any. No documents where no row has padding, now or before."""
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
