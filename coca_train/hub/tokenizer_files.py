"""The files of a tokenizer: find them next to weights, check and copy them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from coca_train.data.special_tokens import COMPANIONS, MODEL_FILES, RECORD, folder_of
from coca_train.data.storage import digest
from coca_train.data.tokenizer import NOTHING, Tokenizer, main_file, main_name
from coca_train.hub.config_keys import Json, read_json, without_code
from coca_train.hub.parity import TEXT
from coca_train.hub.weights import Source
from coca_train.runtime import dist, durable, untrusted_io
from coca_train.runtime.errors import DataError
from coca_train.settings import TOKENIZERS, load_saved

CONFIG = "tokenizer_config.json"
FILES = (*TOKENIZERS, *COMPANIONS)
GENERATION = MODEL_FILES[1]  # copied with them, for its stops
FOLDER = "tokenizer"  # of a run: the original files, for the next export
LIMIT = 256 << 20  # [bytes]


def find(source: Source, choice: str) -> Path | None:
    """Return the file for our Tokenizer; None: there is none. choice: auto, none, or a file."""
    if choice == "none":
        return None
    if choice != "auto":
        return Path(choice)
    return of_weights(source.path)


def of_weights(path: Path) -> Path | None:
    """Return the tokenizer file of a run or a Hugging Face folder; None where there is none."""
    if not (path / "run.json").is_file():
        return main_file(path)
    file = Path(load_saved(path).config.data.tokenizer)
    return file if file.is_file() else None


def digests(folder: Path) -> dict[str, Path]:
    """Return the path of every file in a folder that our Tokenizer can read, by its SHA-256."""
    return {digest(folder / name)["sha256"]: folder / name for name in TOKENIZERS if (folder / name).is_file()}


def begin_tokens(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that a text begins with: BOS or none as tokenizer_config.json says, else as its file does."""
    config = folder / CONFIG
    said = read_json(config).get("add_bos_token") if config.is_file() else None
    if not isinstance(said, bool):
        return tokenizer.begins
    return (tokenizer.bos,) if said and tokenizer.bos is not None else ()


def open_for(source: Source, path: Path | None, given: Mapping[str, int | str | None] = NOTHING) -> Tokenizer | None:
    """Open the tokenizer of a source. given: as of `Tokenizer`.

    Raises DataError E-IOP-10 when it has more ids than the embedding has rows.
    """
    if path is None:
        return None
    tokenizer = Tokenizer(path, given)
    rows = source.architecture.n_rows
    if tokenizer.vocab_size > rows:
        raise DataError(
            f"E-IOP-10 {path}: has {tokenizer.vocab_size} tokens, and the embedding of {source.path} has {rows} rows; "
            "every token needs one. Fix: give the model's own: tokenizer=<file>, or tokenizer=none"
        )
    return tokenizer


def files_of(path: Path) -> list[Path]:
    """Return the files that belong to a tokenizer file: those of its folder, or of the run's `tokenizer` folder."""
    folder = folder_of(path)
    files = [folder / name for name in FILES if (folder / name).is_file()]
    return [file for file in files if file.stat().st_size <= LIMIT]


def keep(path: Path, tokenizer: Tokenizer, into: Path) -> None:
    """Copy a tokenizer into a folder of a run, with its special tokens and the stops of generation."""
    copy(path, into)
    if (file := folder_of(path) / GENERATION).is_file():
        durable.write_new(into / GENERATION, untrusted_io.read_bytes(file, LIMIT))
    durable.write_new(into / RECORD, tokenizer.special.as_json())


def generation_config(path: Path | None, tokenizer: Tokenizer | None) -> Json:
    """Return a run's generation_config.json without tokens that the tokenizer lacks; empty: there is none."""
    file = None if path is None else folder_of(path) / GENERATION
    if tokenizer is None or file is None or not file.is_file():
        return {}
    values = {key: value for key, value in read_json(file).items() if key != "transformers_version"}
    return {key: value for key, value in values.items() if not key.endswith("_token_id") or tokenizer.knows(value)}


def copy(path: Path, into: Path) -> None:
    """Copy a tokenizer file and its companions into a new folder, the file under its usual name."""
    into.mkdir(exist_ok=True)
    for file in files_of(path):
        durable.write_new(into / file.name, untrusted_io.read_bytes(file, LIMIT))
    if not (into / main_name(path)).exists():
        durable.write_new(into / main_name(path), untrusted_io.read_bytes(path, LIMIT))


def export(path: Path, tokenizer: Tokenizer, into: Path, ids_of: Callable[[Path, str], list[int]]) -> None:
    """Copy a tokenizer into an exported folder; write tokenizer_config.json for a bare file.

    ids_of: encodes a text with the files of a folder, as transformers does. Raises DataError E-IOP-20 where no
    configuration makes it encode as we do, and what ids_of raises. A configuration that exists is kept, without the
    code it names; a warning says where transformers encodes otherwise.
    """
    copy(path, into)
    config, expected = into / CONFIG, tokenizer.encode(TEXT)
    if config.exists():
        values = read_json(config)
        if (kept := without_code(values)) != values:  # the files it names are no part of an export
            config.unlink()
            durable.write_new(config, (json.dumps(kept, indent=2) + "\n").encode())
        try:
            same = ids_of(into, TEXT) == expected
        except DataError as error:
            dist.log(f"WARNING: the tokenizer files of {path.parent} are copied unchanged, but: {error}")
            return
        if not same:
            dist.log(f"WARNING: transformers encodes with {path} otherwise than we do; its files are copied unchanged")
        return
    for prefix_space in (False, True):
        config.unlink(missing_ok=True)
        durable.write_new(config, (json.dumps(_bare_config(path, tokenizer, prefix_space), indent=2) + "\n").encode())
        if ids_of(into, TEXT) == expected:
            return
    raise DataError(
        f"E-IOP-20 {path}: transformers does not encode with it as we do (a unigram model, say, or one that "
        "normalises); the exported model would read other tokens. Fix: export with tokenizer=none, and encode with the "
        "file itself"
    )


def _bare_config(path: Path, tokenizer: Tokenizer, prefix_space: bool) -> dict[str, object]:
    """Return tokenizer_config.json for a bare tokenizer file."""
    ends = {"eos_token": tokenizer.eod, "bos_token": tokenizer.bos}
    return {
        "tokenizer_class": "LlamaTokenizer" if tokenizer.kind == "sentencepiece" else "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": prefix_space,
        "legacy": False,
        "clean_up_tokenization_spaces": False,
        **{key: _piece(path, tokenizer.kind, token) for key, token in ends.items() if token is not None},
    }


def _piece(path: Path, kind: str, token: int) -> str:
    """Return how a tokenizer file spells a token."""
    if kind == "sentencepiece":
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_file=str(path)).id_to_piece(token)
    import tokenizers

    piece = tokenizers.Tokenizer.from_file(str(path)).id_to_token(token)
    assert piece is not None, token
    return piece
