"""Muon: its formula by hand, which parameters it takes, and one trajectory on every engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from coca_train import engine, positions
from coca_train.attention import patterns
from coca_train.config.schema import LoraConfig
from coca_train.engine.muon import Matrix, MuonAndAdamW, assign_owners, block_matrices, orthogonalise
from coca_train.engine.optim import ADAM, MUON, build_optimizer, set_lr, start_moments
from coca_train.models.trainable import adapt
from coca_train.models.transformer import Transformer
from coca_train.runtime import dist
from coca_train.settings import load
from coca_train.testing.parts import shipped
from tests.cases import slow_unless
from tests.engine.scenarios import TinyGPT, engine_config
from tests.engine.test_equality import relative
from tests.faults.fork_server import ForkServer, values
from tests.models.conftest import LLAMA

RUN = "tests.engine.scenarios:train"
OPTIM = {"name": "muon"}
STEPS = 8


@pytest.fixture(scope="module")
def reference(server: ForkServer) -> dict[str, dict]:
    jobs = {dtype: {"steps": STEPS, "kind": "local", "dtype": dtype, "optim": OPTIM} for dtype in ("fp32", "bf16")}
    return {dtype: values(server.run(RUN, job))[0] for dtype, job in jobs.items()}


LAYOUTS = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")]
EVERY = [(*layout, ranks) for layout in LAYOUTS for ranks in (1, 2, 4)]
QUICK = [(0, "fp32", 2), (1, "fp32", 2), (2, "fp32", 4), (3, "fp32", 2), (1, "bf16", 2), (2, "bf16", 2)]


@pytest.mark.parametrize(("stage", "dtype", "ranks"), slow_unless(QUICK, EVERY))
def test_every_stage_equals_local(server: ForkServer, reference: dict, stage: int, dtype: str, ranks: int) -> None:
    """float32: 1e-5 relative."""
    job: dict[str, Any] = {"steps": STEPS, "zero_stage": stage, "dtype": dtype, "optim": OPTIM}
    results = values(server.run(RUN, job, ranks=ranks))
    gap = relative(results[0]["losses"], reference[dtype]["losses"])
    print(f"\nstage {stage} {dtype} x{ranks}: {gap:.2e}")
    assert gap < (1e-5 if dtype == "fp32" else 2e-3)
    assert all(result["losses"] == results[0]["losses"] for result in results)


def test_a_cut_matrix_is_stepped_as_a_whole_one(server: ForkServer) -> None:
    """Matrices of odd sizes cut anywhere, over 3 ranks, against Muon over whole ones.

    Gradients and momentum of few bits, so that what is orthogonalised is the same in every bit, and the rest is within
    a rounding of float32."""
    for lost in values(server.run("tests.engine.test_muon:cut_against_whole", ranks=3)):
        assert lost == []


def cut_against_whole() -> list[str]:
    """In a forked rank: names of the matrices that differ after some steps."""
    engine.start(engine_config())
    rank, world = dist.rank(), dist.world_size()
    optim = load(["optim=muon", "optim.muon.lr=0.02", "optim.muon.momentum=0.5"], launch=False).config.optim
    generator = torch.Generator().manual_seed(3)
    shapes = {"a": (5, 7), "b": (11, 3), "c": (4, 4), "d": (2, 9), "e": (6, 13)}
    starts = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    whole = {name: tensor.clone().requires_grad_() for name, tensor in starts.items()}
    kept = dict.fromkeys(shapes, MUON)
    theirs = build_optimizer(whole.items(), optim, kept)
    start_moments(theirs, ((tensor, MUON) for tensor in whole.values()))
    # One flat tensor of them all, cut in three, padded.
    flat = torch.cat([tensor.flatten() for tensor in starts.values()])
    size = -(-flat.numel() // world)
    mine = torch.nn.functional.pad(flat, (0, size * world - flat.numel()))[rank * size : (rank + 1) * size].clone()
    ours = build_optimizer([(name, torch.empty(0)) for name in shapes], optim, kept, sliced=True)
    assert isinstance(ours, MuonAndAdamW)
    ours.param_groups[0]["params"] = [mine]
    ours.state[mine]["momentum_buffer"] = torch.zeros_like(mine)
    matrices, begin = {}, -rank * size
    for name, tensor in starts.items():
        first, last = max(0, begin), min(size, begin + tensor.numel())
        matrices[name] = Matrix(tensor.shape, mine, max(0, min(first, size)), first - begin, max(0, last - first))
        begin += tensor.numel()
    ours.cut(matrices, None)
    for _ in range(4):
        for tensor in whole.values():
            tensor.grad = torch.randint(-8, 9, tensor.shape, generator=generator).float()
        gradient = torch.cat([tensor.grad.flatten() for tensor in whole.values() if tensor.grad is not None])
        mine.grad = torch.nn.functional.pad(gradient, (0, size * world))[rank * size : (rank + 1) * size]
        theirs.step()
        ours.step()
    engine.stop()
    return [
        name
        for name, (_, _, offset, start, numel) in matrices.items()
        if not mine[offset:][:numel].allclose(whole[name].detach().flatten()[start:][:numel], rtol=1e-6, atol=1e-7)
    ]


@pytest.mark.parametrize(
    ("stage", "dtype"), slow_unless([(3, "fp32"), (1, "bf16")], [*LAYOUTS, (2, "fp16"), (3, "fp16")])
)
def test_resumed_bit_for_bit(server: ForkServer, tmp_path: Path, stage: int, dtype: str) -> None:
    """The state has one momentum for each matrix, two moments for the rest."""
    job = {"steps": 6, "zero_stage": stage, "dtype": dtype, "optim": OPTIM}
    whole = values(server.run(RUN, job | {"save": str(tmp_path), "save_at": 3}, ranks=2))[0]
    export = tmp_path / "resumed.safetensors"
    resumed = values(server.run(RUN, job | {"load": str(tmp_path), "export": str(export)}, ranks=2))[0]
    assert resumed["loaded_digest"] == whole["saved_digest"]
    assert (resumed["losses"], resumed["digest"]) == (whole["losses"][3:], whole["digest"])
    assert resumed["counters"]["adam_step"] == 6.0
    matrices = {f"blocks.{block}.{part}.weight" for block in (0, 1) for part in ("mix", "up", "down")}
    names = [name.split("/", 1) for name in load_file(export)]
    assert {name for part, name in names if part == "momentum_buffer"} == matrices
    assert {name for part, name in names if part == "exp_avg"} == set(whole["trainable"]) - matrices


@pytest.mark.parametrize("new", slow_unless([{"kind": "local"}], [{"kind": "local"}, {"zero_stage": 1}]))
def test_resumed_in_another_layout(server: ForkServer, tmp_path: Path, new: dict[str, Any]) -> None:
    job = {"steps": 6, "optim": OPTIM}
    whole = values(server.run(RUN, job | {"zero_stage": 3, "save": str(tmp_path), "save_at": 3}, ranks=2))[0]
    resumed = values(server.run(RUN, job | {"load": str(tmp_path)} | new))[0]
    assert resumed["loaded_digest"] == whole["saved_digest"]
    assert relative(resumed["losses"], whole["losses"][3:]) < 1e-5


def test_matrices_alone_are_trained(server: ForkServer, tmp_path: Path) -> None:
    """A stage that trains some matrices has no AdamW at all."""
    job = {"steps": 4, "zero_stage": 2, "optim": OPTIM, "trainable": ["blocks.*.mix.weight"]}
    whole = values(server.run(RUN, job | {"save": str(tmp_path), "save_at": 2}, ranks=2))[0]
    resumed = values(server.run(RUN, job | {"load": str(tmp_path)}, ranks=2))[0]
    assert (resumed["losses"], resumed["digest"]) == (whole["losses"][2:], whole["digest"])
    assert whole["saved_digest"] != whole["digest"]


@pytest.mark.parametrize(("adjust", "height"), [("match_rms_adamw", 0.2 * 2**0.5), ("original", 1.0)])
def test_two_steps_by_hand(adjust: str, height: float) -> None:
    """Diagonal gradients: Newton-Schulz is x -> 3.4445 x - 4.775 x^3 + 2.0315 x^5, five times, of each entry over the
    Frobenius norm. (3, 4) becomes (0.7229, 1.1192); then B = 0.95 (0.15, 0.2) + 0.05 (4, -3), and 0.05 (4, -3) + 0.95 B
    = (0.5254, -0.112) becomes (0.7261, -0.6852)."""
    optim = load(["optim=muon", "optim.muon.lr=0.02", f"optim.muon.adjust_lr={adjust}"]).config.optim
    matrix, other = nn.Parameter(torch.eye(2)), nn.Parameter(torch.eye(2))
    optimizer = build_optimizer([("m", matrix), ("o", other)], optim, {"m": MUON, "o": ADAM})
    start_moments(optimizer, [(matrix, MUON), (other, ADAM)])
    expected = torch.ones(2)
    for gradient, update in (((3.0, 4.0), (0.7229, 1.1192)), ((4.0, -3.0), (0.7261, -0.6852))):
        matrix.grad, other.grad = torch.diag(torch.tensor(gradient)), torch.eye(2)
        set_lr(optimizer, optim.lr / 2)  # the schedule's half is half of Muon's rate too
        optimizer.step()
        expected = expected * (1 - 0.01 * 0.1) - 0.01 * height * torch.tensor(update)
        assert torch.allclose(matrix.detach().diag(), expected, atol=0.01 * height * 1e-4)
    assert other[0, 0].item() == pytest.approx((1 - 5e-4 * (1 + 0.1)) * (1 - 5e-5) - 5e-4, rel=1e-5)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
def test_newton_schulz_by_singular_values(shape: tuple[int, int]) -> None:
    """U and V stay, and each singular value over the Frobenius norm goes through the polynomial five times."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    found = orthogonalise(matrix, torch.optim.Muon([torch.zeros(1, 1)]).defaults)
    assert torch.allclose(found, u * s @ vt, rtol=1e-9, atol=1e-9)


