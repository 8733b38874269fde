"""Make the quickstart's corpus from this Python installation; no network is needed.

Nothing is downloaded and nothing is imported, sources are only parsed:

    code   the .py files of the standard library, one document each (no tests, no tables)
    text   their docstrings, one document a source file, and pydoc's topics (the language reference)

Only MODULES are read, so that the text depends on the version of Python alone: not on other packages, nor
on what a distribution packages separately.
"""

import ast
import hashlib
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Positive
from coca_train.config.verb import Verb
from coca_train.data.dataset import best_dtype
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import DataError
from coca_train.runtime.machine import cores
from data_prep.concatenate import DatasetRecord, DatasetWriter
from data_prep.made_here import build_once, find_corpus, write_manifest
from data_prep.manifest import Manifest, SourceRecord, build, describe
from data_prep.messages import bar, say
from data_prep.parts import DOCS, SPLITS, FileRecord
from data_prep.selection import digest_of
from data_prep.tokenizer_files import copy_companions, train_tokenizer

if TYPE_CHECKING:
    from tqdm import tqdm

# In every Python from 3.11 to 3.14, and in every distribution's package of it.
MODULES = """
    abc argparse ast asyncio base64 bdb bisect bz2 cProfile calendar cmd code codecs codeop collections colorsys
    compileall concurrent configparser contextlib contextvars copy copyreg csv ctypes curses dataclasses
    datetime dbm decimal difflib dis doctest email enum filecmp fileinput fnmatch fractions ftplib functools
    genericpath getopt getpass gettext glob graphlib gzip hashlib heapq hmac html http imaplib importlib inspect
    io ipaddress json keyword linecache locale logging lzma mailbox mimetypes modulefinder multiprocessing netrc
    ntpath numbers opcode operator optparse os pathlib pdb pickle pickletools pkgutil platform plistlib poplib
    posixpath pprint profile pstats pty py_compile pyclbr pydoc queue quopri random re reprlib rlcompleter runpy
    sched secrets selectors shelve shlex shutil signal smtplib socket socketserver sqlite3 ssl stat statistics
    string stringprep struct subprocess symtable tabnanny tarfile tempfile textwrap threading timeit token
    tokenize tomllib trace traceback tracemalloc tty turtle types typing unittest urllib uuid warnings wave
    weakref webbrowser wsgiref xml xmlrpc zipapp zipfile zipimport zoneinfo
""".split()  # noqa: SIM905  # a list of words reads as one
SKIPPED_FOLDERS = {"__pycache__", "test", "tests"}
TOPICS = "pydoc_data/topics.py"
MIN_CHARACTERS = 200


class Document(NamedTuple):
    """One text. file: below the standard library, what the held-out split goes by; a source file's code and docstrings
    share it. line: where the text begins in it."""

    part: str
    file: str
    text: str
    may_be_held_out: bool = True
    line: int = 1


def read_source(path: Path) -> str | None:
    """Return the text of a file, or None where it is not clean UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text.strip("\n") + "\n"


def python_files(library: Path) -> list[Path]:
    """List the .py files of MODULES in the folder of a standard library, by relative path. DataError E-PREP-04 where
    one is missing."""
    files: list[Path] = []
    missing = []
    for name in MODULES:
        module, package = library / f"{name}.py", library / name
        if module.is_file():
            files.append(module)
        elif (package / "__init__.py").is_file():
            files += (p for p in package.rglob("*.py") if not SKIPPED_FOLDERS & set(p.relative_to(package).parts[:-1]))
        else:
            missing.append(name)
    if missing:
        raise DataError(
            f"E-PREP-04 {library}: the standard library is not whole, it lacks {', '.join(missing[:5])}"
            f"{' and more' if len(missing) > 5 else ''} as .py files. Fix: use a full Python installation"
        )
    return sorted(files, key=lambda path: path.relative_to(library).as_posix())


def docstrings(source: str) -> tuple[str, int]:
    """Return every docstring of a module under the dotted name of what it describes, and the line of the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return "", 1
    found: list[tuple[str, int]] = []  # text and line

    def visit(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
        if text := ast.get_docstring(node):
            found.append((f"{name}\n\n{text}" if name else text, node.body[0].lineno))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, f"{name}.{child.name}" if name else child.name)

    visit(tree, "")
    return ("\n\n\n".join(text for text, _ in found) + "\n", found[0][1]) if found else ("", 1)


