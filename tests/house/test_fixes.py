"""What a fix says to type is there to be typed: options, verbs and targets of every error of docs/errors.md. Some fifty
mistakes are made and mended word by word in tests/config/test_fixes_typed.py."""

import re
from pathlib import Path

import pytest
import yaml

from coca_train.commands import verb_of, verbs
from coca_train.commands.show import SHOW
from coca_train.config.fields import options
from data_prep.verbs.embedded import EMBEDDED
from tests.checkout import ROOT
from tests.house.error_codes import Message, messages

FIXES = [(code, message) for code, of_code in messages().items() for message in of_code if message.fix]
OPTION = re.compile(r"(?<![\w./<>…$-])([+~]{0,2})([a-z_]+(?:\.[a-z_<>…]+)*)=(?!=)")
OUTSIDE = {"run", "type", "shape", "safe_serialization", "shard"}  # of other programs, of sentences, of `tokenize`


def keys(tree: object, above: str = "") -> set[str]:
    """Every section and option of a yaml, by its full name."""
    found = set()
    for key, value in tree.items() if isinstance(tree, dict) else ():
        found |= {f"{above}{key}"} | keys(value, f"{above}{key}.")
    return found


def known_options() -> set[str]:
    """Of all verbs: those of the generated pages and of the small verbs, sections, and words that stand for others."""
    pages = [ROOT / f"docs/{name}configuration.md" for name in ("", "data_", "evaluation_")]
    named = {key for page in pages for key in re.findall(r"^\| `([\w./<>]+)`", page.read_text(encoding="utf-8"), re.M)}
    for root in (*(verb_of(name).root for name in verbs()), EMBEDDED, SHOW):
        named |= {option.key for option in options(root)}
    for path in (ROOT / "configs").rglob("*.yaml"):
        named |= keys(yaml.safe_load(path.read_text(encoding="utf-8")))
    for path in (ROOT / "configs").glob("*/*.yaml"):
        section = path.parent.name
        named |= {section} | {f"{section}.{key}" for key in keys(yaml.safe_load(path.read_text(encoding="utf-8")))}
    parts = {".".join(key.split(".")[:n]) for key in named for n in range(1, key.count(".") + 1)}
    return named | parts | {"checkpoint", "experiment", "NAME", "scheme", "TORCH", "eval"}


KNOWN = known_options()


@pytest.mark.parametrize(("code", "message"), FIXES, ids=[f"{code}-{n}" for n, (code, _) in enumerate(FIXES)])
def test_what_a_fix_names_is_there(code: str, message: Message) -> None:
    fix = message.fix
    for prefix, option in OPTION.findall(fix):
        if prefix.startswith("+") and option.rpartition(".")[0] in KNOWN:
            continue  # a name of one's own
        parts = ["[^.]+" if "…" in part or "<" in part else re.escape(part) for part in option.split(".")]
        form = re.compile(r"\.".join(parts))
        assert any(map(form.fullmatch, KNOWN)) or option in OUTSIDE, f"{code} {message.file}: {option}= in {fix!r}"
    for verb in re.findall(r"python -m coca_train ([a-z]+)\b(?!=|\.)", fix):
        assert verb in verbs(), f"{code} {message.file}: {fix!r}"
    for target in re.findall(r"\bmake ([a-z]+)\b(?= |$|,)", fix):
        makefile = Path(ROOT, "Makefile").read_text(encoding="utf-8")
        spoken = {"it", "a", "one", "room", "the", "both", "sure", "this", "them", "its", "another"}
        assert target in spoken or re.search(rf"^{target}:", makefile, re.M), f"{code} {message.file}: {fix!r}"
