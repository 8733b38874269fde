"""Small tokenizers of every kind the tests need, each trained once a session: the same settings give the same bytes."""

import functools
import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from data_prep.tokenizer_files import train

TEXT = Path(__file__).read_text(encoding="utf-8") + "\tThe quick brown fox; jumps over 13 lazy dogs – “often”.\n" * 3
SAMPLE = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py")))
GPT2_END = "<|endoftext|>"
SPECIAL = [GPT2_END, "<|im_start|>", "<|im_end|>", "<pad>", "</s>"]


@functools.cache
def _trained(vocab_size: int, text: str) -> bytes:
    return train([text], "a test", vocab_size)


def trained(path: Path, vocab_size: int = 512, text: str = SAMPLE) -> Path:
    """A SentencePiece model by data_prep's own training, written to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_trained(vocab_size, text))
    return path


def sentencepiece_model(path: Path, **changes: Any) -> Path:
    """As data_prep trains them, but for `changes`."""
    path.write_bytes(_sentencepiece(json.dumps(changes)))
    return path


@functools.cache
def _sentencepiece(changes: str) -> bytes:
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 420,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "allow_whitespace_only_pieces": True,
        "split_digits": True,
        "user_defined_symbols": ["\n", "\t"],
        "hard_vocab_limit": False,
    } | json.loads(changes)
    model = io.BytesIO()
    lines = [line for line in TEXT.split("\n") if line.strip()] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, num_threads=1, minloglevel=2, **settings
    )
    return model.getvalue()


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2, GPT-NeoX and Llama 3."""
    return tokenizers.Tokenizer.from_str(_byte_level())


@functools.cache
def _byte_level() -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[GPT2_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer.to_str()


def llama2() -> tokenizers.Tokenizer:
    """As the tokenizer.json of Llama 2: SentencePiece's merges, a space in front, bytes for what is unknown."""
    special = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    letters = sorted(set(TEXT.replace(" ", "\u2581")) | {"\u2581"})
    pieces = [*special, *bytes_, *letters, "\u2581t", "\u2581th", "\u2581the", "he"]
    merges = [("\u2581", "t"), ("\u2581t", "h"), ("\u2581th", "e"), ("h", "e")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(special)
    return tokenizer


def saved(tokenizer: tokenizers.Tokenizer, path: Path, change: Any = None) -> Path:
    """As tokenizer.json. change: of its JSON, in place."""
    record = json.loads(tokenizer.to_str())
    if change is not None:
        change(record)
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def byte_tokenizer(path: Path) -> None:
    """A tokenizer.json with every byte, and after them SPECIAL: 256 to 260."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    made.save(str(path))
