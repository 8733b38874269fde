"""Documents and windows of tokens as text that a terminal can be trusted with.

What a document holds cannot act on the terminal or look like something else: characters that are not printable are
escaped, and so are the brackets that mark what is not text. A line of text begins with `| `.
"""

import numpy as np

from coca_train.data.dataset import IndexedDataset
from coca_train.data.provenance import Origins
from coca_train.data.readers.base import escape
from coca_train.data.readers.files import describe_origin
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.printing import escaped

OPEN, CLOSE = "⟦", "⟧"  # around what is not text: ends of documents, special tokens, what is left out
LEFT_OUT = f"{OPEN}…{CLOSE}"
TOKENS_PER_CHARACTER = 4  # at most: a character has no more bytes than that
FEWEST_CHARACTERS = 40  # of each document in a window with many


def visible(text: str) -> str:
    """Escape every character of a text that is not printable; line breaks and tabs stay."""
    return escaped(text).replace(OPEN, "\\u27e6").replace(CLOSE, "\\u27e7")


def lines(text: str) -> str:
    """Mark every line of a visible text as text."""
    return "".join(f"  | {line}\n" for line in text.split("\n"))


def as_text(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    """Decode ids to visible text; tokens that are no text become ⟦end of document⟧, ⟦token 1⟧.

    ids: int64 (tokens,).
    """
    special = np.isin(ids, list(tokenizer.control | {tokenizer.eod})) | (ids >= tokenizer.vocab_size)
    parts, start = [], 0
    for at in [*np.flatnonzero(special).tolist(), len(ids)]:
        parts.append(visible(tokenizer.decode(ids[start:at].tolist())))
        if at < len(ids):
            name = "end of document" if ids[at] == tokenizer.eod else f"token {ids[at]}"
            parts.append(f"{OPEN}{name}{CLOSE}")
        start = at + 1
    return "".join(parts)


def shortened(ids: np.ndarray, tokenizer: Tokenizer, characters: int) -> str:
    """Decode ids to about `characters` of visible text: all of it, or its beginning and its end with ⟦…⟧ between.

    Only the part that is printed is decoded, however long the document is.
    """
    reach, half = characters * TOKENS_PER_CHARACTER, max(1, characters // 2)
    if len(ids) > 2 * reach:
        return f"{as_text(ids[:reach], tokenizer)[:half]}{LEFT_OUT}{as_text(ids[-reach:], tokenizer)[-half:]}"
    text = as_text(ids, tokenizer)
    return text if len(text) <= characters else f"{text[:half]}{LEFT_OUT}{text[-half:]}"


def spread_evenly(n: int, k: int) -> list[int]:
    """Choose at most k different numbers of 0 .. n - 1, evenly spread, the same ones every time."""
    return sorted({(2 * i + 1) * n // (2 * k) for i in range(k)}) if n else []


def chosen_windows(data: IndexedDataset, k: int, seq_len: int) -> list[int]:
    """Choose at most k windows of seq_len tokens in which evenly chosen documents end."""
    n_windows = (data.n_tokens - 1) // seq_len
    ends = [data.document_start(document + 1) - 1 for document in spread_evenly(data.n_documents, k)]
    return sorted({min(end // seq_len, n_windows - 1) for end in ends}) if n_windows > 0 else []


def describe_source(origins: Origins, document: int) -> str:
    """Say where a document comes from, to follow its number; empty when it is not known."""
    origin = origins.find(document)
    return f", {escape(describe_origin(origin))}" if origin else ""


def document_text(data: IndexedDataset, document: int, origins: Origins, tokenizer: Tokenizer, characters: int) -> str:
    """Render a heading (which document, from where, how long), and the document."""
    ids = data.document(document)
    heading = f"document {document} of {data.n_documents:,}{describe_source(origins, document)}, {len(ids):,} tokens"
    return f"--- {heading}\n{lines(shortened(ids, tokenizer, characters))}"


def window_text(
    data: IndexedDataset, window: int, seq_len: int, origins: Origins, tokenizer: Tokenizer, characters: int
) -> str:
    """Render a heading, and each document of a window with its tokens in it: what the model gets as input."""
    start, stop = window * seq_len, (window + 1) * seq_len
    pieces = data.pieces(start, stop)
    n_windows = (data.n_tokens - 1) // seq_len
    n_documents = "1 document" if len(pieces) == 1 else f"{len(pieces)} documents"
    text = f"--- window {window} of {n_windows:,}, tokens {start:,} .. {stop - 1:,}, {n_documents}\n"
    room = max(FEWEST_CHARACTERS, characters // len(pieces))
    for document, first, end in pieces:
        begin = data.document_start(document)
        part = f"its tokens {first - begin:,} .. {end - begin - 1:,}"
        text += f"  {OPEN}document {document}{describe_source(origins, document)}, {part}{CLOSE}\n"
        text += lines(shortened(data.tokens(first, end), tokenizer, room))
    return text
