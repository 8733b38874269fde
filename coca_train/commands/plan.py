"""Say what a run will cost, before it starts."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.commands._training import load
from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Positive
from coca_train.config.verb import FLAGS, Verb
from coca_train.settings import TRAIN, is_training_override

USAGE = """\
Say what a run will cost, before it starts.

  python -m coca_train plan                                          the quickstart
  python -m coca_train plan +experiment=coca_llama_7b gpus=32        the CoCA paper's three stages on 32 A100
  python -m coca_train plan model=llama_7b train.seq_len=32768 gpus=8 gpu=h100

Prints one line of it all (whether it fits, hours, tokens, FLOPs), what an export will be, the schedule, what differs
from each stage to the next, and for each stage trained parameters, tokens, FLOPs, hours, memory of one GPU by component
with and without activation checkpointing, where it does not fit the smallest change that makes it fit, and a step by
part (loss, attention, linear, elementwise, optimizer, communication): bytes, FLOPs, kernels, and from them its time and
MFU on A100, H100 and H200, which the hours are planned with. Needs no data, no weights and no GPU: docs/plan.md says
how it knows.

All words but the options below are those of a training (python -m coca_train train --help).
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PlanConfig:
    """What a run is planned for."""

    gpus: Positive = Field(default=1, description="how many")
    gpu: Literal[
        "t4",
        "v100_16gb",
        "v100_32gb",
        "rtx_3090",
        "rtx_4090",
        "a6000",
        "a40",
        "l40s",
        "a100_40gb",
        "a100_80gb",
        "h100",
        "h200",
        "b200",
        "cpu",
    ] = Field(
        default="a100_80gb", description="which; cpu: this machine without one (what engine.device=cpu plans for)"
    )
    mfu: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="model FLOPs utilisation to plan hours with, the share of the peak that a run reaches; null: hours "
        "of the step as it is counted",
    )


def _plan(loaded: Loaded[PlanConfig], arguments: Arguments) -> None:
    from coca_train.hub.forms import describe_run
    from coca_train.planning.as_text import plan
    from coca_train.planning.cost import Cluster, check_launch, plan_stage
    from coca_train.planning.hardware import find_gpu
    from coca_train.planning.outline import embedding_rows, outline
    from coca_train.stages import resolve
    from coca_train.tracking.throughput import gpu_peak

    given: PlanConfig = loaded.config
    gpu = find_gpu(given.gpu)
    bf16 = None if gpu.kind == "cpu" else gpu_peak(gpu.device, "bf16", tf32=False) is not None
    training = load(arguments.overrides, arguments.config_dirs, launch=False, bf16=bf16)
    training.log_notes()
    config = training.config
    cluster = Cluster(given.gpus, find_gpu("cpu") if config.engine.device == "cpu" else gpu, given.mfu)
    for stage in resolve(config):
        check_launch(stage.config, cluster)
    stages = resolve(config, given.gpus)
    outlines = [outline(stage.config, stage.trainable, lora=stage.lora) for stage in stages]
    costs = [plan_stage(stage, each, cluster, stages) for stage, each in zip(stages, outlines, strict=True)]
    export = describe_run(stages, embedding_rows(stages[-1].config))
    print(plan(config.run.name, costs, cluster, export), end="")


PLAN = Root(
    name="plan",
    schema=PlanConfig,
    command="coca_train plan",
    examples="gpus=8, or an override of a training, e.g. train.seq_len=8192",
    passthrough_groups=TRAIN.groups,
)
VERB = Verb(PLAN, USAGE, _plan, flags=(*FLAGS, "--config-dir"), is_for_training=is_training_override)
