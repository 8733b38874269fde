"""Near duplicates: signatures are datatrove's, groups are what their definition says, and a killed run goes on."""

import hashlib
import itertools
import json
import random
import resource
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.config.corpus_schema import CorpusSourceConfig, PrepareConfig
from coca_train.data.corpus_config import load
from coca_train.data.storage import open_locked
from coca_train.runtime import machine
from coca_train.runtime.errors import DataError, StorageError, UserError
from data_prep import minhash
from data_prep.minhash import HELD_OUT, STAYS, TRAINED_ON, representatives
from data_prep.selection import split_of
from data_prep.verbs import near_duplicates
from tests.data_prep.near_text import CONFIG, corpus, edited, jaccard, lists, text

pytest.importorskip("datatrove")


def test_files_are_those_of_datatroves_own_first_step(tmp_path: Path) -> None:
    from datatrove.data import Document

    texts = [text(n, n) for n in (300, 4, 5, 40, 1000)] + [text(40, 40)]
    signer = minhash.Signer(CONFIG, tmp_path / "theirs")
    signer._step.run((Document(text=t, id=str(i)) for i, t in enumerate(texts)), rank=3)
    signed = [(i, s) for i, s in enumerate(map(signer.signature, texts)) if s is not None]
    numbers = np.array([i for i, _ in signed])
    assert numbers.tolist() == [0, 2, 3, 4, 5]  # four words have no 5-gram
    minhash.write_block(tmp_path / "ours", 3, numbers, np.stack([s for _, s in signed]), CONFIG)
    theirs = sorted((tmp_path / "theirs").rglob("*.sig"))
    assert len(theirs) == 14
    for path in theirs:
        assert (tmp_path / "ours" / path.relative_to(tmp_path / "theirs")).read_bytes() == path.read_bytes()


def test_a_long_text_is_signed_in_slices_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signer, long = minhash.Signer(CONFIG, tmp_path), text(500, 1)
    whole = signer.signature(long)
    monkeypatch.setattr(minhash, "SLICE", 7)
    sliced = signer.signature(long)
    assert whole is not None and sliced is not None
    assert sliced.tolist() == whole.tolist()
    assert (whole.shape, whole.dtype) == ((112,), np.uint64)


@pytest.mark.parametrize("ngram", [1, 5, 8])
def test_a_text_shorter_than_an_ngram_has_no_signature(tmp_path: Path, ngram: int) -> None:
    signer = minhash.Signer(replace(CONFIG, ngram=ngram), tmp_path)
    assert signer.signature(text(ngram - 1, 3)) is None
    assert signer.signature(text(ngram, 3)) is not None


def test_case_punctuation_and_white_space_make_no_difference(tmp_path: Path) -> None:
    signer, original = minhash.Signer(CONFIG, tmp_path), text(60, 1)
    other = original.upper().replace(",", " ;").replace("\n", "\n\n\t")
    first, second, third = map(signer.signature, (original, other, text(60, 2)))
    assert first is not None and second is not None and third is not None
    assert first.tolist() == second.tolist() != third.tolist()


def test_matches_count_documents_through_all_blocks(tmp_path: Path) -> None:
    signer, texts = minhash.Signer(CONFIG, tmp_path), [text(50, i % 4) for i in range(10)]
    signatures = np.stack([s for s in map(signer.signature, texts) if s is not None])
    for block, (begin, end) in enumerate([(0, 3), (3, 4), (4, 10)]):
        minhash.write_block(tmp_path, block, np.arange(end - begin), signatures[begin:end], CONFIG)
    matches = minhash.read_matches(minhash.match(tmp_path, CONFIG, 3, 5), np.array([0, 3, 4]))
    assert representatives(np.full(10, TRAINED_ON, np.uint8), [matches]).tolist() == [i % 4 for i in range(10)]


def test_too_few_open_files_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 200))
    with pytest.raises(UserError, match=r"^E-RUN-12 .*may open 200 files; 1064 .*ulimit -n 1064"):
        minhash.match(tmp_path, CONFIG, 1000, 0)


def naive(n: int, pairs: Iterable[tuple[int, int]], ranks: list[int]) -> list[int]:
    """The first of each document's group by (rank, number), by the definition."""
    groups = [{i} for i in range(n)]
    for a, b in pairs:
        if groups[a] is not groups[b]:
            groups[a] |= groups[b]
            for member in groups[b]:
                groups[member] = groups[a]
    return [min(group, key=lambda i: (ranks[i], i)) for group in groups]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 30))
