"""Muon (Jordan 2024; Moonlight, arXiv 2502.16982) for the matrices of the blocks, AdamW for everything else.

    B <- mu B + (1 - mu) G;  U = Newton-Schulz((1 - mu) G + mu B);  W <- (1 - lr wd) W - lr r U

r makes a step as long as AdamW's (0.2 sqrt(max(rows, columns)), Moonlight's Eq. 4), or is Jordan's
sqrt(max(1, rows / columns)). The arithmetic is torch.optim.Muon's, whose Newton-Schulz computes in bfloat16; on a CPU
it is in float32 here. Newton-Schulz needs a whole matrix, and ZeRO keeps the masters cut into parts of one flat tensor:
`SlicedMuon` sends the parts of each matrix to one rank, which orthogonalises it and sends the parts back, both ways in
the dtype that Newton-Schulz computes in. Nothing else changes: gradients are reduced and clipped as for AdamW.
(DeepSpeed's own Muon wants gradients all-reduced, clips what is orthogonalised already, and takes matrices by their
names.)
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.optim._muon import _adjust_lr

from coca_train.config.schema import OptimConfig
from coca_train.models.lora import named_parameters
from coca_train.positions.base import LayerPosition


def block_matrices(model: nn.Module) -> list[str]:
    """Return the names of the weights of linear layers inside the blocks, adapters' among them, but none of a position
    scheme.

    Selected by module, not by name: embedding, head and norms are not linear layers of a block.
    """
    blocks = model.get_submodule("blocks")
    of_schemes = {id(part) for each in blocks.modules() if isinstance(each, LayerPosition) for part in each.modules()}
    linear = [each for each in blocks.modules() if isinstance(each, nn.Linear) and id(each) not in of_schemes]
    weights = {id(each.weight) for each in linear}
    return [name for name, parameter in named_parameters(model) if id(parameter) in weights]


class MuonAndAdamW(torch.optim.Optimizer):
    """Both as one optimizer, for an engine that takes one: groups with `muon` set are Muon's, the others AdamW's.

    They share groups and state with the two inside, so whatever an engine puts into a group is what is stepped.
    """

    def __init__(self, adam_groups: list[dict[str, Any]], matrices: Sequence[Tensor], optim: OptimConfig, sliced: bool):
        own = optim.muon
        settings = {"weight_decay": optim.weight_decay, "momentum": own.momentum, "adjust_lr_fn": own.adjust_lr}
        lr = own.lr or optim.lr
        settings |= {"lr": lr, "lr_factor": lr / optim.lr, "muon": True}
        muon_groups = [{"params": list(matrices), **settings}] if matrices else []
        # Built on a placeholder, as neither accepts an empty list; what they step is set in `step`.
        nothing = [torch.zeros(1, 1)]
        self._adamw = torch.optim.AdamW(nothing, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)
        self._muon = (SlicedMuon if sliced else WholeMuon)(nothing)
        for group in adam_groups:
            group |= {**self._adamw.defaults, **group, "muon": False}
        for group in muon_groups:
            group |= {**self._muon.defaults, **group}
        super().__init__([*adam_groups, *muon_groups], {})
        self.state = self._adamw.state = self._muon.state = defaultdict(dict)

    def step(self, closure: object = None) -> None:
        assert closure is None
        for inner, of_muon in ((self._adamw, False), (self._muon, True)):
            # Asked each time: ZeRO steps one group after another, by taking the others away.
            inner.param_groups = [group for group in self.param_groups if group["params"] and group["muon"] == of_muon]
            if inner.param_groups:
                inner.step()

    def cut(self, matrices: Mapping[str, "Matrix"], group: torch_dist.ProcessGroup | None) -> None:
        """COLLECTIVE. Set how the matrices lie in the flat tensors of this rank."""
        assert isinstance(self._muon, SlicedMuon)
        self._muon.cut(matrices, group)


def orthogonalise(matrix: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Orthogonalise by Newton-Schulz: of U S V^T about U V^T, in the matrix's dtype. settings: of torch.optim.Muon.

    X <- a X + (b A + c A^2) X with A = X X^T, from X = matrix / |matrix|_F, of which the shorter side is the rows'.
    """
    a, b, c = settings["ns_coefficients"]
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=settings["eps"])
    for _ in range(settings["ns_steps"]):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def newton_schulz_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype that Newton-Schulz computes in. Not bfloat16 on a CPU: one without instructions for it takes six
    to eight times as long for a product as in float32, which is more than the rest of a small model's step."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


class Matrix(NamedTuple):
    """A matrix and this rank's part of it: elements [start, start + numel) are at `offset` of `flat`; numel 0: none."""

    shape: torch.Size
    flat: Tensor
    offset: int
    start: int
    numel: int


