"""Write a run as a folder for transformers, proven equal."""

from coca_train.commands.import_ import NOTHING_LEFT
from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.verb import Verb
from coca_train.hub.options import EXPORT, ExportConfig

USAGE = """\
A run as a folder for transformers, with no code of ours where a class of theirs computes the same. The folder is loaded
as anyone would load it and compared with the run.

  python -m coca_train export run=runs/llama2 to=llama2-hf dtype=bf16
"""


def _export(loaded: Loaded[ExportConfig], arguments: Arguments) -> None:
    from coca_train.hub.adapters import export_adapters
    from coca_train.hub.exporting import export_run

    options = loaded.config
    if options.merge:
        export_run(options)
    else:
        export_adapters(options)


VERB = Verb(EXPORT, USAGE, _export, foot="See docs/interop.md", resumes_from=NOTHING_LEFT, needs_words=True)
