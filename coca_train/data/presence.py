"""Are the files of a mixture there? All that are missing in one message, with the command that makes them."""

from pathlib import Path

from coca_train.config.schema import DataConfig
from coca_train.runtime.errors import DataError


def require_files(config: DataConfig) -> None:
    """Raise DataError E-TOK-01 naming every missing file of the data configuration."""
    prefixes = [s.path for s in config.sources.values()] + [
        s.valid_path for s in config.sources.values() if s.valid_path
    ]
    wanted = [config.tokenizer, *(prefix + suffix for prefix in prefixes for suffix in (".bin", ".idx"))]
    missing = [path for path in wanted if not Path(path).is_file()]
    if not missing:
        return
    listed = "".join(f"\n  {path}" for path in missing)
    raise DataError(
        f"E-TOK-01 data: {len(missing)} of {len(wanted)} files are missing (looked from {Path.cwd()}):{listed}\n"
        "Training reads a SentencePiece model and .bin/.idx pairs as GPT-NeoX and Megatron make them (docs/data.md). "
        "Fix: bring them to these places, or make them from text: python -m data_prep --help (docs/corpora.md)"
    )