class WholeMuon(torch.optim.Optimizer):
    """torch.optim.Muon with its settings, Newton-Schulz in the dtype of the device."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__(parameters, torch.optim.Muon(parameters).defaults)

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        assert closure is None
        for group in self.param_groups:
            for weights in group["params"]:
                if (gradient := weights.grad) is not None:
                    momentum = self.state[weights]["momentum_buffer"]
                    momentum.lerp_(gradient, 1 - group["momentum"])
                    ahead = gradient.lerp(momentum, group["momentum"])  # Nesterov's
                    self._step(weights, ahead.to(newton_schulz_dtype(weights.device)), group)

    def _step(self, weights: Tensor, update: Tensor, group: Mapping[str, Any]) -> None:
        weights.mul_(1 - group["lr"] * group["weight_decay"])
        _add(weights, orthogonalise(update, group), weights.shape, group)


class SlicedMuon(WholeMuon):
    """WholeMuon over flat tensors that hold parts of matrices: the same operations on the same numbers.

    Memory in addition to the momentum: an update, on a GPU in bfloat16 too, and one whole matrix.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__(parameters)
        self._matrices: Mapping[str, Matrix] = {}
        self._parts: list[dict[str, int]] = []  # of each rank: elements it has of a matrix
        self._rounds: dict[Tensor, list[list[str | None]]] = {}
        self._group: torch_dist.ProcessGroup | None = None

    def cut(self, matrices: Mapping[str, Matrix], group: torch_dist.ProcessGroup | None) -> None:
        """COLLECTIVE. Set how matrices are cut. matrices: by name, the same names in the same order on every rank of
        the group."""
        self._matrices, self._group = matrices, group
        self._parts = [{} for _ in range(torch_dist.get_world_size(group))]
        own = {name: matrix.numel for name, matrix in matrices.items()}
        torch_dist.all_gather_object(self._parts, own, group=group)
        by_flat: dict[Tensor, list[str]] = defaultdict(list)
        for name, matrix in matrices.items():
            by_flat[matrix.flat].append(name)
        self._rounds = {flat: assign_owners(names, self._parts) for flat, names in by_flat.items()}

    def _step(self, weights: Tensor, update: Tensor, group: Mapping[str, Any]) -> None:
        """COLLECTIVE."""
        weights.mul_(1 - group["lr"] * group["weight_decay"])
        for owned in self._rounds[weights]:
            self._orthogonalise(owned, update, group)
            for name in filter(None, owned):
                matrix = self._matrices[name]
                at = slice(matrix.offset, matrix.offset + matrix.numel)
                _add(weights[at], update[at], matrix.shape, group)

    def _orthogonalise(self, owned: Sequence[str | None], update: Tensor, group: Mapping[str, Any]) -> None:
        """COLLECTIVE. Do one round: every rank gathers one whole matrix, or none, and sends it back orthogonalised."""
        rank = torch_dist.get_rank(self._group)
        mine = owned[rank]
        local = [self._part(name, update) for name in owned]  # what this rank has of each
        sizes = [part.numel() for part in local]
        their_sizes = [parts.get(mine, 0) if mine is not None else 0 for parts in self._parts]
        whole = update.new_empty(sum(their_sizes))
        self._exchange(whole, torch.cat(local), their_sizes, sizes, owned)
        if mine is not None:
            whole = orthogonalise(whole.view(self._matrices[mine].shape), group).reshape(-1)
        back = update.new_empty(sum(sizes))
        self._exchange(back, whole, sizes, their_sizes, owned)
        for part, new in zip(local, back.split(sizes), strict=True):
            part.copy_(new)

    def _exchange(
        self, out: Tensor, data: Tensor, out_sizes: list[int], sizes: list[int], owned: Sequence[str | None]
    ) -> None:
        """Send parts to their owners, or back; nothing is sent where every owner has all of its matrix."""
        alone = all(name is None or self._parts[rank][name] == self._numel(name) for rank, name in enumerate(owned))
        if alone:
            out.copy_(data)
        else:
            torch_dist.all_to_all_single(out, data, out_sizes, sizes, group=self._group)

    def _numel(self, name: str) -> int:
        return self._matrices[name].shape.numel()

    def _part(self, name: str | None, of: Tensor) -> Tensor:
        """Return this rank's elements of a matrix, in a tensor that lies as its flat one."""
        if name is None:
            return of[:0]
        return of.narrow(0, self._matrices[name].offset, self._matrices[name].numel)


def _add(weights: Tensor, update: Tensor, shape: torch.Size, group: Mapping[str, Any]) -> None:
    """Step weights as far as a matrix of this shape goes."""
    weights.add_(update, alpha=-_adjust_lr(group["lr"], group["adjust_lr_fn"], shape))


def assign_owners(names: Sequence[str], parts: Sequence[Mapping[str, int]]) -> list[list[str | None]]:
    """Return the rounds in which every rank owns one matrix at most: [round][rank], None where it has none.

    A matrix goes to a rank that has most of it, so that little is sent (ZeRO 1 and 2 cut few matrices); where several
    have as much (ZeRO 3 cuts all), to the one with the least to do. The largest first, so that rounds are even.
    """
    load, queues = [0] * len(parts), [[] for _ in parts]
    for name in sorted(names, key=lambda name: -sum(part[name] for part in parts)):
        most = max(part[name] for part in parts)
        owner = min((load[rank], rank) for rank, part in enumerate(parts) if part[name] == most)[1]
        load[owner] += sum(part[name] for part in parts)
        queues[owner].append(name)
    n_rounds = max(map(len, queues))
    return [[queue[turn] if turn < len(queue) else None for queue in queues] for turn in range(n_rounds)]
