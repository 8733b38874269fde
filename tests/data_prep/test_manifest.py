"""manifest.json: what it says is what was written, to the bit; and what it says to people."""

import json
from pathlib import Path

import pytest

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.mixture import check_tokenizer
from coca_train.runtime.errors import DataError
from data_prep import manifest as manifests
from data_prep.verbs.merge import merge
from tests.data.vocabularies import trained
from tests.data_prep.support_parts import Doc, configuration, write_parts


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PrepareConfig:
    folder = tmp_path_factory.mktemp("manifest")
    tokenizer = trained(folder / "corpus" / "tokenizer.model")
    config = configuration(folder, tokenizer, prose={"about": "Bücher 🐈"}, code={"group": "code"})
    prose = [Doc(f"text {i} " * 3) for i in range(30)]
    write_parts(
        config, {"prose": [[[*prose, prose[0]]]], "code": [[[Doc(f"x = {i}\n") for i in range(20)]]]}, {"short": 2}
    )
    merge(config)
    return config


def test_it_is_what_was_written(config: PrepareConfig) -> None:
    path = Path(config.corpus.dir) / "manifest.json"
    manifest = manifests.read(config.corpus.dir)
    assert manifests.dump(manifest) == path.read_bytes()
    assert manifests.existing(config) == manifest
    needed = {"format", "kind", "name", "dtype", "end_of_document", "tokenizer", "settings", "sources", "datasets"}
    assert needed | {"files", "blocks", "sha256"} == set(json.loads(path.read_text(encoding="utf-8")))
    assert all({"group", "licence", "about", "inputs", "counts"} == set(one) for one in manifest["sources"].values())
    assert manifest["sources"]["prose"]["about"] == "Bücher 🐈"
    assert manifest["tokenizer"]["file"] == "tokenizer.model"
    assert manifest["blocks"] == {
        "bytes": 4194304,
        "files": {f"{n}.bin": f"{n}.sums" for n in ("code_train", "code_valid", "prose_train", "prose_valid")},
    }
    assert str(Path(config.corpus.dir)) not in path.read_text(encoding="utf-8"), "a corpus may be moved"


def test_a_changed_bit_is_seen_wherever_it_is(config: PrepareConfig, tmp_path: Path) -> None:
    data = (Path(config.corpus.dir) / "manifest.json").read_bytes()
    for at in range(0, len(data), 11):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        (tmp_path / "manifest.json").write_bytes(changed)
        with pytest.raises(DataError, match=r"E-TOK-08|E-PREP-02"):
            manifests.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "E-TOK-23 .*Fix: "),
        (b"", "E-TOK-08"),
        (b"[1]", "E-TOK-08"),
        (b"\xff\xfe", "E-TOK-08"),
        (b"[" * 100_000, "E-TOK-08"),
        (b'{"kind": "corpus", "format": 1}', "E-TOK-08"),
        (manifests.dump({"kind": "corpus", "format": 2}), "E-PREP-02 .*format '2'"),
        (manifests.dump({"kind": "x" * 500, "format": 1}), r"E-PREP-02 .*'x{80}'"),
    ],
)
def test_what_is_no_manifest_is_reported(tmp_path: Path, content: bytes | None, code: str) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(DataError, match=code) as caught:
        manifests.read(tmp_path)
    assert "\n" not in str(caught.value) and "Fix:" in str(caught.value)


def test_differences_are_named() -> None:
    old = {"a": {"b": 1, "c": [1]}, "d": "x" * 200}
    assert manifests.differences(old, old) == []
    changes = ["a.b was 1, is 2", f"d was {repr('x' * 200)[:80]}, is 'nothing'"]
    assert manifests.differences(old, {"a": {"b": 2, "c": [1]}}) == changes


def test_words_for_people(config: PrepareConfig) -> None:
    manifest = manifests.read(config.corpus.dir)
    lines = manifests.describe(manifest).splitlines()
    record = manifest["datasets"]["code_train"]
    assert lines[0].split() == ["dataset", "documents", "tokens", "bytes/token", "longest"]
    assert lines[2].split() == [
        "code_train",
        str(record["documents"]),
        str(record["tokens"]),
        f"{record['bytes'] / record['tokens']:.2f}",
        str(record["longest_document"]),
    ]
    assert lines[7].split() == ["source", "read", "kept", "duplicates", "short"]
    assert [line.split() for line in lines[9:11]] == [["code", "22", "20", "0", "2"], ["prose", "33", "30", "1", "2"]]
    assert all(text in lines[-1] for text in ("tiny", "512", "uint16", "tokenizer.model"))
    del manifest["datasets"]["code_valid"], manifest["datasets"]["prose_valid"]
    assert manifests.describe(manifest).splitlines()[-1].startswith("No text")


def test_training_with_another_tokenizer_is_refused(config: PrepareConfig, tmp_path: Path) -> None:
    """coca_train.data.mixture reads the manifest beside the data."""
    other = tmp_path / "other.model"
    other.write_bytes(b"other")
    prefix = str(Path(config.corpus.dir) / "prose_train")
    check_tokenizer(config.tokenizer.path, "data.sources.prose.path", prefix)
    with pytest.raises(DataError, match="E-TOK-11"):
        check_tokenizer(str(other), "data.sources.prose.path", prefix)
