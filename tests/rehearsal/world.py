"""What a user of the recipes has before the first command, in small: raw text by its name, and folders of models.

The data sets of the hub are local folders of the same names, which `datasets` loads as it would load them from there.
"""

import gzip
import io
import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import zstandard

from coca_train.config.corpus_schema import CorpusSourceConfig, PrepareConfig
from coca_train.config.schema import ModelConfig
from coca_train.settings import load

WORDS_OF_A_PIECE = 1.5  # distinct words of a text that a piece of a vocabulary needs to be learned
N_WORDS = int(100_864 * WORDS_OF_A_PIECE)  # for the largest vocabulary of a recipe
N_IMPORTED = 8_000  # words of a corpus whose vocabulary is there already
N_DOCUMENTS = 24
# What is in the released config.json and is no setting of a run, by choice of `model`.
RELEASED: dict[str, dict[str, Any]] = {
    "llama_7b": {"model_type": "llama", "max_position_embeddings": 2048},
    "llama2_7b": {"model_type": "llama", "max_position_embeddings": 4096},
    "llama2_13b": {"model_type": "llama", "max_position_embeddings": 4096},
    "mistral_7b": {"model_type": "mistral", "max_position_embeddings": 32768, "sliding_window": 4096},
}
WIDTH = {"n_layers": 2, "d_model": 64, "n_heads": 8, "d_ff": 128}


@cache
def words() -> list[str]:
    choose = random.Random(0)
    syllables = [a + b + c for a in "bcdfghklmnprstvz" for b in "aeiou" for c in ("", "n", "r", "s", "l")]
    return ["".join(choose.choices(syllables, k=choose.choice((2, 3, 4)))) for _ in range(N_WORDS)]


def text(chosen: Sequence[str]) -> str:
    """In lines of twenty words."""
    return "\n".join(" ".join(chosen[n : n + 20]) for n in range(0, len(chosen), 20))


def raw_text(folder: Path, corpus: PrepareConfig) -> None:
    """Every source of a corpus as its configuration names it, seen from `folder`; each has its own words."""
    sources, learned = corpus.corpus.sources, corpus.tokenizer.import_from is None
    n_words = int(corpus.tokenizer.vocab_size * WORDS_OF_A_PIECE) if learned else N_IMPORTED
    for number, source in enumerate(sources.values()):
        own = words()[number : n_words : len(sources)]
        share = -(-len(own) // N_DOCUMENTS)
        texts = [text(own[n : n + share]) for n in range(0, len(own), share)]
        lines = "\n".join(json.dumps(_record(source, n, each)) for n, each in enumerate(texts))
        if source.kind == "hub":
            _data_set(folder / str(source.hub), source, lines)
        for pattern in source.files:
            path = folder / pattern.replace("*", "00000")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(lines.encode(), 1))


def _record(source: CorpusSourceConfig, number: int, text: str) -> dict[str, Any]:
    kept = source.filter
    record: dict[str, Any] = {source.text_field: text}
    if source.id_field is not None:
        record["meta"] = {"id": f"{text[:20]} {number}"}  # meta.id, of every corpus that has one
    if kept.language_field is not None:
        record[kept.language_field] = kept.languages[number % len(kept.languages)]
    if kept.stars_field is not None:
        record[kept.stars_field] = number
    return record


def _data_set(folder: Path, source: CorpusSourceConfig, lines: str) -> None:
    """A split of a data set; its card names the files of every split, as the cards of the hub do."""
    name, split = source.hub_config or "default", source.hub_split
    for file in [pattern.replace("*", split) for pattern in source.hub_files] or [f"{name}/{split}.jsonl"]:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(zstandard.compress(lines.encode()) if file.endswith(".zst") else lines.encode())
    if not source.hub_files:
        splits = [f"  - split: {path.stem}\n    path: {name}/{path.name}" for path in (folder / name).glob("*.jsonl")]
        card = "\n".join(["---", "configs:", f"- config_name: {name}", "  data_files:", *splits, "---", ""])
        (folder / "README.md").write_text(card)


@cache
def tokenizer(vocab_size: int, family: str) -> bytes:
    """A SentencePiece model of exactly so many pieces, with the beginning and end of text of LLaMA's; another for each
    family of models."""
    written = io.BytesIO()
    own = words()[len(family) : int(vocab_size * WORDS_OF_A_PIECE)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text(own).splitlines()), model_writer=written, model_type="bpe",
        vocab_size=vocab_size, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        num_threads=1, minloglevel=2,
    )  # fmt: skip
    return written.getvalue()


def model(folder: Path, choice: str) -> Path:
    """A Hugging Face folder of the released model of this choice, small, with a tokenizer and its whole vocabulary."""
    import transformers

    shape = load([f"model={choice}"]).config.model
    assert shape.vocab_size is not None
    released = dict(RELEASED[choice])
    values = {
        "hidden_size": WIDTH["d_model"],
        "num_hidden_layers": WIDTH["n_layers"],
        "num_attention_heads": WIDTH["n_heads"],
        "num_key_value_heads": kv_heads(shape) or WIDTH["n_heads"],
        "intermediate_size": WIDTH["d_ff"],
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": shape.norm_eps,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    kind = released.pop("model_type")
    made = transformers.AutoConfig.for_model(kind, **(values | released))
    transformers.AutoModelForCausalLM.from_config(made).save_pretrained(folder)
    (folder / "tokenizer.model").write_bytes(tokenizer(shape.vocab_size, kind))
    return folder


def kv_heads(shape: ModelConfig) -> int | None:
    """As many heads to a key/value head as in this shape; None: one."""
    return None if shape.n_kv_heads is None else WIDTH["n_heads"] * shape.n_kv_heads // shape.n_heads
