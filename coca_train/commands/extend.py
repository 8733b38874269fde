"""Search the factors that extend a trained model's context (LongRoPE, LongRoPE2)."""

from coca_train.commands._children import refuse_torchrun
from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.verb import Verb
from coca_train.evaluation.configuration import EXTEND, ExtendConfig

USAGE = """\
Search a factor for every pair of rotated features with which a trained model reads longer texts. Nothing is trained.
method=longrope: LongRoPE's evolution from PI, NTK-aware and YaRN, judged by the loss of texts of that length.
method=longrope2: LongRoPE2's search for the critical pair too, judged by the loss of the answers to needles hidden in
them, so by what needs the whole text.

  python -m coca_train extend run=runs/rope length=512
  python -m coca_train extend run=runs/rope length=512 method=longrope2 needle=word
  python -m coca_train extend run=runs/llama2 length=32768 files=[books.jsonl.gz] documents=5

Every measured candidate is kept: the same command goes on where it stopped. It writes the choice
position/rope_scaling=searched into its folder, for --config-dir, and compares it with YaRN by both losses on texts that
the search did not see.
"""


def _extend(loaded: Loaded[ExtendConfig], arguments: Arguments) -> None:
    from coca_train.evaluation.factor_search import search

    refuse_torchrun(": a search", "start it without torchrun")
    search(loaded.config)


VERB = Verb(
    EXTEND,
    USAGE,
    _extend,
    foot="See docs/evaluation.md",
    resumes_from="where it stopped: measured candidates are kept",
    needs_words=True,
)
