"""Folders of texts: what is read of them, what is passed over, what is held out."""

import gzip
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from coca_train.data.corpus_config import load
from coca_train.data.provenance import FILE, Origin
from coca_train.data.readers import files as folders
from coca_train.data.readers.files import folder_inputs, kind_of_input, listing
from coca_train.runtime.errors import DataError
from data_prep.__main__ import main
from data_prep.fitting import CHARACTERS, LONG, MAX_SHARE_LEAST, Documents, choose, vocabulary_for
from data_prep.selection import Piece, pieces, split_of
from data_prep.tokenizer_files import affordable_coverage

LETTERS = random.Random(0)
WORDS = ["".join(LETTERS.choices("etaoinshrdlucmfwypvbgk", k=LETTERS.randint(2, 9))) for _ in range(3000)]


def prose(seed: int, characters: int) -> str:
    draw = random.Random(seed)
    words: list[str] = []
    size = 0
    while size < characters:
        words.append(draw.choice(WORDS) + draw.choice(["", "s", "ed", "er", ".\n", ".\n\n"]))
        size += len(words[-1]) + 1
    return " ".join(words)[:characters]


def write(folder: Path, name: str, texts: list[str]) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".jsonl" in name:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    else:
        path.write_text(texts[0], encoding="utf-8")
    return path


def mixed(folder: Path) -> Path:
    write(folder, "a.txt", [prose(1, 3000)])
    write(folder, "deep/er/b.md", [prose(2, 3000)])
    write(folder, "deep/c.jsonl", [prose(seed, 1200) for seed in range(10, 40)])
    write(folder, "d.jsonl.gz", [prose(seed, 1200) for seed in range(40, 70)])
    return folder


def test_a_folder_is_read_by_the_endings_of_its_files_and_says_so(tmp_path):
    folder = mixed(tmp_path / "my")
    for name in ("picture.png", "packed.txt.gz", "table.csv", ".hidden", "noending"):
        (folder / name).write_text("x")
    (folder / "empty.txt").touch()
    (folder / "loop").symlink_to(folder)
    (folder / "again.txt").symlink_to(folder / "a.txt")
    (folder / "gone.txt").symlink_to(folder / "nothing")
    found = listing(str(folder), "data.path")
    assert [(file.path, file.kind) for file in found.files] == [
        ("a.txt", "text"), ("d.jsonl.gz", "jsonl"), ("deep/c.jsonl", "jsonl"), ("deep/er/b.md", "text"),
    ]  # fmt: skip
    assert found.skipped == {
        ".png": 1, ".txt.gz": 1, ".csv": 1, "hidden": 1, "without ending": 1, "empty": 1, "linked twice": 2,
        "dead link": 1,
    }  # fmt: skip
    assert "1 .jsonl, 1 .jsonl.gz, 1 .md, 1 .txt; skipped 9: 2 linked twice" in found.describe()


def test_a_folder_with_the_name_of_a_file_is_a_folder(tmp_path):
    folder = tmp_path / "x.jsonl"
    write(folder, "a.txt", ["one"])
    write(folder, "b.jsonl", ["two"])
    assert [(kind_of_input(each.path), each.number) for each in folder_inputs("s", [str(folder)])] == [
        ("jsonl", 0),
        ("text", 1),
    ]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: path.write_text("x"), "E-RAW-02"),
        (lambda path: None, "E-RAW-01"),
        (lambda path: path.mkdir(), "E-RAW-01"),
        (lambda path: (path.mkdir(), (path / "a.png").write_text("x")), "E-RAW-01"),
    ],
    ids=["a file", "nothing there", "empty", "nothing to read"],
)
def test_what_is_no_folder_of_texts_is_refused(make, code, tmp_path):
    make(tmp_path / "my")
    with pytest.raises(DataError, match=rf"^{code} data.path={tmp_path}/my: .*Fix: "):
        listing(str(tmp_path / "my"), "data.path")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_looked_into_is_reported(tmp_path):
    (tmp_path / "my" / "closed").mkdir(parents=True)
    (tmp_path / "my" / "closed").chmod(0)
    with pytest.raises(DataError, match=r"E-RAW-02 .*closed"):
        listing(str(tmp_path / "my"), "data.path")


def test_the_verbs_take_a_folder_and_fit_sizes_to_its_text(tmp_path, capsys):
    folder, made = mixed(tmp_path / "my"), tmp_path / "made"
    words = [f"corpus.dir={made}", f"corpus.sources.text.files=[{folder}]", "work.workers=1"]
    for verb in ("tokenizer", "tokenize", "tokenize", "verify"):
        assert main([verb, *words]) == 0, capsys.readouterr().err
    err = capsys.readouterr().err
    assert "text as folder" in err
    assert "(tokenizer.vocab_size=600)" in err
    manifest = json.loads((made / "manifest.json").read_text())
    train, valid = (manifest["datasets"][f"text_{split}"] for split in ("train", "valid"))
    assert valid["documents"] > 1
    assert valid["characters"] <= MAX_SHARE_LEAST * (train["characters"] + valid["characters"])
    assert [record["name"].rpartition("/")[2] for record in manifest["sources"]["text"]["inputs"]] == [
        "d.jsonl.gz",
        "c.jsonl",
        "",
    ]


