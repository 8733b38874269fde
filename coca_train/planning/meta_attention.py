"""Stand-ins for attention kernels on the meta device: what a kernel keeps and computes, without its work.

Attention that works tile by tile is run in full where operations are counted; where memory is watched, one tile is
run for all. A compiled kernel is one fused operation over the same tensors.

Shape legend: B batch, T queries, S keys, t queries and s keys of a tile, H query heads, G key/value heads, D value
width, E dot-product width.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from coca_train.attention import flex, linear, tiled_attention
from coca_train.attention.kernels import KERNELS, RECOMPUTE_ABOVE, Kernel, choose, is_plain
from coca_train.attention.scores import Part, leaves, tensors_of
from coca_train.positions.base import Pairs

aten = torch.ops.aten


def resolve_kernel(configured: str, parts: Sequence[Part], v_BSGD: Tensor) -> str:
    """Return the name of the kernel that runs in the end where engine.attention names one."""
    n_queries, n_keys = parts[0].q_BTHE.shape[1], v_BSGD.shape[1]
    name = choose(parts, n_keys) if configured == "auto" else configured
    if linear.is_linear(parts):
        return "eager" if name == "eager" else "linear"
    if name == "sdpa" and not (is_plain(parts) and n_queries in (1, n_keys)):
        name = "blocked"
    return "blocked" if name == "flex" and not flex.is_supported(parts) else name


def counted_kernel(configured: str) -> Kernel:
    """Return the kernels as they are; in place of a compiled one fused attention over the same tensors."""

    def kernel(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        name = resolve_kernel(configured, parts, v_BSGD)
        if name != "flex" or not v_BSGD.is_meta:
            return KERNELS[name](parts, v_BSGD, scale)
        v_BGSD = v_BSGD.transpose(1, 2)
        views = [
            aten._scaled_dot_product_flash_attention(
                part.q_BTHE.transpose(1, 2), part.k_BSGE.transpose(1, 2), v_BGSD, is_causal=True, scale=scale
            )[0]
            for part in parts
        ]
        out_BHTE = views[0] if len(views) == 1 else torch.stack(views).sum(0)
        return out_BHTE[..., : v_BSGD.shape[-1]].transpose(1, 2)

    return kernel


def watched_kernel(configured: str) -> Kernel:
    """Return kernels that use the memory of the real ones, without the work of tiles.

    A compiled kernel and attention tile by tile both save their inputs, their output and the log-sum-exp of each query
    (FlashAttention, arXiv 2205.14135, section 3.1); linear attention the divisor of each query in its place.
    """

    def kernel(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        name = resolve_kernel(configured, parts, v_BSGD)
        if name == "linear":
            return _attend_linearly(parts, v_BSGD, tile_work=_state_work(parts[0], v_BSGD))
        tiled = name == "blocked" and v_BSGD.shape[1] > RECOMPUTE_ABOVE and parts[0].q_BTHE.shape[1] > 1
        if not tiled and name != "flex":
            return KERNELS[name](parts, v_BSGD, scale)
        return _attend_linearly(parts, v_BSGD, tile_work=_tile_work(parts[0]) if tiled else None)

    return kernel


class Calls:
    """Count how many layers' attention ran forward and backward, by their heads, the FLOPs of its hook for one pair of
    tokens, and those of linear attention for one token. n_heads: of a layer, whose groups of heads may be computed one
    after the other."""

    def __init__(self, n_heads: int) -> None:
        self.n_heads, self.forward, self.backward = n_heads, 0.0, 0.0
        self.of_hooks = 0.0
        self.of_states = 0.0  # in place of those of pairs

    def kernel(self, parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        """Attend without any product."""
        if linear.is_linear(parts):
            n_heads, width = parts[0].q_BTHE.shape[2:]
            self.of_states += n_heads * 2 * linear.products(width, v_BSGD.shape[-1])
            return _attend_linearly(parts, v_BSGD, calls=self)
        self.of_hooks += parts[0].q_BTHE.shape[2] * 2 * hook_products(parts[0])
        return _attend_linearly(parts, v_BSGD, calls=self)


def _attend_linearly(
    parts: Sequence[Part], v_BSGD: Tensor, calls: Calls | None = None, tile_work: Callable[[], None] | None = None
) -> Tensor:
    inputs = [tensor for part in parts for _, tensor in leaves(tensors_of(part)) if tensor is not None]
    inputs += parts[0].divisor or ()
    return _LinearAttention.apply(calls, tile_work, parts[0].q_BTHE.shape[:3], v_BSGD.transpose(1, 2), *inputs)


class _Context(Protocol):
    """What autograd keeps of a call."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    calls: Calls | None
    tile_work: Callable[[], None] | None

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _LinearAttention(torch.autograd.Function):
    """Save the inputs of attention, its output and a log-sum-exp; return a gradient for each input that needs one.

    tile_work: allocates what one tile needs while gradients are summed in float32; None: a fused kernel, which needs
    neither.
    """

    @staticmethod
    def forward(
        ctx: _Context,
        calls: Calls | None,
        tile_work: Callable[[], None] | None,
        shape_BTH: torch.Size,
        v_BGSD: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        ctx.calls, ctx.tile_work = calls, tile_work
        if calls is not None:
            calls.forward += shape_BTH[2] / calls.n_heads
        if calls is None and tile_work is None:
            # By a name that selective checkpointing knows. Its inputs exist already in a real run, so these are made
            # where nothing is counted.
            with _disable_current_modes():
                like_BTHD = v_BGSD.new_empty(*shape_BTH, v_BGSD.shape[-1])
            out_BHTD, lse_BTH = aten._scaled_dot_product_flash_attention(*[like_BTHD.transpose(1, 2)] * 3)[:2]
            out_BTHD = out_BHTD.transpose(1, 2)
        else:
            out_BTHD = v_BGSD.new_empty(*shape_BTH, v_BGSD.shape[-1])
            lse_BTH = v_BGSD.new_empty(shape_BTH, dtype=torch.float32)
        ctx.save_for_backward(v_BGSD, *inputs, out_BTHD, lse_BTH)
        return out_BTHD

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.calls is not None:
            ctx.calls.backward += grads[0].shape[2] / ctx.calls.n_heads
        inputs, needed = ctx.saved_tensors[:-2], ctx.needs_input_grad[3:]
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need]
        sums = [x.new_empty(x.shape, dtype=torch.float32 if ctx.tile_work else x.dtype) for x in wanted]
        if ctx.tile_work is not None:
            ctx.tile_work()
        gradients = iter([total.to(x.dtype) for total, x in zip(sums, wanted, strict=True)])
        return None, None, None, *(next(gradients) if need else None for need in needed)


