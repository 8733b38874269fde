"""Suite harness on tiny models: its settings, a cell measured rank by rank, and a sum over a plain forward."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from coca_train.data.tokenizer import Tokenizer
from coca_train.evaluation.subject import Setup, Subject
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.settings import load
from tests.data.vocabularies import sentencepiece_model

TASKS = Path(__file__).parent / "tasks"
WINDOW = 64
SHAPE = ["model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.d_ff=64", "model.init_std=0.3"]


def random_subject(folder: Path, words: Sequence[str] = ()) -> Subject:
    """A random model that has opinions. folder: for its tokenizer. words: other settings."""
    tokenizer = Tokenizer(sentencepiece_model(folder / "t.model"))
    config = load([f"train.seq_len={WINDOW}", *SHAPE, *words]).config
    size = {"vocab_size": tokenizer.vocab_size, "max_seq_len": WINDOW}
    model = Transformer(config.model, config.position, config.attention_pattern, **size)
    init_weights(model, config.model, seed=1)
    whose = {"facts": SimpleNamespace(kind="run"), "begin": (), "begin_choice": "auto"}
    return cast(
        Any, SimpleNamespace(name="random", training_window=WINDOW, model=model.eval(), tokenizer=tokenizer, **whose)
    )


def setup_of(seed: int = 0) -> Setup:
    return cast(Any, SimpleNamespace(seed=seed, micro_batch_tokens=700, progress=lambda share: None))


def settings(suite, *tasks: str, **changes):
    given = {
        "include_path": str(TASKS), "metadata": {}, "num_fewshot": None, "limit": None,
        "window": "training", "seed": [0, 1234, 1234, 1234],
    }  # fmt: skip
    return suite.Settings(suite="harness", tasks=list(tasks), **given | changes)


def cells(suite, wanted, subject, monkeypatch, n_ranks: int = 1):
    """Results by point, measured in shares, and the material."""
    material = suite.Evaluator(wanted).prepare(subject, setup_of())
    by_point = {}
    for point in suite.Evaluator(wanted).points([]):
        assert suite.Evaluator(wanted).impossible(subject, point, material) == ""
        assert suite.Evaluator(wanted).work(subject, [point], material)[0] > 0
        parts = {}
        for rank in range(n_ranks):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(n_ranks))
            parts |= json.loads(json.dumps(suite.Evaluator(wanted).measure(subject, point, material, setup_of())))
        monkeypatch.delenv("RANK")
        monkeypatch.delenv("WORLD_SIZE")
        by_point[point] = json.loads(json.dumps(suite.Evaluator(wanted).combine(point, material, parts)))
    return by_point, material


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text().splitlines()]


@torch.no_grad()
def log_p(subject, tokens: list[int], n: int) -> float:
    """Of the last n tokens."""
    given = torch.tensor([tokens])
    table = subject.model(given[:, :-1]).double().log_softmax(-1)[0]
    return float(sum(table[place - 1, tokens[place]] for place in range(len(tokens) - n, len(tokens))))
