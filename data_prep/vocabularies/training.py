"""Train a SentencePiece vocabulary that gives back every byte of code and prose."""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from coca_train.data.storage import flush_to_disk, storage
from coca_train.runtime.errors import DataError

MIN_VOCAB, MAX_VOCAB = 512, 1_000_000
MAX_LINE_BYTES = 4000


def train_tokenizer(texts: Iterable[str], path: Path, vocab_size: int) -> None:
    """Train the quickstart's vocabulary on the lines of `texts` and write the model file. See `train`."""
    model = train(texts, str(path), vocab_size)
    with storage(str(path)), open(path, "wb") as file:
        file.write(model)
        flush_to_disk(file)


def train(
    texts: Iterable[str],
    where: str,
    vocab_size: int,
    model_type: str = "bpe",
    character_coverage: float = 0.9995,
    byte_fallback: bool = True,
    threads: int = 1,
    option: str = "vocab_size",
) -> bytes:
    """Train on the lines of `texts`; returns the model file. where: the file it is for, and option: what
    sets vocab_size, in messages.

    Identity normalisation, no dummy prefix; with byte fallback decode(encode(x)) == x for any text.
    Newline and tab are pieces of their own, runs of spaces are learned, digits are split. Ids: 0 <unk>, 1 <s>,
    2 </s> (ends a document).
    threads: a fixed number, never that of the machine: it is written into the model, and under unigram it decides in
    which order scores are summed up. With the same number the same texts give the same bytes.
    Raises DataError E-PREP-01 for a vocabulary size out of range or more pieces than the text can fill.
    """
    if not MIN_VOCAB <= vocab_size <= MAX_VOCAB:
        raise DataError(
            f"E-PREP-01 {option}={vocab_size}: {MIN_VOCAB} .. {MAX_VOCAB} is possible (256 bytes are in it). "
            f"Fix: {option}=4096"
        )
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(texts),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            byte_fallback=byte_fallback,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            user_defined_symbols=["\n", "\t"],
            character_coverage=character_coverage,
            num_threads=threads,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].rpartition("] ")[2].rstrip(".")
        raise DataError(
            f"E-PREP-01 {where}: SentencePiece cannot train {vocab_size} pieces on this text: {reason}. "
            f"Fix: lower {option}, or give it more text"
        ) from error
    return model.getvalue()


def affordable_coverage(texts: Callable[[], Iterable[str]], vocab_size: int) -> float:
    """Share of the characters of some texts that can have pieces of their own without being more than half of the
    vocabulary: a small text in Chinese has more characters than a small vocabulary has room for."""
    characters = set[str]().union(*texts())
    room = vocab_size // 2
    if len(characters) <= room:
        return 1.0
    counts = Counter(chain.from_iterable(texts()))
    return sum(count for _, count in counts.most_common(room)) / counts.total()


def lines(texts: Iterable[str]) -> Iterator[str]:
    """Non-empty lines short enough for the trainer; a newline is never inside a learned piece."""
    for line in chain.from_iterable(text.split("\n") for text in texts):
        if line.strip() and len(line.encode()) <= MAX_LINE_BYTES:
            yield line


def short_lines(texts: Iterable[str]) -> Iterator[str]:
    """Texts with their lines cut at spaces to what `lines` keeps; where there is no space, in mid-word."""
    longest = MAX_LINE_BYTES // 4  # characters; four bytes is the most one takes
    for text in texts:
        for line in text.split("\n"):
            begin = 0
            while len(line) - begin > longest:
                cut = line.rfind(" ", begin + 1, begin + longest)
                cut = begin + longest if cut < 0 else cut
                yield line[begin:cut]
                begin = cut
            yield line[begin:]
