"""The command line of the training. No torch here, so that `--help` is quick."""

import sys
from typing import NoReturn

from coca_train import __version__
from coca_train.config.command_line import Arguments, read_arguments
from coca_train.runtime.entry import run


def main(argv: list[str] | None = None) -> int:
    """`python -m coca_train`, `coca-train`: train. Returns the exit code."""
    return run(_main, argv)


def entry() -> NoReturn:
    """The console script `coca-train`."""
    sys.exit(main())


def _main(argv: list[str]) -> int:
    arguments = read_arguments(argv)
    if "--version" in arguments.flags:
        print(f"coca_train {__version__}")
        return 0
    if arguments.hydra or arguments.cfg in ("hydra", "all"):
        return _ask_hydra(arguments)
    if "--help" in arguments.flags:
        from coca_train.commands.training_help import help_text

        print(help_text(arguments.overrides, arguments.config_dirs))
        return 0
    if "--multirun" in arguments.flags:
        from coca_train.commands.multirun import multirun

        return multirun(arguments.overrides, arguments.config_dirs, show_only=bool(arguments.cfg))
    from coca_train.settings import load

    loaded = load(arguments.overrides, arguments.config_dirs)
    if arguments.cfg:
        print(loaded.yaml, end="")
        return 0
    from coca_train.training.run import train

    train(loaded)
    return 0


def _ask_hydra(arguments: Arguments) -> int:
    """Hydra's own front end, for the questions about Hydra."""
    import logging

    import hydra

    from coca_train.config.files import config_dir

    logging.raiseExceptions = False  # Hydra answers through logging; `--info | head` closes its stream
    cfg = ["--cfg", arguments.cfg] if arguments.cfg else []
    folders = ["--config-dir", str(arguments.config_dirs[0])] if arguments.config_dirs else []
    sys.argv = ["coca_train", *arguments.hydra, *cfg, *folders, *arguments.overrides]
    hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="train")(lambda cfg: None)()
    return 0
