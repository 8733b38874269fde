"""transformers' cache in the place of ours (models/cache.py): so that beam search reorders it, and anyone hands it on.

Of its layers the first n hold what ours do, keys not yet rotated (of CoCA t, at half width) and values, one for each
layer of the model. The next one holds where each token stands and whether it is one of the text's, as its `keys` and
`values`; those behind it hold, in the order of the model's layers, what position schemes make of a token.

Everything is kept, whatever window a layer has.

Shape legend: B batch, T new positions, S all positions in hand, G key/value heads, K and D key and value width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from coca_train.attention.visibility import Keep
from coca_train.models.cache import AttendedKeys, DecodeTables
from coca_train.positions.token_positions import Positions


class Past:
    """One forward's view of a cache. keeps: of every layer of the model, as ours has it."""

    at_length: int | None = None  # a later forward may see another length,
    decode_tables: DecodeTables | None = None  # and other weights

    def __init__(self, cache: Cache, keeps: Sequence[Keep | None]) -> None:
        for layer in cache.layers:
            if type(layer) is not DynamicLayer:
                raise ValueError(f"this model's past is for a DynamicCache, not for layers of {type(layer).__name__}")
        self.cache, self.keeps = cache, keeps
        self._extra = len(keeps) + 1  # the next layer for what a scheme makes of tokens

    @property
    def length(self) -> int:
        """Tokens held, padding included."""
        return self.cache.get_seq_length()

    @property
    def is_text_BS(self) -> Tensor | None:
        """Which of the tokens held are the text's, not padding; None: nothing is held."""
        doc_B1S1 = self._layer(len(self.keeps)).values
        return None if doc_B1S1 is None else doc_B1S1[:, 0, :, 0] == 1

    def advance(self, positions: Positions, doc_BT: Tensor | None = None) -> dict[Keep | None, AttendedKeys]:
        """As ours. doc_BT: 1 for tokens of the text; None: all of them, and all that is held."""
        pos_BT = positions.pos_BT
        own_BT = torch.ones_like(pos_BT) if doc_BT is None else doc_BT
        pos_B1S1, doc_B1S1 = self._layer(len(self.keeps)).update(pos_BT[:, None, :, None], own_BT[:, None, :, None])
        pos_BS, doc_BS = pos_B1S1[:, 0, :, 0], doc_B1S1[:, 0, :, 0]
        if doc_BT is None and bool((pos_BS == pos_BS[:1]).all()):
            pos_BS = pos_BS[:1]  # tables are made once, not for each row
        held_doc_BS = None if doc_BT is None else doc_BS
        return dict.fromkeys(self.keeps, AttendedKeys(Positions.of(pos_BS, held_doc_BS), held_doc_BS))

    def extend(self, layer: int, *new: Tensor) -> list[Tensor]:
        """As ours."""
        k_BTGK, v_BTGD, *tokens = new
        k_BGSK, v_BGSD = self.cache.update(k_BTGK.transpose(1, 2), v_BTGD.transpose(1, 2), layer)
        in_hand = [k_BGSK.transpose(1, 2), v_BGSD.transpose(1, 2)]
        for x_BT in tokens:
            flat_B1TN = x_BT.flatten(2)[:, None]
            held_B1SN, _ = self._layer(self._extra).update(flat_B1TN, flat_B1TN[..., :0])
            in_hand.append(held_B1SN[:, 0].unflatten(2, x_BT.shape[2:]))
            self._extra += 1
        return in_hand

    def _layer(self, index: int) -> DynamicLayer:
        """Behind those of the model's layers, which transformers makes, they are made here."""
        while len(self.cache.layers) <= index:
            self.cache.layers.append(DynamicLayer())
        return self.cache.layers[index]  # pyright: ignore[reportReturnType]  # all are checked at the start
