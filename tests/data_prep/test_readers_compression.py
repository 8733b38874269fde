"""gzip and zstd: streamed, damaged anywhere in words, never a quiet end before the end, never a bomb in memory."""

import gzip
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

from coca_train.config.corpus_schema import CorpusSourceConfig
from coca_train.data.readers import chunks, inputs
from coca_train.data.readers import jsonl as packing
from coca_train.data.readers.base import Document, Reject
from coca_train.runtime.errors import DataError
from tests.data_prep.reading import complaint, cut, line, parsed, read, source_of, texts, work_of

zstandard = pytest.importorskip("zstandard")
TEXTS = [f"document {i} {i * i} é" for i in range(500)]
PLAIN = b"".join(map(line, TEXTS))
PACK = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}


def pack(end: str, plain: bytes = PLAIN) -> bytes:
    return PACK[end](plain)


@pytest.mark.parametrize("end", PACK)
def test_several_members(tmp_path: Path, end: str) -> None:
    """Files made with cat, bgzip or pzstd; borders in the middle of a line, and empty members."""
    parts = [PLAIN[:1000], b"", PLAIN[1000:1001], PLAIN[1001:]]
    content = b"".join(pack(end, part) for part in parts)
    if end == ".zst":  # a frame to be passed over in front, inside and behind
        skipped = b"\x5e\x2a\x4d\x18" + struct.pack("<I", 3000) + b"\x28" * 3000
        content = skipped + pack(end, parts[0]) + skipped * 2 + pack(end, PLAIN[1000:]) + skipped
    else:
        content += b"\0" * 700  # padding of tapes
    (tmp_path / f"x.jsonl{end}").write_bytes(content)
    assert texts(read(source_of(tmp_path / f"x.jsonl{end}"), work_of(chunk_bytes=900))) == TEXTS


