"""Training data: from raw text to .bin/.idx pairs, a manifest, and a mixture that training reads."""

from pathlib import Path

from coca_train.config.schema import DataConfig


def make_data(data: DataConfig) -> None:
    """Make the data that a training asks for unless they are there: of `prepare`, or of data.path."""
    if data.prepare == "embedded":
        from data_prep.verbs import embedded

        own = Path(data.dir) / embedded.TOKENIZER
        embedded.make(data.dir, tokenizer=None if Path(data.tokenizer) == own else Path(data.tokenizer))
    elif data.prepare == "diagnostics":
        from data_prep.verbs import diagnostics

        diagnostics.ensure(data.dir)
    elif data.path is not None:
        from data_prep.text_folder import prepare

        prepare(data)
