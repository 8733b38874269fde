"""`python -m coca_train.evaluate +eval=<suite> checkpoint=<run or Hugging Face folder>`: how far a context reaches."""

import shlex
import sys
from collections.abc import Sequence

from coca_train import __version__, dist
from coca_train.command import read_arguments, run
from coca_train.config.errors import UserError
from coca_train.config.listing import assembled, choice_lines, option_lines
from coca_train.evaluation.root import EVALUATE, load, overrides

FLAGS = ("--help", "--version", "--cfg job", "--config-dir", "--debug")
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
    "The report: <work.root>/<work.name>/index.html. The same command goes on where it stopped. See docs/evaluation.md"
)


def _main(argv: list[str]) -> int:
    arguments = read_arguments(argv, FLAGS)
    if "--version" in arguments.flags:
        print(f"coca_train {__version__}")
        return 0
    if "--help" in arguments.flags or not argv:
        found = assembled(EVALUATE, overrides(arguments.overrides), arguments.config_dirs)
        print("\n".join([USAGE, *choice_lines(found, arguments.config_dirs), "", *option_lines(found), "", FOOT]))
        return 0
    if arguments.cfg not in ("", "job"):
        raise UserError(f"E-CFG-38 command line --cfg {arguments.cfg}: this shows job. Fix: write --cfg job")
    config, text = load(arguments.overrides, arguments.config_dirs)
    if arguments.cfg:
        print(text, end="")
        return 0
    from coca_train.evaluation.run import evaluate

    directory = evaluate(config, command_line(argv))
    dist.log(f"Report: {directory / 'index.html'} (tables and figures beside it)")
    return 0


def command_line(argv: Sequence[str]) -> str:
    """How to run it again."""
    return shlex.join(["python", "-m", "coca_train.evaluate", *argv])


if __name__ == "__main__":
    sys.exit(run(_main, goes_on="where it stopped: measured cells are kept"))
