"""Which tokens end a document, begin a text and fill a batch: what the files around a tokenizer say, and what counts.

A folder of Hugging Face says it in up to four places, which do not mean the same: tokenizer_config.json and
special_tokens_map.json name the tokenizer's own tokens, config.json the model's, and generation_config.json every token
that generation stops at. The tokenizer's own one ends a document. That others stop as well is no contradiction, and
neither is that a chat model stops at the end of a turn.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import DataError

ROLES = {"eod": "eos_token", "bos": "bos_token", "pad": "pad_token"}
MEANING = {"eod": "end of document", "bos": "beginning of text", "pad": "padding"}
RECORD = "special_tokens.json"  # of ours, among a tokenizer's other files
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")
MODEL_FILES = ("config.json", "generation_config.json")
ADDED = "added_tokens.json"
TEMPLATES = ("chat_template.jinja", "chat_template.json")
COMPANIONS = (*TOKENIZER_FILES, ADDED, "vocab.json", "merges.txt", *TEMPLATES)  # of a tokenizer's file; none is code
LIMIT = 64 << 20  # [bytes]


class Statement(NamedTuple):
    """What one file says about one role. ids: none for an explicit null, several for a list."""

    file: str
    key: str
    ids: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.file} {self.key}={','.join(map(str, self.ids)) or 'null'}"


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of a tokenizer, and who said each. None: there is none. model: the keys of config.json about them, as
    they are there, for an export."""

    eod: int | None = None
    bos: int | None = None
    pad: int | None = None
    said: dict[str, str] = field(default_factory=dict)
    model: dict[str, object] = field(default_factory=dict)

    def as_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


def folder_of(path: Path) -> Path:
    """Return where the other files of a tokenizer are: a folder of its own next to it, or the one it is in."""
    own = path.with_suffix("")
    return own if own.is_dir() else path.parent


def read(
    path: Path,
    id_of: Callable[[str], int | None],
    own: Mapping[str, int | None],
    guess: Mapping[str, int | None],
    given: Mapping[str, int | str | None],
    is_text: Callable[[int], bool],
) -> SpecialTokens:
    """Decide which tokens a tokenizer file uses for each role.

    id_of: the id of a piece. own: what the file itself says of each role. guess: a piece with a name that is usual for
    the role, where nothing says more. given: options, an id or a piece. is_text: whether an id is no special token: a
    config.json that names one is of another tokenizer, and ignored. Raises DataError E-TKN-13 (a file that cannot be
    read or says something of another type, a token that does not exist), E-TKN-14 (contradictions).
    """
    folder = folder_of(path)
    recorded = _record(folder / RECORD)
    said = {} if recorded is not None else statements(folder, id_of)
    tokens: dict[str, int | None] = {}
    where: dict[str, str] = {}
    for role in ROLES:
        if (wanted := given.get(role)) is not None:
            token = wanted if isinstance(wanted, int) else id_of(wanted)
            if token is None:
                raise _wrong(path, f"{role}={wanted!r}", "is no token of it", "give another one, or its id")
            tokens[role], where[role] = token, f"option {role}={wanted}"
        elif recorded is not None:
            tokens[role], where[role] = getattr(recorded, role), recorded.said.get(role, "")
        else:
            possible = [one for one in said.get(role, []) if not any(map(is_text, one.ids))]
            token, by = _settle(path, role, possible, own.get(role), has_template(folder))
            if token is None and not by:
                token, by = guess.get(role), "the name of the token"
            other = [f"; {one} is no special token" for one in said.get(role, []) if one not in possible]
            tokens[role], where[role] = token, by + "".join(other)
    model = recorded.model if recorded is not None else of_model(folder, is_text)
    return SpecialTokens(
        **tokens, said={role: word for role, word in where.items() if tokens[role] is not None}, model=model
    )


def has_template(folder: Path) -> bool:
    """Return whether a folder says how a conversation is written."""
    config = _object(folder / TOKENIZER_FILES[0])
    return config.get("chat_template") is not None or any((folder / name).is_file() for name in TEMPLATES)


def of_model(folder: Path, is_text: Callable[[int], bool]) -> dict[str, object]:
    """Return the keys of config.json about special tokens, unchanged, where they are of this tokenizer."""
    path, kept = folder / MODEL_FILES[0], {}
    for key, value in _object(path).items():
        is_role = key.endswith("_id") and key.removesuffix("_id") in ROLES.values()
        if is_role and (value is None or not any(map(is_text, _ids(path, key, value)))):
            kept[key] = value
    return kept


def statements(folder: Path, id_of: Callable[[str], int | None]) -> dict[str, list[Statement]]:
    """Return by role what each file of a folder says, the most trusted first. Raises DataError E-TKN-13."""
    added = _added(folder)
    found: dict[str, list[Statement]] = {role: [] for role in ROLES}
    for file in TOKENIZER_FILES:
        values = _object(folder / file)
        for role, key in ROLES.items():
            if key in values:
                ids = _named(folder / file, key, values[key], lambda piece: added.get(piece, id_of(piece)), role)
                found[role] += [] if ids is None else [Statement(file, key, ids)]
    for file in MODEL_FILES:
        values = _object(folder / file)
        for role, name in ROLES.items():
            key = f"{name}_id"
            if values.get(key) is not None:
                found[role].append(Statement(file, key, _ids(folder / file, key, values[key])))
    return found


