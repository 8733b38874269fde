"""Kinds of work that are interrupted and begun again: training, report, evaluation, tokenizing, export, import.

What is left in the end must be bit for bit what is left where nothing interrupted it.
"""

import hashlib
import json
import os
import random
import re
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from coca_train.checkpoint.record import damaged_files
from coca_train.runtime.durable import read_json, unsealed
from tests.data_prep.tokenizing import bytes_of, model, write_inputs
from tests.data_prep.tokenizing import overrides as corpus_words
from tests.faults import real
from tests.faults.fork_server import ForkServer, Rank, values
from tests.stages.support import saved, schedule, stage, state, steps

PARTS = ("training", "save", "background", "stage border", "report", "evaluation", "tokenizing", "export", "import")
ZERO = (1, 3)
MORE_S = 300.0  # a machine that is busy with other things is slow, not stuck
TRAINING = [
    "position=rope", "optim.warmup_steps=0", "train.micro_batch_size=1", "engine.dtype=bf16", "engine.timeout_s=240",
    "eval.max_tokens=48", "eval.every_steps=2", "checkpoint.save_every_steps=2", "eval.extrapolation.enabled=true",
    "eval.extrapolation.multiples=[1,2,4]", "eval.extrapolation.rope_scalings=[plain,dynamic_ntk]",
    "eval.extrapolation.max_documents=2", "eval.sample_tokens=8",
    *schedule(stage("k", "max_steps: 3, trainable: ['blocks.*.attention.k.*']"), stage("all", "max_steps: 4")),
]  # fmt: skip
EVALUATION = [
    "grid.lengths=[12,24,48]", "grid.rope_scalings=[trained,dynamic_ntk]", "eval.stride=7", "work.device=cpu",
    "work.micro_batch_tokens=96", "work.progress_bar=false", "text.max_documents=3", "work.timeout_s=240",
]  # fmt: skip


class Work(ABC):
    """A command of so many ranks, killed and started again. folder: where its results lie, and nothing else."""

    parts: tuple[str, ...]

    def __init__(self, server: ForkServer, folder: Path, ranks: int) -> None:
        self.server, self.folder, self.ranks = server, folder, ranks
        self.fresh()
        self.timelines = values(self.launch(None))
        self.whole = self.left()

    def fresh(self) -> None:
        """As before the first start."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @abstractmethod
    def launch(self, kill: dict[str, Any] | None) -> list[Rank]:
        """Start it. kill: whom, when and how (tests/faults/strata.py); None: nobody."""

    @abstractmethod
    def left(self) -> Any:
        """What must be the same."""

    def kept(self) -> dict[str, bytes]:
        """Of a killed launch, what the next one must leave as it is."""
        return {}

    def trial(self, part: str, choose: random.Random) -> list[str]:
        """One or two kills, and on to the end; the parts that they struck."""
        self.fresh()
        struck = []
        for _ in range(choose.choice([1, 1, 2])):
            rank = choose.randrange(len(self.timelines))
            timeline = self.timelines[rank]
            entry = choose.choice([number for number, (name, _) in enumerate(timeline) if name == part])
            note = self.folder.with_name("struck")
            kill = {"entry": entry, "after_s": choose.uniform(0.0, timeline[entry][1]), "ranks": [rank]}
            kill |= {"how": choose.choice(self.ways()), "note": str(note)}
            ended = self.launch(kill)
            if note.exists():
                assert any(one.code for one in ended), "somebody was killed"
                struck.append(note.read_text())
                note.unlink()
        self.finish()
        return struck

    def ways(self) -> list[str]:
        return ["one", "all"] if self.ranks > 1 else ["one"]

    def finish(self) -> None:
        before = self.kept()
        for _ in range(3):
            ended = self.launch(None)
            if not any(rank.code for rank in ended):
                break
        else:
            raise AssertionError("\n\n".join(f"{rank.code}: {rank.text[-4000:]}" for rank in ended))
        after = self.kept()
        assert {name: after[name] for name in before} == before
        assert not (found := differences(self.left(), self.whole)), found


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """The places in which two results differ, each with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(f"{where}/{key}", one.get(key), other.get(key)) for key in sorted(one.keys() | other.keys(), key=str)]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = [(f"{where}/{i}", *pair) for i, pair in enumerate(zip(one, other, strict=True))]
    else:
        return [] if one == other else [f"{where}: {str(one)[:100]} and {str(other)[:100]}"]
    return [each for path, a, b in pairs for each in differences(a, b, path)][:10]


