"""Steps and saves of the 350M recipe in the engine: speed by ZeRO stage and with compiled blocks, and for how long a
save blocks it."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.trainings import Trained, stalls, train

STEPS, EVERY = 160, 75  # a save has been written before the next begins


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    steps, every = scale.pick((STEPS, EVERY), (4, 2))
    words = scale.words("+experiment=coca_350m", f"train.max_steps={steps}", "optim.warmup_steps=1", "data=embedded")
    words += scale.pick(["train.micro_batch_size=16", "train.global_batch_size=32"], ["engine.dtype=fp32"])
    losses = {}
    for what, own in {
        "ZeRO 1": [f"checkpoint.save_every_steps={every}"],
        "ZeRO 1, blocks compiled": ["engine.compile=blocks", "checkpoint.save_every_steps=1000"],
        "ZeRO 2": ["engine.zero_stage=2", f"checkpoint.save_every_steps={every}"],
    }.items():
        done = train(folder, what.replace(" ", "-").replace(",", ""), [*words, *own])
        losses[what] = done.losses()
        yield from _speed(f"coca_350m, {what}", done, steps // 4)
        for number, save in enumerate(stalls(done.text), start=1):
            yield Figure("saves", f"coca_350m, {what}: save {number} blocks training", save.blocked_s, "s")
            yield Figure("saves", f"coca_350m, {what}: save {number} in background", save.background_s, "s")
        if "compiled" in what:
            farthest = max(abs(losses["ZeRO 1"][step] - loss) for step, loss in losses[what].items())
            # Both round to bfloat16, at other places.
            yield Figure(
                "saves", f"coca_350m, {what}: loss is off by", farthest, "nats", high=0.1, by="blocks as they are"
            )


def _speed(what: str, done: Trained, first: int) -> Iterator[Figure]:
    """Medians of the steps from `first` on."""
    speeds = [record["tokens_per_s"] for record in done.records if "tokens_per_s" in record][first:]
    yield Figure("saves", f"{what}: speed", statistics.median(speeds), "tokens/s")
    if shares := [record["mfu"] for record in done.records if record.get("mfu")][first:]:
        yield Figure("saves", f"{what}: MFU", 100 * statistics.median(shares), "%")
