"""The configuration of `python -m data_prep`: configs/prepare.yaml, the choices of `corpus`, rules between options."""

import glob
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from coca_train.data.retrieval import KINDS, LARGEST
from coca_train.data.tokenizer import main_file, main_name
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import section
from coca_train.settings import TOKENIZERS

RULES = Rules()
LONGEST_LINE = 2**31 - 1  # what pyarrow's columns and a pickle's frames hold without further thought


@RULES.rule("corpus", "mix")
def _names(corpus: CorpusConfig, mix: MixConfig) -> list[Problem]:
    problems = [*names("corpus.sources", corpus.sources), *names("mix.groups", mix.groups)]
    if corpus.name in choices("data", (config_dir(),)):
        text = "coca_train comes with a data choice of this name, and would read that one and not what mix writes"
        problems.append(Problem("E-CFG-59", ("corpus.name",), text, f"write corpus.name=my_{corpus.name}"))
    return problems


@RULES.rule("corpus", "tokenizer", "leakage", "retrieval")
def _paths(
    corpus: CorpusConfig, tokenizer: TokenizerConfig, leakage: LeakageConfig, retrieval: RetrievalConfig
) -> list[Problem]:
    options = {"corpus.dir": corpus.dir, "tokenizer.path": tokenizer.path, "retrieval.dir": retrieval.dir}
    if tokenizer.import_from is not None:
        options["tokenizer.import_from"] = tokenizer.import_from
    problems = paths(options)
    for name, source in corpus.sources.items():
        key = f"corpus.sources.{name}.files"
        problems += [Problem(p.id, (key,), p.message, p.fix) for path in source.files for p in paths({key: path})]
    for prefix in leakage.against:
        if prefix.endswith((".bin", ".idx")):
            text = f"{prefix} is one file of a pair; the prefix of both is needed"
            problems.append(Problem("E-CFG-58", ("leakage.against",), text, f"write leakage.against=[{prefix[:-4]}]"))
    return problems


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
def _kinds(corpus: CorpusConfig) -> list[Problem]:
    """Check that each source says where its documents come from, and sets no option of another kind."""
    problems = []
    for name, source in corpus.sources.items():
        key = f"corpus.sources.{name}"
        source = replace(source, kind=kind_of(source))
        if source.kind == "auto" and source.files:
            problems.append(_unknown_kind(name, source))
            continue
        needed, other = ("hub", "files") if source.kind == "hub" else ("files", "hub")
        if not getattr(source, needed):
            what = "the name of a data set, or a folder" if source.kind == "hub" else "the files that it reads"
            example = "<name>" if source.kind == "hub" else "'[raw/*.jsonl.gz]'"
            text = f"a source of kind {source.kind} needs {what}"
            problems.append(
                Problem("E-CFG-50", (f"{key}.{needed}", f"{key}.kind"), text, f"write {key}.{needed}={example}")
            )
        if source.hub_files and source.kind != "hub":
            text = f"a source of kind {source.kind} does not read it"
            fix = f"write {key}.hub_files=[] and {key}.files=[…]"
            problems.append(Problem("E-CFG-62", (f"{key}.hub_files", f"{key}.kind"), text, fix))
        if getattr(source, other):
            text = f"a source of kind {source.kind} does not read it"
            fix = f"write {key}.{other}={'[]' if other == 'files' else 'null'}, or another {key}.kind"
            problems.append(Problem("E-CFG-62", (f"{key}.{other}", f"{key}.kind"), text, fix))
    return problems


@RULES.rule("corpus")
def _filters(corpus: CorpusConfig) -> list[Problem]:
    problems = []
    for name, source in corpus.sources.items():
        key, kept = f"corpus.sources.{name}.filter", source.filter
        pairs = (
            ("languages", "language_field", bool(kept.languages)),
            ("licences", "licence_field", bool(kept.licences)),
            ("min_stars", "stars_field", kept.min_stars > 0),
        )
        for option, field, is_set in pairs:
            if is_set and getattr(kept, field) is None:
                text = "it says what to keep, and no field says where to look"
                fix = f"write {key}.{field}=<field>"
                problems.append(Problem("E-CFG-55", (f"{key}.{option}", f"{key}.{field}"), text, fix))
            elif getattr(kept, field) is not None and kind_of(source) == "text":
                keys = (f"{key}.{field}", f"corpus.sources.{name}.kind")
                text = "plain text files have no fields, so every document would be left out"
                problems.append(Problem("E-CFG-64", keys, text, f"write {key}.{field}=null"))
        if kept.max_chars is not None and kept.max_chars < kept.min_chars:
            text = "no document is this long and this short"
            fix = f"write {key}.max_chars=null"
            problems.append(Problem("E-CFG-56", (f"{key}.min_chars", f"{key}.max_chars"), text, fix))
    return problems


