"""Other settings on trained weights: another visibility, other frequencies, another logit scale; nothing that decides
which weights there are.

The words are those of a training, `visibility=sinks visibility.window=64 position/frequencies=yarn`, and so are
the checks and the messages. Where several are tried in turn, each is written as one (config/choice.py).
"""

from dataclasses import asdict, replace

from coca_train.config.choice import assembled
from coca_train.config.load import load
from coca_train.config.messages import Incompatible
from coca_train.config.parts import LOGIT_SCALE
from coca_train.config.parts import SECTIONS as SECTIONS_OF_STAGES
from coca_train.config.places import fatal_error
from coca_train.config.schema import Config
from coca_train.settings import TRAIN


def varies(word: str) -> bool:
    """Return whether a word of a command line is for `vary`: it is about visibility, position or logit scale."""
    key = word.partition("=")[0].lstrip("+~")
    return key.startswith(f"{LOGIT_SCALE}.") or key.replace("/", ".").split(".")[0] in ("visibility", "position")


def vary(config: Config, overrides: list[str]) -> Config:
    """Return the configuration of trained weights with another visibility, frequencies or logit scale.

    A choice stands in place of the whole section, but for the base theta (config/exchange.py). Raises ConfigError
    with everything that is wrong.
    """
    # What stages differ in was right for the run. It may not be over one stage, which leaves a source away that
    # another one weighs, or over what is varied; and it is not about these weights.
    same = {key: {} for key in SECTIONS_OF_STAGES}
    stages = {name: replace(stage, **same) for name, stage in config.stages.items()}
    varied = load(assembled(TRAIN, asdict(replace(config, stages=stages)), overrides), launch=False).config
    # After typing, because it is about parameters: frequencies that learn some (clex) leave weights without theirs.
    if varied.position != config.position:
        from coca_train.positions.frequencies import exchange_problem

        if text := exchange_problem(config.position.frequencies, varied.position.frequencies):
            raise fatal_error(
                Incompatible("E-CFG-33", (), text, "choose other frequencies", "command line position/frequencies")
            )
    return replace(varied, stages=config.stages)
