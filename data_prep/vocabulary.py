"""Train a SentencePiece BPE vocabulary that gives back every byte of code and prose."""

import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from coca_train.config.errors import DataError
from coca_train.data.files import flush_to_disk, storage

MIN_VOCAB, MAX_VOCAB = 512, 65000
MAX_LINE_BYTES = 4000


def train_tokenizer(texts: Iterable[str], path: Path, vocab_size: int) -> None:
    """Train on the lines of `texts` and write the model file.

    Identity normalisation, no dummy prefix, byte fallback: decode(encode(x)) == x for any text without U+2581.
    Newline and tab are pieces of their own, runs of spaces are learned, digits are split. One thread: the same
    texts give the same file. Ids: 0 <unk>, 1 <s>, 2 </s> (ends a document).
    Raises DataError E-PREP-01 for a vocabulary size out of range or more pieces than the text can fill.
    """
    if not MIN_VOCAB <= vocab_size <= MAX_VOCAB:
        raise DataError(
            f"E-PREP-01 vocab_size: {vocab_size}; {MIN_VOCAB} .. {MAX_VOCAB} is possible (256 bytes are in it). "
            "Fix: vocab_size=4096"
        )
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            user_defined_symbols=["\n", "\t"],
            character_coverage=0.9995,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise DataError(
            f"E-PREP-01 {path}: SentencePiece cannot train {vocab_size} pieces on this text: {reason}. "
            "Fix: lower vocab_size, or give it more text"
        ) from error
    with storage(str(path)), open(path, "wb") as file:
        file.write(model.getvalue())
        flush_to_disk(file)


def lines(texts: Iterable[str]) -> Iterator[str]:
    """Non-empty lines short enough for the trainer; a newline is never inside a learned piece."""
    for line in itertools.chain.from_iterable(text.split("\n") for text in texts):
        if line.strip() and len(line.encode()) <= MAX_LINE_BYTES:
            yield line