@RULES.rule("corpus", "mix")
def _groups(corpus: CorpusConfig, mix: MixConfig) -> list[Problem]:
    problems = []
    if not mix.groups:
        named = sorted({source.group for source in corpus.sources.values()})
        if len(named) == 1:
            return []
        text = f"the sources are of {len(named)} groups, {', '.join(named)}; each needs its share of the training"
        fix = "write " + " ".join(f"+mix.groups.{group}.share={1 / len(named):.2g}" for group in named)
        return [Problem("E-CFG-52", ("mix.groups",), text, fix + ", or other numbers, which are relative")]
    for name, source in corpus.sources.items():
        if source.group not in mix.groups:
            key, known = f"corpus.sources.{name}.group", list(mix.groups)
            text = f"the mixture has no such group; it has {', '.join(known)}"
            best = next(iter(nearest(source.group, known)), known[0])
            fix = f"write {key}={best}, or +mix.groups.{source.group}.share=0.1"
            problems.append(Problem("E-CFG-52", (key,), text, fix))
    used = {source.group for source in corpus.sources.values()}
    for group in mix.groups:
        if group not in used:
            text = f"no source counts towards it; the groups of the sources are {', '.join(sorted(used))}"
            problems.append(
                Problem("E-CFG-52", (f"mix.groups.{group}.share",), text, f"remove it: ~mix.groups.{group}")
            )
    return problems


@RULES.rule("corpus")
def _weights(corpus: CorpusConfig) -> list[Problem]:
    """Check that within a group every source has a weight or none has, and that only trained sources have one."""
    problems = []
    trained = {name: source for name, source in corpus.sources.items() if source.hold_out != "all"}
    for name, source in corpus.sources.items():
        key = f"corpus.sources.{name}.weight"
        if name not in trained and source.weight is not None:
            text = "every document is held out, so none is trained on"
            keys = (key, f"corpus.sources.{name}.hold_out")
            problems.append(Problem("E-CFG-53", keys, text, f"write {key}=null"))
    for group in dict.fromkeys(source.group for source in trained.values()):
        weights = {name: source.weight for name, source in trained.items() if source.group == group}
        without = [name for name, weight in weights.items() if weight is None]
        if 0 < len(without) < len(weights):
            other = next(name for name, weight in weights.items() if weight is not None)
            keys = (f"corpus.sources.{without[0]}.weight", f"corpus.sources.{other}.weight")
            text = f"some sources of the group {group} have a weight and some have none"
            problems.append(Problem("E-CFG-53", keys, text, f"write {keys[0]}=0.1, for example, or {keys[1]}=null"))
    return problems


@RULES.rule("work")
def _work(work: WorkConfig) -> list[Problem]:
    problems = []
    shard = re.fullmatch(r"(0|[1-9][0-9]{0,6})/([1-9][0-9]{0,6})", work.shard)
    if shard is None:
        text = "a shard is i/n: its number, from 0, and how many there are"
        problems.append(Problem("E-CFG-51", ("work.shard",), text, "write shard=0/16, for example"))
    elif int(shard[1]) >= int(shard[2]):
        text = f"of {shard[2]} shards the last is number {int(shard[2]) - 1}"
        problems.append(Problem("E-CFG-51", ("work.shard",), text, f"write shard={int(shard[2]) - 1}/{shard[2]}"))
    if work.chunk_bytes > work.part_bytes:
        text = "a part holds whole chunks, so it cannot be smaller than one"
        fix = f"write work.chunk_bytes={work.part_bytes}"
        problems.append(Problem("E-CFG-54", ("work.chunk_bytes", "work.part_bytes"), text, fix))
    for key in ("max_line_bytes", "chunk_bytes"):
        if getattr(work, key) > LONGEST_LINE:
            text = f"at most {LONGEST_LINE} bytes are held in memory at a time"
            problems.append(Problem("E-CFG-63", (f"work.{key}",), text, f"write work.{key}={LONGEST_LINE}"))
    return problems


