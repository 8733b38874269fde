"""Linear attention (Katharopoulos et al., arXiv 2006.16236): weights are products of features, without a softmax.

    out_m = Σ_{n≤m} (q'_m · k'_n) v_n / Σ_{n≤m} q_m · k_n

As no exponential ties a query to a key, all keys before a chunk of queries are summed up: Σ k'_n v_nᵀ, the state, and
Σ k_n, its divisor. A chunk reads the state and its own pairs, then adds its keys: O(T·D²) time, O(T·D) memory. A factor
of all scores of a query (1/√D, a logit scale) is in numerator and divisor alike, and is left out.

`definition` has the whole T x S matrix; `linear` equals it, gradients included. The documents of a row follow one
another: the state holds that of the last token alone. Sums are in float32 or wider.

Shape legend: B batch, T queries, S keys, t queries and s keys of a chunk, H query heads, G key/value heads, E features
of a product, K features of the divisor's, D value width, r rows: the queries of a group's heads, one head after the
other.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from coca_train.attention.pattern import CAUSAL, seen
from coca_train.attention.scores import Part, grouped
from coca_train.runtime import autograd

CHUNK = 128  # keys that a query meets one by one, at most [tokens]


def is_linear(parts: Sequence[Part]) -> bool:
    """Whether the weights are products of features."""
    return parts[0].divisor is not None


def products(width: int, value_width: int) -> int:
    """Return the multiply-adds for one query in one head: its pairs of a chunk, half of which causality leaves, reading
    the state, adding to it."""
    return (CHUNK + 1) * (width + value_width) // 2 + 2 * width * value_width


def definition(parts: Sequence[Part], v_BSGD: Tensor) -> Tensor:
    """Compute the definition, with the weight of every pair. Returns out_BTHD."""
    part, (q_BTHK, k_BSGK) = _causal(parts)
    seen_B1TS = seen(part.layout, slice(0, q_BTHK.shape[1]), slice(0, v_BSGD.shape[1]))[:, None]
    turned_q, turned_k, q, k, v = (_wide(x.transpose(1, 2)) for x in (part.q_BTHE, part.k_BSGE, q_BTHK, k_BSGK, v_BSGD))
    weight_BHTS = grouped(turned_q, turned_k.mT) * seen_B1TS
    divisor_BHT1 = (grouped(q, k.mT) * seen_B1TS).sum(-1, keepdim=True)
    return (grouped(weight_BHTS, v) / divisor_BHT1).to(v_BSGD.dtype).transpose(1, 2)


def linear(parts: Sequence[Part], v_BSGD: Tensor) -> Tensor:
    """Compute attention chunk by chunk. Returns out_BTHD."""
    part, (q_BTHK, k_BSGK) = _causal(parts)
    if q_BTHK.shape[1] == 1:  # its keys are read once, which a state would not save
        return definition(parts, v_BSGD)
    inputs = (v_BSGD, part.q_BTHE, part.k_BSGE, q_BTHK, k_BSGK)
    return autograd.apply(_Chunked, part.layout.doc_BS, *(x.transpose(1, 2) for x in inputs)).transpose(1, 2)


def _causal(parts: Sequence[Part]) -> tuple[Part, tuple[Tensor, Tensor]]:
    """Return the one part, and its divisor's queries and keys."""
    (part,) = parts
    plain = part.layout.rule == CAUSAL and part.score_mod is None and not any(term is not None for term in part.terms)
    assert plain and part.divisor is not None, "attention/pattern.py and the scheme's settings refuse all else"
    return part, part.divisor


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _State(NamedTuple):
    """The sums over the keys before a chunk, of the document of the last one."""

    kv_BGED: Tensor
    k_BGK: Tensor