def test_groups_are_what_the_definition_says(data: st.DataObject, n: int) -> None:
    ranks = data.draw(st.lists(st.sampled_from([STAYS, HELD_OUT, TRAINED_ON]), min_size=n, max_size=n))
    number = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(number, number), max_size=40))
    half = len(pairs) // 2
    matches = (np.array(part, np.int64).reshape(-1, 2) for part in (pairs[:half], pairs[half:]))
    assert representatives(np.array(ranks, np.uint8), matches).tolist() == naive(n, pairs, ranks)


def held_out(of: str, share: float, source: CorpusSourceConfig) -> bool:
    return bool(split_of(hashlib.blake2b(of.encode(), digest_size=16).digest(), source, share))


def test_planted_copies_are_found_and_strangers_are_kept(tmp_path: Path) -> None:
    """Every pair above 0.9 is in one group, every document that resembles none above 0.4 stays."""
    texts = []
    for i in range(25):
        original = text(120 + 13 * i, i)
        texts += [original, *(edited(original, changes, 100 * i + changes) for changes in (1, 2, 12, 60))]
    random.Random(1).shuffle(texts)
    config = corpus(tmp_path, {"a": texts[:70], "b": texts[70:]}, "corpus.valid_share=0")
    near_duplicates.run(config)
    gone = {(name, line) for name, rows in lists(config).items() for _, line in rows}
    places = [("a", i + 1) for i in range(70)] + [("b", i + 1) for i in range(len(texts) - 70)]
    alike = {pair: jaccard(texts[pair[0]], texts[pair[1]]) for pair in itertools.combinations(range(len(texts)), 2)}
    planted = [pair for pair, similarity in alike.items() if similarity > 0.9]
    assert len(planted) > 25
    for i, j in planted:
        assert places[j] in gone or places[i] in gone
    closest = [0.0] * len(texts)
    for pair, similarity in alike.items():
        for i in pair:
            closest[i] = max(closest[i], similarity)
    strangers = [i for i, similarity in enumerate(closest) if similarity < 0.4]
    assert len(strangers) > 10
    assert not gone & {places[i] for i in strangers}
    for place in gone:  # what goes resembles something
        assert closest[places.index(place)] > 0.4


def test_the_first_stays_by_source_input_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copies = [text(80, 7), edited(text(80, 7), 1, 1), text(80, 7)]
    config = corpus(tmp_path, {"b": [copies[0], text(80, 1)], "a": [text(80, 2), *copies[1:]]}, "corpus.valid_share=0")
    near_duplicates.run(config)
    assert lists(config) == {"a": [(0, 3)], "b": [(0, 1)]}
    out, err = capsys.readouterr()
    assert err == ""  # datatrove says nothing, and no bar where no terminal is
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[2:5]}
    assert rows == {
        "a": ["3", "1", "33.33%", "0"],
        "b": ["2", "1", "50.00%", "0"],
        "all": ["5", "2", "40.00%", "0"],
    }
    assert out.splitlines()[5] == f"for example {tmp_path}/a.jsonl:3 goes, because {tmp_path}/a.jsonl:2 stays"
    assert sorted(path.name for path in (tmp_path / "out" / "near_duplicates").iterdir()) == [
        *("a.npy", "b.npy", "report.json")
    ]


def test_exact_copies_are_distinguished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["too short", text(80, 1), text(80, 1), edited(text(80, 1), 1, 1)]
    config = corpus(tmp_path, {"a": texts}, "corpus.valid_share=0")
    near_duplicates.run(config)
    assert lists(config) == {"a": [(0, 3), (0, 4)]}
    assert capsys.readouterr().out.splitlines()[2].split() == ["a", "4", "2", "50.00%", "1"]
    report = json.loads((tmp_path / "out" / "near_duplicates" / "report.json").read_text())
    assert report["sources"] == {"a": {"documents": 4, "left_out": 2, "exact": 1}}
    assert report["inputs"]["a"][0]["name"] == "a.jsonl"


def test_inputs_of_a_source_count_in_sorted_order(tmp_path: Path) -> None:
    config = corpus(tmp_path, {"a": [text(80, 1)], "unused": [text(80, 2)]}, "corpus.valid_share=0")
    for number in (2, 1):
        (tmp_path / f"a{number}.jsonl").write_text(json.dumps({"text": edited(text(80, 1), 1, number)}) + "\n")
    source = replace(config.corpus.sources["a"], files=[f"{tmp_path}/a*.jsonl"])
    config = replace(config, corpus=replace(config.corpus, sources={"a": source}))
    near_duplicates.run(config)
    assert lists(config) == {"a": [(1, 1), (2, 1)]}


