"""`start.path` without an experiment: fine-tuning's values in place of the quickstart's, and what is said of them."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from coca_train import settings
from coca_train.config.compose import Assembled, compose
from coca_train.config.files import config_dir
from coca_train.config.load import saved_settings
from coca_train.config.messages import show
from coca_train.hub.from_start import begun_run
from coca_train.runtime import machine
from coca_train.runtime.trees import leaves, lookup, section

DATA = """\
data=embedded, which is text and code of this Python installation: enough to see that all works, not to teach anything.
Your own text: data.path=<folder of texts> (docs/data.md)"""


def set_precision(a: Assembled, groups: Mapping[str, str], values: dict[str, object], bf16: bool | None) -> None:
    """Set bf16 where the machine computes in it; a run that has begun keeps what it has. values: the tree as the
    command line has it. bf16: whether the machine does, where it is not this one."""
    if "engine" in groups:
        return
    if (run_dir := begun_run(values)) is not None:
        dtype = section(saved_settings(run_dir / "config.yaml"), "engine").get("dtype", "fp32")
    else:
        dtype = (
            "bf16" if (_computes_bf16(section(values, "engine").get("device")) if bf16 is None else bf16) else "fp32"
        )
    section(a.tree, "engine")["dtype"] = dtype
    a.places["engine.dtype"] = "start.path"


@cache
def _computes_bf16(device: object) -> bool:
    import torch  # counts through NVML, without a CUDA context

    on_gpus = device != "cpu" and torch.cuda.device_count()
    return machine.gpus_compute_bfloat16() if on_gpus else machine.cpu_computes_bfloat16()


def describe_changes(a: Assembled, groups: Mapping[str, str], typed: Callable[[], dict[str, object]]) -> str:
    """Return the block CHANGED: what differs from the quickstart because of start.path, and the words that undo it."""
    values, usual = typed(), compose(settings.TRAIN, {}, (config_dir(),))
    path = section(values, "start").get("path")
    rows = list(_changed(a, groups, values, usual))
    width = max((len(row) for row, _ in rows), default=0)
    lines = [f"{row:<{width}}   (back: {word})" for row, word in rows]
    if groups.get("model", "from_start") == "from_start":
        own = [name for name in ("position", "attention_pattern", "layers") if name not in groups]
        lines.append(f"those of the weights: model, {', '.join([*own, 'tokenizer'])}")
    if (steps := lookup(values, "train.max_steps")) == lookup(usual.tree, "train.max_steps"):
        lines.append(f"train.max_steps={show(steps)} is the quickstart's")
    lines += _stretched(values)
    data = section(values, "data")
    if "data" not in groups and data.get("path") is None and data.get("prepare") == "embedded":
        lines += DATA.splitlines()
    head = f"CHANGED   because of start.path={path}, with which no experiment was chosen:"
    return "\n".join([head, *(f"          {line}" for line in lines)])


def _changed(
    a: Assembled, groups: Mapping[str, str], values: dict[str, object], usual: Assembled
) -> Iterator[tuple[str, str]]:
    """(what holds, the word that sets it back)."""
    optim = section(values, "optim")
    if "optim" not in groups:
        rate = f"lr {show(optim['lr'])}, {optim['schedule']} after {optim['warmup_steps']} steps of warm-up"
        yield f"optim: {show(optim['name'])}, {rate}", f"optim={usual.choices['optim']}"
    for part in ("train", "engine"):
        for key, value in leaves(a.tree[part], part):
            before = dict(leaves(usual.tree[part], part)).get(key)
            if part not in groups and value != before and dict(leaves(values[part], part)).get(key) == value:
                window = " (the model's window)" if key == "train.seq_len" else ""
                yield f"{key}={show(value)}{window}", f"{key}={show(before)}"


def _stretched(values: Mapping[str, object]) -> Iterator[str]:
    """Frequencies that reach further than the windows that are trained."""
    rope_scaling, window = section(values, "position.rope_scaling"), lookup(values, "train.seq_len")
    factor, trained = rope_scaling.get("factor"), rope_scaling.get("original_seq_len")
    if not (isinstance(factor, int | float) and isinstance(trained, int) and isinstance(window, int)):
        return
    if factor * trained > window:
        reach = int(factor * trained)
        yield (
            f"position.rope_scaling.factor={show(factor)} stretches the window to {reach:,} tokens, and trained are "
            f"{window:,}: train.seq_len={reach} for all of them"
        )
