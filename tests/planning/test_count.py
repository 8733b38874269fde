"""Operations, bytes and FLOPs by hand; and those of a real step on this CPU, one by one."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from coca_train.data.batch import collate
from coca_train.data.packing import Row
from coca_train.engine.base import summed_loss
from coca_train.models.transformer import build_model
from coca_train.planning.count import (
    ATTENTION,
    BACKWARD,
    ELEMENTWISE,
    FORWARD,
    LINEAR,
    LOSS,
    RECOMPUTED,
    Count,
    Operation,
)
from coca_train.planning.meta_step import count_micro_batch, count_operations
from coca_train.positions import rotary
from tests.planning.conftest import TINY, K, outlined

SMALL = (*TINY, "model.n_layers=2", "train.micro_batch_size=2")


def counts(*operations: Operation) -> list[tuple[str, int, float]]:
    return [(each.name, each.nbytes, each.flops) for each in operations]


def test_bytes_are_what_is_given_once_and_what_is_made() -> None:
    a, b = (torch.empty(4, 8, device="meta") for _ in range(2))
    with Count() as count:
        a + b
        a.add_(b)
        a.t().contiguous()
        a.expand(3, 4, 8) * 2  # what is expanded is there once
        a.copy_(b)  # nothing is read of it
        torch.zeros_like(a)
        a @ b.t()
        a[:2] + a[:2]
    n = 4 * 8 * 4
    assert counts(*count.operations) == [
        ("add", 3 * n, 0),
        ("add_", 3 * n, 0),
        ("clone", 2 * n, 0),
        ("mul", n + 3 * n, 0),
        ("copy_", 2 * n, 0),
        ("zeros_like", n, 0),
        ("mm", 2 * n + 4 * 4 * 4, 2 * 4 * 4 * 8),
        ("add", n, 0),
    ]


def test_a_look_up_moves_its_rows() -> None:
    table, index = torch.empty(1000, 8, device="meta"), torch.empty(5, dtype=torch.int64, device="meta")
    with Count() as count:
        torch.nn.functional.embedding(index, table)
        table.scatter_add_(0, index[:, None].expand(-1, 8), torch.empty(5, 8, device="meta"))
    rows = 5 * 8 * 4
    assert [each.nbytes for each in count.operations] == [5 * 8 + 2 * rows, 5 * 8 + 3 * rows]


def test_the_host_waits() -> None:
    x = torch.empty(3, device="meta")
    with Count(longest=9) as count:
        assert bool((x > 0).all()) and int(x.long().max()) == 9
        x.nonzero()
        x + torch.ones(3)
        x * torch.tensor(2.0)  # a number of the host goes along with the kernel
        torch.ones(3).to("meta")
        x.cpu()
    assert sum(count.syncs.values()) == 6
    assert Counter(key.split()[-1] for key in count.syncs.elements())["_local_scalar_dense"] == 2


WORDS = {
    "llama, rope": ("position=rope",),
    "llama in bf16, coca": ("position=coca", "engine.dtype=bf16", "engine.attention=sdpa"),
    "neox, coca": ("position=coca", "model.norm=layernorm", "model.bias=[qkv,out,mlp,norm]", "model.residual=parallel",
                   "model.activation=gelu"),
    "computed again": ("position=rope", "engine.activation_checkpointing=full"),
    "folded, no GQA": ("position=alibi", "position.fold=always", "model.n_kv_heads=null"),
    "a part trained": ("position=coca", "model.n_layers=3"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_what_is_counted_is_what_a_real_step_dispatches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part, phase, shapes, dtypes, bytes and FLOPs of every operation, in their order. Masks of tiles alone cannot be:
    what is seen in a tile depends on numbers. That the CPU asks whether all targets are scored is left out, one is not:
    where the answer costs a wait nobody asks."""
    monkeypatch.setattr(rotary, "PIECE", 2**40)  # on the CPU a rotation goes through time in pieces
    outline = outlined(*SMALL, "engine.dtype=fp32", *WORDS[name], trainable=K if name == "a part trained" else ("*",))
    planned = count_micro_batch(outline, "cpu", places=("meta", "cpu")).operations
    model = build_model(outline.config, 320).to(outline.dtype)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.02).requires_grad_(name in outline.trained)
    train = outline.config.train
    ids_BT1 = np.random.default_rng(0).integers(320, size=(train.micro_batch_size, train.seq_len + 1))
    count = Count(["cpu"])

    def run(tokens_BT: Tensor, targets_BT: Tensor, pos_BT: Tensor, doc_BT: Tensor | None) -> Tensor:
        model.contexts(pos_BT, pos_BT, doc_BT)  # what is sent once and kept
        with count_operations(model, count, "cpu"), count:
            loss = model(tokens_BT, targets_BT, pos_BT, doc_BT)
            loss.backward()
        return loss

    summed_loss(run, collate([Row(ids, train.seq_len - 1, None) for ids in ids_BT1]), torch.device("cpu"))
    real = [each for each in count.operations if (each.part, each.name) != (LOSS, "all")]
    for ours, theirs in zip(planned, real, strict=False):
        assert ours._replace(reads=(), writes=()) == theirs._replace(reads=(), writes=())
        assert ours.nbytes == theirs.nbytes
    assert len(planned) == len(real) > 100


@pytest.mark.parametrize(("scheme", "fused"), [("t5", False), ("rope", True)])
def test_a_deterministic_step_on_cuda_computes_tables_that_learn_without_flex(scheme: str, fused: bool) -> None:
    words = (*SMALL, f"position={scheme}")
    seen = {}
    for ordered in (False, True):
        operations = count_micro_batch(outlined(*words, f"engine.deterministic={ordered}"), "cuda").operations
        seen[ordered] = any("scaled_dot_product" in each.name for each in operations)
    assert seen == {False: True, True: fused}
    assert not torch.are_deterministic_algorithms_enabled()


def test_parts_and_phases() -> None:
    count = count_micro_batch(outlined(*SMALL, "position=rope", "engine.activation_checkpointing=full"), "cuda")
    found = Counter((each.part, each.phase) for each in count.operations)
    both = [(part, phase) for part in (ATTENTION, LINEAR, ELEMENTWISE, LOSS) for phase in (FORWARD, BACKWARD)]
    assert set(found) == {*both, (RECOMPUTED, RECOMPUTED)}
    assert found[LINEAR, FORWARD] == 2 * 7 and found[LINEAR, BACKWARD] == 2 * 2 * 7  # q k v out gate up down
    assert found[ATTENTION, FORWARD] >= 2
    blocks = Counter(each.block for each in count.operations if each.part == LINEAR)
    assert blocks == {0: 21, 1: 21}
