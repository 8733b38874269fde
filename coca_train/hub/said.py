"""What a folder says about itself, for the log of an import: its special tokens, where it stops, its rotation."""

from pathlib import Path
from typing import Any

from coca_train.data.special_tokens import MEANING, folder_of, has_template
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import config_json
from coca_train.hub.keys import read_json
from coca_train.hub.rope_sections import SECTIONS
from coca_train.hub.shards import INDEX
from coca_train.hub.tokenizer_files import CONFIG, GENERATION
from coca_train.hub.weights import Source


def lines(source: Source, tokenizer: Tokenizer | None) -> list[str]:
    """A few lines: each statement, and the file it is from."""
    config = _read(source.path / config_json.NAME)
    told = [] if tokenizer is None else _of_tokenizer(tokenizer)
    if source.kind != "huggingface":
        return told
    generation = _read(source.path / GENERATION)
    stops = {
        file: values["eos_token_id"]
        for file, values in ((config_json.NAME, config), (GENERATION, generation))
        if values.get("eos_token_id") is not None
    }
    told += ["generation stops at " + "; ".join(f"{stop} ({file})" for file, stop in stops.items())] if stops else []
    for section in SECTIONS:
        told += [f"{section} {config[section]} (config.json)"] if config.get(section) else []
    index = _read(source.path / INDEX).get("metadata")
    size = f", {index['total_size']:,} bytes ({INDEX})" if isinstance(index, dict) and _whole(index) else ""
    return [*told, f"{source.architecture.n_rows:,} rows of the embedding (config.json){size}"]


def _of_tokenizer(tokenizer: Tokenizer) -> list[str]:
    special, path = tokenizer.special, Path(tokenizer.path)
    roles = [
        f"{MEANING[role]} {getattr(special, role)} ({special.said[role]})" for role in MEANING if role in special.said
    ]
    folder = folder_of(path)
    adds = _read(folder / CONFIG).get("add_bos_token")
    words = [f"add_bos_token={str(adds).lower()} ({CONFIG})"] if isinstance(adds, bool) else []
    words += ["a chat template"] if has_template(folder) else []
    return [f"{path.name}, {tokenizer.vocab_size:,} tokens: {'; '.join([*roles, *words])}"]


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _whole(index: dict[str, Any]) -> bool:
    return isinstance(index.get("total_size"), int)
