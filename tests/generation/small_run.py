"""A run directory with one checkpoint of an untrained model, without a training."""

import json
from functools import partial
from pathlib import Path

import sentencepiece
from torch import Tensor

from coca_train import checkpoint, engine
from coca_train.config.load import FORMAT
from coca_train.data.mixture import tokenizer_digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.models.init import init_parameter
from coca_train.models.transformer import build_model, vocab_size
from coca_train.settings import load
from tests import states

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "pack my box with five dozen liquor jugs",
    "def main(): return 0",
]
SHAPE = ["model.n_layers=1", "model.d_model=32", "model.n_heads=2", "model.d_ff=64"]


def write_run(folder: Path, name: str) -> tuple[Path, dict[str, Tensor]]:
    """The directory <folder>/<name>, and the weights it must give back."""
    prefix, run_dir = folder / "tokenizer", folder / name
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 5), model_prefix=str(prefix), vocab_size=60, hard_vocab_limit=False,
        minloglevel=2, character_coverage=1.0,
    )  # fmt: skip
    words = ["position=coca", "engine=local", "engine.dtype=fp32", f"run.root={folder}", f"run.name={name}", *SHAPE]
    loaded = load([*words, f"data.tokenizer={prefix}.model"])
    config = loaded.config
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(loaded.record)
    fingerprint = {"tokenizer": tokenizer_digest(config.data.tokenizer)}
    (run_dir / "run.json").write_text(json.dumps({"format": FORMAT, "run_id": "r", "fingerprint": fingerprint}))
    rows = vocab_size(config.model, Tokenizer(config.data.tokenizer).vocab_size, "")
    trainer = engine.build(
        config.engine,
        config.optim,
        partial(build_model, config, rows),
        partial(init_parameter, model=config.model, position=config.position, seed=5),
        trainable=["*"],
        micro_batch_size=1,
        accumulation=1,
    )
    error = states.save(run_dir, 7, trainer, checkpoint.Meta("r", "m", fingerprint, {}))
    assert error is None
    weights = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.close()
    return run_dir, weights
