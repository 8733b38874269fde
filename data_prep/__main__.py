"""python -m data_prep <verb> [key=value ...]"""

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

from coca_train.config.errors import UserError

Keys = dict[str, tuple[str | None, str]]

EMBEDDED: Keys = {
    "dir": ("data/embedded", "folder to make [path]"),
    "vocab_size": ("4096", "size of the SentencePiece vocabulary [token ids]"),
}
JSONL: Keys = {
    "input": (None, "file to read, one JSON object a line [.jsonl or .jsonl.gz]"),
    "prefix": (None, "where to write: <prefix>.bin and <prefix>.idx [path]"),
    "tokenizer": (None, "SentencePiece model [file]"),
    "field": ("text", "which field of the object is the text"),
}


def embedded(values: dict[str, str]) -> None:
    from data_prep.embedded import existing, make, summary

    try:
        vocab_size = int(values["vocab_size"])
    except ValueError:
        raise UserError(f"E-CFG-02 vocab_size={values['vocab_size']}: not an integer. Fix: vocab_size=4096") from None
    if (manifest := existing(Path(values["dir"]), vocab_size)) is None:
        make(values["dir"], vocab_size)
    else:
        print(f"{values['dir']}: is there already, nothing to do\n{summary(Path(values['dir']), manifest)}")


def jsonl(values: dict[str, str]) -> None:
    from coca_train.data.tokenizer import Tokenizer
    from data_prep.jsonl import convert

    prefix = Path(values["prefix"])
    counts = convert(Path(values["input"]), prefix, Tokenizer(values["tokenizer"]), values["field"])
    print(f"{prefix}.bin, {prefix}.idx: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))


VERBS: dict[str, tuple[Callable[[dict[str, str]], None], Keys, str]] = {
    "embedded": (embedded, EMBEDDED, "make the quickstart corpus from this Python installation (no network)"),
    "jsonl": (jsonl, JSONL, "tokenize a .jsonl or .jsonl.gz file into a .bin/.idx pair"),
}


def parse(keys: Keys, pairs: list[str]) -> dict[str, str]:
    """key=value pairs over the defaults; UserError for an unknown, malformed or missing key."""
    values = {key: default for key, (default, _) in keys.items()}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not value or key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"{near[0]}=..." if near else " ".join(f"{known}=..." for known in keys)
            raise UserError(f"E-CFG-01 {pair}: not one of the settings of this verb, as key=value. Fix: {hint}")
        values[key] = value
    missing = [key for key, value in values.items() if value is None]
    if missing:
        raise UserError(f"E-CFG-01 {', '.join(missing)}: not given. Fix: {' '.join(f'{key}=...' for key in missing)}")
    return {key: str(value) for key, value in values.items()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m data_prep", description="Prepare training data.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    for name, (_, keys, what) in VERBS.items():
        lines = (f"  {k:<12}{d} (default {v})" if v else f"  {k:<12}{d} (needed)" for k, (v, d) in keys.items())
        verb = verbs.add_parser(
            name,
            help=what,
            description=what,
            epilog="settings:\n" + "\n".join(lines),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_argument("settings", nargs="*", metavar="key=value", help="see below")
    chosen = parser.parse_args(arguments)
    run, keys, _ = VERBS[chosen.verb]
    try:
        run(parse(keys, chosen.settings))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
