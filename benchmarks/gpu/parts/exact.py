"""Whether a run that is stopped and resumed ends with the same bits, as CUDA is and when it is told to be exact."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.trainings import train

CHECKPOINTING = {"as it is": [], "engine.deterministic=true": ["engine.deterministic=true"]}


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    words = scale.words("+experiment=coca_350m", "optim.schedule=constant", "optim.warmup_steps=0", "data=embedded")
    words += scale.pick(["model.n_layers=4", "train.global_batch_size=16"], [])
    for number, (way, more) in enumerate(CHECKPOINTING.items()):
        whole = train(folder, f"whole-{number}", [*words, *more, "train.max_steps=6"])
        train(folder, f"cut-{number}", [*words, *more, "train.max_steps=3"])
        cut = train(folder, f"cut-{number}", [*words, *more, "train.max_steps=6"])
        one, other = whole.state(), cut.state()
        differing = sum(one[name] != other[name] for name in one)
        what = f"tensors of the checkpoint that differ after 6 steps and after 3 + 3, {way}"
        yield Figure("exact", what, differing, f"of {len(one)}", high=0, by="docs/operations.md" if more else "")
