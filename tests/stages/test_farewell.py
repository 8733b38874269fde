"""What a finished run says of itself and of what to do next."""

from pathlib import Path

import pytest

from tests.stages.starting import begin
from tests.stages.support import Runs, schedule, stage


def test_farewell_of_a_single_run_of_stages_and_of_a_tuned_run(
    runs: Runs, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = stage("a", "max_steps: 1"), stage("b", "max_steps: 1")
    runs.train("single")
    single = capsys.readouterr().err
    assert "the same command with a larger train.max_steps goes on" in single
    assert "coca_train position=rope run.name=rope\n" in single and "coca_train compare schemes=" in single
    runs.train("staged", *schedule(a, b))
    staged = capsys.readouterr().err
    assert "one more stage" in staged and "report/a  " in staged and "report/b  " not in staged
    begin(runs, llama)
    for said in (staged, capsys.readouterr().err):
        assert "position=rope run.name=rope" not in said
        assert "python -m coca_train export run=" in said