def test_several_kinds_in_a_list_of_files_are_reported_with_the_fix(tmp_path, capsys):
    mixed(tmp_path / "my")
    assert main(["sources", f"corpus.sources.text.files=[{tmp_path}/my,{tmp_path}/my/a.txt]"]) == 2
    assert "E-CFG-50" in capsys.readouterr().err
    assert main(["sources", f"corpus.sources.text.files=[{tmp_path}/missing]"]) == 2
    assert f"{tmp_path}/missing" in capsys.readouterr().err


@pytest.mark.parametrize(("n_bytes", "size"), [(100, 600), (4_200_000, 4_000), (100_000_000, 20_000), (10**12, 32_000)])
def test_a_vocabulary_has_the_size_of_its_text(n_bytes, size):
    assert vocabulary_for(n_bytes) == size


def drawn(lengths: list[int]) -> Documents:
    places = np.random.default_rng(0).integers(0, 2**64, len(lengths), dtype=np.uint64)
    return Documents(places, np.array(lengths, np.uint32))


@pytest.mark.parametrize("lengths", [[1000] * 300, [1000] * 20_000, [500] * 3000 + [40_000] * 400])
def test_a_report_gets_its_documents_within_a_tenth_of_the_text(lengths):
    documents = drawn(lengths)
    taken = choose(documents, max(lengths))
    assert taken.documents >= 20
    assert taken.text <= MAX_SHARE_LEAST
    held_out = documents.places < np.uint64(taken.share * 2.0**64)
    assert held_out.sum() == taken.documents
    if len(lengths) >= 3000:
        assert taken.documents >= 60
        assert taken.long >= LONG


def test_a_single_text_cannot_be_held_out_whole():
    assert choose(drawn([5000]), 500).documents == 0


def test_stretches_of_a_long_text_are_held_out_and_nothing_is_lost():
    source = load(["corpus.sources.text.files=[a.txt]"]).corpus.sources["text"]
    corpus = load(
        ["corpus.sources.text.files=[a.txt]", "corpus.valid_share=0.1", "corpus.valid_characters=1000"]
    ).corpus
    text = prose(5, 100_000)
    found = pieces(text, source, corpus)
    assert "".join(piece.text for piece in found) == text
    assert 3 <= sum(piece.split for piece in found) <= 20
    assert all(1000 <= len(piece.text) <= 2000 for piece in found if piece.split)
    assert all(split_of(piece.digest, source, 0.1) for piece in found if piece.split)
    short = pieces("short", source, corpus)
    assert short == [Piece("short", short[0].digest, 0)]


def test_one_book_gives_a_report_its_documents(tmp_path, capsys):
    write(tmp_path / "my", "book.txt", [prose(3, 400_000)])
    words = [f"corpus.dir={tmp_path}/made", f"corpus.sources.text.files=[{tmp_path}/my]", "work.workers=1"]
    for verb in ("tokenizer", "tokenize"):
        assert main([verb, *words]) == 0, capsys.readouterr().err
    manifest = json.loads((tmp_path / "made" / "manifest.json").read_text())
    assert manifest["datasets"]["text_valid"]["documents"] >= 20
    assert manifest["settings"]["sources"]["text"]["valid_characters"] in CHARACTERS


def test_a_vocabulary_has_room_for_more_than_characters():
    text = "".join(chr(0x4E00 + i % 3000) * (1 + (i % 3000 < 100) * 50) for i in range(6000))
    coverage = affordable_coverage(lambda: [text], 1000)
    assert 0.5 < coverage < 1
    assert affordable_coverage(lambda: ["abc"], 1000) == 1


def test_a_file_of_a_folder_is_called_by_its_name_while_the_folder_is_as_it_was(tmp_path):
    for name in ("b.txt", "a.md", "c.jsonl"):
        (tmp_path / name).write_text("text")
    inside = f"{tmp_path}{os.sep}"
    folders._texts.cache_clear()
    assert folders.describe_origin(Origin(inside, 2, FILE, 2)) == f"{tmp_path}{os.sep}b.txt"
    assert folders.describe_origin(Origin(inside, 2, FILE, 3)) == f"{inside}, file 2"
    assert folders.describe_origin(Origin("books.jsonl", 17)) == "books.jsonl:17"
