"""python -m data_prep tokenizer: train a vocabulary on a weighted sample, or import one."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

from coca_train.data.special_tokens import MEANING, ROLES
from coca_train.data.storage import lock_and_wait, storage
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.printing import n_bytes, percent, plain
from data_prep.progress import say
from data_prep.schema import PrepareConfig, TokenizerConfig
from data_prep.selection.fitting import with_share, with_vocabulary
from data_prep.verbs.sources import reading
from data_prep.vocabularies.sample import Drawn, draw
from data_prep.vocabularies.tokenizer_file import already_trained, bring, made_from, publish
from data_prep.vocabularies.training import affordable_coverage, short_lines, train

THREADS = 16  # of the trainer, on every machine: the result depends on it
HEADER = ("source", "share", "wanted", "in the sample", "documents", "left out", "text read")


def run(config: PrepareConfig) -> None:
    """Make tokenizer.path, whole or not at all; one that is there already is never overwritten (E-TKN-05)."""
    path = Path(config.tokenizer.path)
    if config.tokenizer.import_from is None:
        config = with_share(with_vocabulary(config))
    with storage(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_and_wait(path.parent / f".{path.name}.lock"):
            if config.tokenizer.import_from is not None:
                is_new = bring(Path(config.tokenizer.import_from), path, given(config.tokenizer))
            elif is_new := not already_trained(config):
                _train(config, path)
    print(f"{path}: {'made' if is_new else 'is there already, nothing to do'}\n{described(Tokenizer(path))}")


def described(tokenizer: Tokenizer) -> str:
    """What training and the other verbs will see of it."""
    kind = {"sentencepiece": "SentencePiece", "huggingface": "Hugging Face"}[tokenizer.kind]
    begin = "none" if tokenizer.bos is None else tokenizer.bos
    said = "; ".join(f"{MEANING[role]}: {by}" for role, by in tokenizer.special.said.items())
    back = "every text comes back" if tokenizer.lossless else "some texts come back changed (spaces, rare characters)"
    return (
        f"{kind}, {tokenizer.vocab_size:,} token ids; end of document {tokenizer.eod}, beginning of text {begin}; "
        f"{back}; SHA-256 {tokenizer.digest[:16]}\n{said}"
    )


def given(options: TokenizerConfig) -> dict[str, int | str | None]:
    """The special tokens that options name."""
    return {role: getattr(options, role) for role in ROLES}


def _train(config: PrepareConfig, path: Path) -> None:
    options = config.tokenizer
    assert options.vocab_size is not None  # fitted
    say(reading(config.corpus))
    drawn = draw(config)
    print(account(drawn))
    size = n_bytes(sum(one.kept.n_bytes for one in drawn))
    say(f"training {options.vocab_size:,} pieces ({options.model_type}) on {size}; some minutes for 200 MB")
    begin = time.perf_counter()
    coverage = options.character_coverage
    if options.byte_fallback:
        coverage = min(coverage, affordable_coverage(partial(_texts, drawn), options.vocab_size))
    if coverage < options.character_coverage:
        say(f"rare characters are written in bytes: {percent(coverage)} of the text have pieces of their own")
    with interruptible():
        model = train(
            short_lines(_texts(drawn)),
            str(path),
            options.vocab_size,
            options.model_type,
            coverage,
            options.byte_fallback,
            THREADS,
            "tokenizer.vocab_size",
        )
    say(f"trained in {time.perf_counter() - begin:.1f} s")
    publish(path, model, made_from(config) | {"sample": [_record(one) for one in drawn]})


def _texts(drawn: list[Drawn]) -> Iterator[str]:
    return chain.from_iterable(one.kept.texts() for one in drawn)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once: the trainer would not look at it for minutes, and nothing is half-written."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def account(drawn: list[Drawn]) -> str:
    """A row for each source, exact; and which of several are smaller than their share."""
    rows = []
    for one in drawn:
        left_out = ", ".join(f"{n:,} {why}" for why, n in sorted(one.left_out.items())) or "none"
        target, taken = f"{one.kept.target_bytes:,}", f"{one.kept.n_bytes:,}"
        rows.append(
            (one.source, percent(one.share), target, taken, f"{one.n_documents:,}", left_out, f"{one.n_read:,}")
        )
    text = plain(HEADER, rows)
    short = [one.source for one in drawn if one.kept.n_bytes < one.kept.target_bytes]
    if short and len(drawn) > 1:
        text += f"All there is, and less than their share: {', '.join(short)}\n"
    return text + "Sizes in bytes. Held-out documents are never in the sample.\n"


def _record(one: Drawn) -> dict[str, object]:
    return {"source": one.source, "share": one.share, "bytes": one.kept.n_bytes} | {
        "documents": one.n_documents,
        "left_out": dict(sorted(one.left_out.items())),
    }
