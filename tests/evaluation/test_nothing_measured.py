"""Every suite's page where no cell has a result: it says so and is whole."""

from dataclasses import asdict

import pytest

from coca_train.evaluation import configuration
from coca_train.evaluation.suite import suite_of
from coca_train.report.render import write_report
from tests.evaluation.grids import CONFIGS, cell, evaluation, measured

ABSENCES = {
    "alibi has no frequencies": {"reason": "alibi has no frequencies"},
    "out of memory": {"reason": "out of memory on rank 0", "status": "out_of_memory"},
}


@pytest.mark.parametrize("words", ABSENCES)
@pytest.mark.parametrize("choice", sorted(path.stem for path in CONFIGS.glob("[a-z]*.yaml")))
def test_a_page_without_a_result(choice, words, tmp_path):
    settings = configuration.load([f"+eval={choice}", "checkpoint=one"])[0].eval
    suite, tree = suite_of(settings), asdict(settings)
    who, points = measured("one", ("plain", "yarn")), suite.points((512, 1024))
    cells = [
        cell("one", variant, point, suite=part.settings.suite, **ABSENCES[words])
        for part in suite.parts()
        for variant in who.variants
        for point in part.points((512, 1024))
    ]
    page = suite.page(evaluation(tree["suite"], tree, [who], points, cells))
    assert words in write_report(page, tmp_path)["report.html"].read_text(encoding="utf-8")
