"""Train a language model whose context reaches further than it was trained on."""

from coca_train.commands._training import TRAIN, remembered
from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.schema import Config
from coca_train.config.verb import FLAGS, Reference, Verb
from coca_train.runtime.dist import explained

USAGE = """\
Train a language model whose context reaches further than it was trained on.

  python -m coca_train                                    the quickstart: some minutes on two CPU cores
  python -m coca_train position=rope optim.lr=3e-4        another choice, another value
  python -m coca_train position=coca position/rope_scaling=yarn
  python -m coca_train position=rope eval.extrapolation.rope_scalings=[plain,dynamic_ntk@alpha:4,yarn@factor:8]
  python -m coca_train --multirun position=coca,rope      one run after the other, and a page of their results
  python -m coca_train schemes                            what each scheme is, costs and goes with
  torchrun --nproc-per-node 8 -m coca_train +experiment=coca_350m
  python -m coca_train +experiment=sketch model=llama_tiny        a typed choice replaces the experiment's whole section
  python -m coca_train start.path=/models/Llama-2-7b-hf data.path=my_texts    fine-tuning, with values made for it

  --cfg job          show the configuration, composed and checked, and stop
  --config-dir DIR   more YAML files: DIR/experiment/mine.yaml is then +experiment=mine
  --multirun, -m     run every combination of values separated by commas; with --cfg job: print their commands;
                     with --results: print the table of what they have come to
  --debug            show the traceback of an error
  --version
"""
FOOT = (
    "A run lives in <run.root>/<run.name>; the same command goes on where it stopped. Reference: docs/configuration.md"
)


def _sweep(arguments: Arguments) -> int:
    from coca_train.commands import _sweep as sweeps

    words, folders = arguments.overrides, arguments.config_dirs
    if arguments.cfg:
        print(sweeps.commands(words, folders))
    elif "--results" in arguments.flags:
        sweeps.show_results(sweeps.jobs(words, folders), {}, sweeps.again(words, folders))
    else:
        return sweeps.sweep(words, folders)
    return 0


def _train(loaded: Loaded[Config], arguments: Arguments) -> None:
    with explained("importing torch"):
        from coca_train.training.run import train
        from data_prep import make_data

    train(loaded, arguments.config_dirs, make_data)


VERB = Verb(
    TRAIN,
    USAGE,
    _train,
    foot=FOOT,
    flags=(*FLAGS, "--config-dir", "--multirun", "--results", "--markdown"),
    resumes_from="from the last checkpoint",
    remembered=remembered,
    reference=Reference(
        "Configuration", "Values are those of the quickstart (`python -m coca_train` with nothing else).", "quickstart"
    ),
    answers={"--multirun": _sweep},
)
