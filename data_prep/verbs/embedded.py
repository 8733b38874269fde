"""Make the quickstart's corpus from this Python installation; no network is needed.

python -m data_prep embedded                      what `python -m coca_train` makes by itself when it is missing
python -m data_prep embedded dir=data/mine vocab_size=8192

dir            folder to make (data/embedded)
vocab_size     size of the SentencePiece vocabulary [token ids] (4096)
"""

from dataclasses import dataclass
from pathlib import Path

from coca_train.config.arguments import parse


@dataclass(frozen=True)
class Options:
    """See the module's docstring."""

    dir: str = "data/embedded"
    vocab_size: int = 4096


def main(words: list[str]) -> None:
    """Make the corpus, or say that it is there. Raises what data_prep.quickstart.embedded.make raises."""
    options = parse(Options, words)
    from data_prep.quickstart.embedded import existing, make, summary

    manifest = existing(Path(options.dir), options.vocab_size)
    if manifest is None:
        make(options.dir, options.vocab_size)
    else:
        print(f"{options.dir}: is there already, nothing to do\n{summary(Path(options.dir), manifest)}")
