"""The norm of gradients: exact to 1e-6 however large a tensor is, and the same of every engine."""

import pytest
import torch
from torch import Tensor, nn

from coca_train import engine
from coca_train.engine.optim import NORM_PIECE, global_norm
from tests.cases import slow_unless
from tests.engine.scenarios import Batch, engine_config, optim_config
from tests.faults.fork_server import ForkServer, values

VOCAB, WIDTH = 4_000, 1_000  # of a matrix whose float32 sum of squares is 1e-4 too low


class TwoMatrices(nn.Module):
    """From words to words with nothing between two large matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, VOCAB, bias=False)])

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor, pos_BT: Tensor, doc_BT: Tensor | None) -> Tensor:
        logits = self.blocks[0](self.embed(tokens_BT)).flatten(0, 1)
        return nn.functional.cross_entropy(logits, targets_BT.flatten(), reduction="sum")


def draw(name: str, tensor: Tensor) -> None:
    tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))))


def first_norm(**changes: object) -> dict[str, float]:
    """grad_norm of a first step, and the same in float64 of the gradients that each backward pass left."""
    torch.set_num_threads(1)
    built = engine.build(
        engine_config(**changes), optim_config(), TwoMatrices, draw, trainable=["*"], micro_batch_size=4, accumulation=1
    )
    squares: list[float] = []
    for weight in built.model.parameters():
        weight.register_post_accumulate_grad_hook(lambda p: squares.append(float(p.grad.double().square().sum())))
    tokens = torch.randint(0, VOCAB, (4, 9), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens[:, :-1], tokens[:, 1:], torch.arange(8).expand(4, -1))
    result = built.train_step([batch], 1e-3)
    built.close()
    return {"norm": result.grad_norm, "exact": sum(squares) ** 0.5}


ENGINES = [("local", 0), ("deepspeed", 0), ("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3)]


@pytest.fixture(scope="module")
def exact(server: ForkServer) -> float:
    return values(server.run("tests.engine.test_norm:first_norm", {"kind": "local", "zero_stage": 0}))[0]["exact"]


@pytest.mark.parametrize(("kind", "stage"), slow_unless(ENGINES[:3], ENGINES))
def test_every_engine_has_the_norm_of_a_large_matrix(server: ForkServer, exact: float, kind: str, stage: int) -> None:
    job = {"kind": kind, "zero_stage": stage}
    (seen,) = values(server.run("tests.engine.test_norm:first_norm", job))
    print(f"\n{kind} {stage}: {seen['norm'] / exact - 1:.1e}")
    assert seen["norm"] == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_are_summed_in_float64(dtype: torch.dtype) -> None:
    gradients = [torch.randn(*shape).to(dtype) for shape in ((3_000, 1_500), (NORM_PIECE + 1,), (7, 3))]
    gradients.append(torch.randn(50, 40).to(dtype).T)  # lies in memory otherwise
    expected = sum(float(gradient.double().square().sum()) for gradient in gradients) ** 0.5
    norm = global_norm(gradients)
    assert norm.dtype == torch.float64 and float(norm) == pytest.approx(expected, rel=1e-9)


def test_a_norm_beyond_float32s_squares_is_finite_and_nan_stays_nan() -> None:
    assert float(global_norm([torch.full((4,), 1e30)])) == pytest.approx(2e30, rel=1e-6)
    assert torch.isnan(global_norm([torch.ones(3), torch.tensor([1.0, torch.nan])]))
    assert torch.isinf(global_norm([torch.tensor([torch.inf])]))
    assert float(global_norm([])) == 0.0
