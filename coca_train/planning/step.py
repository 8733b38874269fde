"""One training step on the meta device, where nothing is allocated: what it would keep, need and compute.

Shape legend: B sequences, T tokens, S keys (memory and tokens), M memory, C d_model.
"""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from coca_train.attention.kernels import KERNELS, Kernel
from coca_train.models.layers import AttentionContext
from coca_train.models.recompute import WAYS
from coca_train.models.transformer import Transformer
from coca_train.models.ulysses import SequenceShare
from coca_train.planning.attention import Calls, FusedOperations, kernel_for, sums_ordered_as
from coca_train.planning.exchange import Sent
from coca_train.planning.outline import Outline
from coca_train.tracking.throughput import flops_per_token


class Watch(TorchDispatchMode):
    """Counts the bytes of tensors made inside, until they are let go.

    before: tensors that are there already and do not count, nor do views of them. live: bytes at this moment. peak:
    the most there have been. A tensor of the host that meets one of the meta device (a table of angles, a mask) is
    taken along to it, where a real run would have made it.
    """

    def __init__(self, before: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._before = [tensor.untyped_storage() for tensor in before]  # held, so that no other takes their id
        self._known: dict[int, Any] = {id(storage): storage for storage in self._before}

    def __torch_dispatch__(self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        places = {leaf.is_meta for leaf in given if isinstance(leaf, Tensor) and leaf.ndim}
        if len(places) == 2:
            args, kwargs = tree_map_only(Tensor, _to_meta, (args, kwargs))
        out = func(*args, **kwargs)
        for leaf in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(leaf, Tensor) and leaf.is_meta:
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._known:
            return

        def let_go(_: Any) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, let_go)
        self.live += size
        self.peak = max(self.peak, self.live)


def _to_meta(tensor: Tensor) -> Tensor:
    """The shape of a tensor of the host; single numbers stay, as they may be looked at."""
    return tensor if tensor.is_meta or tensor.ndim == 0 else torch.empty_like(tensor, device="meta")


@dataclass(frozen=True)
class Activations:
    """What one micro batch needs beside weights and optimizer [bytes].

    tables: tokens, angles, biases: there for the whole step. kept: what forward leaves behind for backward. peak: the
    most of everything at once, tables and kept tensors included. reading: the same where there is no backward.
    """

    tables: int
    kept: int
    peak: int
    reading: int

    @property
    def working(self) -> int:
        """Above what is kept, at the worst moment: logits, temporaries, gradients on their way."""
        return self.peak - self.tables - self.kept


def activations(
    outline: Outline,
    micro_batch_size: int,
    device: str,
    *,
    checkpointing: str,
    keeps_gradients: bool,
    sequence_parallel: int = 1,
) -> Activations:
    """Watch a forward and backward over micro_batch_size sequences on `device` (cpu or cuda), or over slices of
    them where sequence_parallel ranks share each.

    keeps_gradients: whether the gradients of parameters stay until backward has ended (they count in `peak`), or are
    taken away one by one.
    """
    config, model = outline.config, outline.model
    kernel = kernel_for(config.engine.attention, device)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    share = SequenceShare(0, sequence_parallel, Sent())
    n_tokens = config.train.seq_len // share.size
    hooks = [] if keeps_gradients else [each.register_post_accumulate_grad_hook(_release) for each in trained]
    with sums_ordered_as(config.engine), Watch(model.parameters()) as watch:
        tokens_BT, targets_BT, _pos_BT = (
            torch.empty(micro_batch_size, n_tokens, dtype=torch.int64, device="meta") for _ in range(3)
        )
        contexts = _contexts(model, micro_batch_size, config.train.seq_len, kernel, device)
        if share.size > 1:
            contexts = {kind: context.shared_by(share) for kind, context in contexts.items()}
        tables = watch.live  # tokens, and what the scheme makes of parameters
        # Before the step: `peak` only rises, and reading needs less than forward and backward do.
        with torch.no_grad():
            model.head(_hidden(outline, tokens_BT, contexts, device), targets_BT, device)
        reading = watch.peak
        x_BTC = _hidden(outline, tokens_BT, contexts, device, checkpointing)
        loss = model.head(x_BTC, targets_BT, device)
        del x_BTC  # autograd keeps what it needs of it; the name would keep the rest
        kept = watch.live - tables
        loss.backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad(set_to_none=True)
    of_host = _table_bytes(contexts)
    return Activations(tables + of_host, kept, watch.peak + of_host, reading + of_host)


@dataclass(frozen=True)
class Flops:
    """FLOPs of one token, activations computed once (what MFU counts; checkpointing computes more)."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


def flops(outline: Outline) -> Flops:
    """Count a step over one sequence, as autograd runs it.

    A frozen weight gets no gradient, and below the lowest trained parameter nothing runs backward. Attention is
    counted as in `throughput.flops_per_token` (causal: half of all pairs, in layers that see less only those seen) with
    what the scheme's hook adds, backward twice forward wherever it runs.
    """
    seq_len, model = outline.config.train.seq_len, outline.model
    width = model.shape.n_heads * model.shape.head_dim
    model.train()
    tokens_BT = torch.empty(1, seq_len, dtype=torch.int64, device="meta")
    calls = {kind: Calls() for kind in model.kinds}
    with Watch():  # takes tables of the host along
        contexts = {
            kind: context._replace(kernel=kernel_for(outline.config.engine.attention, "cpu", calls[kind]))
            for kind, context in _contexts(model, 1, seq_len, KERNELS["eager"]).items()
        }
        hidden = partial(_hidden, outline, tokens_BT, contexts, "cpu")
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            model.head(hidden())  # logits: the loss makes its gradients as it goes
        n_forward, of_attention = {}, {}
        for kind, counted in calls.items():
            n_forward[kind], share = counted.forward, model.visibilities[kind].share(seq_len)
            of_pairs = flops_per_token(0, share, width, seq_len) / 3
            of_attention[kind] = of_pairs + counted.of_hooks / counted.forward * share * seq_len / 2
        with FlopCounterMode(display=False) as step:
            # As on a CPU: the same FLOPs, and the counter knows all its products.
            model.head(hidden(), tokens_BT, "cpu").backward()
    model.zero_grad(set_to_none=True)
    once, both = (counter.get_total_flops() / seq_len for counter in (forward, step))
    return Flops(
        once + sum(n * of_attention[kind] for kind, n in n_forward.items()),
        both - once + sum(2 * counted.backward * of_attention[kind] for kind, counted in calls.items()),
    )


def _contexts(
    model: Transformer, n_rows: int, seq_len: int, kernel: Kernel, device: str = "cpu"
) -> dict[str, AttentionContext]:
    """Positions of the host, and the tables the schemes make of them; with the memory's, where there is one."""
    n_before = model.position.memory_len
    pos_BS = torch.arange(n_before + seq_len).expand(n_rows, -1)  # every row has its own, as the data gives them
    pos_BT = pos_BS[:, n_before:] if n_before else pos_BS
    return {
        kind: context._replace(kernel=kernel, device=device) for kind, context in model.contexts(pos_BT, pos_BS).items()
    }


def _hidden(
    outline: Outline,
    tokens_BT: Tensor,
    contexts: dict[str, AttentionContext],
    device: str,
    checkpointing: str = "none",
) -> Tensor:
    """Final hidden states: `Transformer.hidden`, with the kernels of planning/attention.py."""
    model, n_before = outline.model, outline.model.position.memory_len
    past_BMC = None
    if n_before:
        past_BMC = torch.empty(len(tokens_BT), n_before, model.config.d_model, dtype=outline.dtype, device="meta")
    x_BTC = model.add_positions(model.embed(tokens_BT), torch.arange(tokens_BT.shape[1]).expand(len(tokens_BT), -1))

    def run(block: nn.Module, x_BTC: Tensor, *rest: object) -> Tensor:
        with FusedOperations(device):  # here, so that a block that is computed again runs under it too
            return block(x_BTC, *rest)

    for kind, block in zip(model.kinds, model.blocks, strict=True):
        x_BTC = WAYS[checkpointing](run, block, x_BTC, contexts[kind], past_BMC)
    return run(model.final_norm, x_BTC)


def _release(parameter: Tensor) -> None:
    parameter.grad = None


def _table_bytes(contexts: dict[str, AttentionContext]) -> int:
    """Tables of angles and biases, which all layers of a kind share [bytes]; what is there twice counts once."""
    tables = [tables for context in contexts.values() for tables, _ in context.views]
    tensors = [leaf for leaf in tree_leaves(tables) if isinstance(leaf, Tensor)]
    storages = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in tensors if not tensor.is_meta}
    return sum(storage.nbytes() for storage in storages.values())
