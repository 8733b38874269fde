"""Attention kernels. `eager` is the definition; every other path must equal it, gradients included.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D value width,
E dot-product width (>= D). The queries are the last T of the S keys. Scores are q.k * scale,
then the scheme's bias, then visibility, then softmax over keys.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from coca_train.positions.base import ScoreMod
from coca_train.positions.visibility import visible

QUERY_BLOCK = 128  # rows of scores alive at once in `blocked` [queries]
RECOMPUTE_ABOVE = 1024  # `blocked` keeps no scores for the backward pass beyond this many keys
BLOCKED_BELOW = 1024  # on CPU in bfloat16, blocked products beat the fused kernel up to this many keys


class Bias(NamedTuple):
    """What is added to, or hidden from, the plain causal scores."""

    score_mod: ScoreMod | None = None
    doc_BS: Tensor | None = None  # document of every key, or None: no document mask

    @property
    def is_causal_only(self) -> bool:
        return self.score_mod is None and self.doc_BS is None


Kernel = Callable[[Tensor, Tensor, Tensor, float, Bias], Tensor]


def _heads_first(x_BTHD: Tensor, n_heads: int) -> Tensor:
    """x_BHTD, key/value heads repeated for the query heads they serve."""
    x_BHTD = x_BTHD.transpose(1, 2)
    groups = x_BHTD.shape[1]
    return x_BHTD if groups == n_heads else x_BHTD.repeat_interleave(n_heads // groups, dim=1)


def _attend_rows(q_BHtE: Tensor, k_BHsE: Tensor, v_BHsD: Tensor, scale: float, bias: Bias, start: int) -> Tensor:
    """Attention of queries start, start + 1, …, which are the last of the keys given."""
    i_t = torch.arange(start, start + q_BHtE.shape[2], device=q_BHtE.device)
    n_s = torch.arange(k_BHsE.shape[2], device=q_BHtE.device)
    scores_BHts = (q_BHtE * scale) @ k_BHsE.transpose(-1, -2)
    if bias.score_mod is not None:
        b = torch.arange(q_BHtE.shape[0], device=q_BHtE.device)[:, None, None, None]
        h = torch.arange(q_BHtE.shape[1], device=q_BHtE.device)[None, :, None, None]
        scores_BHts = bias.score_mod(scores_BHts, b, h, i_t[None, None, :, None], n_s[None, None, None, :])
    doc_Bs = None if bias.doc_BS is None else bias.doc_BS[:, : k_BHsE.shape[2]]
    seen_ts = visible(q_BHtE.shape[2], doc_Bs, k_BHsE.shape[2], q_BHtE.device)  # (t, s), or (B, t, s) by document
    hide_ts = torch.zeros(seen_ts.shape, dtype=scores_BHts.dtype, device=seen_ts.device).masked_fill_(
        ~seen_ts, -torch.inf
    )
    scores_BHts = scores_BHts + (
        hide_ts if doc_Bs is None else hide_ts[:, None]
    )  # added: costs nothing in the backward pass
    return scores_BHts.softmax(dim=-1) @ v_BHsD


def eager(q_BTHE: Tensor, k_BSGE: Tensor, v_BSGD: Tensor, scale: float, bias: Bias) -> Tensor:
    """The definition, with the whole T x S score matrix. Returns out_BTHD."""
    n_heads = q_BTHE.shape[2]
    q_BHTE, k_BHSE, v_BHSD = (_heads_first(x, n_heads) for x in (q_BTHE, k_BSGE, v_BSGD))
    return _attend_rows(q_BHTE, k_BHSE, v_BHSD, scale, bias, 0).transpose(1, 2)


def blocked(q_BTHE: Tensor, k_BSGE: Tensor, v_BSGD: Tensor, scale: float, bias: Bias) -> Tensor:
    """Block of queries by block of queries, only the keys each can see: O(S * QUERY_BLOCK) memory.

    Beyond RECOMPUTE_ABOVE keys the backward pass recomputes the scores instead of keeping them.
    """
    n_heads, n_queries, n_keys = q_BTHE.shape[2], q_BTHE.shape[1], k_BSGE.shape[1]
    offset = n_keys - n_queries
    q_BHTE, k_BHSE, v_BHSD = (_heads_first(x, n_heads) for x in (q_BTHE, k_BSGE, v_BSGD))
    out = []
    for start in range(0, n_queries, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, n_queries)
        args = (q_BHTE[:, :, start:stop], k_BHSE[:, :, : stop + offset], v_BHSD[:, :, : stop + offset])
        if n_keys > RECOMPUTE_ABOVE and torch.is_grad_enabled():
            block = checkpoint(_attend_rows, *args, scale, bias, start, use_reentrant=False, preserve_rng_state=False)
            assert isinstance(block, Tensor)
        else:
            block = _attend_rows(*args, scale, bias, start)
        out.append(block)
    return torch.cat(out, dim=2).transpose(1, 2)


def sdpa(q_BTHE: Tensor, k_BSGE: Tensor, v_BSGD: Tensor, scale: float, bias: Bias) -> Tensor:
    """torch's fused attention: O(T) memory. Plain causal scores only; anything else goes to `blocked`."""
    n_queries, n_keys, width = q_BTHE.shape[1], k_BSGE.shape[1], v_BSGD.shape[-1]
    if not bias.is_causal_only or n_queries not in (1, n_keys):
        return blocked(q_BTHE, k_BSGE, v_BSGD, scale, bias)
    n_heads = q_BTHE.shape[2]
    q_BHTE, k_BHSE, v_BHSD = (_heads_first(x, n_heads) for x in (q_BTHE, k_BSGE, v_BSGD))
    if q_BTHE.shape[-1] != width:  # fused kernels want one width for q, k and v
        v_BHSD = F.pad(v_BHSD, (0, q_BTHE.shape[-1] - width))
    out_BHTE = F.scaled_dot_product_attention(q_BHTE, k_BHSE, v_BHSD, is_causal=n_queries > 1, scale=scale)
    return out_BHTE[..., :width].transpose(1, 2)


def auto(q_BTHE: Tensor, k_BSGE: Tensor, v_BSGD: Tensor, scale: float, bias: Bias) -> Tensor:
    """The fastest path measured for this device, dtype and length (see benchmarks/)."""
    n_queries, n_keys = q_BTHE.shape[1], k_BSGE.shape[1]
    if q_BTHE.device.type == "cpu" and q_BTHE.dtype == torch.bfloat16 and n_queries > 1 and n_keys <= BLOCKED_BELOW:
        return blocked(q_BTHE, k_BSGE, v_BSGD, scale, bias)
    return sdpa(q_BTHE, k_BSGE, v_BSGD, scale, bias)


KERNELS: dict[str, Kernel] = {"auto": auto, "eager": eager, "sdpa": sdpa, "blocked": blocked}