def alike(tree: Any) -> Any:
    """Results of an evaluation, but for how long each cell took and for the digest of a checkpoint, which knows its run
    by a name drawn at its start."""
    if isinstance(tree, dict):
        return {key: alike(value) for key, value in tree.items() if key not in ("seconds", "weights")}
    return [alike(value) for value in tree] if isinstance(tree, list) else tree


def files_of(folder: Path) -> dict[str, Any]:
    """Every file below a folder: what is alike of JSON, with the seals of results checked; digests of the others.

    Cells by what they are of, each once.
    """
    known: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            tree, name, is_cell = read_json(path), str(path.relative_to(folder)), path.parts[-3] == "cells"
            tree = alike(unsealed(tree) if is_cell or path.name == "results.json" else tree)
            if is_cell:  # whose name is a digest
                name = f"{path.parents[2].relative_to(folder)}: {json.dumps(tree['content'])}"
            assert name not in known
            known[name] = tree
        elif path.is_file():
            content = path.read_bytes()
            if path.name == "index.html":  # which says when each report was written
                content = re.sub(rb"<time.*?</time>", b"", content)
            known[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return known


class Training(Work):
    """Two stages and their reports, without pictures."""

    parts = ("training", "save", "background", "stage border")
    pictures = False

    def __init__(self, server: ForkServer, folder: Path, ranks: int, words: list[str]) -> None:
        self.words = [*words, f"run.root={folder.parent}", f"run.name={folder.name}"]
        super().__init__(server, folder, ranks)

    def launch(self, kill: dict[str, Any] | None) -> list[Rank]:
        arguments = {"overrides": self.words, "kill": kill, "pictures": self.pictures}
        return self.server.run(
            "tests.faults.strata:train", arguments, self.ranks, timeout_s=MORE_S, fail_fast_s=1.0,
            launcher=self.ranks > 1,
        )  # fmt: skip

    def left(self) -> Any:
        assert not real.leftovers(self.folder)
        assert [record["step"] for record in steps(self.folder)] == list(range(1, 8))
        assert saved(self.folder) == [3, 6, 7]
        return real.final_state(self.folder), state(self.folder, 3), files_of(self.folder / "report")


class Report(Training):
    """What a trained run has still to do, pictures and all. A fresh one is trained, and has no report."""

    parts = ("report",)
    pictures = True

    def __init__(self, server: ForkServer, folder: Path, ranks: int, words: list[str], trained: Path) -> None:
        self.trained = trained
        super().__init__(server, folder, ranks, words)

    def fresh(self) -> None:
        super().fresh()
        shutil.copytree(self.trained, self.folder)
        for place in [*(self.folder / "report").glob("*"), *self.folder.glob("*.png")]:
            if place.name != "k":
                shutil.rmtree(place) if place.is_dir() else place.unlink()

    def kept(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.folder.glob("report/cells/*/*.json")}

    def left(self) -> Any:
        pictures = {path.name: path.read_bytes() for path in self.folder.glob("*.png")}
        return super().left(), pictures


class Evaluating(Work):
    """The grid of a trained run, and its page."""

    parts = ("evaluation",)

    def __init__(self, server: ForkServer, folder: Path, ranks: int, trained: Path) -> None:
        self.words = [f"checkpoint={trained}", f"work.root={folder}", "work.name=killed", *EVALUATION]
        super().__init__(server, folder, ranks)

    def launch(self, kill: dict[str, Any] | None) -> list[Rank]:
        return self.server.run(
            "tests.faults.strata:evaluate", {"overrides": self.words, "kill": kill}, self.ranks, timeout_s=MORE_S,
            fail_fast_s=1.0, launcher=self.ranks > 1,
        )  # fmt: skip

    def kept(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.folder.glob("cells/*/*.json")}

    def left(self) -> Any:
        return files_of(self.folder)


class Tokenizing(Work):
    """Raw text to token files and a mixture of them. ranks: worker processes; one works alone."""

    parts = ("tokenizing",)

    def __init__(self, server: ForkServer, folder: Path, ranks: int) -> None:
        raw = write_inputs(folder.parent, n_inputs=3, n_documents=100)
        tokenizer = shutil.copy(model(), folder.parent / "tokenizer.model")
        self.words = corpus_words(raw, folder, tokenizer_path=tokenizer, work_workers=ranks)
        super().__init__(server, folder, ranks)

    def launch(self, kill: dict[str, Any] | None) -> list[Rank]:
        arguments = {"overrides": self.words, "kill": kill}
        return self.server.run("tests.faults.strata:tokenize", arguments, timeout_s=MORE_S, launcher=False)

    def ways(self) -> list[str]:
        return ["one", "all", "worker"] if self.ranks > 1 else ["one"]

    def left(self) -> Any:
        return bytes_of(self.folder)


class Publishing(Work):
    """An export or an import. It is there as a whole, or the same command makes it."""

    verb: str

    def __init__(self, server: ForkServer, folder: Path, words: list[str]) -> None:
        self.words, self.made = words, folder / "made"
        super().__init__(server, folder, ranks=1)

    def launch(self, kill: dict[str, Any] | None) -> list[Rank]:
        arguments = {"verb": self.verb, "overrides": self.words, "kill": kill}
        return self.server.run("tests.faults.strata:publish", arguments, timeout_s=MORE_S, launcher=False)

    def finish(self) -> None:
        if self.made.exists():
            assert self.left() == self.whole
        else:
            super().finish()

    def left(self) -> Any:
        assert os.listdir(self.folder) == [self.made.name]
        return self.content()

    @abstractmethod
    def content(self) -> Any:
        """Of what it makes."""


class Exporting(Publishing):
    """A trained run as a folder of transformers."""

    parts, verb = ("export",), "export"

    def content(self) -> Any:
        return {str(path): path.read_bytes() for path in self.made.rglob("*") if path.is_file()}


class Importing(Publishing):
    """A folder of transformers as a run."""

    parts, verb = ("import",), "import"

    def content(self) -> Any:
        assert not damaged_files(self.made)
        return real.newest_state(self.made)


KINDS: tuple[type[Work], ...] = (Training, Report, Evaluating, Tokenizing, Exporting, Importing)


class Works:
    """Works by part and number of ranks, made when they are needed."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self.server, self.folder, self._works = server, folder, dict[Any, Work]()
        self.data = real.prepare(folder)

    def of(self, part: str, ranks: int, zero: int) -> Work:
        kind: type[Work] = next(each for each in KINDS if part in each.parts)
        zero = zero if kind in (Training, Report) else ZERO[0]
        ranks = 1 if issubclass(kind, Publishing) else ranks
        key = kind, ranks, zero
        if key not in self._works:
            place = self.folder / f"{kind.__name__}-{ranks}-{zero}"
            place.mkdir(exist_ok=True)
            self._works[key] = self._make(kind, place, ranks, zero)
        return self._works[key]

    def _make(self, kind: type[Work], place: Path, ranks: int, zero: int) -> Work:
        words = [*real.TINY, *TRAINING, *self.data, f"engine.zero_stage={zero}"]
        if kind is Training:
            return Training(self.server, place / "r", ranks, words)
        if kind is Tokenizing:
            return Tokenizing(self.server, place / "corpus", ranks)
        trained = self.folder / f"trained-{ranks}-{zero}"
        if not trained.exists():
            self.of("training", ranks, zero).fresh()
            self.of("training", ranks, zero).finish()
            shutil.copytree(self.of("training", ranks, zero).folder, trained)
        if kind is Report:
            return Report(self.server, place / "r", ranks, words, trained)
        if kind is Evaluating:
            return Evaluating(self.server, place / "evaluation", ranks, trained)
        if kind is Exporting:
            return Exporting(self.server, place / "out", [f"run={trained}", f"to={place}/out/made", "tokenizer=none"])
        source = self.of("export", ranks, zero)
        source.fresh()
        source.finish()
        exported = shutil.copytree(source.folder / "made", place / "exported", dirs_exist_ok=True)
        return Importing(self.server, place / "runs", [f"source={exported}", f"root={place}/runs", "name=made"])
