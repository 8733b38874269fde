"""Print the batch of a training step as the model saw it, and where every row comes from."""

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Positive
from coca_train.config.verb import Verb

USAGE = """\
Print the batch of a training step as the model saw it, and where every row comes from.

  python -m coca_train show run=runs/quickstart step=120
  python -m coca_train show run=runs/quickstart step=120 rows=2 characters=2000
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ShowConfig:
    """Which step of which run, and how much of it."""

    run: str = Field(description="directory of a run; nothing else has to be known")
    step: Positive = Field(description="as metrics.jsonl counts: from 1; any step, also one that is still to come")
    rows: Positive = Field(default=8, description="rows of the global batch that are printed, from the first on")
    characters: Positive = Field(default=200, description="of text printed of each row")
    folder: str | None = Field(
        default=None, description="where relative paths of the data begin; null: where the run was started last"
    )


def _show(loaded: Loaded[ShowConfig], arguments: Arguments) -> None:
    from coca_train.commands._training_step import show  # torch, which help need not wait for

    given: ShowConfig = loaded.config
    print(show(given.run, given.step, given.rows, given.characters, given.folder or ""), end="")


SHOW = Root(name="show", schema=ShowConfig, command="coca_train show", examples="run=runs/quickstart step=120")
VERB = Verb(SHOW, USAGE, _show)
