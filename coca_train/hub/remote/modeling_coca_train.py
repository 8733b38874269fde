"""A model of coca_train as a class of transformers: padding, cache, loss; what it computes is the Decoder's.

Shape legend: B batch, T tokens, S all tokens with those of the cache, C model width.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from coca_train.hub.remote.configuration_coca_train import CocaTrainConfig, Section
from coca_train.hub.remote.past import Past
from coca_train.models.decoder import Decoder
from coca_train.runtime import IGNORE


class CocaTrainForCausalLM(PreTrainedModel, GenerationMixin):
    """Next-token logits."""

    config_class = CocaTrainConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _supports_sdpa = True
    _tied_weights_keys = {"model.head.weight": "model.embed.weight"}  # noqa: RUF012

    def __init__(self, config: CocaTrainConfig) -> None:
        super().__init__(config)
        sections: Any = Section(config.coca_train)
        kinds: dict[str, Any] = {name: Section(kind) for name, kind in config.kinds.items()}
        self.model = Decoder(
            sections.model, config.layer_kinds, kinds, vocab_size=config.vocab_size, max_seq_len=sections.seq_len
        )
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.model.embed

    def get_output_embeddings(self) -> Any:
        return self.model.head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        length: int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """input_ids: (B, T). attention_mask: (B, S), 0 where a token is padding, on whatever side; it may be left out.
        position_ids: of the tokens that are not padding; None: 0 at the first one of each row, and so on.
        logits_to_keep: how many of the last ones; 0: all. length: what dynamic frequencies adapt to [tokens]; None: the
        longest row so far. labels: (B, T), -100 is ignored; the loss is the mean of those left.
        """
        if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache) and labels is None:
            past_key_values = DynamicCache()
        past = None if past_key_values is None else Past(past_key_values, self.model.keeps)
        pos_BT, doc_BT = _placed(input_ids, attention_mask, position_ids, past)
        if length is None:
            length = int((pos_BT if doc_BT is None else pos_BT.masked_fill(doc_BT != 1, 0)).max()) + 1
        if past is None and doc_BT is None and bool((pos_BT == pos_BT[:1]).all()):
            pos_BT = pos_BT[:1]  # tables are made once, not for each row
        x_BTC = self.model.hidden(input_ids, pos_BT, doc_BT, length, past)
        loss = None
        if labels is not None:
            next_BT = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE)
            loss = self.model.head(x_BTC, next_BT) / (next_BT != IGNORE).sum()
        logits_BTV = self.model.head(x_BTC[:, -logits_to_keep:])
        return CausalLMOutputWithPast(loss=loss, logits=logits_BTV, past_key_values=past_key_values)


def _placed(
    input_ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past: Past | None
) -> tuple[Tensor, Tensor | None]:
    """Position and document of every new token, (B, T): the text is document 1, padding before it 0 and behind it 2, so
    that no token of the text sees any. No documents where no row has padding, now or before."""
    n_new = input_ids.shape[1]
    is_text_BS = torch.ones_like(input_ids, dtype=torch.bool)
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
