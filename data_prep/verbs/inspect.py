"""python -m data_prep inspect: documents decoded, and windows as the model sees them."""

import io
import sys

from coca_train.config.corpus_schema import LookConfig, PrepareConfig
from coca_train.data.provenance import Origins
from coca_train.runtime.errors import DataError
from data_prep.decoded import chosen_windows, document_text, spread_evenly, window_text
from data_prep.manifest import Corpus
from data_prep.verbs.stats import corpus_lengths, lengths_picture


def run(config: PrepareConfig) -> int:
    """Print what `look` asks for, evenly chosen, and write report/lengths.png."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no error
    corpus, look = Corpus(config), config.look
    for split in ("train", "valid"):
        for name in corpus.names(split):
            if look.source in (None, name):
                _show(corpus, name, split, look)
    if look.source is not None and look.source not in corpus.names("train") + corpus.names("valid"):
        raise DataError(
            f"E-TOK-24 look.source={look.source}: the corpus in {corpus.folder} has no document of it; one is needed. "
            "Fix: python -m data_prep stats says what there is"
        )
    picture = corpus.report / "lengths.png"
    lengths_picture(picture, corpus_lengths(corpus), corpus.manifest["name"])
    print(f"Picture of the lengths: {picture}")
    return 0


def _show(corpus: Corpus, name: str, split: str, look: LookConfig) -> None:
    """Print some documents of a dataset, and some windows if it is trained on."""
    data = corpus.dataset(name, split)
    origins = Origins(data)
    print(f"=== {name}_{split}: {data.n_documents:,} documents, {data.n_tokens:,} tokens\n")
    for document in spread_evenly(data.n_documents, look.documents):
        print(document_text(data, document, origins, corpus.tokenizer, look.characters))
    if split == "train":
        for window in chosen_windows(data, look.windows, look.seq_len):
            print(window_text(data, window, look.seq_len, origins, corpus.tokenizer, look.characters))
