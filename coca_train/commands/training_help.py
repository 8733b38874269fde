"""`--help` of the training and its reference in docs/. Torch-free, so it is quick.

`python -m coca_train.commands.training_help --markdown > docs/configuration.md`
"""

import sys
from pathlib import Path

from coca_train.config.listing import assembled, choice_lines, option_lines, tables
from coca_train.settings import TRAIN

USAGE = """\
Train a language model whose context reaches further than it was trained.

  python -m coca_train                                    the quickstart: some minutes on two CPU cores
  python -m coca_train position=rope optim.lr=3e-4        another choice, another value
  python -m coca_train position=coca position/frequencies=yarn
  python -m coca_train --multirun position=coca,rope      one run after the other
  python -m coca_train.schemes                            what each scheme is, costs and goes with
  torchrun --nproc-per-node 8 -m coca_train +experiment=coca_350m

  --cfg job          show the configuration, composed and checked, and stop
  --config-dir DIR   more YAML files: DIR/experiment/mine.yaml is then +experiment=mine
  --multirun, -m     run every combination of values separated by commas
  --debug            show the traceback of an error
  --info, --hydra-help, --version
"""
FOOT = (
    "A run lives in <run.root>/<run.name>; the same command goes on where it stopped. Reference: docs/configuration.md"
)


def help_text(overrides: list[str], config_dirs: tuple[Path, ...] = ()) -> str:
    """All choices and options, grouped by section, with the values this command line gives them."""
    found = assembled(TRAIN, overrides, config_dirs)
    return "\n".join([USAGE, *choice_lines(found, config_dirs), "", *option_lines(found), "", FOOT])


def markdown() -> str:
    """The reference in docs/configuration.md."""
    head = [
        "# Configuration",
        "",
        "Made by `python -m coca_train.commands.training_help --markdown`; do not edit.",
        "Values are those of the quickstart (`python -m coca_train` with nothing else).",
        "",
    ]
    return "\n".join([*head, *tables(assembled(TRAIN, []), "quickstart")]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown() if "--markdown" in sys.argv else help_text([]) + "\n")
