"""Verify the files of a run, an export, or what an engine makes of RoPE scalings."""

from pathlib import Path

from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.verb import Verb
from coca_train.hub.options import VERIFY, VerifyConfig

USAGE = """\
Read every byte of a run's checkpoints and compare it with its digest; restore what the newest one can restore. Exit
code 4 where something is damaged and stays so.

  python -m coca_train verify run=runs/quickstart

Or compare the logits of a run and of a Hugging Face folder, as import and export do. Exit code 4 where they differ.

  python -m coca_train verify run=runs/llama2 against=Llama-2-7b-hf

Or compare what an engine rotates by with exact arithmetic, for every kind of rope_scaling in a config.json, and print a
table: same, differs by …, or refused. Exit code 4 where something differs.

  python -m coca_train verify rope=transformers python=other-env/bin/python
"""


def _verify(loaded: Loaded[VerifyConfig], arguments: Arguments) -> None:
    if loaded.config.rope is not None:
        from coca_train.hub.rope_check import verify_rope

        verify_rope(loaded.config)
    elif loaded.config.against is None:
        from coca_train.training.verification import verify_run

        verify_run(Path(str(loaded.config.run)))
    else:
        from coca_train.hub.exporting import verify_export

        verify_export(loaded.config)


VERB = Verb(VERIFY, USAGE, _verify, foot="See docs/interop.md", needs_words=True)
