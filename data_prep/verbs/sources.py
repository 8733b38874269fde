"""python -m data_prep sources: what the corpus is made of, what is there, and how to get what is missing."""

import textwrap

from coca_train.runtime.printing import WIDTH, n_bytes, percent, plain
from data_prep.looking.sourcing import look, place
from data_prep.schema import PrepareConfig

HEADER = ("source", "kind", "group", "held out", "state", "licence", "files", "size")
LICENCE_CHARACTERS = 34


def run(config: PrepareConfig) -> int:
    """Print a table, then what each source is and where it is read from. Reads names and sizes only."""
    corpus, found = config.corpus, look(config.corpus)
    shares = {"hash": percent(corpus.valid_share), "none": "none", "all": "all"}
    rows = []
    for one in found:
        source = corpus.sources[one.source]
        files = "?" if one.files is None else f"{one.files:,}"
        size = "?" if one.size is None else n_bytes(one.size)
        licence = textwrap.shorten(source.licence, LICENCE_CHARACTERS, placeholder=" …")
        rows.append([one.source, source.kind, source.group, shares[source.hold_out], one.state, licence, files, size])
    print(plain(HEADER, rows, 6))
    for one in found:
        source = corpus.sources[one.source]
        about = " ".join(source.about.split()) or "(nothing is said about it: corpus.sources.<name>.about)"
        print(textwrap.fill(f"{one.source}: {about}", WIDTH, subsequent_indent="  "))
        print(textwrap.fill(f"read from {place(source)}", WIDTH, initial_indent="  ", subsequent_indent="    "))
        print(textwrap.fill(f"licence: {source.licence}", WIDTH, initial_indent="  ", subsequent_indent="    "))
        if one.problem:
            print(f"  {one.problem}")
    missing = [one.source for one in found if one.state == "missing"]
    print(f"\n{len(found)} sources; missing: {', '.join(missing) if missing else 'none'}")
    return 0
