"""Which commands make a run's data, in the tokens of the weights it begins from: what the errors about data say."""

from pathlib import Path

from coca_train.checkpoint.opening import read_record
from coca_train.checkpoint.record import begins_anew
from coca_train.config.corpus_schema import PrepareConfig
from coca_train.config.files import choices, config_dir
from coca_train.config.schema import Config, DataConfig
from coca_train.data.corpus_config import load
from coca_train.runtime.errors import UserError
from coca_train.settings import TOKENIZERS, load_saved


def commands_for_missing(config: Config) -> str:
    """The commands that make config.data where a corpus that comes along does, else where to read how; for a run that
    has begun also what it began with."""
    return _of_begun(Path(config.run.root, config.run.name)) + _commands(config)


def _of_begun(run_dir: Path) -> str:
    """Which data a run goes on with, and how to say where they are; "": it has not begun."""
    if begins_anew(run_dir):
        return ""
    try:
        sources = read_record(run_dir)["fingerprint"]["sources"]
        said = ", ".join(f"{name} of {one['tokens']:,} tokens" for name, one in sources.items())
    except (UserError, KeyError, TypeError, AttributeError):
        return ""  # what is wrong with the record is told where it is read
    return (
        f"{run_dir} goes on with the data that it began with ({said}), wherever they lie now: data.dir=<folder>, or "
        "data.sources.<name>.path=<prefix> and valid_path=; if they are gone, "
    )


def _commands(config: Config) -> str:
    corpus = _corpus_of(config.data)
    if corpus is None:
        return "python -m data_prep --help (docs/corpora.md)"
    name, prepared = corpus
    imported = prepared.tokenizer.import_from
    origin = "" if imported is None else f" tokenizer.import_from={_tokenizer_of_start(config) or imported}"
    return (
        f"python -m data_prep tokenizer corpus={name}{origin}, then python -m data_prep tokenize corpus={name} "
        "(docs/corpora.md)"
    )


def commands_for_own_tokens(config: Config) -> str | None:
    """The commands that make the same text anew with the tokenizer of `start.path`; None: there is no `start.path`."""
    if config.start.path is None:
        return None
    corpus = _corpus_of(config.data)
    name, source = ("own_tokens", "<yours>") if corpus is None else (f"{corpus[0]}_own_tokens", corpus[0])
    words = f"corpus={source} corpus.name={name} corpus.dir=data/{name}"
    origin = _tokenizer_of_start(config) or "<the tokenizer of the start model>"
    return (
        f"train on text in the start model's own tokens: python -m data_prep tokenizer {words} "
        f"tokenizer.import_from={origin}; python -m data_prep tokenize {words}; python -m data_prep mix {words}; then "
        f"train with --config-dir data/{name}/config data={name} (docs/corpora.md, tokens of the start model)"
    )


def _corpus_of(data: DataConfig) -> tuple[str, PrepareConfig] | None:
    """The corpus that comes along and is made in the folder of this data: its choice, and what it says."""
    for name in choices("corpus", (config_dir(),)):
        try:
            prepared = load([f"corpus={name}"])
        except UserError:
            continue  # one that wants to be told its files
        if Path(prepared.corpus.dir).absolute() == Path(data.dir).absolute():
            return name, prepared
    return None


def _tokenizer_of_start(config: Config) -> Path | None:
    """What `tokenizer.import_from` takes; None where `start.path` has no tokenizer, or nothing is there yet."""
    if config.start.path is None:
        return None
    path = Path(config.start.path)
    if any((path / name).is_file() for name in TOKENIZERS):
        return path
    try:
        file = Path(load_saved(path).config.data.tokenizer)
    except UserError:
        return None
    return file if file.is_file() else None
