"""Two tiny models with tokenizers, written by transformers, and some text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

TEXT = "the cat sat on a mat while rain fell over old houses and nobody in town spoke of it again"
WORDS = TEXT.split()


def sentences(seed: int, n_words: int) -> str:
    """Made-up text, the same every time."""
    import random

    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(n_words))


@pytest.fixture(autouse=True)
def at_the_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm_eval looks for the examples of tests/evaluation/tasks/ from where it is started."""
    if request.node.path.name in ("test_harness.py", "test_independent.py"):
        monkeypatch.chdir(Path(__file__).parents[2])


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> Callable[[str], Path]:
    """folders(name): a Llama of 24 positions, vocabulary 512; names make different weights. Not to be written to."""
    paths: dict[str, Path] = {}

    def folder(name: str = "one") -> Path:
        from tests.data.vocabularies import sentencepiece_model
        from tests.hub import models

        if name not in paths:
            range_ = 0.15 + 0.01 * len(paths)
            path = tmp_path_factory.mktemp("subjects") / name
            models.write(path, "llama_gqa", vocab_size=512, initializer_range=range_)
            sentencepiece_model(path / "tokenizer.model")
            paths[name] = path
        return paths[name]

    return folder


@pytest.fixture(scope="session")
def books(tmp_path_factory) -> Path:
    """Three documents of some hundred tokens, a .jsonl file."""
    path = tmp_path_factory.mktemp("text") / "books.jsonl"
    path.write_text("".join(json.dumps({"text": sentences(i, 120 + 30 * i)}) + "\n" for i in range(3)))
    return path


@pytest.fixture
def evaluated(tmp_path, folders, books, monkeypatch) -> Callable[..., tuple[dict[str, Any], Any]]:
    """evaluated(choice, "eval.…=…", ..., exchanged=…): what a whole evaluation of one model leaves in results.json, and
    its page; cells are kept between calls. exchanged(opened): what is measured in place of the folder's model.

    Without the report's files, whose pictures take five times as long as the cells; test_command.py has whole ones.
    """
    from coca_train.evaluation import grid, pipeline
    from coca_train.evaluation.configuration import load

    pages: list[Any] = []
    open_folder = grid.open_folder
    monkeypatch.setattr(pipeline, "write_report", lambda document, directory: pages.append(document) or {})
    monkeypatch.setattr(pipeline, "write_index", lambda root: None)

    def results(choice: str, *words: str, exchanged: Callable[[Any], Any] = lambda opened: opened) -> Any:
        monkeypatch.setattr(grid, "open_folder", lambda *place: exchanged(open_folder(*place)))
        own = [f"checkpoint={folders('one')}", f"text.files=[{books}]", f"work.root={tmp_path / 'made'}"]
        directory = pipeline.evaluate(load([f"+eval={choice}", *own, *words])[0], "the command")
        return json.loads((directory / "results.json").read_text()), pages[-1]

    return results
