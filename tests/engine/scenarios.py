"""What the forked ranks of the engine tests do: a tiny GPT trained on batches that are a function of the step."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train import checkpoint, engine
from coca_train.config.schema import EngineConfig, MuonConfig, OptimConfig
from coca_train.engine import base
from coca_train.engine.base import Engine
from coca_train.models.memory import Memory
from coca_train.positions.token_positions import Positions
from coca_train.runtime import dist
from tests import states
from tests.states import full_state

VOCAB, LENGTH, GLOBAL_BATCH = 61, 12, 8


def optim_config(**changes: Any) -> OptimConfig:
    values: dict[str, Any] = {
        "lr": 3e-3, "min_lr": 0.0, "warmup_steps": 0, "warmup_init_lr": 0.0, "schedule": "constant", "cooldown": 0.1,
        "name": "adamw", "muon": MuonConfig(lr=None, momentum=0.95, adjust_lr="match_rms_adamw"),
        "cooldown_shape": "linear", "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "max_grad_norm": 1.0,
    }  # fmt: skip
    return OptimConfig(**(values | changes))


OPTIM = optim_config()


@dataclass(frozen=True)
class Batch:
    tokens_BT: Tensor
    targets_BT: Tensor
    pos_BT: Tensor
    doc_BT: Tensor | None = None
    continues_B: Tensor | None = None
    memory: Memory | None = None
    length: None = None


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix, self.up, self.down = (
            nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, 37), nn.Linear(37, width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm(x))[:, None].chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
        return x + self.down(F.gelu(self.up(x)))


class TinyGPT(nn.Module):
    """Odd sizes, a float table that must stay float32, a persistent buffer, optionally tied embeddings."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 18)
        self.blocks = nn.ModuleList(Block(18) for _ in range(2))
        self.head = nn.Linear(18, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("angles", torch.arange(64).float()[:, None] / 3 ** torch.arange(18.0), persistent=False)
        self.register_buffer("gain", torch.full((18,), 0.7))

    def forward(
        self, tokens_BT: Tensor, targets_BT: Tensor, positions: Positions | Tensor, doc_BT: Tensor | None
    ) -> Tensor:
        assert self.angles.dtype == torch.float32
        x = self.embed(tokens_BT)
        x = x + (torch.sin(self.angles[Positions.of(positions).pos_BT]) * self.gain).to(x.dtype)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x).float().flatten(0, 1)
        return F.cross_entropy(logits, targets_BT.flatten(), ignore_index=-100, reduction="sum")


def init(name: str, tensor: Tensor) -> None:
    if name.endswith("norm.weight"):
        tensor.fill_(1.0)
    elif name.endswith("bias"):
        tensor.zero_()
    else:
        generator = torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.1)


def batches(step: int, micro: int, poison: str | None = None) -> list[Batch]:
    """This rank's micro batches of the global batch of a step; every sequence has another number of targets."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCAB, (GLOBAL_BATCH, LENGTH + 1), generator=generator)
    tokens, targets = tokens[:, :-1], tokens[:, 1:].clone()
    for row in range(GLOBAL_BATCH):
        targets[row, : row % 5] = -100
    share = GLOBAL_BATCH // dist.world_size()
    rows = range(dist.rank() * share, (dist.rank() + 1) * share, micro)
    pos = torch.arange(LENGTH).expand(micro, -1)
    return [Batch(tokens[row : row + micro], targets[row : row + micro], pos) for row in rows]


def engine_config(**changes: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "kind": "deepspeed", "device": "cpu", "dtype": "fp32", "zero_stage": 1, "attention": "auto",
        "activation_checkpointing": "none", "bucket_size": 1_000_000, "timeout_s": 60, "max_skipped_steps": 3,
        "gradient_reduction": "all_reduce", "communication_dtype": "auto", "overlap_communication": None,
        "prefetch_size": None, "persistence_threshold": None, "deterministic": False, "compile": "none",
        "sequence_parallel": 1, "mlp_tile": None,
    }  # fmt: skip
    return EngineConfig(**(values | changes))


def build(
    micro: int = 2,
    trainable: tuple[str, ...] = ("*",),
    tied: bool = False,
    optim: dict[str, Any] | None = None,
    **changes: Any,
) -> Engine:
    torch.set_num_threads(1)
    if changes.get("dtype") == "fp16":
        _allow_fp16_on_cpu()
    accumulation = GLOBAL_BATCH // dist.world_size() // micro
    return engine.build(
        engine_config(**changes), optim_config(**(optim or {})), lambda: TinyGPT(tied), init,
        trainable=list(trainable), micro_batch_size=micro, accumulation=accumulation,
    )  # fmt: skip


def _allow_fp16_on_cpu() -> None:
    """DeepSpeed refuses fp16 where it is slow; the arithmetic is there."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True
    get_accelerator().supported_dtypes = lambda: [torch.float, torch.bfloat16, torch.half]


def digest(built: Engine) -> str:
    """SHA-256 over every bit of the state."""
    total = hashlib.sha256()
    for name, tensor in full_state(built).items():
        total.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def lr_of(step: int) -> float:
    return 3e-3 * (1 - step / 100)


