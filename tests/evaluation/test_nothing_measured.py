"""Every suite's page where no cell has a result, and where some have none: it says so and is whole."""

from pathlib import Path

import pytest
import yaml

from coca_train.evaluation import suites
from coca_train.evaluation.results import Cell, Evaluation, Measured
from coca_train.report.render import write_report

CONFIGS = Path(__file__).parents[2] / "configs" / "evaluation" / "eval"
STATUSES = {"impossible": "alibi has no frequencies", "out_of_memory": "out of memory on rank 0"}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("choice", sorted(path.stem for path in CONFIGS.glob("[a-z]*.yaml")))
def test_a_page_without_a_result(choice, status, tmp_path):
    tree = yaml.safe_load((CONFIGS / f"{choice}.yaml").read_text())["eval"]
    settings, module = suites.settings(tree), suites.suite_module(tree["suite"])
    points = module.points(settings, (512, 1024))
    who = Measured(
        name="one", path="runs/one", kind="run", scheme="alibi", training_window=512, n_parameters=1, step=1,
        weights="0", variants=("plain", "yarn"),
    )  # fmt: skip
    cells = tuple(
        Cell(subject="one", variant=variant, point=point, status=status, reason=STATUSES[status])
        for variant in who.variants
        for point in points
    )
    evaluation = Evaluation(
        suite=tree["suite"], name="none", settings=tree, subjects=(who,), points=points, cells=cells, facts=(),
        command="python -m coca_train evaluate",
    )  # fmt: skip
    paths = write_report(module.page(settings, evaluation), tmp_path)
    page = paths["report.html"].read_text(encoding="utf-8")
    assert ("out of memory" if status == "out_of_memory" else STATUSES[status]) in page
