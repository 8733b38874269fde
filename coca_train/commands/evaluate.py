"""`python -m coca_train.evaluate +eval=<suite> checkpoint=<run or Hugging Face folder>`: how far a context reaches."""

import shlex
import sys
from collections.abc import Sequence

from coca_train import __version__
from coca_train.config.command_line import read_arguments
from coca_train.evaluation.help import help_text, markdown
from coca_train.evaluation.settings import load
from coca_train.runtime import dist
from coca_train.runtime.entry import run
from coca_train.runtime.errors import UserError

FLAGS = ("--help", "--version", "--cfg job", "--config-dir", "--debug")


def _main(argv: list[str]) -> int:
    if argv == ["--markdown"]:
        sys.stdout.write(markdown())
        return 0
    arguments = read_arguments(argv, FLAGS)
    if "--version" in arguments.flags:
        print(f"coca_train {__version__}")
        return 0
    if "--help" in arguments.flags or not argv:
        print(help_text(arguments.overrides, arguments.config_dirs))
        return 0
    if arguments.cfg not in ("", "job"):
        raise UserError(f"E-CFG-38 command line --cfg {arguments.cfg}: this shows job. Fix: write --cfg job")
    config, text = load(arguments.overrides, arguments.config_dirs)
    if arguments.cfg:
        print(text, end="")
        return 0
    from coca_train.evaluation.run import evaluate

    directory = evaluate(config, command_line(argv))
    dist.log(f"Report: {directory / 'report.html'} (tables and figures beside it)")
    return 0


def command_line(argv: Sequence[str]) -> str:
    """How to run it again."""
    return shlex.join(["python", "-m", "coca_train.evaluate", *argv])


if __name__ == "__main__":
    sys.exit(run(_main, goes_on="where it stopped: measured cells are kept"))
