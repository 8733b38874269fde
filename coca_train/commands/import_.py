"""Make a run of weights from the Hugging Face world, proven equal."""

from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.verb import Verb
from coca_train.hub.options import IMPORT, ImportConfig

NOTHING_LEFT = "from the beginning; nothing half-made is left"
USAGE = """\
Weights from the Hugging Face world, or those of another run, as a run directory: what generation, evaluation and
start.path read. What comes out is compared with what went in, and refused where the two differ.

  python -m coca_train import source=Llama-2-7b-hf name=llama2
  python -m coca_train import source=runs/llama2 name=coca_llama position=coca t_from_k=mean_of_halves
"""


def _import(loaded: Loaded[ImportConfig], arguments: Arguments) -> None:
    from coca_train.hub.importing import import_weights

    import_weights(loaded.config)


VERB = Verb(IMPORT, USAGE, _import, foot="See docs/interop.md", resumes_from=NOTHING_LEFT, needs_words=True)