def test_held_out_text_wins_over_text_that_is_trained_on(tmp_path: Path) -> None:
    share, source = 0.3, load(["corpus.sources.text.files=[x.jsonl]"]).corpus.sources["text"]
    candidates = [edited(text(150, 1), 1, seed) for seed in range(60)]
    trained = [t for t in candidates if not held_out(t, share, source)][:4]
    kept_out = [t for t in candidates if held_out(t, share, source)][:2]
    config = corpus(tmp_path, {"a": trained[:3], "b": [trained[3], *kept_out]}, f"corpus.valid_share={share}")
    near_duplicates.run(config)
    assert lists(config) == {"a": [(0, 1), (0, 2), (0, 3)], "b": [(0, 1), (0, 3)]}


def test_an_evaluation_set_stays_whole_and_wins(tmp_path: Path) -> None:
    copies = [edited(text(150, 1), 1, seed) for seed in range(5)]
    config = corpus(
        tmp_path,
        {"a": copies[:2], "z": copies[2:4], "b": copies[4:]},
        "corpus.valid_share=0.999",
        "+corpus.sources.z.hold_out=all",
        "+corpus.sources.b.hold_out=none",
    )
    near_duplicates.run(config)
    assert lists(config) == {"a": [(0, 1), (0, 2)], "z": [], "b": [(0, 1)]}


def test_the_rules_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [text(20, 1), text(200, 2), edited(text(200, 2), 1, 1), "  ", text(20, 1)]
    config = corpus(tmp_path, {"a": texts}, "corpus.valid_share=0", "+corpus.sources.a.filter.min_chars=400")
    near_duplicates.run(config)
    assert lists(config) == {"a": [(0, 3)]}
    assert capsys.readouterr().out.splitlines()[2].split()[1] == "2"


def test_nothing_to_find(tmp_path: Path) -> None:
    config = corpus(tmp_path, {"a": ["too short", "for n-grams"], "b": [text(50, 1)]})
    near_duplicates.run(config)
    assert lists(config) == {"a": [], "b": []}
    config = corpus(tmp_path, {"a": ["left out"]}, "+corpus.sources.a.filter.min_chars=1000")
    near_duplicates.run(config)
    assert lists(config) == {"a": []}


def many(tmp_path: Path, *words: str) -> PrepareConfig:
    """Two sources with copies within and between them."""
    a = [edited(text(60 + i, i % 20), i % 3, i) for i in range(50)]
    b = [edited(text(60 + i, i % 25), i % 2, i + 99) for i in range(40)]
    return corpus(tmp_path, {"a": a, "b": b}, "corpus.valid_share=0.2", *words)


@pytest.mark.usefixtures("forked_workers")
def test_workers_chunks_and_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = many(tmp_path)
    near_duplicates.run(config)
    expected = lists(config)
    assert sum(map(len, expected.values())) > 30
    monkeypatch.setattr(minhash, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(minhash, "BLOCK_BYTES", 8 * 112 * 7)
    near_duplicates.run(config)
    assert lists(config) == expected
    config = replace(config, work=replace(config.work, workers=2))
    near_duplicates.run(config)
    assert lists(config) == expected


class Stopped(Exception):
    pass


@pytest.mark.parametrize("state_too", [False, True])
def test_a_killed_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state_too: bool
) -> None:
    """Killed with the files of a block there, or its documents too, but not the state that knows them."""
    config = many(tmp_path)
    near_duplicates.run(config)
    expected = lists(config)
    monkeypatch.setattr(minhash, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(minhash, "BLOCK_BYTES", 8 * 112 * 7)
    place, name = (minhash, "replace") if state_too else (minhash, "write_block")
    write, written = getattr(place, name), []

    def killed(*arguments: object) -> None:
        written.append(arguments)
        if len(written) == 4:
            written.clear()
            if not state_too:
                write(*arguments)
            raise Stopped
        write(*arguments)

    monkeypatch.setattr(place, name, killed)
    for _ in range(20):
        try:
            near_duplicates.run(config)
            break
        except Stopped:
            continue
    else:
        pytest.fail("it never got on")
    assert lists(config) == expected
    assert "going on after" in capsys.readouterr().err
    assert len(written) < 4  # the last run did not sign everything again


def test_other_settings_begin_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = many(tmp_path)
    monkeypatch.setattr(minhash, "match", lambda *_: (_ for _ in ()).throw(Stopped))
    monkeypatch.setattr(minhash, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(minhash, "BLOCK_BYTES", 8 * 112 * 7)  # many blocks, which must not be taken for new ones
    with pytest.raises(Stopped):
        near_duplicates.run(config)
    monkeypatch.undo()
    changed = replace(config, near_duplicates=replace(CONFIG, ngram=8))
    near_duplicates.run(changed)
    after_change = lists(changed)
    fresh = replace(changed, corpus=replace(config.corpus, dir=str(tmp_path / "fresh")))
    near_duplicates.run(fresh)
    assert after_change == lists(fresh)


def test_a_changed_input_begins_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1), text(50, 2)]}, "corpus.valid_share=0")
    monkeypatch.setattr(minhash, "match", lambda *_: (_ for _ in ()).throw(Stopped))
    with pytest.raises(Stopped):
        near_duplicates.run(config)
    monkeypatch.undo()
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text(50, 1)}) + "\n" for _ in range(2)))
    near_duplicates.run(config)
    assert lists(config) == {"a": [(0, 2)]}


