"""A scheme's tensors: shapes, types, and where and when its parameters are read.

Shape legend: B batch, T queries, S keys, H query heads, D head_dim, C d_model.
"""

import math
from typing import Any

import torch
from torch import Tensor

from coca_train.positions.base import Position
from coca_train.testing import parts
from coca_train.testing.contract import Contract


class Tensors(Contract):
    """What kernels and sharded engines rely on: the dtype that a fused kernel takes, float32 where bfloat16 would merge
    positions, no state between calls, no buffer that a cast or a start on `meta` could spoil."""

    def test_shapes_and_types(self, settings: Any) -> None:
        """In every dtype: what the dot product takes in that of q, biases in float32 (they grow with the distance)."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for n_tokens in (1, 5):
                scheme = parts.build(settings).to(dtype)
                self._shapes_and_types(scheme, n_tokens, dtype)

    def _shapes_and_types(self, scheme: Position, n_tokens: int, dtype: torch.dtype) -> None:
        pos, layer = parts.start(n_tokens), parts.layer_of(scheme).to(dtype)
        q, k, _ = parts.qkv(scheme, parts.hidden_states(scheme, n_tokens, dtype), pos)
        q_BTHE, k_BSGE, terms, score_mod = mapped = parts.mapped(scheme, q, k, pos, pos, n_tokens, layer)
        assert q_BTHE.shape[:3] == (2, n_tokens, 4) and k_BSGE.shape[:3] == (2, n_tokens, 2)
        assert q_BTHE.shape[3] == k_BSGE.shape[3] >= scheme.shape.head_dim
        assert q_BTHE.dtype == k_BSGE.dtype == dtype
        assert all(torch.isfinite(x).all() for x in parts.flat(mapped))
        if terms.distance_HR is not None:
            assert terms.distance_HR.dtype == torch.float32 and terms.distance_HR.shape[0] == 4
        for pair, heads in ((terms.query, 4), (terms.key, 2)):
            if pair is not None:
                x_BTHD, e_RHD = pair
                assert x_BTHD.shape[:3] == (2, n_tokens, heads) and x_BTHD.dtype == e_RHD.dtype == dtype
                assert e_RHD.shape[1] in (1, 4) and e_RHD.shape[2] == x_BTHD.shape[3]
        if terms.value_RD is not None:
            assert (terms.value_RD.shape[1:], terms.value_RD.dtype) == ((16,), dtype)
        if score_mod is not None:  # what stands for long sums and positions
            assert all(x.dtype == torch.float32 for x in parts.flat(tuple(score_mod[1:])))
            assert all(x.shape[:2] in ((1, n_tokens), (2, n_tokens)) for x in (*score_mod.queries, *score_mod.keys))

    def test_positions_of_the_whole_batch_or_of_each_row(self, settings: Any) -> None:
        """(1, T) positions serve the batch; (B, T) rows may restart, as packed documents do."""
        scheme = parts.build(settings)

        def scores(x_BTC: Tensor, pos_BT: Tensor) -> Tensor:
            return parts.dense_scores(scheme, *parts.qkv(scheme, x_BTC, pos_BT)[:2], pos_BT, pos_BT, 6)

        x_BTC = parts.hidden_states(scheme, 6)
        shared = scores(x_BTC, parts.start(6))
        assert torch.allclose(scores(x_BTC, parts.start(6, batch=2)), shared, rtol=0, atol=1e-12)
        packed = scores(x_BTC, torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]]))
        # tables in float32 may be centred elsewhere when other positions are in hand
        assert torch.allclose(packed[0], shared[0], rtol=0, atol=1e-6)
        alone = scores(x_BTC[1:, 3:], parts.start(3))
        if not scheme.carries:  # a carry runs over what is seen, which is the documents' business
            assert torch.allclose(packed[1:, :, 3:, 3:], alone, rtol=0, atol=1e-6)

    def test_no_state_is_left_behind(self, settings: Any) -> None:
        """A call at 32k leaves no trace on a call at 512: same bits as a fresh scheme."""
        scheme = parts.build(settings)
        x_BTC, last = parts.hidden_states(scheme, 6, torch.float32), min(32768, parts.end(scheme))
        fresh = parts.attention(parts.build(scheme.settings), x_BTC, parts.start(6), 512)
        parts.attention(scheme, x_BTC, parts.start(6, last - 6), 32768)
        assert torch.equal(parts.attention(scheme, x_BTC, parts.start(6), 512), fresh)

    def test_half_precision_weights_do_not_touch_the_tables(self, settings: Any) -> None:
        """`model.bfloat16()` and a start on `meta` cannot reach slopes, frequencies or angles: there are no buffers."""
        scheme = parts.build(settings)
        assert not [*scheme.buffers(), *parts.layer_of(scheme).buffers()]
        pos = parts.start(2, min(32768, parts.end(scheme)) - 2)
        for table in parts.flat(scheme.bfloat16()(pos, pos, 32768)):
            assert not table.is_floating_point() or table.dtype in (torch.float32, torch.float64)

    def test_every_parameter_is_trained(self, settings: Any) -> None:
        """None is without gradient, and every gradient is finite. Distance 0 is among the pairs: log 0 would show."""
        scheme = parts.build(settings)
        layer = parts.layer_of(scheme)
        out = parts.attention(scheme, parts.hidden_states(scheme, 9).requires_grad_(), parts.start(9), 9, layer)
        out.square().sum().backward()
        for name, parameter in [*scheme.named_parameters(), *layer.named_parameters()]:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all() and parameter.grad.any(), name

    @torch.no_grad()
    def test_parameters_are_read_only_where_a_sharded_engine_lends_them(self, settings: Any) -> None:
        """ZeRO 3: shared ones while tables are made, a layer's own while it maps queries and keys. NaN elsewhere."""
        scheme, pos = parts.build(settings), parts.start(9)
        q, k, _ = parts.qkv(scheme, parts.hidden_states(scheme, 9), pos)
        exact = parts.mapped(scheme, q, k, pos, pos, 9)
        tables, layer = scheme(pos, pos, 9), parts.layer_of(scheme)
        for parameter in scheme.parameters():
            parameter.fill_(math.nan)
        tokens = parts.tokens(layer, k)
        mapped = layer(scheme, q, k, tables, parts.projections(scheme), tokens)
        for parameter in layer.parameters():
            parameter.fill_(math.nan)
        assert all(torch.equal(a, b) for a, b in zip(parts.flat(mapped), parts.flat(exact), strict=True))
