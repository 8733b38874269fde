"""Steps and saves of the 350M recipe in the engine: speed by ZeRO stage, with compiled blocks, and with the same bits
every time; for how long a save blocks it, and what a recheck takes."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.trainings import Trained, stalls, train

STEPS, EVERY = 160, 75  # a save has been written before the next begins
FEW = 60  # steps that say the speed
RECHECKED = 10  # of so many steps one


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    steps, every = scale.pick((STEPS, EVERY), (4, 2))
    few, rechecked = scale.pick((FEW, RECHECKED), (4, 3))
    words = scale.words("+experiment=coca_350m", "optim.warmup_steps=1", "optim.schedule=constant", "data=embedded")
    words += scale.pick(["train.micro_batch_size=16", "train.global_batch_size=32"], ["engine.dtype=fp32"])
    losses = {}
    for what, own in {
        "ZeRO 1": [f"train.max_steps={steps}", f"checkpoint.save_every_steps={every}"],
        "ZeRO 1, blocks compiled": ["engine.compile=blocks", f"train.max_steps={few}"],
        "ZeRO 2": ["engine.zero_stage=2", f"train.max_steps={steps}", f"checkpoint.save_every_steps={every}"],
        "ZeRO 1, deterministic": [
            *("engine.deterministic=true", f"train.max_steps={few}"),
            f"engine.recheck_every_steps={rechecked}",
        ],
    }.items():
        done = train(folder, what.replace(" ", "-").replace(",", ""), [*words, *own])
        losses[what] = done.losses()
        yield from _speed(f"coca_350m, {what}", done, few // 4)
        if "deterministic" in what:
            yield Figure("saves", f"coca_350m, {what}: a recheck takes", _recheck(done, rechecked), "steps")
        for number, save in enumerate(stalls(done.text), start=1):
            yield Figure("saves", f"coca_350m, {what}: save {number} blocks training", save.blocked_s, "s")
            yield Figure("saves", f"coca_350m, {what}: save {number} in background", save.background_s, "s")
        if "compiled" in what:
            # Both round to bfloat16, at other places.
            farthest = max(abs(losses["ZeRO 1"][step] - loss) for step, loss in losses[what].items())
            yield Figure(
                "saves", f"coca_350m, {what}: loss is off by", farthest, "nats", high=0.1, by="blocks as they are"
            )


def _speed(what: str, done: Trained, first: int) -> Iterator[Figure]:
    """Medians of the steps from `first` on, and the fastest of them: far from it, something else took the time."""
    speeds = [record["tokens_per_s"] for record in done.records if "tokens_per_s" in record][first:]
    yield Figure("saves", f"{what}: speed", statistics.median(speeds), "tokens/s")
    yield Figure("saves", f"{what}: speed of the fastest step", max(speeds), "tokens/s")
    if shares := [record["mfu"] for record in done.records if record.get("mfu")][first:]:
        yield Figure("saves", f"{what}: MFU", 100 * statistics.median(shares), "%")


def _recheck(done: Trained, every: int) -> float:
    """What a step that is computed twice and the next one, which looks at the state first, take more than others, as
    a share of one of those."""
    seconds = {record["step"]: 1 / record["tokens_per_s"] for record in done.records if "tokens_per_s" in record}
    others = statistics.median(s for step, s in seconds.items() if step % every > 1)
    rechecked = [step for step in seconds if step % every == 0 and step + 1 in seconds]
    return statistics.median((seconds[step] + seconds[step + 1]) / others - 2 for step in rechecked)