@RULES.rule("look", "corpus")
def _look(look: LookConfig, corpus: CorpusConfig) -> list[Problem]:
    if look.source is None or look.source in corpus.sources:
        return []
    text = f"there is no source {look.source!r}; the sources are {', '.join(corpus.sources)}"
    best = next(iter(nearest(look.source, list(corpus.sources))), next(iter(corpus.sources)))
    return [Problem("E-CFG-57", ("look.source",), text, f"write look.source={best}")]


@RULES.rule("retrieval")
def _retrieval(retrieval: RetrievalConfig) -> list[Problem]:
    problems = names("retrieval.sets", retrieval.sets)
    for name, chosen in retrieval.sets.items():
        key = f"retrieval.sets.{name}.kinds"
        if not chosen.kinds:
            text = f"no kind of prompt is named; there are {', '.join(KINDS)}"
            problems.append(Problem("E-CFG-84", (key,), text, f"write {key}={{recall: 6}}"))
        for kind in chosen.kinds:
            if kind not in KINDS:
                text = f"there is no such kind of prompt; there are {', '.join(KINDS)}"
                best = next(iter(nearest(kind, list(KINDS))), "recall")
                fix = f"write {key}.{best}={chosen.kinds[kind]}"
                problems.append(Problem("E-CFG-84", (f"{key}.{kind}",), text, fix))
            elif chosen.kinds[kind] > LARGEST.get(kind, math.inf):
                text, fix = f"there are {LARGEST[kind]} common words", f"write {key}.{kind}={LARGEST[kind]}"
                problems.append(Problem("E-CFG-84", (f"{key}.{kind}",), text, fix))
    return problems


def own_sources(a: Assembled, groups: Mapping[str, str], typed: Callable[[], dict[str, Any]]) -> None:
    """Drop sources without files (corpus=files has one) when the command line adds sources of its own."""
    if not any("corpus.sources" in word for word in a.overrides):
        return  # resolving takes time
    ours, all_of_them = section(a.tree, "corpus.sources"), section(typed(), "corpus.sources")
    waiting = [
        name for name in ours if not (section(all_of_them, name).get("files") or section(all_of_them, name).get("hub"))
    ]
    if all_of_them.keys() - ours.keys():
        for name in waiting:
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
    derive=own_sources,
)


def load(words: Sequence[str], dirs: tuple[Path, ...] = ()) -> PrepareConfig:
    """Compose, check and freeze the configuration. words: Hydra overrides, `shard=i/n` for work.shard; dirs: of YAML
    files.

    Raises ConfigError, which names every problem and who set the value.
    """
    return load_with_yaml(words, dirs)[0]


def load_with_yaml(words: Sequence[str], dirs: tuple[Path, ...] = ()) -> tuple[PrepareConfig, str]:
    """Load the configuration, and return it with its YAML as `--cfg job` shows it."""
    loaded = loading.load(loading.assemble(PREPARE, overrides(words), dirs))
    return _complete(loaded.config), loaded.yaml


def _complete(config: PrepareConfig) -> PrepareConfig:
    """Fill in what the sources imply: how their files are read, and their one group."""
    sources = {name: replace(source, kind=kind_of(source)) for name, source in config.corpus.sources.items()}
    groups = config.mix.groups or {source.group: GroupConfig(share=1.0) for source in sources.values()}
    corpus, mix = replace(config.corpus, sources=sources), replace(config.mix, groups=groups)
    return replace(config, corpus=corpus, mix=mix, tokenizer=_found(config.tokenizer))


def _found(tokenizer: TokenizerConfig) -> TokenizerConfig:
    """A path to a .model that is not there is one to a .json where that is, or comes from import_from, so that no verb
    has to know which kind it is."""
    path, origin = Path(tokenizer.path), tokenizer.import_from
    if path.suffix != ".model" or path.exists():
        return tokenizer
    other = path.with_suffix(".json")
    return replace(tokenizer, path=str(other)) if other.is_file() or _is_json(origin) else tokenizer


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