def test_in_bfloat16_it_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the same weights as torch.optim.Muon's, bit for bit."""
    monkeypatch.setattr("coca_train.engine.muon.newton_schulz_dtype", lambda device: torch.bfloat16)
    optim = load(["optim=muon", "optim.muon.lr=0.02"], launch=False).config.optim
    generator = torch.Generator().manual_seed(4)
    ours, theirs = ([torch.ones(5, 7, requires_grad=True), torch.ones(8, 3, requires_grad=True)] for _ in range(2))
    optimizer = build_optimizer(zip("ab", ours, strict=True), optim, {"a": MUON, "b": MUON})
    start_moments(optimizer, ((matrix, MUON) for matrix in ours))
    reference = torch.optim.Muon(theirs, lr=0.02, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = other.grad = torch.randn(one.shape, generator=generator)
        optimizer.step()
        reference.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("scheme", ["coca", "fox", "dape", "shaw"])
def test_matrices_of_blocks_only(scheme: str) -> None:
    """No embedding, head, norm, bias, nor what a position scheme learns, linear layers among it (FoX's gates)."""
    typed = positions.settings(dict(shipped())[scheme]), patterns.settings({"name": "causal"})
    with torch.device("meta"):
        model = Transformer(replace(LLAMA, n_layers=1), *typed, vocab_size=61, max_seq_len=12)
    attention = {f"blocks.0.attention.{part}.weight" for part in ("q", "k", "v", "out")}
    assert set(block_matrices(model)) == attention | {f"blocks.0.mlp.{part}.weight" for part in ("gate", "up", "down")}


def test_names_decide_nothing() -> None:
    """DeepSpeed leaves out what is called embed or lm_head, and takes any other head."""
    model = TinyGPT(tied=True)
    model.decoder, model.blocks[0].lm_head_embed = model.head, nn.Linear(18, 18)
    names = block_matrices(model)
    assert "blocks.0.lm_head_embed.weight" in names
    assert len(names) == 7 and all(name.startswith("blocks.") for name in names)


def test_adapters_of_blocks_are_matrices_too() -> None:
    typed = positions.settings(dict(shipped())["rope"]), patterns.settings({"name": "causal"})
    with torch.device("meta"):
        model = Transformer(replace(LLAMA, n_layers=1), *typed, vocab_size=61, max_seq_len=12)
    adapt(model, ["blocks.*.attention.q.*"], LoraConfig(rank=2, alpha=1.0))
    names = set(block_matrices(model))
    assert {"blocks.0.attention.q.lora_A.weight", "blocks.0.attention.q.lora_B.weight"} < names


def test_matrices_are_shared_out() -> None:
    """To who has most of one; where all have as much, evenly, the large ones first."""
    assert assign_owners(["a", "b"], [{"a": 6, "b": 1}, {"a": 0, "b": 5}]) == [["a", "b"]]
    even = [{"a": 4, "b": 2, "c": 2, "d": 1}] * 2
    assert assign_owners(list("abcd"), even) == [["a", "b"], ["d", "c"]]
