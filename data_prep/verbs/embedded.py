"""Make the quickstart's corpus from this Python installation; no network is needed."""

from pathlib import Path

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.command_line import Arguments
from coca_train.config.load import Loaded
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Positive
from coca_train.config.verb import Verb

USAGE = """\
Make the quickstart's corpus from this Python installation; no network is needed.

  python -m data_prep embedded                      what `python -m coca_train` makes by itself when it is missing
  python -m data_prep embedded dir=data/mine vocab_size=8192
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EmbeddedConfig:
    """Where the corpus goes."""

    dir: str = Field(description="folder to make")
    vocab_size: Positive = Field(description="size of the SentencePiece vocabulary [token ids]")


def _embedded(loaded: Loaded, arguments: Arguments) -> None:
    from data_prep.quickstart.embedded import existing, make, summary

    given: EmbeddedConfig = loaded.config
    manifest = existing(Path(given.dir), given.vocab_size)
    if manifest is None:
        make(given.dir, given.vocab_size)
    else:
        print(f"{given.dir}: is there already, nothing to do\n{summary(Path(given.dir), manifest)}")


EMBEDDED = Root(
    name="embedded",
    folder="commands",
    schema=EmbeddedConfig,
    command="data_prep embedded",
    examples="dir=data/mine",
)
VERB = Verb(EMBEDDED, USAGE, _embedded)
