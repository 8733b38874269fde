"""The documented way of an experiment, walked: the commands in the heads of its file and of its corpus' file, in order.

The head of an experiment's file is the command that trains it; behind `First:` stand the corpora and experiments that
come before, and commands on lines of their own. Only sizes are added, and folders given for <NAMES in brackets>.
"""

import io
import re
import shlex
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from coca_train import commands
from coca_train.checkpoint.opening import read_record
from coca_train.config.files import config_dir
from coca_train.data.corpus_config import load as load_corpus
from coca_train.settings import load
from data_prep import __main__ as data_prep
from data_prep.verbs import diagnostics, embedded
from tests.rehearsal import world

MAINS = {"coca_train": commands.main, "data_prep": data_prep.main}
FOLDERS = {  # what stands for a released model in the commands -> its choice of `model`
    "<LLaMA-7B>": "llama_7b",
    "<Llama-2-7b-hf>": "llama2_7b",
    "<Llama-2-13b-hf>": "llama2_13b",
    "<Mistral-7B-v0.1>": "mistral_7b",
}
COMMAND = re.compile(r"(?:python|torchrun)(?: \S+)*? -m (?:coca_train|data_prep) .*")
STEPS = 2
SIZES_OF_DATA = [
    "corpus.valid_share=0.3", "work.workers=1", "work.progress_bar=false", "retrieval.n_valid_documents=4",
]  # fmt: skip
SIZES = [
    *(f"model.{name}={size}" for name, size in world.WIDTH.items()),
    "train.seq_len=32", "train.micro_batch_size=1", "train.global_batch_size=2", f"train.max_steps={STEPS}",
    "optim.warmup_steps=1", "start.parity_tokens=32", "engine=local",
    "engine.sequence_parallel=1", "eval.max_tokens=64", "eval.sample_tokens=0",
    "eval.extrapolation.enabled=false", "tracking.progress_bar=false",
]  # fmt: skip


@dataclass(frozen=True)
class Head:
    """The first comment lines of a file of configs/, without the mark of its package."""

    group: str
    name: str

    @cached_property
    def lines(self) -> list[str]:
        text = (Path(config_dir()) / self.group / f"{self.name}.yaml").read_text(encoding="utf-8")
        before = text.splitlines()[: next(n for n, line in enumerate(text.splitlines()) if line[:1] != "#")]
        return [line[1:].strip() for line in before if "@package" not in line]

    @property
    def commands(self) -> list[list[str]]:
        """Words of every command, the one of the first line among them; what stands far to the right is a remark."""
        found = (COMMAND.match(line) for line in self.lines)
        return [shlex.split(re.split(r"\s{4,}(?!\s|\S+=)", match[0])[0]) for match in found if match]

    @property
    def sentences(self) -> str:
        return " ".join(line for line in self.lines[1:] if not COMMAND.match(line))

    def named(self, what: str) -> list[str]:
        """Choices behind `what=` in the sentences that begin with First."""
        first = re.search(r"First: .*?(?:\. |$)", self.sentences)
        return re.findall(rf"\b{what}=(\w+)", first[0]) if first else []