def topics(library: Path) -> Iterator[Document]:
    """Yield the topics of pydoc (help('topics')), read from the source's dict without running it.

    Topics overlap (a chapter and its sections): a topic inside another one is left out, and none is held out.
    """
    source = read_source(library / TOPICS)
    if source is None:
        raise DataError(f"E-PREP-04 {library / TOPICS}: cannot be read. Fix: use a full Python installation")
    texts: dict[str, tuple[str, int]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if key is not None:
                    texts[str(ast.literal_eval(key))] = str(ast.literal_eval(value)).strip(), key.lineno
    for name, (text, line) in sorted(texts.items()):
        if not any(text in other for key, (other, _) in texts.items() if key != name and len(other) > len(text)):
            yield Document("text", TOPICS, text + "\n", may_be_held_out=False, line=line)


def modules(library: Path) -> Iterator[Document]:
    """Yield the code and the docstrings of MODULES."""
    for path in python_files(library):
        source, file = read_source(path), path.relative_to(library).as_posix()
        if source is None or len(source) < MIN_CHARACTERS:
            continue
        yield Document("code", file, source)
        text, line = docstrings(source)
        if len(text) >= MIN_CHARACTERS:
            yield Document("text", file, text, line=line)


def installation(library: Path | None = None) -> Iterator[Document]:
    """Yield the documents of a standard library (None: this Python's), exact duplicates removed, always in the
    same order."""
    library = library or Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    for document in (*modules(library), *topics(library)):
        key = hashlib.sha256(document.text.encode()).hexdigest()
        if key not in seen:
            seen.add(key)
            yield document


NAME, TOKENIZER = "embedded", "tokenizer.model"
WEIGHTS = {"text": 0.5, "code": 0.5}
VOCABULARY_CHARACTERS = 4_000_000
BATCH = 64  # documents encoded together
LICENCE = "PSF-2.0 (Python Software Foundation)"
HELD_OUT_SHARE = 0.03
# By length [characters], how many are held out of each part at least: more than 2,048 tokens, as many documents as a
# verdict on 16 windows of 128 needs; more than 8,192. None is so long that one file is the held-out set.
LONG = {range(8_000, 28_000): 6, range(28_000, 60_000): 5}

USAGE = """\
Make the quickstart's corpus from this Python installation; no network is needed.

  python -m data_prep embedded                      what `python -m coca_train` makes by itself when it is missing
  python -m data_prep embedded dir=data/mine vocab_size=8192
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EmbeddedConfig:
    """Where the corpus goes."""

    dir: str = Field(default="data/embedded", description="folder to make")
    vocab_size: Positive = Field(default=4096, description="size of the SentencePiece vocabulary [token ids]")


def _embedded(loaded: Loaded[EmbeddedConfig], arguments: Arguments) -> None:
    options: EmbeddedConfig = loaded.config
    manifest = existing(Path(options.dir), options.vocab_size)
    if manifest is None:
        make(options.dir, options.vocab_size)
    else:
        print(f"{options.dir}: is there already, nothing to do\n{describe(manifest)}")


EMBEDDED = Root(
    name="embedded",
    schema=EmbeddedConfig,
    command="data_prep embedded",
    examples="dir=data/mine",
)
VERB = Verb(EMBEDDED, USAGE, _embedded)


def hash_fraction(file: str) -> float:
    """Return a number in [0, 1) that depends on the file's name alone."""
    return int.from_bytes(hashlib.sha256(file.encode()).digest()[:6], "big") / (1 << 48)


def held_out_files(documents: Sequence[Document]) -> set[str]:
    """Choose the files whose place is below HELD_OUT_SHARE, and in each part the first LONG documents by place.

    A source file is held out as a whole: its code and its docstrings never end up on different sides.
    """
    eligible = sorted((d for d in documents if d.may_be_held_out), key=lambda d: (hash_fraction(d.file), d.file))
    held_out = {d.file for d in eligible if hash_fraction(d.file) < HELD_OUT_SHARE}
    for part in sorted({d.part for d in eligible}):
        for lengths, number in LONG.items():
            held_out |= set([d.file for d in eligible if d.part == part and len(d.text) in lengths][:number])
    return held_out


def make(
    dir: str | Path,
    vocab_size: int = 4096,
    progress: bool = True,
    documents: Iterable[Document] | None = None,
    tokenizer: Path | None = None,
) -> Manifest:
    """Make the corpus in `dir` unless it is there, and return its manifest.

    Safe when several processes call it at once: one builds, the others wait and find it.
    documents: instead of the installation's (tests). progress: bars and a table on stderr. tokenizer: of weights that
    are to be trained on it; None: one of vocab_size pieces is trained.
    Raises DataError: E-PREP-01 vocabulary size, 02 the folder holds something else, 03 damaged, 04 too little text.
    """
    dir, of_weights = Path(dir), None if tokenizer is None else Tokenizer(tokenizer)
    vocab_size = vocab_size if of_weights is None else of_weights.vocab_size
    return build_once(
        dir,
        lambda: existing(dir, vocab_size),
        lambda building: _build(building, vocab_size, progress, documents, of_weights),
        progress,
    )


def existing(dir: Path, vocab_size: int) -> Manifest | None:
    """Return the manifest of a corpus already in `dir`, its file sizes checked; None when there is nothing yet."""

    def wrong(manifest: Manifest) -> str:
        has = manifest["tokenizer"]["vocab_size"]
        return f"holds a corpus with {has} token ids, and vocab_size={vocab_size}" if has != vocab_size else ""

    return find_corpus(dir, NAME, wrong)


def _build(
    folder: Path, vocab_size: int, progress: bool, documents: Iterable[Document] | None, tokenizer: Tokenizer | None
) -> Manifest:
    """Make everything in `folder`; the manifest is written last."""
    say("embedded corpus: reading the sources and docstrings of Python's standard library", progress)
    gathered = list(installation() if documents is None else documents)
    held_out = held_out_files(gathered)
    groups = {
        (part, split): [d for d in gathered if d.part == part and (d.file in held_out) == (split == "valid")]
        for part in WEIGHTS
        for split in SPLITS
    }
    for (part, split), group in groups.items():
        if not group:
            raise DataError(
                f"E-PREP-04 {folder}: this Python installation gives no {part} for {split} ({len(gathered)} documents "
                "in all); its standard library must be there as .py files. Fix: use a full Python installation"
            )
    if tokenizer is None:
        say(f"embedded corpus: training a {vocab_size}-piece SentencePiece vocabulary", progress)
        sample = [text for part in WEIGHTS for text in _vocabulary_sample(groups[part, "train"], WEIGHTS[part])]
        train_tokenizer(sample, folder / TOKENIZER, vocab_size)
    else:
        say(f"embedded corpus: with the {vocab_size} tokens of {tokenizer.path}", progress)
        (folder / TOKENIZER).write_bytes(untrusted_io.read_bytes(tokenizer.path))
        copy_companions(Path(tokenizer.path), tokenizer, (folder / TOKENIZER).with_suffix(""))
    tokenizer = Tokenizer(folder / TOKENIZER)
    datasets: dict[str, DatasetRecord] = {}
    files: dict[str, FileRecord] = {
        TOKENIZER: {"bytes": (folder / TOKENIZER).stat().st_size, "sha256": tokenizer.digest}
    }
    sources: dict[str, SourceRecord] = {}
    with bar("tokenizing", sum(len(d.text) for d in gathered), progress) as tokenized:
        for part in WEIGHTS:
            inputs = sorted({d.file for d in gathered if d.part == part})
            for split in SPLITS:
                name = f"{part}_{split}"
                group = groups[part, split]
                datasets[name], written = _write_dataset(folder, name, group, inputs, tokenizer, tokenized)
                files |= written
            n = sum(len(groups[part, split]) for split in SPLITS)
            sources[part] = {
                "group": part,
                "licence": LICENCE,
                "about": f"the standard library of Python {sys.version.split()[0]}",
                "inputs": [{"name": file} for file in inputs],
                "counts": {"read": n, "kept": n},
            }
    return write_manifest(
        folder, build(NAME, folder, tokenizer, {"corpus": {}, "sources": {}}, sources, datasets, files)
    )


def _vocabulary_sample(documents: Sequence[Document], weight: float) -> list[str]:
    """Choose training documents, evenly spread, about weight * VOCABULARY_CHARACTERS in all."""
    share = min(1.0, weight * VOCABULARY_CHARACTERS / sum(len(document.text) for document in documents))
    return [d.text for i, d in enumerate(documents) if int((i + 1) * share) > int(i * share)]


def _write_dataset(
    folder: Path, name: str, documents: Sequence[Document], inputs: list[str], tokenizer: Tokenizer, progress: "tqdm"
) -> tuple[DatasetRecord, dict[str, FileRecord]]:
    """Write documents to the files of a dataset; return what the manifest says of it and of them."""
    dtype = np.dtype(best_dtype(tokenizer.vocab_size))
    with DatasetWriter(folder, name, dtype, len(documents)) as writer:
        for begin in range(0, len(documents), BATCH):
            batch = documents[begin : begin + BATCH]
            encoded = tokenizer.encode_batch([document.text for document in batch], num_threads=cores())
            for (_, file, text, _, line), ids in zip(batch, encoded, strict=True):
                row = np.zeros(1, DOCS)
                row["line"], row["tokens"], row["characters"] = line, len(ids) + 1, len(text)
                row["bytes"], row["digest"] = len(text.encode()), np.void(digest_of(text))
                writer.write_tokens(np.array([*ids, tokenizer.eod], dtype.newbyteorder("<")).tobytes())
                writer.add(inputs.index(file), row)
            progress.update(sum(len(document.text) for document in batch))
    return writer.counts, writer.files
