"""What a training engine is, and the parts both engines share.

The model an engine runs maps (tokens_BT, targets_BT, pos_BT, doc_BT) to the float32 SUM of the
next-token losses [nats] over the targets that are not -100. A micro batch with a memory passes it on as `memory`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from coca_train.engine.optim import Moments
from coca_train.models.lora import named_parameters
from coca_train.models.memory import Memory
from coca_train.positions.token_positions import Positions
from coca_train.runtime import IGNORE, dist
from coca_train.runtime.staging import to_device
from coca_train.runtime.untrusted_io import JsonObject

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

InitParameter = Callable[[str, Tensor], None]
# Elements [start, stop) of a tensor of a state, by its name: flat, float32, on the CPU. Waits for no other rank.
ReadRange = Callable[[str, int, int], Tensor]


class Slice(NamedTuple):
    """The part of a tensor of the state that a rank has. values: flat, from element `start` on, in any precision; they
    belong to the engine and change with its next step."""

    name: str
    start: int
    values: Tensor


class MicroBatch(Protocol):
    """The arguments of one forward; int64, [sequences, tokens]. Targets of -100 carry no loss.

    continues_B: bool, whether a row continues where it ended in the step before; None: no row does. memory: the hidden
    states that the model keeps of that, on the engine's device; None: none. length: what dynamic frequencies adapt to
    [tokens]; None: the row's.
    """

    @property
    def tokens_BT(self) -> Tensor: ...
    @property
    def targets_BT(self) -> Tensor: ...
    @property
    def pos_BT(self) -> Tensor: ...
    @property
    def doc_BT(self) -> Tensor | None: ...
    @property
    def continues_B(self) -> Tensor | None: ...
    @property
    def memory(self) -> Memory | None: ...
    @property
    def length(self) -> int | None: ...


@dataclass(frozen=True)
class StepResult:
    """One optimizer step, the same on every rank.

    loss: mean over the targets of the global batch [nats/token]. grad_norm: global L2 norm before
    clipping. skipped: a loss or a gradient was not finite on some rank, so no rank changed anything.
    tokens: targets in the global batch.
    """

    loss: float
    grad_norm: float
    skipped: bool
    tokens: int


class Engine(Protocol):
    """Runs optimizer steps and returns its state by name. Methods marked COLLECTIVE run on all ranks."""

    model: nn.Module
    device: torch.device
    dtype: str
    zero_stage: int
    trainable: list[str]
    skipped_steps: int

    def train_step(self, micro_batches: Sequence[MicroBatch], lr: float) -> StepResult:
        """COLLECTIVE. Do one optimizer step over this rank's micro batches of the global batch."""
        ...

    def compute_gradients(self, micro_batches: Sequence[MicroBatch]) -> float:
        """COLLECTIVE. Compute the gradients of a step as `train_step` does; return the loss. `drop_gradients` must come
        next."""
        ...

    def drop_gradients(self, micro_batches: Sequence[MicroBatch]) -> None:
        """COLLECTIVE. Leave everything as it was before `compute_gradients`."""
        ...

    def computing(self) -> list[Tensor]:
        """Return the weights that compute on this rank, whole or its parts: the engine's own tensors."""
        ...

    def eval_module(self) -> AbstractContextManager[nn.Module]:
        """Return a plain module with the current weights in eval mode. COLLECTIVE: every rank calls it, and modules in
        it, as often as all others and in the same order; weights that are sharded are gathered as they are needed."""
        ...

    def state_spec(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the state."""
        ...

    def slices(self) -> list[Slice]:
        """Return this rank's part of the state. Every element of it is in one slice of one rank, and a rank has one
        slice of a tensor at most."""
        ...

    def counters(self) -> JsonObject:
        """Return the rest of the state, as JSON: Adam's step, skipped steps, the loss scale."""
        ...

    def load_state(self, read: ReadRange, counters: JsonObject) -> None:
        """COLLECTIVE. Load a state, of which each rank reads what it needs."""
        ...

    def release(self) -> None:
        """Free the memory; the process group stays, for the next engine. Nothing else may be called then."""
        ...

    def close(self) -> None:
        """COLLECTIVE. Leave the process group."""
        ...


@contextmanager
def without_initial_values() -> Iterator[None]:
    """Build layers without initial values in the block: their weights are filled by name afterwards, or never.

    torch would fill them first; on the meta device it even imports its compiler to fill nothing.
    """
    layers: tuple[Any, ...] = (nn.Linear, nn.Embedding)
    resets = [layer.reset_parameters for layer in layers]
    for layer in layers:
        layer.reset_parameters = lambda self: None
    try:
        yield
    finally:
        for layer, reset in zip(layers, resets, strict=True):
            layer.reset_parameters = reset


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Build modules in the block whose parameters are on the meta device; their buffers are real.

    A model of any size can so be built before its parameters are created, filled and sharded one by one; buffers
    (tables of angles) are computed undisturbed in float32, unlike under deepspeed.zero.Init, which casts every tensor
    built inside it to the compute dtype.
    """
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        register(module, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        with without_initial_values():
            yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@torch.no_grad()
def materialise(
    model: nn.Module,
    init: InitParameter | None,
    device: torch.device,
    dtype: torch.dtype,
    shard: Callable[[list[nn.Parameter]], None] = lambda parameters: None,
) -> None:
    """Give a model from `parameters_on_meta` its parameters, module by module; shared ones stay shared.

    init: None: zeros, where a state is loaded next.
    shard: called with the new parameters of each module (ZeRO 3 keeps its part of them at once).
    """
    # By identity: a shared parameter (a tied head) has one name, is filled once, and stays one tensor.
    names = {id(parameter): name for name, parameter in named_parameters(model)}
    real: dict[int, nn.Parameter] = {}
    for module in model.modules():
        fresh = []
        for key, meta in module._parameters.items():
            if meta is None:
                continue
            if id(meta) not in real:
                values = torch.zeros(meta.shape, dtype=dtype, device=device)
                if init is not None:
                    with dist.waiting("the next weight"):  # one more of many is a sign of life
                        init(names[id(meta)], values)
                real[id(meta)] = nn.Parameter(values, requires_grad=meta.requires_grad)
                fresh.append(real[id(meta)])
            module._parameters[key] = real[id(meta)]
        for key, buffer in module._buffers.items():
            module._buffers[key] = None if buffer is None else buffer.to(device)
        if fresh:
            shard(fresh)


class DistributedInit:
    """COLLECTIVE. Fill parameters as `init` does, each drawn by one rank and sent to the others.

    Every rank calls it for all parameters of the model in their order. Each rank draws one of the next world_size
    parameters, all ranks at once.
    """

    def __init__(self, model: nn.Module, init: InitParameter, device: torch.device, dtype: torch.dtype) -> None:
        self._shapes = {name: tuple(parameter.shape) for name, parameter in named_parameters(model)}
        self._order = {name: number for number, name in enumerate(self._shapes)}
        self._init, self._device, self._dtype = init, device, dtype
        self._mine: tuple[str, Tensor] | None = None

    def __call__(self, name: str, tensor: Tensor) -> None:
        first, owner = divmod(self._order[name], dist.world_size())
        if owner == 0:
            self._draw(first * dist.world_size() + dist.rank())
        if owner == dist.rank():
            assert self._mine is not None and self._mine[0] == name, "in the order of the model"
            tensor.copy_(self._mine[1])
            self._mine = None  # the last one would stay while the optimizer is built
        dist.broadcast_tensor(tensor, owner)

    def _draw(self, number: int) -> None:
        """Draw this rank's parameter of the next world_size ones; there may be none left for it."""
        self._mine = None
        if number < len(self._order):
            name = list(self._shapes)[number]
            values = torch.empty(self._shapes[name], dtype=self._dtype, device=self._device)
            self._init(name, values)
            self._mine = name, values


def mark_gathered_modules(model: nn.Module) -> None:
    """Mark the modules whose sharded weights are gathered for one layer at a time, as it runs."""
    for module in model.modules():
        if hasattr(module, "gathers_weights"):
            setattr(module, "gathers_weights", True)  # noqa: B010


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that belong to the state (derived tables are non-persistent)."""
    saved = model.state_dict(keep_vars=True).keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def spec_of(model: nn.Module, moments: Moments) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a state: weights and buffers, then the moments of each trained parameter."""
    shapes = {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in named_parameters(model)}
    spec = {f"model/{name}": shape for name, shape in shapes.items()}
    spec |= {f"model/{name}": tuple(buffer.shape) for name, buffer in persistent_buffers(model).items()}
    return spec | {f"{key}/{name}": shapes[name] for name, kept in moments.items() for key in kept}


def even_share(spec: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, int, int]]:
    """Yield (name, start, stop) of this rank's part of tensors that all ranks have, laid end to end and cut into equal
    parts. A tensor without elements is rank 0's."""
    ends = list(accumulate((math.prod(shape) for shape in spec.values()), initial=0))
    first, last = (ends[-1] * rank // dist.world_size() for rank in (dist.rank(), dist.rank() + 1))
    for name, begin, end in zip(spec, ends, ends[1:], strict=False):
        start, stop = max(first, begin) - begin, min(last, end) - begin
        if begin == end and dist.is_main():
            yield name, 0, 0
        elif start < stop:
            yield name, start, stop


def read_together(read: ReadRange, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
    """COLLECTIVE. Return a whole tensor on every rank, of which each has read an equal part."""
    n, world = math.prod(shape), dist.world_size()
    size = -(-n // world)
    start, stop = (min(size * rank, n) for rank in (dist.rank(), dist.rank() + 1))
    part = read(name, start, stop)
    if world > 1:
        part = dist.all_gather_equal(torch.cat([part, part.new_zeros(size - len(part))]).to(device))
    return part[:n].view(tuple(shape)).to(device)


def summed_loss(model: Callable[..., Tensor], batch: MicroBatch, device: torch.device) -> Tensor:
    """Return the loss of a model on a micro batch, whose tensors go to the device."""
    tokens_BT, targets_BT = (to_device(x, device) for x in (batch.tokens_BT, batch.targets_BT))
    # Measured on the host, which has them: reading them from a device would make the host wait.
    positions = Positions.of(batch.pos_BT, batch.doc_BT)._replace(pos_BT=to_device(batch.pos_BT, device))
    doc_BT = None if batch.doc_BT is None else to_device(batch.doc_BT, device)
    more = {"memory": batch.memory, "length": batch.length}
    given = {name: value for name, value in more.items() if value is not None}
    return model(tokens_BT, targets_BT, positions, doc_BT, **given)


def count_targets(micro_batches: Sequence[MicroBatch]) -> int:
    """Count the targets that carry a loss in this rank's micro batches."""
    return sum(int((batch.targets_BT != IGNORE).sum()) for batch in micro_batches)
