"""Tell what every position scheme is, costs and goes with."""

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.catalog.entries import find_scheme
from coca_train.config.arguments import Arguments
from coca_train.config.fields import ChoiceOf
from coca_train.config.load import Loaded
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Positive
from coca_train.config.verb import FLAGS, Verb
from coca_train.runtime.errors import UserError

USAGE = """\
Every position scheme, what it costs and what goes with it.

  python -m coca_train schemes                              tables: schemes, and what goes with them
  python -m coca_train schemes scheme=alibi                 all about one of them, and how to train with it
  python -m coca_train schemes model=llama_7b seq_len=2048  the same for another model and training window

Nothing in the tables is written down by hand: each scheme is built, called and looked at, on the CPU, in seconds.

  --config-dir DIR   more choices: those of a plugin are then in the tables, too
  --markdown         print docs/schemes.md instead
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SchemesConfig:
    """What the catalogue tells, and of which model."""

    scheme: Annotated[str | None, ChoiceOf("position")] = Field(
        default=None, description="choice of configs/position to tell all about; null: tables of all"
    )
    model: Annotated[str, ChoiceOf("model")] = Field(
        default="neox_350m", description="choice of configs/model that the numbers are for"
    )
    seq_len: Positive = Field(default=512, description="training window of that model [tokens]")
    figures: str | None = Field(
        default=None, description="folder to write the SVGs of schemes and attention patterns to, instead of printing"
    )


def _schemes(loaded: Loaded[SchemesConfig], arguments: Arguments) -> None:
    given: SchemesConfig = loaded.config
    one = find_scheme(given.scheme) if given.scheme else None
    if one and "--markdown" in arguments.flags:
        raise UserError("E-CFG-02 command line --markdown: prints all schemes. Fix: omit --markdown, or scheme=")
    if given.figures:
        from coca_train.catalog.figures import write_figures

        write_figures(Path(given.figures))
        return
    from coca_train.catalog.facts import load_reference
    from coca_train.catalog.pages import details, document, overview
    from coca_train.hub.conversions import summaries

    reference = load_reference(given.model, given.seq_len)
    if one:
        print(details(one, reference))
    elif "--markdown" in arguments.flags:
        sys.stdout.write(document(reference, summaries()))
    else:
        print(overview(reference, summaries()))


SCHEMES = Root(
    name="schemes",
    schema=SchemesConfig,
    command="coca_train schemes",
    examples="scheme=alibi",
)
VERB = Verb(SCHEMES, USAGE, _schemes, flags=(*FLAGS, "--config-dir", "--markdown"))
