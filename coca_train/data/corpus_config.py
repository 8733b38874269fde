"""The configuration of `python -m data_prep`: configs/prepare.yaml, the choices of `corpus`, rules between options."""

import glob
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coca_train.config import load as loading
from coca_train.config.compose import Assembled
from coca_train.config.corpus_schema import (
    CorpusConfig,
    CorpusSourceConfig,
    GroupConfig,
    LeakageConfig,
    LookConfig,
    MixConfig,
    PrepareConfig,
    RetrievalConfig,
    TokenizerConfig,
    WorkConfig,
)
from coca_train.config.files import choices, config_dir
from coca_train.config.messages import Problem, nearest
from coca_train.config.root import Root
from coca_train.config.rules import Rules, names, paths
from coca_train.data.readers.files import ENDINGS, Kind, kind_of_file
from coca_train.data.readers.text import FOLDER
from coca_train.data.retrieval import KINDS, LARGEST
from coca_train.data.tokenizer import main_file, main_name
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import section
from coca_train.settings import TOKENIZERS

RULES = Rules()
LONGEST_LINE = 2**31 - 1  # what pyarrow's columns and a pickle's frames hold without further thought


@RULES.rule("corpus", "mix")
def _names(corpus: CorpusConfig, mix: MixConfig) -> Iterator[Problem]:
    yield from names("corpus.sources", corpus.sources)
    yield from names("mix.groups", mix.groups)
    if corpus.name in choices("data", (config_dir(),)):
        text = "coca_train comes with a data choice of this name, and would read that one and not what mix writes"
        yield Problem("E-CFG-59", ("corpus.name",), text, f"write corpus.name=my_{corpus.name}")


@RULES.rule("corpus", "tokenizer", "leakage", "retrieval")
def _paths(
    corpus: CorpusConfig, tokenizer: TokenizerConfig, leakage: LeakageConfig, retrieval: RetrievalConfig
) -> Iterator[Problem]:
    options = {"corpus.dir": corpus.dir, "tokenizer.path": tokenizer.path, "retrieval.dir": retrieval.dir}
    if tokenizer.import_from is not None:
        options["tokenizer.import_from"] = tokenizer.import_from
    yield from paths(options)
    for name, source in corpus.sources.items():
        for path in source.files:
            yield from paths({f"corpus.sources.{name}.files": path})
    for prefix in leakage.against:
        if prefix.endswith((".bin", ".idx")):
            text = f"{prefix} is one file of a pair; the prefix of both is needed"
            yield Problem("E-CFG-58", ("leakage.against",), text, f"write leakage.against=[{prefix[:-4]}]")


def kind_of(source: CorpusSourceConfig) -> Kind:
    """Return how a source is read; auto: neither the source nor its files say it."""
    if source.kind != "auto":
        return source.kind
    if not source.files:
        return "hub" if source.hub else "auto"
    if all(map(os.path.isdir, source.files)):
        return "folder"
    kinds: set[Kind] = {kind_of_file(pattern) for pattern in source.files}
    return kinds.pop() if len(kinds) == 1 else "auto"


def _unknown_kind(name: str, source: CorpusSourceConfig) -> Problem:
    """Return the problem of a source whose files do not say how they are read, or contradict each other."""
    key, (first, *more) = f"corpus.sources.{name}", source.files
    keys, other = (f"{key}.kind", f"{key}.files"), [p for p in more if kind_of_file(p) != kind_of_file(first)]
    if other:
        files = ",".join(pattern for pattern in source.files if pattern not in other)
        text = f"{first} and {other[0]} are not read in the same way; a source is of one kind"
        fix = f"write {key}.files='[{files}]' +corpus.sources.{name}_more.files='[{','.join(other)}]'"
        return Problem("E-CFG-50", keys, text, fix)
    if not glob.has_magic(first) and not os.path.exists(first):
        return Problem("E-CFG-50", keys, f"{first} is not there", f"write {key}.files='[<files or a folder>]'")
    text = f"the ending of {first} does not say how it is read; {', '.join(ENDINGS)} do"
    fix = f"write {key}.kind=text (a document a file), or jsonl (a document a line), or parquet (a row)"
    return Problem("E-CFG-50", keys, text, fix)


@RULES.rule("corpus")
def _kinds(corpus: CorpusConfig) -> Iterator[Problem]:
    """Check that each source says where its documents come from, and sets no option of another kind."""
    for name, source in corpus.sources.items():
        key, kind = f"corpus.sources.{name}", kind_of(source)
        if kind == "auto" and source.files:
            yield _unknown_kind(name, source)
            continue
        needed, what, example = ("files", "the files that it reads", "'[raw/*.jsonl.gz]'")
        if kind == "hub":
            needed, what, example = ("hub", "the name of a data set, or a folder", "<name>")
        if not getattr(source, needed):
            keys, text = (f"{key}.{needed}", f"{key}.kind"), f"a source of kind {kind} needs {what}"
            yield Problem("E-CFG-50", keys, text, f"write {key}.{needed}={example}")
        for option, empty in (("files", "[]"),) if kind == "hub" else (("hub_files", "[]"), ("hub", "null")):
            if getattr(source, option):
                keys, text = (f"{key}.{option}", f"{key}.kind"), f"a source of kind {kind} does not read it"
                yield Problem("E-CFG-62", keys, text, f"write {key}.{option}={empty}, or another {key}.kind")


