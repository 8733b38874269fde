"""Examine machines, network and disks before a run, rank by rank."""

from dataclasses import asdict

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
Check that machines, disks and network are fit for a run. Start it as the training, with the same words.

  python -m coca_train doctor                                             this machine, one process
  torchrun --nproc-per-node 8 -m coca_train doctor +experiment=coca_350m  all GPUs of it
  sbatch … launch/slurm/train.sbatch doctor +experiment=coca_350m         all ranks of a job

Every rank checks versions (against this package's requirements and the other ranks), GPUs, ulimits, /dev/shm, data
files (as a training does at its start), disk speed and room for the checkpoints at run.root, matrix products, clocks
and an all-reduce. One table has a row for each check; ! marks what must be fixed before a run, ~ what is worth a look.
The lines below it say what to do. Nothing is left behind.

Exit code 0: nothing must be fixed; 3: the data, 7: the disk, 2: anything else; 76: a rank did not come, and the message
has its number. docs/operations.md says what counts as out of line.

All words but the options below are those of a training (python -m coca_train train --help).
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DoctorConfig:
    """How long, and how much."""

    limit_s: Positive = Field(
        default=60, description="longest that a part may take; then the doctor names the rank and ends [seconds]"
    )
    meet_s: Positive = Field(default=120, description="how long all ranks have to start [seconds]")
    disk_mib: Positive = Field(
        default=48, description="what each rank writes at run.root, into a file without a name [MiB]"
    )
    reduce_mib: Positive = Field(default=64, description="size of the all-reduce [MiB]")


def _doctor(loaded: Loaded[DoctorConfig], arguments: Arguments) -> int:
    from coca_train.doctor.examine import examine

    training = load(arguments.overrides, arguments.config_dirs, launch=False)
    training.log_notes()

    def check_launch() -> str:  # what does not fit one rank is told by all, in the table
        load(arguments.overrides, arguments.config_dirs)
        return "fits this launch"

    return examine(training.config, check_launch, **asdict(loaded.config))


DOCTOR = Root(
    name="doctor",
    schema=DoctorConfig,
    command="coca_train doctor",
    examples="limit_s=120, or an override of a training, e.g. run.root=/shared/runs",
    passthrough_groups=TRAIN.groups,
)
VERB = Verb(DOCTOR, USAGE, _doctor, flags=(*FLAGS, "--config-dir"), is_for_training=is_training_override)
