"""What `python -m data_prep` says about itself: the overview, a verb's options, the reference in docs/."""

import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from coca_train import __version__
from coca_train.config.arguments import read_arguments
from coca_train.config.messages import show
from coca_train.config.verb import assemble_valid, choice_lines, option_lines, tables
from coca_train.data.corpus_config import PREPARE, load_with_yaml, overrides
from coca_train.runtime.errors import UserError
from data_prep import verbs

MINE = "corpus.name=mine corpus.sources.text.files='[raw/*.jsonl.gz]'"


class Verb(NamedTuple):
    """One thing that can be done. sections: of the configuration; none = it takes key=value words."""

    does: str
    more: str = ""
    sections: tuple[str, ...] = ()


VERBS = {
    "sources": Verb(
        "list the sources: files found, sizes, licences, what is missing and how to get it",
        "Reads file names and sizes only; nothing is made.",
        ("corpus",),
    ),
    "tokenizer": Verb(
        "train a SentencePiece vocabulary on a weighted sample, or import one",
        "Makes tokenizer.path. Held-out documents are never in the sample; the same files give the same vocabulary.\n"
        "A tokenizer that is there already is kept, never overwritten.",
        ("corpus", "tokenizer", "mix", "work"),
    ),
    "tokenize": Verb(
        "documents to .bin/.idx pairs; killed anywhere, the same command goes on",
        "Makes <source>_train and <source>_valid below corpus.dir, rejects/ and manifest.json. The bytes are the same\n"
        "for any number of workers. On a cluster: shard=$SLURM_ARRAY_TASK_ID/16 in each task, then `merge` once.",
        ("corpus", "tokenizer", "work"),
    ),
    "merge": Verb(
        "put the shards of `tokenize shard=i/n` together, without reading text again",
        "Only needed after shard=i/n; without shards `tokenize` does it by itself.",
        ("corpus", "tokenizer", "work"),
    ),
    "mix": Verb(
        "plan the mixture to a token budget, and write it as a data choice for training",
        "Shows shares and epochs of every source; writes <corpus.dir>/config/data/<corpus.name>.yaml and report/mix.*.",
        ("corpus", "mix"),
    ),
    "verify": Verb(
        "check every byte, index entry and token id against the manifest",
        "Changes nothing. Exit code 3 when something is wrong.",
        ("corpus", "look", "work"),
    ),
    "inspect": Verb(
        "show documents decoded, and windows as the model sees them",
        "Writes report/lengths.png.",
        ("corpus", "look"),
    ),
    "stats": Verb(
        "tokens, bytes a token, lengths, what was left out and why; with a histogram as picture",
        "Writes report/stats.* and report/lengths.png.",
        ("corpus",),
    ),
    "leakage": Verb(
        "overlap of training text with held-out text, in runs of 13 words",
        "Writes report/leakage.*: by source and held-out set, and the worst documents with their origin.",
        ("corpus", "leakage", "work"),
    ),
    "retrieval": Verb(
        "write prompts with their answers, to train models that retrieve",
        "Makes <set>_train.jsonl.gz and <set>_valid.jsonl.gz in retrieval.dir; the same options give the same bytes.\n"
        "corpus=retrieval_miniature shows how they are mixed with other text.",
        ("corpus", "retrieval"),
    ),
    "embedded": Verb("make the quickstart's corpus from this Python installation (no network)"),
    "diagnostics": Verb("make short tasks with exact answers, to train models that show what they do with a context"),
}

OVERVIEW = f"""\
Prepare training data: from raw text to .bin/.idx pairs, a manifest, and a mixture that training reads.

  python -m data_prep <verb> [corpus=<choice>] [section.option=value ...]

FROM FILES TO A MODEL
  python -m data_prep tokenizer {MINE}
  python -m data_prep tokenize  {MINE}
  python -m data_prep verify    {MINE}
  python -m data_prep mix       {MINE}
  python -m coca_train --config-dir data/mine/config data=mine

VERBS
{{verbs}}

  python -m data_prep <verb> --help   what it does, the corpora there are, every option with its value
  --cfg job          show the configuration, composed and checked, and stop
  --config-dir DIR   more YAML files: DIR/corpus/mine.yaml is then corpus=mine
  --debug            show the traceback of an error
  --version

Reference: docs/data_configuration.md"""


def overview() -> str:
    """Return all verbs, and the way from files to a model."""
    return OVERVIEW.format(verbs="\n".join(f"  {name:<16} {verb.does}" for name, verb in VERBS.items()))


def verb_help(name: str, words: list[str], dirs: tuple[Path, ...] = ()) -> str:
    """Return what a verb does and reads, with the values this command line gives."""
    verb, assembly = VERBS[name], assemble_valid(PREPARE, overrides(words), dirs)
    head = [f"{name}: {verb.does}", *([verb.more] if verb.more else []), "", f"  python -m data_prep {name} {MINE}"]
    if "work" in verb.sections and name != "merge":
        head.append(f"  python -m data_prep {name} corpus=paper_miniature work.workers=2")
    return "\n".join([*head, "", *choice_lines(assembly, dirs), "", *option_lines(assembly, verb.sections)])


def markdown() -> str:
    """Return the reference in docs/data_configuration.md."""
    head = [
        "# Configuration of the data preparation",
        "",
        "Made by `python -m data_prep --markdown`; do not edit.",
        "`python -m data_prep <verb> corpus=<choice> section.option=value`; values are those of `corpus=files`.",
        "`<name>` is the name of a source or of a group.",
        "",
        "## Verbs",
        "",
        "| verb | what it does | sections it reads |",
        "|---|---|---|",
        *(f"| `{n}` | {v.does} | {', '.join(f'`{s}`' for s in v.sections)} |" for n, v in VERBS.items()),
        "",
    ]
    return "\n".join([*head, *tables(assemble_valid(PREPARE, []), "value")]) + "\n"


FLAGS = ("--help", "--version", "--cfg job", "--config-dir", "--debug")


def answer(argv: list[str]) -> int | None:
    """Do what the words ask for. Raises UserError."""
    first, *words = argv or ["--help"]
    if first in ("--help", "-h"):
        print(overview())
    elif first == "--version":
        print(f"coca_train {__version__}")
    elif first == "--markdown":
        sys.stdout.write(markdown())
    elif first not in VERBS:
        raise UserError(_no_such_verb(first))
    elif not VERBS[first].sections:
        return import_module(f"{verbs.__name__}.{first}").VERB.main(words)
    else:
        return _with_overrides(first, words)
    return 0


def _with_overrides(verb: str, words: list[str]) -> int | None:
    arguments = read_arguments(words, FLAGS)
    if "--help" in arguments.flags:
        print(verb_help(verb, arguments.overrides, arguments.config_dirs))
        return 0
    config, text = load_with_yaml(arguments.overrides, arguments.config_dirs)
    if arguments.cfg:
        print(text, end="")
        return 0
    return import_module(f"{verbs.__name__}.{verb}").run(config)


def _no_such_verb(word: str) -> str:
    close = get_close_matches(word.lstrip("-"), VERBS, n=1)
    if close:
        fix = f"write python -m data_prep {close[0]}"
    elif "=" in word or word.startswith("-"):
        fix = "write the verb first: python -m data_prep <verb> ..."
    else:
        fix = "see python -m data_prep"
    return f"E-CFG-38 command line {show(word)}: there is no such verb; verbs are {', '.join(VERBS)}. Fix: {fix}"
