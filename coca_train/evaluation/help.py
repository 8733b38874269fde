"""`--help` of an evaluation and its reference in docs/. Torch-free, so it is quick.

`python -m coca_train.evaluate --markdown > docs/evaluation_configuration.md`
"""

from pathlib import Path

from coca_train.config.listing import assembled, choice_lines, option_lines, tables
from coca_train.evaluation.settings import EVALUATE, overrides

USAGE = """\
Measure how far a model's context reaches. Every model, variant and length is a cell; cells are measured once and kept.

  python -m coca_train.evaluate checkpoint=runs/quickstart                          perplexity by context window
  python -m coca_train.evaluate +eval=passkey checkpoint=runs/rope,runs/coca        several models, one report
  python -m coca_train.evaluate checkpoint=runs/rope grid.frequencies=[own,dynamic_ntk@alpha:4,yarn@factor:8]
  python -m coca_train.evaluate checkpoint=runs/rope grid.lengths=[1x,4x,16x] text.files=[books.jsonl.gz]
  torchrun --nproc-per-node 8 -m coca_train.evaluate checkpoint=runs/coca_350m      all ranks share each cell

  --cfg job          show the configuration, composed and checked, and stop
  --config-dir DIR   more YAML files: DIR/eval/mine.yaml is then +eval=mine
  --debug            show the traceback of an error
"""
FOOT = (
    "The report: <work.root>/<work.name>/report.html. The same command goes on where it stopped. See docs/evaluation.md"
)


def help_text(words: list[str], dirs: tuple[Path, ...] = ()) -> str:
    """All suites and options, with the values this command line gives them."""
    found = assembled(EVALUATE, overrides(words), dirs)
    return "\n".join([USAGE, *choice_lines(found, dirs), "", *option_lines(found), "", FOOT])


def markdown() -> str:
    """The reference in docs/evaluation_configuration.md."""
    head = [
        "# Configuration of an evaluation",
        "",
        "Made by `python -m coca_train.evaluate --markdown`; do not edit.",
        "`python -m coca_train.evaluate +eval=<suite> checkpoint=<run> section.option=value`; values are those of "
        "`eval=perplexity`.",
        "",
    ]
    return "\n".join([*head, *tables(assembled(EVALUATE, []), "value")]) + "\n"
