"""Everything that the two programs read, small: runs, folders of transformers, corpora; copied for each trial."""

import gzip
import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.data_prep import tokenizing
from tests.faults import real
from tests.faults.fork_server import ForkServer, values

TRAIN = [
    *real.TINY, "train.max_steps=4", "checkpoint.save_every_steps=2", "optim.warmup_steps=1", "engine=local",
    "engine.device=cpu", "engine.dtype=fp32", "data.prefetch_steps=0", "eval.sample_tokens=4",
    "eval.extrapolation.enabled=true", "eval.extrapolation.multiples=[1,2]", "eval.extrapolation.max_documents=2",
    "eval.extrapolation.rope_scalings=[plain]", "run.root=runs",
]  # fmt: skip
EXPORTABLE = [
    "position=rope", "model.norm=rmsnorm", "model.activation=swiglu", "model.residual=sequential", "model.bias=[]",
    "model.tie_embeddings=false",
]  # fmt: skip
DATA = [
    "data.tokenizer=tokenizer.model", "~data.sources.code", "data.sources.text.path=corpus/text_train",
    "data.sources.text.valid_path=corpus/text_valid",
]  # fmt: skip
TEXTS = [f"the fox number {i} jumps over {i * 7} lazy dogs and goes on to page {i * i}" for i in range(60)]
CORPUS = [
    "corpus.dir=corpus", "corpus.name=mine", "corpus.valid_share=0.2", "tokenizer.path=tokenizer.model",
    "work.workers=1", "work.chunk_bytes=1000", "work.part_bytes=4000", "work.progress_bar=false",
]  # fmt: skip


def train_words(name: str, *more: str) -> list[str]:
    """A training of a few steps in runs/<name>."""
    return [*TRAIN, *EXPORTABLE, *DATA, f"run.name={name}", *more]


def make(folder: Path, server: ForkServer) -> None:
    """Fill `folder`: every path in it is relative, so that it can be copied."""
    _raw(folder / "raw")
    shutil.copy(tokenizing.model(), folder / "tokenizer.model")
    files = "corpus.sources.text.files=[raw/*.jsonl.gz]"
    _run(server, folder, "data_prep", ["tokenize", *CORPUS, files])
    for name, more in (("a", ()), ("b", ("position=alibi",))):
        _run(server, folder, "coca_train", train_words(name, *more))
    _run(server, folder, "coca_train", ["export", "run=runs/a", "to=hf", "parity_tokens=16"])
    _sharded(folder / "hf", folder / "hf_sharded")
    (folder / "configs" / "experiment").mkdir(parents=True)
    (folder / "configs" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n# mine\ntrain:\n  max_steps: 4\noptim:\n  lr: 0.001\n  betas: [0.9, 0.95]\n"
        "run:\n  name: a\nstages:\n  all:\n    train: {seq_len: 24}\n"
    )


def _run(server: ForkServer, folder: Path, program: str, words: list[str]) -> None:
    arguments = {"program": program, "words": words}
    (answer,) = server.run("tests.hostile.child:command", arguments, cwd=folder, launcher=False, timeout_s=120)
    (ended,) = values([answer])
    assert ended["code"] == 0, answer.text


def _sharded(whole: Path, folder: Path) -> None:
    """The same weights in two files with an index, as large models have them."""
    shutil.copytree(whole, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    where = {name: f"model-{1 + (i % 2):05d}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({n: tensors[n] for n in names if where[n] == file}, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _raw(folder: Path) -> None:
    """Raw text in every form that is read."""
    import pyarrow
    import pyarrow.parquet
    import zstandard

    folder.mkdir()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    (folder / "plain.jsonl").write_bytes(lines)
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (folder / "packed.jsonl.zst").write_bytes(zstandard.compress(lines))
    (folder / "text.txt").write_text("\n".join(TEXTS))
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), folder / "table.parquet")