class _Chunk(NamedTuple):
    """Some keys, with the queries of the same tokens, none of those that a cache or a memory holds. Wide tensors."""

    queries: slice  # indices among the T
    keys: slice
    turned_q_BGrE: Tensor
    q_BGrK: Tensor
    turned_k_BGsE: Tensor
    k_BGsK: Tensor
    v_BGsD: Tensor
    seen_B1ts: Tensor  # 1 where a query sees a key; this and the next three in the dtype of the sums
    reads_B1t1: Tensor | None  # whose document is that of the state; None: all
    stays_B111: Tensor | None  # whether the state's document is that of the chunk's last token; None: it is
    adds_B1s1: Tensor | None  # whose document is that of the chunk's last token; None: all

    @property
    def n_queries(self) -> int:
        return self.queries.stop - self.queries.start

    def weights(self) -> Tensor:
        """Return the weights of the chunk's own pairs, before the division, (B, G, r, s)."""
        return self.where_seen(self.turned_q_BGrE @ self.turned_k_BGsE.mT)

    def where_seen(self, x_BGrs: Tensor) -> Tensor:
        """Return x where the pair is seen, else 0."""
        by_head = x_BGrs.unflatten(2, (-1, self.n_queries)) * self.seen_B1ts[:, :, None]
        return by_head.flatten(2, 3)

    def where_read(self, x_BGrN: Tensor) -> Tensor:
        """Return x where the query reads the state, else 0."""
        if self.reads_B1t1 is None:
            return x_BGrN
        return (x_BGrN.unflatten(2, (-1, self.n_queries)) * self.reads_B1t1[:, :, None]).flatten(2, 3)

    def key_sums(self, state: _State) -> Tensor:
        """Return the sum of the keys that each query sees, (B, G, t, K): the same for all heads of a group."""
        before_BG1K = state.k_BGK[:, :, None]
        return self.seen_B1ts @ self.k_BGsK + (
            before_BG1K if self.reads_B1t1 is None else before_BG1K * self.reads_B1t1
        )

    def added(self, x_BGsN: Tensor) -> Tensor:
        """Return x of the keys that the state takes in, else 0."""
        return x_BGsN if self.adds_B1s1 is None else x_BGsN * self.adds_B1s1

    def kept(self, state: _State) -> _State:
        """Return what stays of a state, or of its gradient."""
        if self.stays_B111 is None:
            return state
        return _State(state.kv_BGED * self.stays_B111, state.k_BGK * self.stays_B111[..., 0])

    def after(self, state: _State) -> _State:
        """Return the state with the chunk's keys."""
        before = self.kept(state)
        return _State(
            before.kv_BGED + self.added(self.turned_k_BGsE).mT @ self.v_BGsD,
            before.k_BGK + self.added(self.k_BGsK).sum(2),
        )


def _chunks(doc_BS: Tensor | None, tensors: Sequence[Tensor], backwards: bool = False) -> Iterator[_Chunk]:
    """Yield the chunks of a row. tensors: v, the rotated queries and keys, those of the divisor, heads first."""
    v_BGSD, turned_q_BHTE, turned_k_BGSE, q_BHTK, k_BGSK = tensors
    n_queries, (_, n_groups, n_keys, _) = q_BHTK.shape[2], v_BGSD.shape
    before = n_keys - n_queries
    starts = [*range(before, n_keys, CHUNK)]
    cuts = [slice(start, min(start + CHUNK, n_keys)) for start in starts]
    cuts = [slice(0, before), *cuts] if before else cuts
    for keys in reversed(cuts) if backwards else cuts:
        queries = slice(max(0, keys.start - before), max(0, keys.stop - before))
        turned_q, q = (
            _wide(x[:, :, queries].unflatten(1, (n_groups, -1)).flatten(2, 3)) for x in (turned_q_BHTE, q_BHTK)
        )
        turned_k, k, v = (_wide(x[:, :, keys]) for x in (turned_k_BGSE, k_BGSK, v_BGSD))
        first = keys.stop - (queries.stop - queries.start)  # of the keys, that of the first query
        query_t, key_s = (torch.arange(a, keys.stop, device=v.device) for a in (first, keys.start))
        seen_Bts, reads, stays, adds = (key_s <= query_t[:, None])[None], None, None, None
        if doc_BS is not None:
            doc_Bs, last_B1 = doc_BS[:, keys], doc_BS[:, keys.stop - 1 : keys.stop]
            doc_Bt = doc_BS[:, first : keys.stop]
            state_B1 = doc_BS[:, max(0, keys.start - 1) : max(1, keys.start)]  # of nothing, the first token's
            seen_Bts = seen_Bts & (doc_Bt[:, :, None] == doc_Bs[:, None])
            reads = (doc_Bt == state_B1)[:, None, :, None].to(v.dtype)
            stays = (state_B1 == last_B1)[:, :, None, None].to(v.dtype)
            adds = (doc_Bs == last_B1)[:, None, :, None].to(v.dtype)
        yield _Chunk(queries, keys, turned_q, q, turned_k, k, v, seen_Bts[:, None].to(v.dtype), reads, stays, adds)


def _empty(v_BGSD: Tensor, width: int, divisor_width: int) -> _State:
    """Return the state before the first key."""
    (n_rows, n_groups, _, value_width), dtype = v_BGSD.shape, torch.promote_types(v_BGSD.dtype, torch.float32)
    return _State(
        v_BGSD.new_zeros(n_rows, n_groups, width, value_width, dtype=dtype),
        v_BGSD.new_zeros(n_rows, n_groups, divisor_width, dtype=dtype),
    )


def _by_head(x_BGrN: Tensor, n_queries: int) -> Tensor:
    """Return rows by head, (B, H, t, N)."""
    return x_BGrN.unflatten(2, (-1, n_queries)).flatten(1, 2)


class _Documented(autograd.Context, Protocol):
    doc_BS: Tensor | None