def meta(step: int = 0, run_id: str = "run-1", data: str = "books") -> checkpoint.Meta:
    return checkpoint.Meta(run_id, "model-1", {"digest": data}, {"step": step})


def train(
    steps: int,
    load: str | None = None,
    save: str | None = None,
    save_at: int | None = None,
    export: str | None = None,
    poison: dict[str, Any] | None = None,
    micro: int = 2,
    **changes: Any,
) -> dict[str, Any]:
    """Train up to step `steps`, from 0 or from the checkpoint in run directory `load`; save into `save` after
    `save_at` steps (default: at the end).

    poison: {step, rank, what: loss | grad} makes a NaN there. export: write the final state as one safetensors file.
    """
    built = build(micro=micro, **changes)
    first = 0
    if load is not None:
        newest = checkpoint.find(Path(load), "run-1")
        first = checkpoint.load(newest, built, meta())["step"]
    losses, norms, skips, saved_digest, loaded_digest = [], [], [], None, digest(built) if load else None
    for step in range(first, steps):
        undo = _poison(built, poison) if poison and (poison["step"], poison["rank"]) == (step, dist.rank()) else None
        result = built.train_step(batches(step, micro), lr_of(step))
        if undo:
            undo()
        losses.append(result.loss if math.isfinite(result.loss) else None)
        norms.append(result.grad_norm if math.isfinite(result.grad_norm) else None)
        skips.append(result.skipped)
        if save is not None and step + 1 == (save_at or steps):
            error = states.save(Path(save), step + 1, built, meta(step + 1))
            assert error is None, error
            saved_digest = digest(built)
    with built.eval_module() as module, torch.no_grad():
        batch = batches(999, micro)[0]
        validation = float(module(batch.tokens_BT, batch.targets_BT, batch.pos_BT, None))
    state = full_state(built)
    if export is not None and dist.is_main():
        save_file(state, export)
    answer = {
        "losses": losses, "norms": norms, "skips": skips, "validation": validation, "digest": digest(built),
        "saved_digest": saved_digest, "loaded_digest": loaded_digest,
        "counters": built.counters(), "trainable": built.trainable,
    }  # fmt: skip
    built.close()
    return answer


def _poison(built: Engine, poison: dict[str, Any]) -> Any:
    """Make the first block's output NaN (loss), or only a gradient of it infinite (grad)."""
    block = built.model.blocks[0]
    if poison["what"] == "loss":
        handle = block.register_forward_hook(lambda module, inputs, output: output * math.nan)
    else:

        def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
            output.register_hook(lambda gradient: gradient * math.inf)
            return output

        handle = block.register_forward_hook(hook)
    return handle.remove


def group_timeouts(stage: int) -> list[float]:
    """Timeouts of all process groups after a build [seconds]."""
    built = build(zero_stage=stage)
    c10d = torch.distributed.distributed_c10d
    backends = [group._get_backend(torch.device("cpu")) for group in c10d._world.pg_map]
    timeouts = [backend.options._timeout.total_seconds() for backend in backends]
    built.close()
    return timeouts


def groups_after_load(load: str) -> dict[str, Any]:
    """What the optimizer runs with after a resume under other hyper-parameters."""
    torch.set_num_threads(1)
    optim = optim_config(lr=0.5, betas=(0.8, 0.9), weight_decay=0.3, max_grad_norm=0.25)
    built = engine.build(engine_config(), optim, TinyGPT, init, trainable=["*"], micro_batch_size=8, accumulation=1)
    checkpoint.load(checkpoint.find(Path(load)), built, meta())
    inner = built._engine
    keys = ("lr", "weight_decay", "betas")
    answer = {"groups": [{k: g[k] for k in keys} for g in inner.basic_optimizer.param_groups]}
    answer["clip"] = inner.optimizer.clip_grad
    built.close()
    return answer


def beginning(**changes: Any) -> dict[str, Any]:
    """Of an engine that has begun: digest of its state, how many parameters this rank has drawn, the elements of the
    state that each rank has, and how often its buffers were listed for that."""
    drawn, whole = [], globals()["init"]
    globals()["init"] = lambda name, tensor: drawn.append(name) or whole(name, tensor)
    built = build(**changes)
    lists, once = [], base.persistent_buffers
    base.persistent_buffers = lambda model: lists.append(model) or once(model)
    sizes = dist.all_gather_object(sum(len(values) for _, _, values in built.slices()))
    base.persistent_buffers = once
    answer = {"digest": digest(built), "drawn": drawn, "sizes": sizes, "n": len(built.state_spec()) // 3}
    answer["lists"] = len(lists)
    built.close()
    return answer


def open_and_close() -> None:
    build().close()


def optimizer_elements(stage: int) -> dict[str, int]:
    """Elements of one moment, and of the trained parameters, when only one matrix is trained."""
    built = build(zero_stage=stage, trainable=("blocks.0.up.weight",))
    built.train_step(batches(0, 2), 1e-3)
    state = built._engine.basic_optimizer.state
    answer = {"state": sum(s["exp_avg"].numel() for s in state.values()), "trained": 18 * 37}
    built.close()
    return answer
