"""Memory of one micro batch on the meta device: what forward keeps for backward, and the most there is at once."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from coca_train.models.layers import AttentionContext
from coca_train.planning.meta_attention import watched_kernel
from coca_train.planning.meta_step import (
    MemoryTracker,
    build_contexts,
    new_memory,
    run_as_on,
    sums_ordered_as,
    use_contexts,
)
from coca_train.planning.outline import Outline


@dataclass(frozen=True)
class Activations:
    """Memory of one micro batch, without weights and optimizer [bytes]."""

    tables: int  # tokens, angles, biases: they last for the whole step
    kept: int  # what forward saves for backward
    peak: int  # the most at once, tables and kept tensors included
    reading: int  # the same without a backward pass

    @property
    def working(self) -> int:
        """Logits, temporaries and gradients in flight at the peak."""
        return self.peak - self.tables - self.kept


def watch_activations(
    outline: Outline,
    micro_batch_size: int,
    device: str,
    *,
    checkpointing: str,
    keeps_gradients: bool,
    sequence_parallel: int = 1,
) -> Activations:
    """Measure a forward and backward over micro_batch_size sequences on `device` (cpu or cuda), or over one rank's
    slices of them where sequence_parallel ranks share each.

    keeps_gradients: whether the gradients of parameters stay until backward has ended (they count in `peak`), or are
    freed one by one.
    """
    config, model = outline.config, outline.model
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hooks = [] if keeps_gradients else [each.register_post_accumulate_grad_hook(_release) for each in trained]
    memories = [new_memory(model, micro_batch_size, outline.dtype) for _ in range(2)]  # one for each forward
    before = [*model.parameters(), *(hidden for memory in memories if memory is not None for hidden in memory.hidden)]
    kernel = watched_kernel(config.engine.attention)
    with sums_ordered_as(config.engine), run_as_on(device, model, kernel), MemoryTracker(before) as tracker:
        tokens_BT, targets_BT, _pos_BT = (
            torch.empty(micro_batch_size, config.train.seq_len, dtype=torch.int64, device="meta") for _ in range(3)
        )
        contexts = build_contexts(model, micro_batch_size, config.train.seq_len)
        pos_BT = torch.arange(config.train.seq_len).expand(micro_batch_size, -1)
        tables = tracker.live  # tokens, and what the scheme makes of parameters
        # Before the step: `peak` only rises, and reading needs less than forward and backward do.
        with torch.no_grad(), use_contexts(model, contexts, "none", sequence_parallel):
            model(tokens_BT, targets_BT, pos_BT, memory=memories[0])
        memories[0] = None
        reading = tracker.peak
        with use_contexts(model, contexts, checkpointing, sequence_parallel):
            loss = model(tokens_BT, targets_BT, pos_BT, memory=memories[1])
            kept = tracker.live - tables
            loss.backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad(set_to_none=True)
    of_host = _table_bytes(contexts)
    return Activations(tables + of_host, kept, tracker.peak + of_host, reading + of_host)


def _release(parameter: Tensor) -> None:
    parameter.grad = None


def _table_bytes(contexts: Mapping[str, AttentionContext]) -> int:
    """Tables of angles and biases, which all layers of a kind share [bytes]; what is there twice counts once."""
    tables = [tables for context in contexts.values() for tables, _ in context.views]
    tensors = [leaf for leaf in tree_leaves(tables) if isinstance(leaf, Tensor)]
    storages = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in tensors if not tensor.is_meta}
    return sum(storage.nbytes() for storage in storages.values())