@pytest.mark.parametrize("end", PACK)
def test_members_end_anywhere_in_a_block(tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also exactly where a block ends, or one byte before it."""
    members = [pack(end, PLAIN[:700]), pack(end, PLAIN[700:900]), pack(end, PLAIN[900:2000])]
    (tmp_path / f"x.jsonl{end}").write_bytes(b"".join(members))
    expected = [text for text in TEXTS if PLAIN.index(line(text)) + len(line(text)) <= 2000]
    for size in (1, 2, 17, 18, 19, *(len(members[0]) + more for more in range(-19, 2))):
        monkeypatch.setattr(packing, "BLOCK_BYTES", size)
        monkeypatch.setattr(packing, "ZSTD_FEED_BYTES", size)
        chunks = cut(source_of(tmp_path / f"x.jsonl{end}"))
        assert b"".join(chunk.data for chunk in chunks) == PLAIN[:2000]
        assert texts(parsed(chunks, source_of())) == expected


@pytest.mark.parametrize("end", PACK)
def test_large_and_random(tmp_path: Path, end: str) -> None:
    """Megabytes that hardly pack, so that several blocks are read, and megabytes that pack well."""
    import random

    letters = random.Random(1)
    many = ["".join(letters.choices("abcdefghijklmnop \n", k=20_000)) for _ in range(150)] + ["ab" * 100_000] * 20
    (tmp_path / f"x.jsonl{end}").write_bytes(pack(end, b"".join(map(line, many))))
    pieces = cut(source_of(tmp_path / f"x.jsonl{end}"), work_of(chunk_bytes=1 << 18))
    assert texts(parsed(pieces, source_of())) == many
    positions = [chunk.position for chunk in pieces]
    assert positions == sorted(positions) and len(set(positions)) > 1


@pytest.mark.parametrize("end", PACK)
def test_truncated_at_every_length(tmp_path: Path, end: str) -> None:
    """No length of a cut file is taken for the whole; what is before the cut keeps its line numbers."""
    whole = pack(end, PLAIN[:3000])
    path = tmp_path / f"x.jsonl{end}"
    lengths = [*range(4, 40), *range(40, len(whole) - 20, 37), *range(len(whole) - 20, len(whole))]
    for length in lengths:
        path.write_bytes(whole[:length])
        text = complaint(source_of(path), work_of(chunk_bytes=100))
        assert text.startswith(f"E-RAW-14 {path}:"), (length, text)
        number, rest = text.removeprefix(f"E-RAW-14 {path}:").split(":", 1)
        n_bytes = int(rest.split("after ")[1].split(" ")[0])
        assert ("truncated" in rest or length < 18) and int(number) == PLAIN[:n_bytes].count(b"\n") + 1
    path.write_bytes(b"")
    assert complaint(source_of(path)).startswith(f"E-RAW-03 {path}: ")


@pytest.mark.parametrize("end", PACK)
def test_one_bit_wrong_anywhere(tmp_path: Path, end: str) -> None:
    """A flipped bit is either found or changes nothing (a time stamp in the header)."""
    whole = pack(end, PLAIN[:3000])
    path = tmp_path / f"x.jsonl{end}"
    path.write_bytes(whole)
    good = read(source_of(path))
    silent = 0
    for at in [*range(4, 30), *range(30, len(whole) - 10, 41), *range(len(whole) - 10, len(whole))]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        if at < 10 and attempt(source_of(path)) == good:
            silent += 1
        else:
            assert complaint(source_of(path)).startswith(("E-RAW-14 ", "E-RAW-16 ")), at
    assert silent <= 6  # time stamp, flags and system of a gzip header


def attempt(source: CorpusSourceConfig) -> list[Document | Reject]:
    """What is read; nothing when the file is refused."""
    try:
        return read(source)
    except DataError:
        return []


@pytest.mark.parametrize("end", PACK)
@pytest.mark.parametrize("more", [b"x", b"garbage", b"\n", PLAIN, b"\x1f", b"\x28\xb5", b"\0" * 2_000_000 + b"x"])
def test_garbage_after_the_end(tmp_path: Path, end: str, more: bytes) -> None:
    (tmp_path / f"x.jsonl{end}").write_bytes(pack(end) + more)
    text = complaint(source_of(tmp_path / f"x.jsonl{end}"))
    assert text.startswith(f"E-RAW-14 {tmp_path}/x.jsonl{end}:501: ")
    assert f"after {len(PLAIN)} decompressed bytes" in text


@pytest.mark.parametrize("end", PACK)
def test_bomb(tmp_path: Path, end: str) -> None:
    """110 MB of one line or of blank lines end at 64 MiB, with little memory."""
    path = tmp_path / f"x.jsonl{end}"
    for letter in (b"\n", b"x"):
        engine = zstandard.ZstdCompressor().compressobj() if end == ".zst" else zlib.compressobj(9, wbits=31)
        whole = zstandard.COMPRESSOBJ_FLUSH_BLOCK if end == ".zst" else zlib.Z_FULL_FLUSH
        begin, again = (engine.compress(letter * 1_000_000) + engine.flush(whole) for _ in range(2))
        path.write_bytes(begin + again * 109)  # each megabyte is packed alike
        tracemalloc.start()
        try:
            text = complaint(source_of(path), work_of(max_line_bytes=1 << 20))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert text.startswith(f"E-RAW-16 {path}:") and " 200 times " in text
        assert 64 << 20 < int(text.split("bytes became ")[1].split(",")[0]) < 97 << 20
        assert peak < 160 << 20 if end == ".zst" else peak < 12 << 20


def test_what_packs_well_is_no_bomb(tmp_path: Path) -> None:
    """Below 64 MiB the ratio is free."""
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(line("x" * 30_000_000)))
    (document,) = texts(read(source_of(tmp_path / "x.jsonl.gz"), work_of(max_line_bytes=1 << 26)))
    assert len(document) == 30_000_000


def test_zstd_window(tmp_path: Path) -> None:
    for log, good in ((27, True), (28, False), (31, False)):
        settings = zstandard.ZstdCompressionParameters(window_log=log, write_content_size=False)
        engine = zstandard.ZstdCompressor(compression_params=settings).compressobj()
        (tmp_path / "x.jsonl.zst").write_bytes(pack(".zst") + engine.compress(PLAIN) + engine.flush())
        source = source_of(tmp_path / "x.jsonl.zst")
        if good:
            assert texts(read(source)) == TEXTS * 2
        else:
            text = complaint(source)
            assert text.startswith(f"E-RAW-16 {tmp_path}/x.jsonl.zst:501: ") and f" {1 << log}" in text


def test_zstd_with_a_dictionary(tmp_path: Path) -> None:
    words = zstandard.ZstdCompressionDict(PLAIN[:5000])
    (tmp_path / "x.jsonl.zst").write_bytes(zstandard.ZstdCompressor(dict_data=words).compress(PLAIN))
    settings = zstandard.train_dictionary(4096, [line(text) for text in TEXTS] * 4)
    (tmp_path / "y.jsonl.zst").write_bytes(zstandard.ZstdCompressor(dict_data=settings).compress(PLAIN))
    for name in "xy":
        assert complaint(source_of(tmp_path / f"{name}.jsonl.zst")).startswith(
            f"E-RAW-14 {tmp_path}/{name}.jsonl.zst:1: "
        )


@pytest.mark.parametrize("end", PACK)
def test_bad_lines_inside(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"x.jsonl{end}"
    path.write_bytes(pack(end, PLAIN + b"{oops\n" + PLAIN))
    assert complaint(source_of(path)).startswith(f"E-RAW-04 {path}:501: ")
    path.write_bytes(pack(end, b"\xff\xfe{\0"))
    assert complaint(source_of(path)).startswith(f"E-RAW-12 {path}:1: UTF-16")


@pytest.mark.parametrize("end", PACK)
def test_a_cursor_that_does_not_fit(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"x.jsonl{end}"
    path.write_bytes(pack(end))
    for byte in (3, len(PLAIN) - 1, len(PLAIN) + 1, 1 << 40):
        text = complaint(source_of(path), work_of(), {"line": 2, "byte": byte, "found": 1})
        assert text.startswith(f"E-RAW-26 {path}: ") and str(byte) in text
    (input,) = inputs("mine", source_of(path))
    assert list(chunks(input, source_of(path), work_of(), {"line": 501, "byte": len(PLAIN), "found": 1})) == []


def test_archives_and_packed_twice(tmp_path: Path) -> None:
    tar = b"a.jsonl".ljust(257, b"\0") + b"ustar".ljust(255, b"\0") + PLAIN
    for inside, word in ((gzip.compress(PLAIN), "gzip"), (pack(".zst"), "zstd"), (tar, "a tar archive")):
        (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(inside))
        text = complaint(source_of(tmp_path / "x.jsonl.gz"))
        assert text.startswith(f"E-RAW-17 {tmp_path}/x.jsonl.gz:1: holds {word} inside")
