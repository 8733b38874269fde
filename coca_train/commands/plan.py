"""`python -m coca_train.plan +experiment=coca_llama_7b gpus=32`: what a run will cost, before it starts.

  python -m coca_train.plan                                          the quickstart
  python -m coca_train.plan +experiment=coca_llama_7b gpus=32        the CoCA paper's three stages on 32 A100
  python -m coca_train.plan model=llama_7b train.seq_len=32768 gpus=8 gpu=h100 mfu=0.5

Prints the schedule, what differs from each stage to the next, and for each stage trained parameters, tokens, FLOPs,
hours, memory of one GPU by component with and without activation checkpointing, and where it does not fit the smallest
change that makes it fit. Needs no data, no weights and no GPU: docs/plan.md says how it knows.

options (key=value)
  gpus   how many
  gpu    which: t4, v100_16gb, v100_32gb, rtx_3090, rtx_4090, a6000, a40, l40s, a100_40gb, a100_80gb, h100, h200, b200;
         cpu: this machine without one (what engine.device=cpu plans for)
  mfu    model FLOPs utilisation to plan with: the share of the peak that a run reaches, between 0 and 1
  all others are those of a training (python -m coca_train --help): the same command line with coca_train.plan plans it
"""

import sys
from dataclasses import dataclass, fields

from coca_train.config.arguments import parse
from coca_train.config.command_line import read_arguments
from coca_train.runtime.entry import run
from coca_train.runtime.errors import UserError

FLAGS = ("--help", "--config-dir", "--debug")


@dataclass(frozen=True)
class Options:
    """See the module's docstring."""

    gpus: int = 1
    gpu: str = "a100_80gb"
    mfu: float = 0.4


def _main(argv: list[str]) -> int:
    arguments = read_arguments(argv, FLAGS)
    if "--help" in arguments.flags:
        print(__doc__)
        return 0
    own = [word for word in arguments.overrides if word.partition("=")[0] in {f.name for f in fields(Options)}]
    options = parse(Options, own)
    if options.gpus < 1:
        raise UserError(f"E-PLN-04 command line gpus={options.gpus}: a run needs one at least. Fix: gpus=1")
    if not 0 < options.mfu <= 1:
        raise UserError(
            f"E-PLN-05 command line mfu={options.mfu:g}: a share of the peak, above 0 and at most 1. Fix: mfu=0.4"
        )
    from coca_train.config.load import assemble, finish
    from coca_train.planning.cost import Cluster, check_launch, cost
    from coca_train.planning.gpus import find
    from coca_train.planning.outline import outline
    from coca_train.planning.pages import plan
    from coca_train.schedule import resolve
    from coca_train.settings import TRAIN

    of_run = [word for word in arguments.overrides if word not in own]
    config, _ = finish(assemble(TRAIN, of_run, arguments.config_dirs), launch=False)
    cluster = Cluster(options.gpus, find("cpu" if config.engine.device == "cpu" else options.gpu), options.mfu)
    stages = resolve(config)
    for stage in stages:
        check_launch(stage.config, cluster)
    outlines = [outline(stage.config, stage.trainable, lora=stage.lora) for stage in stages]
    costs = [cost(stage, each, cluster, stages) for stage, each in zip(stages, outlines, strict=True)]
    print(plan(config.run.name, costs, cluster), end="")
    return 0


if __name__ == "__main__":
    sys.exit(run(_main))