@RULES.rule("corpus")
def _filters(corpus: CorpusConfig) -> Iterator[Problem]:
    for name, source in corpus.sources.items():
        key, rules = f"corpus.sources.{name}.filter", source.filter
        pairs = (("languages", "language_field"), ("licences", "licence_field"), ("min_stars", "stars_field"))
        for option, field in pairs:
            if getattr(rules, field) is None and getattr(rules, option):
                text = "it says what to keep, and no field says where to look"
                yield Problem("E-CFG-55", (f"{key}.{option}", f"{key}.{field}"), text, f"write {key}.{field}=<field>")
            elif getattr(rules, field) is not None and kind_of(source) == "text":
                keys = (f"{key}.{field}", f"corpus.sources.{name}.kind")
                text = "plain text files have no fields, so every document would be left out"
                yield Problem("E-CFG-64", keys, text, f"write {key}.{field}=null")
        joins = source.join_field
        if joins is not None and kind_of(source) == "text" and joins != FOLDER:
            keys = (f"corpus.sources.{name}.join_field", f"corpus.sources.{name}.kind")
            text = f"plain text files have no field but {FOLDER}"
            yield Problem("E-CFG-64", keys, text, f"write corpus.sources.{name}.join_field={FOLDER}")
        if rules.max_chars is not None and rules.max_chars < rules.min_chars:
            keys, text = (f"{key}.min_chars", f"{key}.max_chars"), "no document is this long and this short"
            yield Problem("E-CFG-56", keys, text, f"write {key}.max_chars=null")


@RULES.rule("corpus", "mix")
def _groups(corpus: CorpusConfig, mix: MixConfig) -> Iterator[Problem]:
    used, known = sorted({source.group for source in corpus.sources.values()}), list(mix.groups)
    if not known:
        if len(used) > 1:
            text = f"the sources are of {len(used)} groups, {', '.join(used)}; each needs its share of the training"
            fix = "write " + " ".join(f"+mix.groups.{group}.share={1 / len(used):.2g}" for group in used)
            yield Problem("E-CFG-52", ("mix.groups",), text, fix + ", or other numbers, which are relative")
        return
    for name, source in corpus.sources.items():
        if source.group not in known:
            key, text = f"corpus.sources.{name}.group", f"the mixture has no such group; it has {', '.join(known)}"
            best = next(iter(nearest(source.group, known)), known[0])
            yield Problem("E-CFG-52", (key,), text, f"write {key}={best}, or +mix.groups.{source.group}.share=0.1")
    for group in known:
        if group not in used:
            text = f"no source counts towards it; the groups of the sources are {', '.join(used)}"
            yield Problem("E-CFG-52", (f"mix.groups.{group}.share",), text, f"remove it: ~mix.groups.{group}")


@RULES.rule("corpus")
def _weights(corpus: CorpusConfig) -> Iterator[Problem]:
    """Check that within a group every source has a weight or none has, and that only trained sources have one."""
    by_group: dict[str, list[str]] = {}
    for name, source in corpus.sources.items():
        if source.hold_out != "all":
            by_group.setdefault(source.group, []).append(name)
        elif source.weight is not None:
            keys = (f"corpus.sources.{name}.weight", f"corpus.sources.{name}.hold_out")
            text = "every document is held out, so none is trained on"
            yield Problem("E-CFG-53", keys, text, f"write {keys[0]}=null")
    for group, members in by_group.items():
        without = [name for name in members if corpus.sources[name].weight is None]
        if 0 < len(without) < len(members):
            other = next(name for name in members if name not in without)
            keys = (f"corpus.sources.{without[0]}.weight", f"corpus.sources.{other}.weight")
            text = f"some sources of the group {group} have a weight and some have none"
            yield Problem("E-CFG-53", keys, text, f"write {keys[0]}=0.1, for example, or {keys[1]}=null")


@RULES.rule("work")
def _work(work: WorkConfig) -> Iterator[Problem]:
    shard = re.fullmatch(r"(0|[1-9][0-9]{0,6})/([1-9][0-9]{0,6})", work.shard)
    if shard is None:
        text = "a shard is i/n: its number, from 0, and how many there are"
        yield Problem("E-CFG-51", ("work.shard",), text, "write shard=0/16, for example")
    elif int(shard[1]) >= int(shard[2]):
        text = f"of {shard[2]} shards the last is number {int(shard[2]) - 1}"
        yield Problem("E-CFG-51", ("work.shard",), text, f"write shard={int(shard[2]) - 1}/{shard[2]}")
    if work.chunk_bytes > work.part_bytes:
        keys, text = ("work.chunk_bytes", "work.part_bytes"), "a part holds whole chunks, so it cannot be smaller"
        yield Problem("E-CFG-54", keys, text, f"write work.chunk_bytes={work.part_bytes}")
    for key in ("max_line_bytes", "chunk_bytes"):
        if getattr(work, key) > LONGEST_LINE:
            text = f"at most {LONGEST_LINE} bytes are held in memory at a time"
            yield Problem("E-CFG-63", (f"work.{key}",), text, f"write work.{key}={LONGEST_LINE}")