class _Chunked(torch.autograd.Function):
    """Inputs: documents, then v, the rotated queries and keys, and those of the divisor, heads first."""

    @staticmethod
    def forward(ctx: _Documented, doc_BS: Tensor | None, *tensors: Tensor) -> Tensor:
        v_BGSD, turned_q_BHTE, *_, k_BGSK = tensors
        state, outs, divisors = _empty(v_BGSD, turned_q_BHTE.shape[-1], k_BGSK.shape[-1]), [], []
        for chunk in _chunks(doc_BS, tensors):
            if chunk.n_queries:
                sums_BGtK = chunk.key_sums(state)
                of_heads = chunk.q_BGrK.unflatten(2, (-1, chunk.n_queries)) * sums_BGtK[:, :, None]
                divisor_BGr1 = of_heads.sum(-1).flatten(2)[..., None]
                total_BGrD = chunk.weights() @ chunk.v_BGsD + chunk.where_read(chunk.turned_q_BGrE @ state.kv_BGED)
                outs.append(_by_head((total_BGrD / divisor_BGr1).to(v_BGSD.dtype), chunk.n_queries))
                divisors.append(_by_head(divisor_BGr1, chunk.n_queries))
            state = chunk.after(state)
        out_BHTD, divisor_BHT1 = torch.cat(outs, 2), torch.cat(divisors, 2)
        ctx.doc_BS = doc_BS
        ctx.save_for_backward(*tensors, out_BHTD, divisor_BHT1)
        return out_BHTD

    @staticmethod
    def backward(ctx: _Documented, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out_BHTD, divisor_BHT1 = ctx.saved_tensors
        v_BGSD, turned_q_BHTE, *_, k_BGSK = tensors
        empty = _empty(v_BGSD, turned_q_BHTE.shape[-1], k_BGSK.shape[-1])
        states = [empty]
        for chunk in _chunks(ctx.doc_BS, tensors):
            states.append(chunk.after(states[-1]))
        g_v, g_turned_q, g_turned_k, g_q, g_k = gradients = [torch.empty_like(x) for x in tensors]
        g_state = empty  # of the state after the chunk: nothing comes after the last one
        states.pop()
        for chunk in _chunks(ctx.doc_BS, tensors, backwards=True):
            state, keys = states.pop(), chunk.keys
            g_v_BGsD = chunk.added(chunk.turned_k_BGsE) @ g_state.kv_BGED
            g_turned_k_BGsE = chunk.added(chunk.v_BGsD) @ g_state.kv_BGED.mT
            g_k_BGsK = chunk.added(g_state.k_BGK[:, :, None].expand_as(chunk.k_BGsK))
            g_state = chunk.kept(g_state)
            if n := chunk.n_queries:
                rows = chunk.queries
                out, divisor, g = (_wide(x[:, :, rows]) for x in (out_BHTD, divisor_BHT1, grads[0]))
                g_total_BGrD = (g / divisor).unflatten(1, (v_BGSD.shape[1], -1)).flatten(2, 3)
                g_divisor_BHt1 = -(g * out).sum(-1, keepdim=True) / divisor
                g_divisor_BGHt1 = g_divisor_BHt1.unflatten(1, (v_BGSD.shape[1], -1))
                g_weight_BGrs = chunk.where_seen(g_total_BGrD @ chunk.v_BGsD.mT)
                g_read_BGrD = chunk.where_read(g_total_BGrD)
                g_turned_q[:, :, rows] = _by_head(
                    g_weight_BGrs @ chunk.turned_k_BGsE + g_read_BGrD @ state.kv_BGED.mT, n
                )
                g_turned_k_BGsE = g_turned_k_BGsE + g_weight_BGrs.mT @ chunk.turned_q_BGrE
                g_v_BGsD = g_v_BGsD + chunk.weights().mT @ g_total_BGrD
                g_q[:, :, rows] = (g_divisor_BGHt1 * chunk.key_sums(state)[:, :, None]).flatten(1, 2)
                g_sums_BGtK = (g_divisor_BGHt1 * chunk.q_BGrK.unflatten(2, (-1, n))).sum(2)
                g_k_BGsK = g_k_BGsK + chunk.seen_B1ts.mT @ g_sums_BGtK
                g_before_BGtK = g_sums_BGtK if chunk.reads_B1t1 is None else g_sums_BGtK * chunk.reads_B1t1
                g_state = _State(
                    g_state.kv_BGED + chunk.turned_q_BGrE.mT @ g_read_BGrD, g_state.k_BGK + g_before_BGtK.sum(2)
                )
            g_v[:, :, keys], g_turned_k[:, :, keys], g_k[:, :, keys] = g_v_BGsD, g_turned_k_BGsE, g_k_BGsK
        return None, *gradients
