"""The quickstart's first steps on the GPU, by ZeRO stage, against the same steps in float32 on this machine's CPU."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.trainings import train

STEPS = (1, 10, 20, 40)
NEAR = {"fp32": 0.005, "bf16": 0.05}  # nats a token, after 40 steps


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    steps = scale.pick(STEPS, (1, 3))
    words = [f"train.max_steps={steps[-1]}", "optim.warmup_steps=1", "checkpoint.save_every_steps=1000"]
    words += scale.pick([], ["model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.d_ff=48"])
    words += scale.pick([], ["train.seq_len=32", "train.micro_batch_size=2", "train.global_batch_size=4"])
    wanted = train(folder, "cpu", [*words, "engine.device=cpu", "engine.dtype=fp32"]).losses()
    for dtype in ("fp32", "bf16"):
        for stage in scale.pick((1, 2, 3), (1,)):
            own = [f"engine.device={scale.device}", f"engine.dtype={dtype}", f"engine.zero_stage={stage}"]
            losses = train(folder, f"{dtype}-{stage}", [*words, *own]).losses()
            for step in steps:
                what, near = f"loss of step {step}, {dtype}, ZeRO {stage}", NEAR[dtype]
                low, high = wanted[step] - near, wanted[step] + near
                yield Figure("losses", what, losses[step], "nats", low, high, "the CPU, float32")
