"""verify: every changed bit and every wrong pair is found, named in words, and ends with exit code 3."""

import hashlib
import json
import random
import re
import shutil
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.dataset import IndexedDataset, IndexedWriter
from coca_train.data.index import HEADER
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from data_prep import concatenate, manifest
from data_prep.verbs import verify
from data_prep.verbs.merge import merge
from tests.data.vocabularies import TEXT, trained
from tests.data_prep.support_parts import Doc, configuration, contents, text_digest, write_parts

BLOCK = 256  # bytes of a block in these tests
N_FLIPS = 60


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PrepareConfig:
    folder = tmp_path_factory.mktemp("made")
    tokenizer = trained(folder / "corpus" / "tokenizer.model")
    config = configuration(folder, tokenizer, books={}, code={})
    books = [Doc(f"book {i}: Übergrößenträger 🐈\n" + "the cat sat on the mat\n" * (i % 7)) for i in range(40)]
    write_parts(config, {"books": [[books]], "code": [[[Doc(f"def f{i}():\n    return {i}\n") for i in range(60)]]]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concatenate, "BLOCK_BYTES", BLOCK)
        patch.setattr(manifest, "BLOCK_BYTES", BLOCK)
        merge(config)
    return config


@pytest.fixture
def copy(prepared: PrepareConfig, tmp_path: Path) -> PrepareConfig:
    shutil.copytree(prepared.corpus.dir, tmp_path / "copy")
    return replace(prepared, corpus=replace(prepared.corpus, dir=str(tmp_path / "copy")))


def faults(config: PrepareConfig, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What verify finds; each fault is one line that says what to do, and the exit code is 3."""
    try:
        code = verify.run(config)
        lines = capsys.readouterr().out.split("\n\n")[1].strip().splitlines()
    except DataError as error:
        code, lines = error.exit_code, [str(error)]
    errors = [line for line in lines if line.startswith("E-")]
    assert code == (3 if errors else 0)
    assert all("Fix: " in line for line in errors)
    if not errors:
        assert re.fullmatch(r".*: verified, 16 files, [0-9,]+ bytes", lines[0])
    return errors


def test_a_whole_corpus(copy: PrepareConfig, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(Path(copy.corpus.dir))
    assert verify.run(copy) == 0
    out = capsys.readouterr().out
    record = manifest.read(copy.corpus.dir)
    for name, dataset in record["datasets"].items():
        row = next(line.split() for line in out.splitlines() if line.startswith(name))
        assert row[1] == "good"
        assert [int(n.replace(",", "")) for n in row[2:5]] == [
            dataset["documents"],
            dataset["tokens"],
            dataset["documents"],  # so small that every text is decoded
        ]
    assert faults(copy, capsys) == []
    assert contents(Path(copy.corpus.dir)) == before


def test_random_changed_bits_are_found_and_named(copy: PrepareConfig, capsys: pytest.CaptureFixture[str]) -> None:
    dir = Path(copy.corpus.dir)
    files = [*manifest.read(dir)["files"], "manifest.json", "tokenizer.model"]
    rng = random.Random(5)
    for _ in range(N_FLIPS):
        path = dir / rng.choice(files)
        original = path.read_bytes()
        at = rng.randrange(len(original))
        changed = bytearray(original)
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        errors = faults(copy, capsys)
        assert errors, (path, at)
        assert path.stem.split(".")[0] in "".join(errors)
        if path.suffix == ".bin":
            begin = at // BLOCK * BLOCK
            end = min(begin + BLOCK, len(original))
            assert f"E-TOK-08 {path} block {at // BLOCK}, bytes {begin} to {end - 1}:" in "".join(errors)
        path.write_bytes(original)
    assert faults(copy, capsys) == []


def sign(dir: Path) -> None:
    """Make the manifest and the block sums agree with the files as they are: only their content can tell now."""
    record = json.loads((dir / "manifest.json").read_text(encoding="utf-8"))
    for name in record["files"]:
        if name.endswith(".sums"):
            data = (dir / name.replace(".sums", ".bin")).read_bytes()
            blocks = [data[i : i + BLOCK] for i in range(0, len(data), BLOCK)]
            (dir / name).write_bytes(b"".join(hashlib.blake2b(b, digest_size=8).digest() for b in blocks))
    for name, file in record["files"].items():
        data = (dir / name).read_bytes()
        file["bytes"], file["sha256"] = len(data), hashlib.sha256(data).hexdigest()
    (dir / "manifest.json").write_bytes(manifest.dump(record))


def say(dir: Path, *keys: str, value: Any) -> None:
    """Change a value in the manifest, and sign it."""
    record = json.loads((dir / "manifest.json").read_text(encoding="utf-8"))
    at = record
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    (dir / "manifest.json").write_bytes(manifest.dump(record))


def ids(dir: Path, name: str) -> np.ndarray:
    return np.fromfile(dir / f"{name}.bin", "<u2")


def end_of(dir: Path, name: str, document: int) -> int:
    return IndexedDataset(dir / name).document_start(document + 1) - 1


def put_ids(dir: Path, name: str, changes: dict[int, int]) -> None:
    tokens = ids(dir, name)
    for at, value in changes.items():
        tokens[at] = value
    tokens.tofile(dir / f"{name}.bin")
    sign(dir)


def put_idx(dir: Path, name: str, at: Callable[[int], int], fmt: str, *values: int) -> None:
    """Write into an index; at: from the number of its sequences to the byte."""
    idx = bytearray((dir / f"{name}.idx").read_bytes())
    struct.pack_into(fmt, idx, at(HEADER.unpack_from(idx)[3]), *values)
    (dir / f"{name}.idx").write_bytes(idx)
    sign(dir)


def exchange(dir: Path, one: str, other: str) -> None:
    (dir / one).rename(dir / "aside")
    (dir / other).rename(dir / one)
    (dir / "aside").rename(dir / other)


def rewrite(dir: Path, name: str, dtype: type, documents: Sequence[Any]) -> None:
    """Other documents in place of those there; what stands beside them stays."""
    beside = {path: path.read_bytes() for path in (dir / f"{name}.sums", dir / f"{name}.origins.npy")}
    with IndexedWriter(dir / name, dtype) as writer:
        for document in documents:
            writer.add_document(document)
    for path, content in beside.items():
        path.write_bytes(content)
    sign(dir)


def retype(dir: Path, name: str, dtype: type) -> None:
    """The same documents in another dtype."""
    data = IndexedDataset(dir / name)
    rewrite(dir, name, dtype, [data.document(i) for i in range(data.n_documents)])


def empty_document(dir: Path, name: str) -> None:
    """One document of no tokens more, and the manifest says so."""
    data = IndexedDataset(dir / name)
    documents = [data.document(i) for i in range(data.n_documents)]
    rewrite(dir, name, np.uint16, [*documents[:3], [], *documents[3:]])
    say(dir, "datasets", name, "documents", value=len(documents) + 1)


def cut(path: Path, n: int) -> None:
    path.write_bytes(path.read_bytes()[:n])


def extend(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def origins(dir: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    path = dir / f"{name}.origins.npy"
    np.save(path, change(np.load(path, allow_pickle=False)), allow_pickle=False)
    sign(dir)


def exchange_texts(rows: np.ndarray) -> np.ndarray:
    rows["digest"][[1, 2]] = rows["digest"][[2, 1]]
    return rows


def resign_tokenizer(dir: Path) -> None:
    """As many ids, the same end, another vocabulary, and the manifest says it is the one."""
    trained(dir / "tokenizer.model", 512, TEXT)
    say(dir, "tokenizer", "sha256", value=Tokenizer(dir / "tokenizer.model").digest)


def put_length(value: int) -> Callable[[Path], None]:
    return lambda d: put_idx(d, "code_train", lambda n: HEADER.size + 4, "<i", value)


def exchange_all(dir: Path, *ends: str) -> None:
    for end in ends:
        exchange(dir, f"code_train{end}", f"books_train{end}")
    sign(dir)


# what is done to the corpus, and code, file and value of what is said
TAMPERED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "bin missing": (lambda d: (d / "code_train.bin").unlink(), "E-TOK-01 .*code_train.bin: "),
    "idx missing": (lambda d: (d / "code_train.idx").unlink(), "E-TOK-01 .*code_train.idx: "),
    "sums missing": (lambda d: (d / "code_train.sums").unlink(), "E-TOK-01 .*code_train.sums: "),
    "origins missing": (lambda d: (d / "code_train.origins.npy").unlink(), "E-TOK-01 .*code_train.origins.npy: "),
    "manifest missing": (lambda d: (d / "manifest.json").unlink(), "E-TOK-23 .*manifest.json"),
    "tokenizer missing": (lambda d: (d / "tokenizer.model").unlink(), "E-TKN-01 .*tokenizer.model"),
    "bin truncated": (lambda d: cut(d / "books_train.bin", 100), "E-TOK-04 .*books_train.bin: 100 bytes"),
    "bin empty": (lambda d: cut(d / "books_train.bin", 0), "E-TOK-04 .*books_train.bin: 0 bytes"),
    "bin longer": (lambda d: extend(d / "books_train.bin", b"\0\0"), r"E-TOK-04 .*books_train.bin: \d+ bytes"),
    "idx truncated": (lambda d: cut(d / "books_train.idx", 90), "E-TOK-05 .*books_train.idx"),
    "idx longer": (lambda d: extend(d / "books_train.idx", b"\0"), r"E-TOK-04 .*books_train.idx: \d+ bytes"),
    "sums truncated": (lambda d: cut(d / "books_train.sums", 8), "E-TOK-04 .*books_train.sums: 8 bytes"),
    "bin of another dataset": (lambda d: exchange_all(d, ".bin"), "E-TOK-04 .*idx"),
    "idx of another bin": (lambda d: exchange_all(d, ".idx"), "E-TOK-04 .*idx"),
    "both of another dataset": (lambda d: exchange_all(d, ".bin", ".idx"), r"E-TOK-25 .*documents \d+"),
    "unsigned idx of another bin": (
        lambda d: exchange(d, "code_train.idx", "books_train.idx"),
        r"E-TOK-04 .*code_train.idx: \d+ bytes",
    ),
    "origins of another dataset": (lambda d: exchange_all(d, ".origins.npy"), r"E-TOK-22 .* \d+ documents"),
    "another dtype": (lambda d: retype(d, "code_train", np.int32), "E-TOK-25 .*: dtype int32"),
    "dtype of the idx alone": (
        lambda d: put_idx(d, "code_train", lambda n: 17, "<B", 4),
        "E-TOK-06 .*code_train.idx entry 1",
    ),
    "a length of nothing": (put_length(0), "E-TOK-06 .*code_train.idx entry [12]"),
    "a document of nothing": (lambda d: empty_document(d, "code_train"), "E-TOK-06 .*code_train.idx document 3"),
    "a negative length": (put_length(-3), "E-TOK-06 .*code_train.idx entry 1: length -3"),
    "a pointer elsewhere": (
        lambda d: put_idx(d, "code_train", lambda n: HEADER.size + 4 * n + 16, "<q", 2),
        "E-TOK-06 .*code_train.idx entry 2",
    ),
    "two sequences a document": (
        lambda d: put_idx(d, "code_train", lambda n: HEADER.size + 12 * n + 8, "<q", 2),
        "E-TOK-06 .*code_train.idx document 1",
    ),
    "ids beyond the vocabulary": (
        lambda d: put_ids(d, "code_train", {end_of(d, "code_train", 4) - 2: 512}),
        r"E-TOK-09 .*code_train.bin document 4, token \d+ .*id 512; .* 512",
    ),
    "the largest id there is": (
        lambda d: put_ids(d, "books_valid", {0: 65535}),
        "E-TOK-09 .*books_valid.bin document 0, token 0 .*id 65535",
    ),
    "end token missing": (
        lambda d: put_ids(d, "code_train", {end_of(d, "code_train", 7): 300}),
        r"E-TOK-21 .*code_train.bin document 7, token \d+ .*id 2",
    ),
    "last end token missing": (
        lambda d: put_ids(d, "code_train", {-1: 300}),
        r"E-TOK-21 .*code_train.bin document \d+",
    ),
    "end token inside": (
        lambda d: put_ids(d, "code_train", {end_of(d, "code_train", 7) + 2: 2}),
        "E-TOK-21 .*code_train.bin document 8,",
    ),
    "a word changed": (
        lambda d: put_ids(d, "code_train", {end_of(d, "code_train", 9) - 1: 300}),
        r"E-TOK-26 .*code_train document 9 \(input 0, line \d+\)",
    ),
    "documents exchanged": (lambda d: origins(d, "code_train", exchange_texts), "E-TOK-26 .*code_train document 1 "),
    "a row too few": (lambda d: origins(d, "code_train", lambda rows: rows[:-1]), "E-TOK-22 .*code_train.origins"),
    "rows of another kind": (
        lambda d: origins(d, "code_train", lambda rows: rows["line"]),
        "E-TOK-22 .*origins.npy: uint64 ",
    ),
    "pickled origins": (
        lambda d: (np.save(d / "code_train.origins.npy", np.array([{}] * 3), allow_pickle=True), sign(d)),
        "E-TOK-22 .*Python objects",
    ),
    "tokenizer swapped": (lambda d: trained(d / "tokenizer.model", 520), "E-TOK-11 .*tokenizer.model"),
    "tokenizer swapped and signed": (resign_tokenizer, "E-TOK-26 "),
    "vocabulary smaller than said": (
        lambda d: say(d, "tokenizer", "vocab_size", value=600),
        "E-TOK-11 .*token ids 512.* 600",
    ),
    "another end token": (lambda d: say(d, "end_of_document", value=3), "E-TOK-11 .*end-of-document id 2.* 3"),
    "more documents than there are": (
        lambda d: say(d, "datasets", "code_train", "documents", value=1000),
        r"E-TOK-25 .*documents \d+.* 1000",
    ),
    "more tokens than there are": (
        lambda d: say(d, "datasets", "code_train", "tokens", value=7),
        r"E-TOK-25 .*tokens \d+.* 7",
    ),
    "a dataset without files": (
        lambda d: say(d, "datasets", "ghost_train", value={"documents": 1, "tokens": 1}),
        "E-TOK-27 .*ghost_train.bin: ",
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_what_was_tampered_with_is_reported(copy: PrepareConfig, capsys: pytest.CaptureFixture[str], case: str) -> None:
    change, message = TAMPERED[case]
    change(Path(copy.corpus.dir))
    errors = faults(copy, capsys)
    assert any(re.match(message, line) for line in errors), errors
    assert all(len(line) < 600 for line in errors)


def test_only_what_is_wrong_is_reported(copy: PrepareConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """Faults of one dataset do not hide, or cast doubt on, the others."""
    dir = Path(copy.corpus.dir)
    (dir / "books_train.idx").unlink()
    cut(dir / "code_valid.sums", 0)
    errors = faults(copy, capsys)
    assert [line.split(":")[0].split("/")[-1] for line in errors] == [
        "books_train.idx",
        "books_train.idx",
        "code_valid.sums",
    ]


def test_many_damaged_blocks_are_counted(copy: PrepareConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(copy.corpus.dir) / "books_train.bin"
    path.write_bytes(bytes(path.stat().st_size))
    errors = faults(copy, capsys)
    n_blocks = -(-path.stat().st_size // BLOCK)
    assert sum(" block " in line for line in errors) == verify.NAMED
    assert f"{n_blocks - verify.NAMED} more blocks " in errors[-1]


def test_large_datasets_are_read_here_and_there(
    copy: PrepareConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "SMALL_TOKENS", 10)
    monkeypatch.setattr(verify, "LEAST_DECODED", 3)
    assert verify.run(copy) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[4] for row in rows if row and row[0].startswith(("books", "code"))] == ["3"] * 4


def test_chunks_and_blocks_fit_together(copy: PrepareConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """Documents that end at, before and behind the edge of a block; every fault is in its document."""
    dir = Path(copy.corpus.dir)
    data = IndexedDataset(dir / "code_train")
    bounds, good = data.document_bounds(), (dir / "code_train.bin").read_bytes()
    record = manifest.read(dir)
    for size in (2, 6, 64, 100_000):
        messages: list[str] = []
        documents = verify.DocumentEnds(data, record, messages.append)
        for begin in range(0, len(good), size):
            documents.check(good[begin : begin + size], begin)
        assert messages == []
    for token in range(0, data.n_tokens, 5):
        tokens = np.frombuffer(good, "<u2").copy()
        document = int(np.searchsorted(bounds, token, side="right")) - 1
        is_end = tokens[token] == record["end_of_document"]
        tokens[token] = 300 if is_end else record["end_of_document"]
        messages = []
        documents = verify.DocumentEnds(data, record, messages.append)
        for begin in range(0, len(good), 64):
            documents.check(tokens.tobytes()[begin : begin + 64], begin)
        assert len(messages) == 1 and f"document {document}, token {token} of" in messages[0]


def peak(dir: Path, tokenizer: Tokenizer, n: int) -> int:
    """Most memory the check of a dataset of n documents held at once [bytes]."""
    dir.mkdir()
    document = [*tokenizer.encode("the cat sat on the mat"), tokenizer.eod]
    rows = np.zeros(n, concatenate.ORIGINS)
    rows["digest"] = np.void(text_digest("the cat sat on the mat"))
    docs = np.zeros(n, [("tokens", "<u4"), ("characters", "<u4"), ("bytes", "<u4"), ("line", "<u8"), ("digest", "V16")])
    docs["tokens"], docs["digest"] = len(document), rows["digest"]
    with concatenate.DatasetWriter(dir, "x", np.uint16, n) as writer:
        for begin in range(0, n, 100):
            writer.write_tokens(np.tile(np.array(document, "<u2"), 100).tobytes())
            writer.add(0, docs[begin : begin + 100])
    record = {
        "tokenizer": {"file": tokenizer.path, "sha256": tokenizer.digest, "vocab_size": tokenizer.vocab_size},
        "end_of_document": tokenizer.eod,
        "dtype": "uint16",
        "datasets": {"x": writer.counts},
        "files": writer.files,
        "blocks": {"bytes": concatenate.BLOCK_BYTES},
    }
    tracemalloc.start()
    assert not any(c.faults for c in verify.verify(dir, record, 5, SimpleNamespace(update=lambda _: None)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def test_memory_does_not_grow_with_the_corpus(
    prepared: PrepareConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concatenate, "BLOCK_BYTES", 4096)
    for name, value in {"CHUNK": 200, "SMALL_TOKENS": 100, "LEAST_DECODED": 10}.items():
        monkeypatch.setattr(verify, name, value)
    for module in ("index", "dataset"):
        monkeypatch.setattr(f"coca_train.data.{module}.CHUNK", 200)
    tokenizer = Tokenizer(prepared.tokenizer.path)
    peak(tmp_path / "warm", tokenizer, 400)
    small, large = (peak(tmp_path / str(n), tokenizer, n) for n in (2_000, 32_000))
    print(f"\npeak {small / 1e3:.0f} KB for 2 000 documents, {large / 1e3:.0f} KB for 32 000")
    assert large < 1.25 * small + 20_000
