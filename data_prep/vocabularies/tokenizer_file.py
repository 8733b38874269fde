"""tokenizer.path: written whole or not at all, never overwritten, with a record of how it was made beside it.

It is trained, or an existing tokenizer is brought along: then one file is read, checked and copied. What the other
files of its folder say of special tokens is read too, and they are copied into a folder of their own; no code is.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coca_train.data.special_tokens import COMPANIONS, MODEL_FILES, RECORD, folder_of
from coca_train.data.storage import flush_to_disk, storage
from coca_train.data.tokenizer import NOTHING, Tokenizer
from coca_train.data.tokenizer_choice import main_file
from coca_train.runtime import outside
from coca_train.runtime.durable import sync_folder
from coca_train.runtime.errors import DataError, UserError
from coca_train.settings import TOKENIZERS
from data_prep.readers.base import shown
from data_prep.schema import PrepareConfig

FORMAT = 1
# Where text is read from and where the model goes decide nothing that could be told apart later.
NOT_SETTINGS = ("files", "hub", "about", "licence")
TOKENIZER = ("model_type", "vocab_size", "sample_bytes", "character_coverage", "byte_fallback")
SUFFIX = {"sentencepiece": ".model", "huggingface": ".json"}
TEXT = "def f(x):\n\treturn x  # é, 漢字, \U0001f642\r\n\n  </s> <|endoftext|> 1234.5"


def record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.made.json")


def made_from(config: PrepareConfig) -> dict[str, Any]:
    """JSON of the settings that decide a trained vocabulary, but for the files of the sources."""
    sources = {
        name: {key: value for key, value in asdict(source).items() if key not in NOT_SETTINGS}
        for name, source in config.corpus.sources.items()
    }
    return {
        "tokenizer": {key: getattr(config.tokenizer, key) for key in TOKENIZER},
        "valid_share": config.corpus.valid_share,
        "valid_characters": config.corpus.valid_characters,
        "sources": sources,
        "groups": {name: group.share for name, group in config.mix.groups.items()},
    }


def publish(path: Path, model: bytes, record: dict[str, Any] | None) -> None:
    """Model and record, the model last: it is there when everything is. record: None = none is kept."""
    # The record first: a record without a model is nothing, a model without a record would be foreign to the next run.
    if record is not None:
        record = {"format": FORMAT, "sha256": hashlib.sha256(model).hexdigest(), **record}
        _write(record_path(path), json.dumps(record, indent=2, sort_keys=True).encode() + b"\n")
    _write(path, model)
    sync_folder(path.parent)


def _write(path: Path, content: bytes) -> None:
    building = path.with_name(f".{path.name}.building")
    with storage(str(path)):
        with open(building, "wb") as file:
            file.write(content)
            flush_to_disk(file)
        os.replace(building, path)


def already_trained(config: PrepareConfig) -> bool:
    """Whether tokenizer.path was trained with these settings. DataError E-TKN-05 when it is something else."""
    path = Path(config.tokenizer.path)
    if not path.exists():
        return False
    try:
        record = outside.read_object(record_path(path))
    except FileNotFoundError:
        raise refusal(path, "was not made by this command") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise refusal(path, f"its record {record_path(path).name} cannot be read ({reason})") from error
    if record.get("format") != FORMAT or record.get("sha256") != hashlib.sha256(outside.read_bytes(path)).hexdigest():
        raise refusal(path, "was not made by this version, or was changed since")
    if changed := differences(record, json.loads(json.dumps(made_from(config)))):
        raise refusal(path, f"was made with other settings: {'; '.join(changed[:3])}")
    return True


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two JSON trees, as "a.b=1, now 2". Only what `now` has is looked at below the top."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return [] if before == now else [f"{name}={json.dumps(before)[:60]}, now {json.dumps(now)[:60]}"]
    keys = dict.fromkeys([*now, *(before if name else ())])
    return [
        line for key in keys for line in differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    ]


def refusal(path: Path, why: str) -> DataError:
    return DataError(
        f"E-TKN-05 {path}: is there, and {why}; a tokenizer is never overwritten, data may have been made with it. "
        "Fix: use it as it is (this step is not needed then), move it away, or choose another tokenizer.path"
    )


def bring(origin: Path, path: Path, given: Mapping[str, int | str | None] = NOTHING) -> bool:
    """Copy a tokenizer to `path`; False when the very same is there already.

    origin: a SentencePiece model, a tokenizer.json, or a folder with one (the one that knows more tokens). given: as of
    `Tokenizer`. Raises DataError: E-TKN-01 nothing there, 02 not a tokenizer, 03 no end of document, 05 another is
    there already, 08 it does not give back a text as it should, 11 changed while it was read, 13 to 15 (its folder
    contradicts itself); UserError: 04 a package is missing, 06 `path` has another ending.
    """
    origin = found_in(origin)
    tokenizer = Tokenizer(origin, given)
    if path.suffix != SUFFIX[tokenizer.kind]:
        fix = f"write tokenizer.path={path.with_name('tokenizer')}{SUFFIX[tokenizer.kind]}"
        raise UserError(
            f"E-TKN-06 tokenizer.path={path}: {origin} is a {tokenizer.kind} file; the name of its copy has to end in "
            f"{SUFFIX[tokenizer.kind]}, as other programs expect. Fix: {fix}, for every verb"
        )
    back = tokenizer.decode(tokenizer.encode(TEXT))
    if tokenizer.lossless and back != TEXT:
        raise DataError(
            f"E-TKN-08 {origin}: makes {back!r} of {TEXT!r}, although nothing in the file says so; data made with it "
            "could not be verified. Fix: take the file from its authors again, or use another tokenizer"
        )
    model = outside.read_bytes(origin)
    if hashlib.sha256(model).hexdigest() != tokenizer.digest:
        raise DataError(f"E-TKN-11 {origin}: changed while it was read. Fix: run the same command again")
    if path.exists():
        if not path.is_file() or hashlib.sha256(outside.read_bytes(path)).hexdigest() != tokenizer.digest:
            raise refusal(path, f"is not {origin}")
        if (there := Tokenizer(path)).eod != tokenizer.eod:
            raise refusal(path, f"ends documents with {there.eod}, not {tokenizer.eod}")
        return False
    keep_companions(origin, tokenizer, path.with_suffix(""))
    publish(path, model, None)
    return True


def keep_companions(origin: Path, tokenizer: Tokenizer, into: Path) -> None:
    """The other files of a tokenizer, and which special tokens count; nothing where its file alone says it all."""
    files = [folder_of(origin) / name for name in (*COMPANIONS, MODEL_FILES[1])]
    files = [file for file in files if file.is_file()]
    if not files and tokenizer.identity == tokenizer.digest:
        return
    with storage(str(into)):
        into.mkdir(exist_ok=True)
    for file in files:
        _write(into / file.name, outside.read_bytes(file))
    _write(into / RECORD, tokenizer.special.as_json())
    sync_folder(into)


def found_in(origin: Path) -> Path:
    """The tokenizer's file: `origin` itself, or the one in that folder. DataError E-TKN-01 when it holds none."""
    if not origin.is_dir():
        return origin
    if (found := main_file(origin)) is not None:
        return found
    names = ", ".join(sorted(shown(entry.name) for entry in origin.iterdir())[:8]) or "nothing"
    raise DataError(
        f"E-TKN-01 {origin}: holds neither {TOKENIZERS[0]} nor {TOKENIZERS[1]} (it holds {names}); one of them is "
        "needed. Fix: give the file itself, or save the tokenizer with save_pretrained of `transformers`"
    )