@RULES.rule("look", "corpus")
def _look(look: LookConfig, corpus: CorpusConfig) -> Iterator[Problem]:
    if look.source is not None and look.source not in corpus.sources:
        text = f"there is no source {look.source!r}; the sources are {', '.join(corpus.sources)}"
        best = next(iter([*nearest(look.source, list(corpus.sources)), *corpus.sources]), "null")
        yield Problem("E-CFG-57", ("look.source",), text, f"write look.source={best}")


@RULES.rule("retrieval")
def _retrieval(retrieval: RetrievalConfig) -> Iterator[Problem]:
    yield from names("retrieval.sets", retrieval.sets)
    for name, chosen in retrieval.sets.items():
        key = f"retrieval.sets.{name}.kinds"
        if not chosen.kinds:
            text = f"no kind of prompt is named; there are {', '.join(KINDS)}"
            yield Problem("E-CFG-84", (key,), text, f"write {key}={{recall: 6}}")
        for kind, size in chosen.kinds.items():
            if kind not in KINDS:
                text = f"there is no such kind of prompt; there are {', '.join(KINDS)}"
                best = next(iter(nearest(kind, list(KINDS))), "recall")
                yield Problem("E-CFG-84", (f"{key}.{kind}",), text, f"write {key}.{best}={size}")
            elif size > LARGEST.get(kind, math.inf):
                text, fix = f"there are {LARGEST[kind]} common words", f"write {key}.{kind}={LARGEST[kind]}"
                yield Problem("E-CFG-84", (f"{key}.{kind}",), text, fix)


def drop_sources_without_files(a: Assembled, groups: Mapping[str, str], typed: Callable[[], object]) -> None:
    """Drop sources without files (corpus=files has one) when the command line adds sources."""
    if not any("corpus.sources" in word for word in a.overrides):
        return  # resolving takes time
    ours, all_of_them = section(a.tree, "corpus.sources"), section(typed(), "corpus.sources")
    if all_of_them.keys() - ours.keys():
        for name in list(ours):
            source = section(all_of_them, name)
            if not (source.get("files") or source.get("hub")):
                del ours[name]


PREPARE = Root(
    name="prepare",
    schema=PrepareConfig,
    groups=("corpus",),
    check=RULES.check,
    command="data_prep",
    examples="work.workers=8, or group=choice, e.g. corpus=files",
    place="corpus.dir and corpus.name",
    global_groups=("corpus",),
    derive=drop_sources_without_files,
)


def load(words: Sequence[str], dirs: tuple[Path, ...] = ()) -> PrepareConfig:
    """Compose, check and freeze the configuration.

    words: Hydra overrides, `shard=i/n` for work.shard; dirs: of YAML files. Raises ConfigError, which names every
    problem and who set the value.
    """
    return load_with_yaml(words, dirs)[0]


def load_with_yaml(words: Sequence[str], dirs: tuple[Path, ...] = ()) -> tuple[PrepareConfig, str]:
    """Load the configuration, and return it with its YAML as `--cfg job` shows it."""
    loaded = loading.load(loading.assemble(PREPARE, overrides(words), dirs))
    config = loaded.config
    sources = {name: replace(source, kind=kind_of(source)) for name, source in config.corpus.sources.items()}
    groups = config.mix.groups or {source.group: GroupConfig(share=1.0) for source in sources.values()}
    corpus, mix = replace(config.corpus, sources=sources), replace(config.mix, groups=groups)
    return replace(config, corpus=corpus, mix=mix, tokenizer=_with_ending(config.tokenizer)), loaded.yaml


def _with_ending(tokenizer: TokenizerConfig) -> TokenizerConfig:
    """Let a path to a .model that does not exist name the .json that exists, or that import_from will be copied to."""
    path, origin = Path(tokenizer.path), tokenizer.import_from
    other = path.with_suffix(".json")
    if path.suffix == ".model" and not path.exists() and (other.is_file() or _is_json(origin)):
        return replace(tokenizer, path=str(other))
    return tokenizer


def _is_json(origin: str | None) -> bool:
    """Return whether a tokenizer to import is a tokenizer.json; its import reports what is wrong with it."""
    if origin is None:
        return False
    try:
        file = main_file(Path(origin)) if os.path.isdir(origin) else Path(origin)
        return file is not None and main_name(file) == TOKENIZERS[1]
    except (UserError, OSError):
        return False


def overrides(words: Sequence[str]) -> list[str]:
    """Return the words as Hydra overrides: `shard=3/16` is short for work.shard=3/16."""
    return [f"work.{word}" if word.startswith("shard=") else word for word in words]
