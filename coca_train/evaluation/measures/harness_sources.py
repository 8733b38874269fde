"""Where the tasks of lm-evaluation-harness get their texts and their tokenizer from, while they are loaded.

With a folder nothing is fetched; docs/evaluation.md says where it has a data set, a file of one, and an address. What
is not there is an error that names the path, never a look elsewhere. The harness's own option for a data set's files is
in each task file, and some tasks have the hub's names in their code: so the four functions that all of them come
through are replaced for as long as it takes.

Tasks that make texts of a given length (RULER's) count with a tokenizer of transformers that they open by name; under
the name `tokenizer_name(text)` they get the model's own. SCROLLS, CoQA and ReCoRD import
transformers.data.metrics.squad_metrics, which transformers 5 has no more; they get the functions below, which compare
answers as SQuAD does (Rajpurkar et al., arXiv 1606.05250).
"""

import hashlib
import json
import re
import shutil
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import datasets
import datasets.load
import huggingface_hub
import requests
import transformers

from coca_train.evaluation.measures.harness_text import TaskText

BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
OF_TRANSFORMERS_4 = "transformers.data.metrics"
HUB_FILE = re.compile(r"https://huggingface\.co/datasets/(?P<dataset>[^/]+/[^/]+)/resolve/[^/]+/(?P<file>.+)")


def tokenizer_name(text: TaskText) -> str:
    """Return what a task calls the tokenizer of a model."""
    return f"coca_train/{hashlib.sha256(text.identity.encode()).hexdigest()}"


@contextmanager
def sources(folder: Path | None, text: TaskText) -> Iterator[None]:
    """Let tasks that are loaded inside find what the module says. folder: None: data sets come from the hub."""
    with ExitStack() as stack:

        def replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
            stack.enter_context(patch.object(owner, name, by))

        opened, ours = transformers.AutoTokenizer.from_pretrained, tokenizer_name(text)

        def from_pretrained(name: str, *given: Any, **options: Any) -> Any:
            if name == ours:
                return text.counter
            return opened(name, *given, **{**options, "trust_remote_code": False})  # tasks write True there

        replace(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
        if find_spec(OF_TRANSFORMERS_4) is None:
            metrics: Any = ModuleType(OF_TRANSFORMERS_4)
            squad = (normalize_answer, compute_exact, compute_f1)
            metrics.squad_metrics = SimpleNamespace(**{function.__name__: function for function in squad})
            # By hand: patch.dict would also forget all that is imported meanwhile.
            sys.modules[OF_TRANSFORMERS_4] = metrics
            stack.callback(sys.modules.pop, OF_TRANSFORMERS_4)
        # Not `load_dataset`: some task files have imported that by name, and would keep it.
        replace(datasets.load, "load_dataset_builder", _builder(folder, datasets.load.load_dataset_builder))
        if folder is not None:
            copies = Path(stack.enter_context(TemporaryDirectory()))
            replace(huggingface_hub, "hf_hub_download", partial(_copy_file, folder, copies))
            replace(requests, "get", lambda url, **options: _answer(file_at(folder, url)))
        yield


def file_at(folder: Path, url: str) -> Path:
    """Return the local file for an address. Raises FileNotFoundError."""
    known = HUB_FILE.fullmatch(url)
    path = folder / known["dataset"] / known["file"] if known else folder / url.partition("://")[2]
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}, which stands for {url}")
    return path


def _builder(folder: Path | None, hub: Callable[..., Any]) -> Callable[..., Any]:
    """Return datasets' load_dataset_builder, over the folder where there is one."""

    def builder(
        path: str, name: str | None = None, data_files: Any = None, features: Any = None, **options: Any
    ) -> Any:
        options["features"] = typed_features(features)
        if folder is None:
            return hub(path, name, data_files=data_files, **options)
        if data_files is not None:  # of a packaged builder, such as json
            return hub(path, name, data_files=_local_files(folder, data_files), **options)
        local = folder / path
        if not path or not local.is_dir():
            raise FileNotFoundError(f"there is no folder {local} for the data set {path}")
        if (local / "README.md").is_file():
            return hub(str(local), name, **options)
        kind, files = files_by_split(local, name)
        return hub(kind, data_files=files, **options)

    return builder


def typed_features(features: Any) -> Any:
    """Return the types of columns, also as InfiniteBench's task files write them, {column: {dtype: …, sequence: …}}:
    datasets takes no such words."""
    if not isinstance(features, dict) or isinstance(features, datasets.Features):
        return features
    value = {column: datasets.Value(said["dtype"]) for column, said in features.items()}
    return datasets.Features(
        {
            column: datasets.List(value[column]) if said.get("sequence") else value[column]
            for column, said in features.items()
        }
    )


def files_by_split(folder: Path, configuration: str | None) -> tuple[str, dict[str, str]]:
    """Return the builder of datasets that reads a data set's files, and the file of each split. Raises
    FileNotFoundError."""
    where = folder / (configuration or "")
    files = {path.stem: path for path in sorted(where.glob("*")) if path.suffix in BUILDERS}
    kinds = {BUILDERS[path.suffix] for path in files.values()}
    if len(kinds) != 1:
        found = "has files of several kinds" if kinds else f"has no {', '.join(BUILDERS)}"
        raise FileNotFoundError(f"{where} {found}; a file for each split is needed, such as test.jsonl")
    return kinds.pop(), {split: str(path) for split, path in files.items()}


def _local_files(folder: Path, data_files: Any) -> Any:
    """Return the files of a builder by split, addresses made paths; zip://inside::address is read out of the
    archive."""
    if isinstance(data_files, Mapping):
        return {split: _local_files(folder, files) for split, files in data_files.items()}
    if not isinstance(data_files, str):
        return [_local_files(folder, file) for file in data_files]
    inside, chained, address = data_files.rpartition("::")
    return f"{inside}{chained}{file_at(folder, address)}" if "://" in address else data_files


def _copy_file(folder: Path, copies: Path, repo_id: str, filename: str, **options: Any) -> str:
    """Copy a file of a repository, to a folder that the task may write into (SCROLLS does)."""
    path = file_at(folder, f"https://huggingface.co/datasets/{repo_id}/resolve/main/{filename}")
    into = copies / repo_id / filename
    into.parent.mkdir(parents=True, exist_ok=True)
    return str(shutil.copy(path, into))


def _answer(path: Path) -> Any:
    """Return as much of an answer over HTTP as tasks use."""
    return SimpleNamespace(
        raise_for_status=lambda: None, json=lambda: json.loads(path.read_text(encoding="utf-8")), status_code=200
    )


def normalize_answer(text: str) -> str:
    """Return a text in small letters, without punctuation and articles, single spaces."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def compute_exact(expected: str, answer: str) -> int:
    """Return 1 when both are the same, normalized."""
    return int(normalize_answer(expected) == normalize_answer(answer))


def compute_f1(expected: str, answer: str) -> float:
    """Return the harmonic mean of the share of the answer's words that are expected and of the expected ones that it
    has; where either has no words, 1 when neither has."""
    theirs, ours = normalize_answer(expected).split(), normalize_answer(answer).split()
    if not theirs or not ours:
        return float(theirs == ours)
    n_same = (Counter(theirs) & Counter(ours)).total()
    return 2 * n_same / (len(theirs) + len(ours))
