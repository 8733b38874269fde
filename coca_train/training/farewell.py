"""What a run says when it has ended: where everything lies, and commands to try next."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from coca_train.config.schema import Config
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.settings import folder_flags, load

OTHERS = ("rope", "coca")  # a scheme to compare with: the first that is another one
COMPARED = "rope,alibi,coca,coca_strict"
# What a comparison chooses itself; the rest of the words (data, experiment, steps) makes it the same training.
CHOSEN = ("position=", "position.", "position/", "run.name=", "run.resume=")


def farewell(config: Config, run_dir: Path, words: Sequence[str], folders: Sequence[Path]) -> None:
    """Where everything lies and what to try next. words, folders: of the command line, see `next_commands`."""
    files, commands = written_files(config, run_dir), next_commands(config, run_dir, words, folders)
    dist.log(f"Done. Everything lies in {run_dir}:\n{files}Try next:\n" + "\n".join(f"  {each}" for each in commands))


def written_files(config: Config, run_dir: Path) -> str:
    """The files of a finished run, a line for each."""
    *before, _ = config.stages
    goes_on = "with a larger train.max_steps" if not before else "with one more stage in the schedule"
    project = config.tracking.wandb_project
    offline = f"wandb sync {shlex.quote(str(run_dir))}/wandb/offline-run-*"
    trackers = {
        "tensorboard": f"curves, figures and settings: tensorboard --logdir {shlex.quote(config.run.root)}",
        "wandb": offline if config.tracking.wandb == "offline" else f"the run is in the project {project} of wandb",
    }
    files = {
        "loss_curve.png": "training and validation loss",
        "reach.png": "perplexity beyond the training window, by training step",
        "report/report.html": "how far the context reaches, in a browser (report.md, tables and figures beside it)",
        **{f"report/{stage}": f"the report on stage {stage}" for stage in before},
        "metrics.jsonl": "every logged step and validation",
        **trackers,
        "config.yaml": "every setting",
        "checkpoints": f"the model; the same command {goes_on} goes on",
    }
    return "".join(f"  {name:26s} {what}\n" for name, what in files.items() if (run_dir / name).exists())


def next_commands(config: Config, run_dir: Path, words: Sequence[str], folders: Sequence[Path] = ()) -> list[str]:
    """Commands for a finished run: one that began from other weights is not the quickstart's comparison of schemes.

    words: overrides that the run was started with, folders: its --config-dir. Both go along where something is trained.
    """
    flags = folder_flags(folders)
    same = [word for word in words if not word.lstrip("+~").startswith(CHOSEN)]
    if config.start.path is not None or len(config.stages) > 1:
        others = [["export", f"run={run_dir}", f"to={run_dir}-hf"]]
    else:
        other = next(scheme for scheme in OTHERS if scheme != config.position.scheme)
        chosen = [f"position={other}", f"run.name={other}"]
        others = [[*flags, *same, *chosen], ["compare", f"schemes={COMPARED}", *flags, *same]]
        # An experiment may set what another scheme does not have.
        # Of a folder of texts the data is made by the command line, above this floor: that it composes was seen.
        others = others if config.data.path is not None or _composes([*same, *chosen], folders) else []
    held_out = any(source.valid_path for source in config.data.sources.values())
    before = "" if config.start.path is None else f"{config.start.path},"  # what the training was for is a comparison
    commands = [
        ["generate", f"run={run_dir}", f"prompt={config.eval.sample_prompt or 'The'}"],
        *([["evaluate", f"checkpoint={before}{run_dir}"]] if held_out else []),
        *others,
        ["--help"],
    ]
    return [shlex.join(["python", "-m", "coca_train", *command]) for command in commands]


def _composes(words: list[str], folders: Sequence[Path]) -> bool:
    try:
        load(words, tuple(folders), launch=False)
    except UserError:
        return False
    return True
