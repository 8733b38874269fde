"""What the stored trials of the atlas say, docs/atlas_results.md: its page without the curves.

python -m tests.house.atlas > docs/atlas_results.md
"""

from dataclasses import replace

from coca_train.atlas.matrix import Matrix
from coca_train.atlas.page import page
from coca_train.atlas.study import EXPERIMENT, Study
from coca_train.atlas.trials import STORED, read_all
from coca_train.commands.atlas import AtlasConfig
from coca_train.report.render.plain import markdown_text
from coca_train.settings import load

COMMAND = "python -m coca_train atlas"


def matrix() -> Matrix:
    """Return the trials of the study that comes with the package."""
    config = AtlasConfig()
    shared = config.n_cases, tuple(config.rates), config.sweep_steps, (), load([EXPERIMENT]).config
    return Matrix(read_all([STORED], Study(tuple(config.lengths), *shared).protocol))


def text() -> str:
    """Return the page of that study."""
    document = page(list(matrix().trials.values()), AtlasConfig().rates, COMMAND)
    kept = [section for section in document.sections if section.title != "Curves"]
    return markdown_text(replace(document, sections=kept), alone=True)


if __name__ == "__main__":
    print(text(), end="")