def test_lists_that_are_not_whole_have_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """merge takes lists only with report.json, so a kill between the two must not leave an old one."""
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    near_duplicates.run(config)
    report = tmp_path / "out" / "near_duplicates" / "report.json"
    assert report.exists()
    monkeypatch.setattr(near_duplicates, "_report", lambda *_: (_ for _ in ()).throw(Stopped))
    with pytest.raises(Stopped):
        near_duplicates.run(config)
    assert not report.exists()


def test_a_bad_document_stops_it_with_file_and_line(tmp_path: Path) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": 5}\n')
    with pytest.raises(DataError, match=r"^E-RAW-06 .*a\.jsonl:2: .*Fix:"):
        near_duplicates.run(config)
    assert not (tmp_path / "out" / "near_duplicates" / "a.npy").exists()


def test_bad_documents_are_passed_over_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]}, "work.on_error=skip", "corpus.valid_share=0")
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": 5}\n' + json.dumps({"text": text(50, 1)}) + "\n")
    near_duplicates.run(config)
    assert lists(config) == {"a": [(0, 3)]}
    assert "1 bad documents" in capsys.readouterr().out


@pytest.mark.parametrize(("option", "code"), [("shard=0/2", 28), ("near_duplicates.language=english", 29)])
def test_shards_and_unknown_languages_are_refused(tmp_path: Path, option: str, code: int) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]}, option)
    with pytest.raises(UserError, match=rf"^E-RAW-{code} {option}: .*Fix:"):
        near_duplicates.run(config)


def test_a_missing_library_is_reported_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    (tmp_path / "a.jsonl").unlink()
    for name in [name for name in sys.modules if name.split(".")[0] == "datatrove"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "datatrove", None)
    with pytest.raises(UserError, match=r"^E-RAW-25 near_duplicates: datatrove .*\[quality\]"):
        near_duplicates.run(config)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    work = tmp_path / "out" / "near_duplicates" / ".work"
    work.mkdir(parents=True)
    with open_locked(str(work / "lock")), pytest.raises(DataError, match="E-TOK-15"):
        near_duplicates.run(config)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of one process, and of 1 GiB."""
    machine._lowered.cache_clear()
    monkeypatch.setattr(machine, "cores", lambda: 1)
    monkeypatch.setattr(machine, "PER_CORE", 1)
    monkeypatch.setattr(machine, "ALWAYS", 1)
    monkeypatch.setattr(machine, "memory", lambda: 1 << 30)
    yield
    machine._lowered.cache_clear()


@pytest.mark.usefixtures("small")
def test_too_many_workers_are_lowered_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Signing and matching each start some."""
    near_duplicates.run(corpus(tmp_path, {"a": [text(50, 1)]}, "work.workers=3000"))
    assert capsys.readouterr().err.count("work.workers=3000: ") == 1


@pytest.mark.usefixtures("small")
def test_what_a_worker_takes_is_counted_by_its_own_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "ALWAYS", 2)
    large = [f"work.{option}={1 << 30}" for option in ("chunk_bytes", "part_bytes")]
    near_duplicates.run(corpus(tmp_path, {"a": [text(50, 1)]}, "work.workers=2", *large))
    assert "work.workers" not in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StorageError, match="E-IO-01"):
        near_duplicates.run(config)


def test_a_merged_corpus_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = corpus(tmp_path, {"a": [text(50, 1)]})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{}")
    near_duplicates.run(config)
    assert "merged already" in capsys.readouterr().err
