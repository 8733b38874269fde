"""The model of a recipe alone on a device, without engine and optimizer; and what plan counts of the same."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from benchmarks.gpu.figures import Figure, counted
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.timing import GIB, milliseconds, peak_gib
from coca_train.engine.base import DTYPES, materialise, parameters_on_meta
from coca_train.models.trainable import select_trainable
from coca_train.models.transformer import Transformer, build_model
from coca_train.planning.cost import Step, count_step
from coca_train.planning.memory import watch_activations
from coca_train.planning.meta_step import count_flops
from coca_train.planning.outline import Outline, outline
from coca_train.settings import load
from coca_train.stages import Stage, resolve
from coca_train.tracking.throughput import gpu_peak

# What a recipe's figure is named with where the command line has changed it.
CHANGES = ("engine.sequence_parallel=", "engine.activation_checkpointing=")


class Alone:
    """The last stage of a recipe. words: its command line, its name first. micro_batch: sequences at a time."""

    def __init__(self, words: Sequence[str], micro_batch: int, scale: Scale) -> None:
        stage = resolve(load(list(words)).config)[-1]
        rows = scale.pick(micro_batch, 2)
        train = replace(stage.config.train, micro_batch_size=rows, global_batch_size=rows)
        self.stage: Stage = replace(stage, config=replace(stage.config, train=train))
        self.scale, self.rows, self.seq_len = scale, rows, train.seq_len
        recipe, *changed = words
        self.name = " ".join([recipe.partition("=")[2], *(word for word in changed if word.startswith(CHANGES))])

    @property
    def config(self) -> Any:
        return self.stage.config

    @property
    def n_tokens(self) -> int:
        return self.rows * self.seq_len

    @cache  # noqa: B019  # as long as the part runs
    def outline(self) -> Outline:
        return outline(self.config, self.stage.trainable, lora=self.stage.lora)

    @cache  # noqa: B019
    def counted(self) -> Step:
        return count_step(self.outline(), count_flops(self.outline()), 1, "cuda")

    def counted_ms(self) -> float | None:
        """Forward and backward of a micro batch at the rates of this GPU; None: they are not known."""
        if (rates := self.scale.rates) is None:
            return None
        return 1e3 * sum(rates.seconds(kernel) for kernel in self.counted().kernels)

    def counted_gib(self) -> float:
        """Weights, gradients and activations, as plan counts them."""
        seen = watch_activations(
            self.outline(), self.rows, "cuda", checkpointing=self.config.engine.activation_checkpointing,
            keeps_gradients=True,
        )  # fmt: skip
        weights = self.outline().n_parameters * DTYPES[self.config.engine.dtype].itemsize
        return (weights + seen.peak) / GIB

    def model(self, compiled: bool) -> Transformer:
        engine = replace(self.config.engine, compile="blocks" if compiled else "none")
        with parameters_on_meta():
            n_tokens = self.outline().model.embed.num_embeddings
            model = build_model(replace(self.config, engine=engine), n_tokens, self.stage.trainable, self.stage.lora)
        select_trainable(model, self.stage.trainable)
        device = torch.device(self.scale.device)
        materialise(model, _fill, device, DTYPES[self.config.engine.dtype])
        return model.train()

    def work(self, model: Transformer) -> Callable[[], None]:
        """Forward, loss and backward of a micro batch of random tokens."""
        device = self.scale.device
        tokens_BT = torch.randint(model.embed.num_embeddings, (self.rows, self.seq_len), device=device)
        pos_BT = torch.arange(self.seq_len, device=device).expand_as(tokens_BT).contiguous()

        def run() -> None:
            model(tokens_BT, tokens_BT, pos_BT).backward()
            for parameter in model.parameters():
                parameter.grad = None

        return run

    def figures(self, part: str, times: int, compiled: bool = False) -> list[Figure]:
        """Time, share of the peak, and memory."""
        model = self.model(compiled)
        work, device = self.work(model), self.scale.device
        taken_ms, peak = milliseconds(work, device, times), peak_gib(work, device)
        what = f"{self.name} {self.rows} x {self.seq_len}{', blocks compiled' * compiled}"
        expected = None if compiled else self.counted_ms()  # nobody has counted what compiled blocks save
        out = [
            Figure(part, what, taken_ms, "ms") if expected is None else counted(part, what, taken_ms, "ms", expected),
            Figure(part, f"{what}: speed", self.n_tokens / taken_ms * 1e3, "tokens/s"),
        ]
        if device == "cuda":
            limit = gpu_peak(torch.cuda.get_device_name(), self.config.engine.dtype, tf32=False)
            gib = self.counted_gib()
            out.append(Figure(part, f"{what}: memory", peak, "GiB", 0.85 * gib, 1.1 * gib, "counted by plan"))
            if limit is not None:
                share = self.counted().per_token.total * self.n_tokens / (taken_ms / 1e3) / limit.flops
                out.append(Figure(part, f"{what}: MFU", 100 * share, "%"))
        return out


def _fill(name: str, tensor: torch.Tensor) -> None:
    tensor.normal_(1.0 if "norm" in name else 0.0, 0.02)