@dataclass
class Walk:
    """In a folder of its own, where there is nothing but what its commands make.

    made: corpora, models and runs of earlier walks. They are not made again, but only what this one's commands would
    make is put into its folder.
    """

    folder: Path
    made: dict[str, Path]
    typed: set[str] = field(default_factory=set)

    def experiment(self, name: str, *words: str) -> Path:
        """The run's directory, trained as its file says. words: added to the command that trains it."""
        self.before(name)
        command, *others = Head("experiment", name).commands
        for other in others:
            if not of_released(other):  # that is another way to begin
                self.type(other)
        return self.train(name, [*command, *words])

    def imported_once(self, name: str) -> Path:
        """The other way to begin: the released model is imported by hand, and start.path left away."""
        self.before(name)
        command, importing = Head("experiment", name).commands
        self.type(importing)
        begins = [word for word in command if not word.startswith("start.path=")]
        return self.train(name, [*begins, f"run.name={name}_imported_once"])

    def train(self, name: str, command: list[str]) -> Path:
        self.type(command, [*SIZES, *sizes_of(name)])
        run_name = next((word[9:] for word in command if word.startswith("run.name=")), name)
        return self.folder / "runs" / run_name

    def before(self, name: str) -> None:
        """The corpora and experiments that an experiment's file names first."""
        head = Head("experiment", name)
        made = {"embedded": self.embedded, "diagnostics": self.diagnostics, "none": lambda: None}
        made[load([f"+experiment={name}", *SIZES, *sizes_of(name)]).config.data.prepare]()
        for corpus in head.named("corpus"):
            self.corpus(corpus)
        for other in head.named("experiment"):
            if not self.is_here(other, f"runs/{other}"):
                self.made[other] = self.experiment(other)

    def is_here(self, name: str, path: str) -> bool:
        """Whether this name is at this path of the folder, brought from an earlier walk if need be."""
        here = self.folder / path
        if name in self.made and not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            here.symlink_to(self.made[name])
        return here.exists()

    def corpus(self, name: str) -> None:
        corpus = load_corpus([f"corpus={name}"])
        if self.is_here(f"corpus {name}", corpus.corpus.dir):
            return
        world.raw_text(self.folder, corpus)
        for command in Head("corpus", name).commands:
            if "data_prep" in command:
                sets = [f"retrieval.sets.{each}.n_documents=60" for each in corpus.retrieval.sets]
                self.type(command, [*SIZES_OF_DATA, *sets])
        self.made[f"corpus {name}"] = self.folder / corpus.corpus.dir

    def embedded(self) -> None:
        """What the first training without data makes of the Python installation, of less text."""
        if self.is_here("embedded", "data/embedded"):
            return
        documents = []
        for number, part in enumerate(embedded.WEIGHTS):
            own = world.words()[number:10_000:2]
            texts = [world.text(own[n : n + 400]) for n in range(0, len(own), 400)]
            texts += [world.text(own), world.text(own[::-1])]  # as long as those that are held out
            documents += [embedded.Document(part, f"{part}{n}", text) for n, text in enumerate(texts)]
        self.made["embedded"] = self.folder / "data" / "embedded"
        embedded.make(self.made["embedded"], progress=False, documents=documents)

    def diagnostics(self) -> None:
        """The same of the diagnostics, of fewer examples."""
        if not self.is_here("diagnostics", "data/diagnostics"):
            folder = self.made["diagnostics"] = self.folder / "data" / "diagnostics"
            diagnostics.make(
                diagnostics.DiagnosticsConfig(dir=str(folder), n_documents=60, n_valid_documents=20), progress=False
            )

    def export(self, run_dir: Path, *words: str) -> Path:
        """By the command that the page of commands gives. words: after it."""
        page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
        given = re.search(r"`(python -m coca_train export run=runs/(\w+) to=\S+)`", page)
        assert given is not None
        self.type([*shlex.split(given[1].replace(given[2], run_dir.name)), *words])
        return self.folder / given[1].rpartition("to=")[2].replace(given[2], run_dir.name)

    def type(self, command: list[str], sizes: Sequence[str] = ()) -> None:
        """A command that was typed before is not typed again."""
        line = " ".join(command)
        if line not in self.typed:
            code, printed = self.attempt(command, sizes)
            assert code in (0, None), f"{line}\n{printed[-3000:]}"
            self.typed.add(line)

    def attempt(self, command: list[str], sizes: Sequence[str] = ()) -> tuple[int | None, str]:
        """Its exit code and what it printed, typed in this walk's folder."""
        module, *words = [self.in_place(word) for word in command[command.index("-m") + 1 :]]
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
            patch.chdir(self.folder)
            return MAINS[module]([*words, *sizes]), printed.getvalue()

    def in_place(self, word: str) -> str:
        """The word with a folder for each <NAME>, made when it is first wanted."""
        for place, choice in FOLDERS.items():
            if place in word:
                name = place.strip("<>")
                if not self.is_here(place, name):
                    self.made[place] = world.model(self.folder / name, choice)
                word = word.replace(place, name)
        assert "<" not in word, f"what is {word}?"
        return word


def of_released(command: list[str]) -> bool:
    return any(place in word for word in command for place in FOLDERS)


def sizes_of(name: str) -> list[str]:
    """What must be small beside SIZES: stages with a length or a warm-up of their own, and grouped heads."""
    config = load([f"+experiment={name}"], launch=False).config
    words = [f"stages.{name}.max_steps={STEPS}" for name, stage in config.stages.items() if stage.max_steps is not None]
    words += [
        f"stages.{name}.optim.warmup_steps=1" for name, stage in config.stages.items() if "warmup_steps" in stage.optim
    ]
    kv_heads = world.kv_heads(config.model)
    return words if kv_heads is None else [*words, f"model.n_kv_heads={kv_heads}"]


def last_step(run_dir: Path) -> int:
    return max(int(path.name[5:]) for path in (run_dir / "checkpoints").glob("step-*"))


def stages(run_dir: Path) -> list[str]:
    """Those that the run's record has as begun."""
    return [stage["name"] for stage in read_record(run_dir)["stages"]]
