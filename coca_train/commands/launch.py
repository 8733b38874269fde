"""Print a script that starts trainings: a Slurm job, what a cluster needs around it, all GPUs of this machine."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.root import Root
from coca_train.config.schema import STRICT
from coca_train.config.verb import Verb

USAGE = """\
The scripts that start trainings, to keep and to change: they set the environment, hyper-parameters are arguments.

  python -m coca_train launch slurm > train.sbatch
  sbatch --nodes 4 --ntasks-per-node 8 --gpus-per-node 8 train.sbatch +experiment=coca_350m
  python -m coca_train launch site > coca_train.site.sh     modules, a container, NCCL: train.sbatch reads it
  python -m coca_train launch tokenize > tokenize.sbatch    data_prep, a shard in each task of an array
  python -m coca_train launch local > local.sh              all GPUs of this machine, by torchrun
"""
FILES = {
    "slurm": "slurm/train.sbatch",
    "site": "slurm/site.sh",
    "tokenize": "slurm/tokenize.sbatch",
    "local": "local.sh",
}
LEAD = "LEAD_S=${LEAD_S:-auto}"  # the line of train.sbatch


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LaunchConfig:
    """Which script, and its defaults."""

    script: Literal["slurm", "site", "tokenize", "local"] = Field(description="which; its name alone is short for it")
    lead_s: int | None = Field(
        default=None,
        ge=1,
        le=10**7,
        description="slurm: seconds before the time limit at which the ranks are warned, and save; null: a minute and "
        "three times the slowest save, measured by the job itself",
    )


def folder() -> Path:
    """Return the folder of the scripts: inside the installed package, or next to it in a source checkout."""
    here = Path(__file__).resolve()
    for place in (here.parents[1] / "launch_scripts", here.parents[2] / "launch"):
        if (place / "local.sh").is_file():
            return place
    raise FileNotFoundError(f"coca_train is installed without its launch scripts (looked beside {here.parents[1]})")


def script(config: LaunchConfig) -> str:
    text = (folder() / FILES[config.script]).read_text(encoding="utf-8")
    return text if config.lead_s is None else text.replace(LEAD, LEAD.replace("auto", str(config.lead_s)))


LAUNCH = Root(name="launch", schema=LaunchConfig, command="coca_train launch", examples="script=slurm")


def _print(loaded: Loaded[LaunchConfig], arguments: Arguments) -> None:
    print(script(loaded.config), end="")


VERB = Verb(
    LAUNCH,
    USAGE,
    _print,
    foot="docs/operations.md says how a job ends and when it is queued again",
    needs_words=True,
    expand=lambda words: [word if "=" in word else f"script={word}" for word in words],
)
