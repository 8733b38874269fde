"""Trainings on a real Slurm, each struck at a random moment. COCA_SLURM_JOBS: how many (10); COCA_SLURM_SEED."""

import os
from pathlib import Path

import pytest

from tests.slurm import campaign
from tests.slurm.cluster import Cluster


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.timeout(4 * 3600)
def test_each_kind_ends_as_it_must_and_what_finishes_is_bit_identical(slurm: Cluster, tmp_path: Path) -> None:
    jobs, seed = int(os.environ.get("COCA_SLURM_JOBS", "10")), int(os.environ.get("COCA_SLURM_SEED", "1"))
    played = campaign.run(slurm, tmp_path, jobs, seed)
    assert len(played) == jobs
    wrong = [f"{job.name} {job.kind} ({job.id}) {job.struck}: {job.verdict}" for job in played if job.verdict]
    wrong += [f"{job.name} {job.kind} ({job.id}): other bits" for job in played if job.identical is False]
    assert not wrong, "\n".join(wrong) + "\n" + campaign.table(played)
