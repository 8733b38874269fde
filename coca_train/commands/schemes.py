"""`python -m coca_train.schemes`: every position scheme, what it costs and what goes with it.

  python -m coca_train.schemes                              three tables: schemes, frequencies, visibilities
  python -m coca_train.schemes scheme=alibi                 all about one of them, and how to train with it
  python -m coca_train.schemes model=llama_7b seq_len=2048  the same for another model and training window

Nothing in the tables is written down by hand: each scheme is built, called and looked at, on the CPU, in seconds.

options (key=value)
  scheme    choice of configs/position to tell all about
  model     choice of configs/model that the numbers are for
  seq_len   training window of that model [tokens]
  figures   folder to write one SVG for each scheme and visibility to, instead of printing

  --markdown   print docs/schemes.md instead
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from coca_train.config.arguments import parse
from coca_train.planning.catalog.entries import known
from coca_train.runtime import entry
from coca_train.runtime.errors import UserError


@dataclass(frozen=True)
class Options:
    """See the module's docstring."""

    scheme: str = ""
    model: str = "neox_350m"
    seq_len: int = 512
    figures: str = ""


def _main(argv: list[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    options = parse(Options, [word for word in argv if word not in ("--debug", "--markdown")])
    one = known(options.scheme) if options.scheme else None
    if one and "--markdown" in argv:
        raise UserError("E-CFG-02 command line --markdown: prints all schemes. Fix: leave out --markdown, or scheme=")
    if options.figures:
        from coca_train.planning.catalog.figures import write_figures

        write_figures(Path(options.figures))
        return 0
    from coca_train.planning.catalog.pages import details, document, overview
    from coca_train.planning.catalog.reference import reference

    given = reference(options.model, options.seq_len)
    if one:
        print(details(one, given))
    elif "--markdown" in argv:
        sys.stdout.write(document(given))
    else:
        print(overview(given))
    return 0


if __name__ == "__main__":
    sys.exit(entry.run(_main))
