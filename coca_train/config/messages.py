"""The messages about a wrong configuration: one line a problem, all problems at once.

Form: `E-<AREA>-<nn> <where> <key>=<value>: <what is wrong>; <what is needed>. Fix: <one action>`.
"""

import json
import math
import re
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches

from coca_train.runtime.errors import UserError

LONGEST = 120  # characters of a value that a message repeats

# Names of secrets: api_key, wandb_api_key, access_token, password … but not num_tokens, tokenizer.
_SECRET_NAME = re.compile(r"(^|[._-])(api_?key|access_?key|private_?key|secret|passwo?r?d|token|credentials?)$", re.I)
# Values that are a secret under any name: provider prefixes, user:password@ in a URL, and 40 hexadecimal digits alone,
# as W&B's older keys are (in a path they are a commit). A name of weights with -hf_ inside is none.
_SECRET_VALUE = re.compile(
    r"(?<![\w./-])(sk[-_]|hf_|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|wandb_v1_)[A-Za-z0-9_-]{16,}"
    r"|://[^/\s:@]*:[^/\s@]+@|(?<![\w./-])[0-9a-f]{40}(?![\w./-])"
)


def is_secret(key: str, value: object) -> bool:
    """Return whether a name or a value looks like a credential."""
    named = bool(_SECRET_NAME.search(key)) and value not in (None, "")
    if key.endswith("token") and isinstance(value, int | float):  # a count: max_new_token
        return False
    return named or (isinstance(value, str) and bool(_SECRET_VALUE.search(value)))


def secret_fix(key: str) -> str:
    """Return the fix for a secret in a configuration."""
    if "wandb" in key or "tracking" in key:
        return "remove it and export WANDB_API_KEY"
    return "remove it from the configuration"


def show(value: object) -> str:
    """Return a value on one line: short, without control characters, without secrets."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    text = _SECRET_VALUE.sub("***", text)
    text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


@dataclass(frozen=True)
class Problem:
    """One mistake. keys: the options it is about, the likeliest first."""

    id: str
    keys: tuple[str, ...]
    message: str
    fix: str
    place: str = ""  # where it is, if not where the keys were set


class ConfigError(UserError):
    """All problems of one configuration; `str()` is one line each."""

    def __init__(self, problems: list[Problem], lines: list[str]) -> None:
        self.problems = problems
        self.lines = lines
        last = [f"{len(lines)} problems; nothing was started."] if len(lines) > 1 else []
        super().__init__("\n".join([*lines, *last]))


def nearest(key: str, known: list[str]) -> list[str]:
    """Return up to three valid names that were probably meant, the likeliest first: a similar name in the same section,
    then the same last part elsewhere, then similar spelling."""
    section, _, leaf = key.rpartition(".")

    def likeness(name: str) -> float:
        return SequenceMatcher(None, name, key).ratio()

    def nearly(name: str) -> bool:
        """save_every_steps for every_steps, warmup_steps for warmup, keep for keeps."""
        above, _, own = name.rpartition(".")
        called = own.endswith(f"_{leaf}") or own.startswith(f"{leaf}_") or bool(get_close_matches(leaf, [own], 1, 0.8))
        return above == section and called

    siblings = sorted(filter(nearly, known), key=likeness, reverse=True) if section else []
    same = [k for k in known if section and k.rpartition(".")[2] == leaf]
    similar = get_close_matches(key, known, n=3, cutoff=0.75)
    leaves = {k.rpartition(".")[2]: k for k in reversed(known)}
    by_leaf = [leaves[name] for name in get_close_matches(leaf, list(leaves), n=2, cutoff=0.7)]
    ranked = [*siblings[:2], *sorted(same, key=likeness, reverse=True)[:2], *similar, *by_leaf]
    return list(dict.fromkeys(ranked))[:3]


_BOUNDS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_short", "too_long"}


def explain_type_error(key: str, value: object, needs: str, example: object, kind: str, detail: str = "") -> Problem:
    """Explain a value of the wrong type or out of bounds. kind: pydantic's error type; needs: what a value must be."""
    shape = "a number" if isinstance(value, float) else kind_of(value)
    write = f"write {key}={show(example)}, for example" if example is not None else f"give {needs}"
    if (
        kind == "finite_number"
        or (isinstance(value, float) and not math.isfinite(value))
        or (needs.startswith("a number") and value in ("nan", "inf", "-inf", ".nan", ".inf"))
    ):
        return Problem("E-CFG-06", (key,), f"must be finite; it needs {needs}", write)
    if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
        return Problem("E-CFG-75", (key,), "is not UTF-8; it needs text", "write it in UTF-8")
    if kind == "string_too_short":
        return Problem("E-CFG-05", (key,), "is empty", write)
    if kind == "bool_type":
        truth = "true" if str(value).lower() in ("yes", "on", "y", "1", "true", "t") else "false"
        return Problem("E-CFG-08", (key,), f"is {shape}; it needs true or false", f"write {key}={truth}")
    if needs.startswith("a whole number") and isinstance(value, float):
        whole = f"write {key}={value:.0f}" if value.is_integer() else f"write {key}={round(value)}, for example"
        whole = write if abs(value) > 2**53 else whole
        return Problem("E-CFG-07", (key,), f"is not written as a whole number; it needs {needs}", whole)
    if needs.startswith("a whole number") and isinstance(value, str) and re.fullmatch(r"0\d+", value):
        return Problem("E-CFG-10", (key,), "has a leading zero", f"write {key}={int(value)}")
    if needs.startswith("a") and isinstance(value, str) and re.fullmatch(r"\d+(:[0-5]?\d)+", value):
        return Problem("E-CFG-09", (key,), f"is a clock time; it needs {needs}", write)
    if kind in ("greater_than", "greater_than_equal") and key.endswith(".weight"):
        return Problem("E-STG-08", (key,), f"it needs {needs}", f"write ~{key[:-7]}, or give its share: {key}=…")
    if kind in _BOUNDS or kind == "string_pattern_mismatch":
        return Problem("E-CFG-05" if kind in _BOUNDS else "E-CFG-29", (key,), f"it needs {needs}", write)
    if kind == "literal_error":
        words = needs.removeprefix("one of ").split(", ")
        close = get_close_matches(str(value), words, n=1, cutoff=0.5)
        return Problem("E-CFG-31", (key,), f"it needs {needs}", f"write {key}={close[0] if close else words[0]}")
    if kind == "value_error":
        return Problem("E-CFG-05", (key,), detail, f"change {key}")
    if kind in ("dataclass_type", "dict_type"):
        return Problem("E-CFG-34", (key,), "is a section, not a value", f"set the options inside it: {key}.<option>=…")
    return Problem("E-CFG-04", (key,), f"is {shape}; it needs {needs}", write)


def kind_of(value: object) -> str:
    """Name the type of a YAML value."""
    names = {
        bool: "true/false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a section",
    }
    return names.get(type(value), "empty (null)")
