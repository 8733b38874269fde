"""python -m data_prep sources: what the corpus is made of, what is there, how to get what is missing. No network."""

import importlib.util
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

from coca_train.config.corpus_schema import CorpusConfig, CorpusSourceConfig, PrepareConfig
from coca_train.data.readers import inputs
from coca_train.data.readers.base import escape
from coca_train.data.readers.files import listing
from coca_train.runtime.errors import UserError
from coca_train.runtime.printing import WIDTH, n_bytes, percent, plain
from data_prep import manifest

HEADER = ("source", "kind", "group", "held out", "state", "licence", "files", "size")
LICENCE_CHARACTERS = 34


@dataclass(frozen=True)
class SourceState:
    """files, size: None = not known without asking the network. problem: what to do something about, "" = nothing.

    state: tokenized, begun (by tokenize), ready (its files are there), streamed (from the hub), or missing.
    """

    source: str
    files: int | None
    size: int | None
    state: str
    problem: str = ""


def look(corpus: CorpusConfig) -> list[SourceState]:
    """Return the state of every source, in their order. Raises DataError when corpus.dir holds something else."""
    folder = Path(corpus.dir)
    tokenized = manifest.read(folder)["sources"] if (folder / manifest.NAME).exists() else {}
    done = {name: "tokenized" for name in tokenized}
    done |= {name: "begun" for name in corpus.sources if name not in tokenized and (folder / "parts" / name).exists()}
    return [_source_state(name, source, done.get(name)) for name, source in corpus.sources.items()]


def _source_state(name: str, source: CorpusSourceConfig, done: str | None) -> SourceState:
    if source.kind != "hub":
        try:
            found = inputs(name, source)
        except UserError as error:
            return SourceState(name, 0, 0, done or "missing", str(error))
        n_files = sum(len(input.files) or 1 for input in found)
        return SourceState(name, n_files, sum(input.size for input in found), done or "ready")
    # A folder is counted, a data set of the hub is only known when it is read.
    hub, problem = source.hub or "", ""
    if importlib.util.find_spec("datasets") is None:
        problem = (
            f"E-RAW-25 {escape(hub)}: `datasets` is not installed; it reads data sets of the hub. "
            "Fix: pip install 'coca-train[data]'"
        )
    state = done or ("missing" if problem else "ready" if os.path.isdir(hub) else "streamed")
    if not os.path.isdir(hub):
        return SourceState(name, None, None, state, problem)
    paths = [Path(top) / file for top, _, files in os.walk(hub) for file in files]
    sizes = [path.stat().st_size for path in paths if path.exists()]
    return SourceState(name, len(sizes), sum(sizes), state, problem)


def describe_place(source: CorpusSourceConfig) -> str:
    """Say where a source is read from."""
    if source.kind == "folder":
        return "; ".join(f"{escape(path)}, {listing(path, 'files').describe()}" for path in source.files)
    if source.kind != "hub":
        return escape(" ".join(source.files))
    parts = [source.hub, source.hub_config, source.hub_split, *source.hub_files]
    return escape(", ".join(part for part in parts if part))


def describe_inputs(corpus: CorpusConfig) -> str:
    """Say what is about to be read, and how, a line for each source."""
    return "\n".join(
        f"reading {name} as {source.kind}: {describe_place(source)}" for name, source in corpus.sources.items()
    )


def run(config: PrepareConfig) -> int:
    """Print a table, then what each source is and where it is read from. Reads names and sizes only."""
    corpus, states = config.corpus, look(config.corpus)
    share = "as fits" if corpus.valid_share is None else percent(corpus.valid_share)
    shares = {"hash": share, "none": "none", "all": "all"}
    rows = []
    for one in states:
        source = corpus.sources[one.source]
        files = "?" if one.files is None else f"{one.files:,}"
        size = "?" if one.size is None else n_bytes(one.size)
        licence = textwrap.shorten(source.licence, LICENCE_CHARACTERS, placeholder=" …")
        rows.append([one.source, source.kind, source.group, shares[source.hold_out], one.state, licence, files, size])
    print(plain(HEADER, rows, 6))
    for one in states:
        source = corpus.sources[one.source]
        about = " ".join(source.about.split()) or "(nothing is said about it: corpus.sources.<name>.about)"
        texts = (f"  read as {source.kind} from {describe_place(source)}", f"  licence: {source.licence}")
        print(textwrap.fill(f"{one.source}: {about}", WIDTH, subsequent_indent="  "))
        print(*(textwrap.fill(text, WIDTH, subsequent_indent="    ") for text in texts), sep="\n")
        if one.problem:
            print(f"  {one.problem}")
    missing = [one.source for one in states if one.state == "missing"]
    print(f"\n{len(states)} sources; missing: {', '.join(missing) if missing else 'none'}")
    return 0