def _tile_work(part: Part) -> Callable[[], None]:
    """Return a function that allocates and frees the memory of one tile in the backward pass: float32 scores,
    probabilities and the gradients of both, and what a hook saves and its gradients."""
    n_rows, n_queries, n_heads, _ = part.q_BTHE.shape
    t, s = min(n_queries, tiled_attention.query_tile([part])), min(part.k_BSGE.shape[1], tiled_attention.KEY_TILE)
    shape_BHts = n_rows, n_heads, t, s
    pairs = None if part.score_mod is None else _pairs_of_tile(part, shape_BHts)

    def work() -> None:
        four = torch.empty(4, *shape_BHts, dtype=torch.float32, device="meta")
        if part.hook is not None and pairs is not None:
            with torch.enable_grad():
                inputs = [
                    x.requires_grad_() for x in (pairs.scores_BHts, *pairs.parameters, *pairs.queries, *pairs.keys)
                ]
                rewritten, _ = part.hook.scores(pairs, four.new_empty(*shape_BHts[:3], part.hook.carried))
                torch.autograd.grad(rewritten, inputs, torch.empty_like(rewritten), allow_unused=True)

    return work


def _state_work(part: Part, v_BSGD: Tensor) -> Callable[[], None]:
    """Return a function that allocates and frees the memory of the backward pass of linear attention: the state before
    every chunk, and the weights of one chunk with their gradients, float32."""
    (n_rows, n_keys, n_groups, width), n_heads = v_BSGD.shape, part.q_BTHE.shape[2]
    n_chunks, features = -(-n_keys // linear.CHUNK) + 1, part.k_BSGE.shape[-1]

    def work() -> None:
        states = torch.empty(n_chunks, n_rows, n_groups, features, width + 1, dtype=torch.float32, device="meta")
        states.new_empty(4, n_rows, n_heads, linear.CHUNK, linear.CHUNK)

    return work


def hook_products(part: Part) -> float:
    """Return the multiply-adds that the matrix products of a part's hook cost for one pair of tokens in one head."""
    if part.hook is None:
        return 0.0
    # Of a whole tile: what a hook does once for its keys counts for all its queries.
    shape_BHts = 1, part.q_BTHE.shape[2], tiled_attention.QUERY_TILE, tiled_attention.KEY_TILE
    pairs = _pairs_of_tile(part, shape_BHts)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        part.hook.scores(pairs, pairs.scores_BHts.new_empty(*shape_BHts[:3], part.hook.carried))
    return counter.get_total_flops() / 2 / math.prod(shape_BHts)


def _pairs_of_tile(part: Part, shape_BHts: tuple[int, int, int, int]) -> Pairs:
    """Return a tile of that shape as the part's hook sees it, on the meta device."""
    assert part.score_mod is not None
    batch, _, t, s = shape_BHts

    def tile(tensors: Sequence[Tensor], n_tokens: int) -> tuple[Tensor, ...]:
        shapes = [(min(batch, len(x)), n_tokens, *x.shape[2:]) for x in tensors]
        return tuple(torch.empty(shape, dtype=x.dtype, device="meta") for shape, x in zip(shapes, tensors, strict=True))

    pos_B = min(batch, len(part.layout.pos_BT))
    return Pairs(
        torch.empty(shape_BHts, dtype=torch.float32, device="meta"),
        None,
        torch.empty(pos_B, t, dtype=torch.int64, device="meta"),
        torch.empty(pos_B, s, dtype=torch.int64, device="meta"),
        tuple(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in part.score_mod.parameters),
        tile(part.score_mod.queries, t),
        tile(part.score_mod.keys, s),
    )