def _settle(path: Path, role: str, said: list[Statement], own: int | None, chat: bool) -> tuple[int | None, str]:
    """Return the token of a role and who says it."""
    named = [one for one in said if one.file in TOKENIZER_FILES]
    numbers = [one for one in said if one.file in MODEL_FILES and one.ids]
    tokens = [one for one in named if one.ids]
    if len({one.ids for one in tokens}) > 1:
        raise _contradiction(path, role, tokens)
    if tokens:
        token = tokens[0].ids[0]
        against = [one for one in numbers if token not in one.ids and one.file == MODEL_FILES[0]]
        if against and role != "pad" and not chat:
            raise _contradiction(path, role, [tokens[0], *against])
        agreeing = [*tokens, *(one for one in numbers if token in one.ids)]
        return token, ", ".join(f"{one.file} {one.key}" for one in agreeing)
    if named and role != "eod":  # null: there is none
        return None, f"{named[0].file} {named[0].key}=null"
    singles = {one.ids[0] for one in numbers if len(one.ids) == 1}
    if own is not None and (not numbers or any(own in one.ids for one in numbers)):
        agreeing = [f"{one.file} {one.key}" for one in numbers if own in one.ids]
        return own, ", ".join(agreeing or ["the tokenizer itself"])
    if len(singles) == 1:
        token = singles.pop()
        if own is not None and role == "eod" and not chat:
            raise _contradiction(path, role, numbers, own)
        return token, ", ".join(f"{one.file} {one.key}" for one in numbers if token in one.ids)
    if numbers:
        raise _contradiction(path, role, numbers, own)
    return None, ""


def _contradiction(path: Path, role: str, said: list[Statement], own: int | None = None) -> DataError:
    statements = "; ".join(map(str, said)) + (f"; the tokenizer itself has {own}" if own is not None else "")
    example = said[0].ids[0]
    return DataError(
        f"E-TKN-14 {path}: its folder does not say which token is the {MEANING[role]}: {statements}; one is needed. "
        f"Fix: say which: {role}={example} for `import`, tokenizer.{role}={example} for data_prep; or correct the file"
    )


def _named(
    path: Path, key: str, value: object, id_of: Callable[[str], int | None], role: str
) -> tuple[int, ...] | None:
    """Return the id of a token that is written as text, or as an object with its content. None: it does not exist."""
    text = value.get("content") if isinstance(value, dict) else value
    if text is None and not isinstance(value, dict):
        return ()
    if not isinstance(text, str):
        raise _wrong(path, f"{key}={value!r}", "must be a text, an object with one as its content, or null")
    token = id_of(text)
    if token is None and role == "eod" and text:
        raise _wrong(path, f"{key}={text!r}", "is no token of the tokenizer")
    return None if token is None else (token,)


def _ids(path: Path, key: str, value: object) -> tuple[int, ...]:
    """Return token ids, one or a list. Some files write -1 for none."""
    each = value if isinstance(value, list) else [value]
    ids = [one for one in each if isinstance(one, int) and not isinstance(one, bool) and one >= -1]
    if len(ids) < len(each):
        raise _wrong(path, f"{key}={value!r}", "must be a token id or a list of them")
    return tuple(one for one in ids if one >= 0)


def _added(folder: Path) -> dict[str, int]:
    """Return the tokens that a folder adds to those of the tokenizer's file, by text."""
    listed = _object(folder / ADDED)
    decoder = _object(folder / TOKENIZER_FILES[0]).get("added_tokens_decoder")
    for number, token in (decoder if isinstance(decoder, dict) else {}).items():
        if isinstance(token, dict) and number.isdecimal() and len(number) < 10:
            listed[str(token.get("content"))] = int(number)
    return {text: token for text, token in listed.items() if isinstance(text, str) and isinstance(token, int)}


def _record(path: Path) -> SpecialTokens | None:
    values = _object(path)
    if not values:
        return None
    written = [values.get(role, "") for role in ROLES]
    said, model = values.get("said"), values.get("model")
    tokens = [token for token in written if token is None or (isinstance(token, int) and token >= 0)]
    if len(tokens) < len(written) or not isinstance(said, dict) or not isinstance(model, dict):
        raise _wrong(path, "it", "was not written by this program", "import the tokenizer again")
    return SpecialTokens(*tokens, said=said, model=model)


def _object(path: Path) -> dict[str, object]:
    """Read a JSON object; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        return untrusted_io.read_object(path, LIMIT)
    except (OSError, ValueError) as error:
        raise _wrong(path, "it", f"cannot be read ({error})") from None


def _wrong(path: Path, what: str, why: str, fix: str = "take the file from its authors again") -> DataError:
    return DataError(f"E-TKN-13 {path}: {what[:200]} {why}; the special tokens of a tokenizer are needed. Fix: {fix}")
