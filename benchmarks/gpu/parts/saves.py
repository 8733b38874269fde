"""Steps and saves of the 350M recipe in the engine: speed by ZeRO stage, and for how long a save holds it up."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.trainings import stalls, train

STEPS, EVERY = 160, 75  # a save has been written before the next begins


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    steps, every = scale.pick((STEPS, EVERY), (4, 2))
    for stage in scale.pick((1, 2), (1,)):
        words = scale.words("+experiment=coca_350m", f"engine.zero_stage={stage}", f"train.max_steps={steps}")
        words += [f"checkpoint.save_every_steps={every}", "optim.warmup_steps=1", "data=embedded"]
        words += scale.pick(["train.micro_batch_size=16", "train.global_batch_size=32"], [])
        done = train(folder, f"zero-{stage}", words)
        speeds = [record["tokens_per_s"] for record in done.records if "tokens_per_s" in record][steps // 4 :]
        yield Figure("saves", f"coca_350m, ZeRO {stage}: speed", statistics.median(speeds), "tokens/s")
        shares = [record["mfu"] for record in done.records if record.get("mfu")][steps // 4 :]
        if shares:
            yield Figure("saves", f"coca_350m, ZeRO {stage}: MFU", 100 * statistics.median(shares), "%")
        for number, save in enumerate(stalls(done.text), start=1):
            yield Figure("saves", f"coca_350m, ZeRO {stage}: save {number} blocks training", save.blocked_s, "s")
            yield Figure("saves", f"coca_350m, ZeRO {stage}: save {number} in background", save.background_s, "s")
