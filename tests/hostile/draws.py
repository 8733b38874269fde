"""Hostile inputs, drawn with a seed: words for every verb, and mutations of every file that the two programs read.

Seeded `random`, not hypothesis: a draw here is a process of half a second, which a search for the smallest example
would start hundreds of times; and number i of a seed has to be the same input on any day.
"""

import json
import os
import random
import socket
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coca_train.checkpoint import manifest
from coca_train.commands.compare import COMPARE
from coca_train.commands.generate import GENERATE
from coca_train.commands.plan import PLAN
from coca_train.commands.schemes import SCHEMES
from coca_train.config.fields import module_options, options
from coca_train.config.root import Root
from coca_train.data.corpus_config import PREPARE
from coca_train.evaluation.configuration import EVALUATE
from coca_train.hub.options import EXPORT, IMPORT, VERIFY
from coca_train.settings import TRAIN
from tests.hostile.world import CORPUS, train_words

NUMBERS = [
    "0", "-1", "1", "2", "3", "7", "1e400", "-1e400", "nan", "inf", "1e-320", "1e-40", "0.1", "1.5", "-0.0", "012",
    "1:30:00", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", str(2**70), str(10**12),
    str(10**15), str(10**30), "1" * 400, "1" * 5000, "1_000", "0x10", "1e6", str(10**6), str(10**9), "99999999",
]  # fmt: skip
WORDS = [
    "", " ", "null", "~", "true", "no", "x", "a/b", "../..", "/dev/zero", "/dev/null", "/proc/self/mem", "rope", "coca",
    "\x1b[2J", "\udcff", "\u202e", "名", "a\nb", "'", '"', "${run.name}", "${oc.env:HOME}", "${a.b}",
    "${run.seed", "???", "r" * 300, "r" * 10000, "*", "~root", "%s%n", "{}", "[]", "[1]", "{a: 1}", "[[[1]]]",
    "[" * 60 + "]" * 60, "[" * 900, "{a: " * 30 + "1" + "}" * 30, "1,2", "range(1,100000000)", "choice(1,2)",
    "sinks@window:0", "yarn@factor:1e400", "dynamic_ntk@alpha:x", "[trained,yarn@factor:8@factor:9]", "0x,1x", "a=b",
    "[1x,99999999999999x]",
]  # fmt: skip
JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, 10**12, 10**400, 0.5, -1.5, 1e308, float("inf"), float("nan"), "",
    "x", "\x1b[31m", "名", "\udcff", "../../x", "/dev/zero", "a" * 5000, [], {}, [1], ["x"], {"a": 1}, [[]], {"": {}},
    {"number": "nan"}, {"number": {}}, [None], "1", "[1]",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One hostile input. kind: what the table counts by. change: what is done to a copy of the world."""

    kind: str
    about: str
    program: str
    words: list[str]
    change: Callable[[Path], None] = lambda folder: None


# ---- words

GENERATED = ["generate", "run=runs/a", "prompt=the fox", "max_new_tokens=4"]
EXPORTED = ["export", "run=runs/a", "to=out", "parity_tokens=16"]
VERIFIED = ["verify", "run=runs/a", "against=hf", "parity_tokens=16"]
IMPORTED = ["import", "source=hf", "name=brought", "root=runs", "parity_tokens=16"]
EVALUATED = [
    "evaluate", "checkpoint=runs/a", "text.files=[raw/plain.jsonl]", "grid.lengths=[1x]", "text.max_documents=2",
    "work.root=evaluations",
]  # fmt: skip
COMPARED = ["compare", "runs=runs/a,runs/b", "run.root=compared"]
PLANNED = ["plan", "model.vocab_size=576"]
TOLD = ["schemes", "scheme=rope"]
TOKENIZED = ["tokenize", *CORPUS, "corpus.dir=new", "corpus.sources.text.files=[raw/*.jsonl]"]
TRAINED, SHOWN = train_words("a"), [*train_words("new"), "--cfg", "job"]
LOOKED = {"verify": CORPUS, "stats": CORPUS, "inspect": CORPUS, "mix": [*CORPUS, "mix.tokens=1000"], "merge": CORPUS}
FILES = "corpus.sources.text.files=[raw/*.jsonl.gz]"


def _keys(root: Root) -> list[str]:
    names = {
        "data.sources": "text",
        "stages": "all",
        "layers.types": "local",
        "corpus.sources": "text",
        "mix.groups": "text",
    }
    listed = [option.key for option in options(root)] + list(module_options(root))
    for section, name in names.items():
        listed = [key.replace(f"{section}.<name>", f"{section}.{name}") for key in listed]
    return [key for key in listed if "<" not in key]


def _verbs() -> list[tuple[str, str, list[str], list[str]]]:
    """(kind, program, words, keys) of every verb."""
    own = {"generate": (GENERATE, GENERATED), "export": (EXPORT, EXPORTED), "verify": (VERIFY, VERIFIED),
           "import": (IMPORT, IMPORTED), "evaluate": (EVALUATE, EVALUATED), "compare": (COMPARE, COMPARED),
           "schemes": (SCHEMES, TOLD)}  # fmt: skip
    verbs = [(name, "coca_train", words, _keys(root)) for name, (root, words) in own.items()]
    training = _keys(TRAIN)
    verbs += [("train --cfg job", "coca_train", SHOWN, training), ("train", "coca_train", TRAINED, training)]
    verbs += [("plan", "coca_train", PLANNED, [*_keys(PLAN), *training])]
    verbs += [("data_prep tokenize", "data_prep", TOKENIZED, _keys(PREPARE))]
    verbs += [
        (f"data_prep {verb}", "data_prep", [verb, FILES, *words], _keys(PREPARE)) for verb, words in LOOKED.items()
    ]
    return verbs


def _value(draw: random.Random) -> str:
    value = draw.choice(draw.choice([NUMBERS, NUMBERS, WORDS]))
    return f"[{value}]" if draw.random() < 0.1 else value


def _words(draw: random.Random) -> Case:
    """A verb with one or two options set to what nobody would."""
    kind, program, words, keys = draw.choice(_verbs())
    more = []
    for _ in range(draw.choice([1, 1, 2])):
        key = draw.choice(keys)
        plus = draw.choice(["", "", "", "+", "++", "~"]) if draw.random() < 0.2 else ""
        more.append(f"{plus}{key}={_value(draw)}")
    if draw.random() < 0.05:
        more.append(
            draw.choice(["--multirun", "--config-dir=/dev", "--cfg", "--results", "-x", "--debug=", "=", "a", "="])
        )
    return Case(f"words: {kind}", " ".join(word[:60] for word in more), program, [*words, *more])


def _yaml_file(draw: random.Random) -> Case:
    """An experiment that holds what nobody would write."""
    keys = _keys(TRAIN)
    tree: Any = {}
    for _ in range(draw.choice([1, 1, 2])):
        node, (*sections, name) = tree, draw.choice(keys).split(".")
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                break
        else:
            node[name] = draw.choice(JUNK)
    if draw.random() < 0.2:
        tree = draw.choice(JUNK)
    text = "# @package _global_\n# mine\n" + yaml.safe_dump(_plain(tree), allow_unicode=True)
    if draw.random() < 0.3:
        text += draw.choice(
            [
                "a: &x [*x]\n",
                "~: 2\n",
                "? [1]\n: 2\n",
                "a: !!python/name:os.system\n",
                "<<: 1\n",
                "\tb: 1\n",
                "a: " + "[" * 900 + "]" * 900,
                "b: 2024-13-45\n",
                "c: " + "1" * 5000,
                "d: 0b2\n",
                "{",
                "a: !!int x\n",
            ]
        )
    words = [*train_words("a"), "--config-dir", "configs", "+experiment=mine", *draw.choice([[], ["--cfg", "job"]])]

    def change(folder: Path) -> None:
        _put(folder / "configs/experiment/mine.yaml", text.encode("utf-8", "surrogatepass"))

    return Case("yaml values", text[26:90].replace("\n", " "), "coca_train", words, change)


def _plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return tree.encode("utf-8", "replace").decode() if isinstance(tree, str) else tree


# ---- files

GOES_ON = [*TRAINED, "train.max_steps=5"]
OF_HF = [IMPORTED, VERIFIED, [*EVALUATED[:1], "checkpoint=hf", *EVALUATED[2:]], [*train_words("new"), "start.path=hf"]]
OF_SHARDS = [
    ["import", "source=hf_sharded", *IMPORTED[2:]],
    ["verify", "run=runs/a", "against=hf_sharded", "parity_tokens=16"],
]
OF_RUN = [GENERATED, EVALUATED, EXPORTED, TRAINED, GOES_ON]
STEP = "runs/a/checkpoints/step-00000004"
READ: dict[str, list[list[str]]] = {
    "configs/experiment/mine.yaml": [[*train_words("a"), "--config-dir", "configs", "+experiment=mine"]],
    "runs/a/config.yaml": [*OF_RUN, COMPARED],
    "runs/a/run.json": [*OF_RUN, COMPARED],
    "runs/a/metrics.jsonl": [TRAINED, GOES_ON, COMPARED],
    f"{STEP}/MANIFEST.json": [*OF_RUN, COMPARED],
    f"{STEP}/state-00000-of-00001.safetensors": [*OF_RUN, COMPARED],
    "runs/a/checkpoints/latest": [TRAINED, GOES_ON],
    "runs/a/run.lock": [GOES_ON],
    "runs/a/report/done.json": [TRAINED, COMPARED],
    "runs/a/report/results.json": [COMPARED],
    "runs/a/report/summary.json": [[*EVALUATED[:-1], "work.root=runs"]],
    "runs/a/report/cells": [[*TRAINED, "eval.sample_tokens=3"]],
    "corpus/text_train.bin": [train_words("new"), ["data_prep", "verify", *CORPUS, FILES]],
    "corpus/text_train.idx": [train_words("new"), ["data_prep", "verify", *CORPUS, FILES]],
    "corpus/text_train.sums": [train_words("new"), ["data_prep", "verify", *CORPUS, FILES]],
    "corpus/text_valid.idx": [train_words("new"), ["data_prep", "stats", *CORPUS, FILES]],
    "corpus/text_train.origins.npy": [["data_prep", verb, *CORPUS, FILES] for verb in ("verify", "inspect")],
    "corpus/manifest.json": [
        train_words("new"), *(["data_prep", verb, *words, FILES] for verb, words in LOOKED.items())
    ],
    "tokenizer.model": [train_words("new"), GENERATED, ["data_prep", *TOKENIZED]],
    "hf/config.json": OF_HF,
    "hf/model.safetensors": OF_HF,
    "hf/tokenizer.model": OF_HF,
    "hf/tokenizer_config.json": OF_HF,
    "hf/generation_config.json": OF_HF,
    "hf_sharded/model.safetensors.index.json": OF_SHARDS,
    "hf_sharded/model-00001-of-00002.safetensors": OF_SHARDS,
    "raw/plain.jsonl": [["data_prep", *TOKENIZED], EVALUATED],
    "raw/packed.jsonl.gz": [["data_prep", *TOKENIZED[:-1], FILES]],
    "raw/packed.jsonl.zst": [["data_prep", *TOKENIZED[:-1], "corpus.sources.text.files=[raw/*.zst]"]],
    "raw/table.parquet": [["data_prep", *TOKENIZED[:-1], "corpus.sources.text.files=[raw/*.parquet]"]],
    "raw/text.txt": [["data_prep", *TOKENIZED[:-1], "corpus.sources.text.files=[raw/*.txt]"]],
}  # fmt: skip


def _file(draw: random.Random) -> Case:
    """A file that a verb reads, and what happened to it."""
    name = draw.choice(list(READ))
    words = draw.choice(READ[name])
    program, words = (words[0], words[1:]) if words[0] == "data_prep" else ("coca_train", words)
    structured = name.endswith((".json", ".yaml", ".jsonl", "cells")) and "configs" not in name
    how = draw.choice([*BYTES, *KINDS, *(["values"] * 8 if structured else [])])
    seed = draw.random()

    def change(folder: Path) -> None:
        path = folder / name
        if path.is_dir():
            path = next(each for each in sorted(path.rglob("*.json")))
        if name.endswith("run.lock"):  # of a process that is gone
            path.write_text(json.dumps({"pid": 1, "machine": "elsewhere", "host": "other", "token": "t"}))
        mutate(path, how, random.Random(seed))

    verb = words[0] if "=" not in words[0] else "train"
    return Case(f"file: {name.replace(STEP, 'step')}", f"{how} -> {program} {verb}", program, words, change)


def mutate(path: Path, how: str, draw: random.Random) -> None:
    """Damage one file."""
    if how in BYTES:
        _put(path, BYTES[how](bytearray(path.read_bytes()), draw))
    elif how in KINDS:
        path.unlink()
        KINDS[how](path)
    else:
        _put(path, _other_values(path, draw))


def _put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _at(data: bytearray, draw: random.Random) -> int:
    return draw.randrange(len(data)) if data else 0


def _flip(data: bytearray, draw: random.Random) -> bytes:
    for _ in range(draw.choice([1, 1, 8])):
        if data:
            data[_at(data, draw)] ^= 1 << draw.randrange(8)
    return bytes(data)


def _insert(data: bytearray, draw: random.Random) -> bytes:
    at = _at(data, draw)
    data[at:at] = draw.choice(
        [b"\x00", b"[" * 100_000, b"{", b'"', b"\xff\xfe", b"\n", draw.randbytes(50), b"9" * 5000]
    )
    return bytes(data)


def _twice(data: bytearray, draw: random.Random) -> bytes:
    at, size = _at(data, draw), draw.choice([1, 20, 500])
    return bytes(data[: at + size] + data[at:])


def _gap(data: bytearray, draw: random.Random) -> bytes:
    at = _at(data, draw)
    del data[at : at + draw.choice([1, 20, 500])]
    return bytes(data)


def _zeros(data: bytearray, draw: random.Random) -> bytes:
    at = _at(data, draw)
    some = len(data[at : at + draw.choice([4, 64, 4096])])
    data[at : at + some] = bytes(some)
    return bytes(data)


BYTES: dict[str, Callable[[bytearray, random.Random], bytes]] = {
    "bits": _flip,
    "cut": lambda data, draw: bytes(data[: _at(data, draw)]),
    "inserted": _insert,
    "twice": _twice,
    "gap": _gap,
    "zeros": _zeros,
    "empty": lambda data, draw: b"",
    "random": lambda data, draw: draw.randbytes(300),
    "deep": lambda data, draw: draw.choice([b"[" * 100_000, b'{"a":' * 100_000, b"- " * 5000, b"[" * 900 + b"]" * 900]),
}


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # an address has at most 108 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, Callable[[Path], Any]] = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/full": lambda path: path.symlink_to("/dev/full"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a socket": _socket,
    "a terabyte of nothing": _sparse,
    "not readable": lambda path: path.symlink_to("/proc/self/mem"),
}


def _other_values(path: Path, draw: random.Random) -> bytes:
    """The same file with values that nobody wrote, and its digest right where it has one."""
    if path.suffix == ".yaml":
        tree = yaml.safe_load(path.read_text())
        _exchange(tree, draw)
        return yaml.safe_dump(_plain(tree)).encode()
    if path.suffix == ".jsonl":
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in draw.sample(records, min(3, len(records))):
            _exchange(record, draw)
        return b"".join(json.dumps(record).encode() + b"\n" for record in records)
    tree = json.loads(path.read_text())
    _exchange(tree, draw)
    if path.name == manifest.NAME and isinstance(tree, dict):
        tree["digest"] = manifest.digest_of(tree)
    return json.dumps(tree).encode()


def _exchange(tree: Any, draw: random.Random) -> None:
    """Put something else in one to three places."""
    for _ in range(draw.choice([1, 1, 3])):
        places = [
            (node, key) for node in _nodes(tree) for key in (node if isinstance(node, dict) else range(len(node)))
        ]
        if not places:
            return
        node, key = draw.choice(places)
        how = draw.random()
        if how < 0.15:
            del node[key]
        elif how < 0.25 and isinstance(node, dict):
            node[draw.choice(["", "x", "format", "__metadata__", "auto_map", "a.b"])] = deepcopy(draw.choice(JUNK))
        else:
            node[key] = deepcopy(draw.choice(JUNK))


def _nodes(tree: Any) -> list[Any]:
    if not isinstance(tree, dict | list):
        return []
    below = tree.values() if isinstance(tree, dict) else tree
    return [tree, *(node for each in below for node in _nodes(each))]


def draw_case(seed: int, number: int) -> Case:
    """Input `number` of a seed."""
    draw = random.Random(f"{seed}/{number}")
    return draw.choice([_words, _words, _yaml_file, _file, _file, _file, _file])(draw)


def draw_words(seed: int, number: int) -> Case:
    """Input `number` of a seed among those that are words alone."""
    return _words(random.Random(f"{seed}/words/{number}"))
