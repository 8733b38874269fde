"""python -m data_prep tokenizer: train a vocabulary on a weighted sample, or import one.

The sample is drawn from the sources by the weights of the mixture. Of a source, stretches of its documents are drawn at
random, each byte as likely as any other, and the hash of the text is the dice: the same documents give the same sample,
in whatever files and order they are. A very large source is not read to its end: of each of its inputs the beginning is
read, READ_FACTOR times what is needed in all.
"""

import hashlib
import heapq
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from coca_train.config.corpus_schema import CorpusSourceConfig, PrepareConfig
from coca_train.data.readers import chunks, documents, inputs
from coca_train.data.readers.base import Document, Input, Reject
from coca_train.data.special_tokens import MEANING, ROLES
from coca_train.data.storage import lock_and_wait, storage
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import n_bytes, percent, plain
from data_prep.fitting import fit_valid_share, fit_vocab_size
from data_prep.messages import bar, say
from data_prep.selection import Rules, digest_of, pieces, selected
from data_prep.tokenizer_files import (
    affordable_coverage,
    already_trained,
    import_tokenizer,
    publish,
    short_lines,
    train,
    training_settings,
)
from data_prep.verbs.sources import describe_inputs

if TYPE_CHECKING:
    from tqdm import tqdm

STRETCH = 1 << 14  # [characters]
READ_FACTOR = 20
SPREAD = 64  # inputs a large source is read from, at least


class LowestPriorities:
    """The texts of a stream that come first in the order of their priorities, `target_bytes` bytes or a little more.

    A priority that was seen before is the same text again. Memory: the texts that are kept.
    """

    def __init__(self, target_bytes: int) -> None:
        self.target_bytes, self.n_bytes = target_bytes, 0
        self._kept: list[tuple[int, bytes]] = []  # a heap, the highest priority first
        self._priorities: set[int] = set()

    def offer(self, priority: int, text: str) -> None:
        if priority in self._priorities or (self.n_bytes >= self.target_bytes and priority > -self._kept[0][0]):
            return
        data = text.encode()
        heapq.heappush(self._kept, (-priority, data))
        self._priorities.add(priority)
        self.n_bytes += len(data)
        while self.n_bytes - len(self._kept[0][1]) >= self.target_bytes:
            dropped, data = heapq.heappop(self._kept)
            self._priorities.remove(-dropped)
            self.n_bytes -= len(data)

    def texts(self) -> Iterator[str]:
        """Yield the texts in the order of their priorities, which does not depend on that of the stream."""
        for _, text in sorted(self._kept, reverse=True):
            yield text.decode()


@dataclass
class SourceSample:
    """What was drawn of one source, and what was read for it."""

    source: str
    share: float
    kept: LowestPriorities
    n_documents: int = 0  # that may be drawn from
    n_bytes: int = 0  # their texts
    n_read: int = 0  # bytes read, of lines as they are
    left_out: dict[str, int] = field(default_factory=dict)  # by rule; "held out", "rejected"

    def leave_out(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1


def shares(config: PrepareConfig) -> dict[str, float]:
    """Return the share of the sample by source: the group's, times its weight in the group; without weights, equal
    parts."""
    trained = {name: source for name, source in config.corpus.sources.items() if source.hold_out != "all"}
    weights = {name: 1.0 if source.weight is None else source.weight for name, source in trained.items()}
    groups = {source.group for source in trained.values()}
    of_group = {g: sum(weights[name] for name, source in trained.items() if source.group == g) for g in groups}
    total = sum(config.mix.groups[group].share for group in groups)
    return {
        name: config.mix.groups[source.group].share / total * weights[name] / of_group[source.group]
        for name, source in trained.items()
    }


def draw(config: PrepareConfig) -> list[SourceSample]:
    """Draw the sample, source by source in the order of their names. Held-out documents are never in it.

    Neither is a document that any hold_out=all source has too: 8 bytes for each of those are held in memory.
    Raises DataError of the readers, the first bad document under work.on_error=stop, E-TKN-07 without any text.
    """
    targets = {name: round(share * config.tokenizer.sample_bytes) for name, share in sorted(shares(config).items())}
    drawn = []
    with bar("sample", sum(targets.values()) * READ_FACTOR, config.work.progress_bar) as progress:
        evaluation = _evaluation(config, progress)
        for name, target in targets.items():
            sample = SourceSample(name, shares(config)[name], LowestPriorities(max(1, target)))
            progress.set_postfix_str(name)
            _draw(config, sample, evaluation, progress)
            progress.total -= max(0, READ_FACTOR * target - sample.n_read)  # the source ended before
            drawn.append(sample)
    if not any(sample.kept.n_bytes for sample in drawn):
        raise DataError(
            f"E-TKN-07 {config.tokenizer.path}: the sources ({', '.join(targets) or 'none is trained on'}) hold no "
            "text to train a vocabulary on: everything is held out or left out by a rule. "
            "Fix: check corpus.sources.*.filter"
        )
    return drawn


def _draw(config: PrepareConfig, sample: SourceSample, evaluation: set[bytes], bar: "tqdm") -> None:
    source = config.corpus.sources[sample.source]
    every = inputs(sample.source, source)
    # Shards are often sorted by time or topic; the beginnings that are read come from all over them.
    every.sort(key=lambda input: hashlib.blake2b(str(input.number).encode()).digest())
    target, parts = sample.kept.target_bytes, min(len(every), SPREAD)
    rules = Rules(source.filter)
    for input in every:
        if sample.n_read >= READ_FACTOR * target and sample.n_bytes >= target:
            break
        read, n_bytes_before = sample.n_read, sample.n_bytes
        for chunk_bytes, items in _chunks(config, input, source, rules):
            for item in items:
                _add_to_sample(config, source, item, evaluation, sample)
            sample.n_read += chunk_bytes
            bar.update(chunk_bytes)
            enough = sample.n_read - read >= READ_FACTOR * target / parts
            if enough and sample.n_bytes - n_bytes_before >= target / parts:
                break


def _chunks(
    config: PrepareConfig, input: Input, source: CorpusSourceConfig, rules: Rules
) -> Iterator[tuple[int, Iterator[Document | Reject | str]]]:
    """Yield bytes and what is `selected` of each chunk of an input; the first bad document ends it under
    work.on_error=stop."""

    def checked(items: Iterator[Document | Reject | str]) -> Iterator[Document | Reject | str]:
        for item in items:
            if isinstance(item, Reject) and config.work.on_error == "stop":
                raise item.error(input.path)
            yield item

    with closing(chunks(input, source, config.work, None)) as cut:  # type: ignore[type-var]
        for chunk in cut:
            yield chunk.n_bytes, checked(selected(documents(input.path, source, config.work, chunk), source, rules))


def _add_to_sample(
    config: PrepareConfig,
    source: CorpusSourceConfig,
    item: Document | Reject | str,
    evaluation: set[bytes],
    sample: SourceSample,
) -> None:
    if isinstance(item, str):
        return sample.leave_out(item)
    if isinstance(item, Reject):
        return sample.leave_out("rejected")
    if digest_of(item.text)[:8] in evaluation:
        return sample.leave_out("held out")
    for text, digest, split in pieces(item.text, source, config.corpus):
        if split or digest[:8] in evaluation:
            sample.leave_out("held out")
            continue
        sample.n_documents += 1
        sample.n_bytes += len(text.encode())
        for i in range(0, len(text), STRETCH):  # a word is cut in two now and then; one in some thousand
            # The hash of the text is the dice: no seed, no order of files, and copies of a text get the same priority.
            priority = hashlib.blake2b(digest + i.to_bytes(8, "big"), digest_size=16).digest()
            sample.kept.offer(int.from_bytes(priority, "big"), text[i : i + STRETCH])
    return None


def _evaluation(config: PrepareConfig, bar: "tqdm") -> set[bytes]:
    """Return the first 8 bytes of the digests of all documents in sources that are held out as a whole."""
    digests: set[bytes] = set()
    for name, source in sorted(config.corpus.sources.items()):
        if source.hold_out != "all":
            continue
        bar.set_postfix_str(name)
        rules = Rules(source.filter)
        for input in inputs(name, source):
            for _, items in _chunks(config, input, source, rules):
                digests |= {digest_of(item.text)[:8] for item in items if isinstance(item, Document)}
    return digests


THREADS = 16  # of the trainer, on every machine: the result depends on it
HEADER = ("source", "share", "wanted", "in the sample", "documents", "left out", "text read")


def run(config: PrepareConfig) -> None:
    """Make tokenizer.path, whole or not at all; one that is there already is never overwritten (E-TKN-05)."""
    path = Path(config.tokenizer.path)
    if config.tokenizer.import_from is None:
        config = fit_valid_share(fit_vocab_size(config))
    with storage(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_and_wait(path.parent / f".{path.name}.lock"):
            if config.tokenizer.import_from is not None:
                options = {role: getattr(config.tokenizer, role) for role in ROLES}  # special tokens
                is_new = import_tokenizer(Path(config.tokenizer.import_from), path, options)
            elif is_new := not already_trained(config):
                _train(config, path)
    print(f"{path}: {'made' if is_new else 'is there already, nothing to do'}\n{describe_tokenizer(Tokenizer(path))}")


def describe_tokenizer(tokenizer: Tokenizer) -> str:
    """Describe what training and the other verbs will see of a tokenizer."""
    kind = {"sentencepiece": "SentencePiece", "huggingface": "Hugging Face"}[tokenizer.kind]
    begin = "none" if tokenizer.bos is None else tokenizer.bos
    said = "; ".join(f"{MEANING[role]}: {by}" for role, by in tokenizer.special.said.items())
    back = "every text comes back" if tokenizer.lossless else "some texts come back changed (spaces, rare characters)"
    return (
        f"{kind}, {tokenizer.vocab_size:,} token ids; end of document {tokenizer.eod}, beginning of text {begin}; "
        f"{back}; SHA-256 {tokenizer.digest[:16]}\n{said}"
    )


def _train(config: PrepareConfig, path: Path) -> None:
    options = config.tokenizer
    assert options.vocab_size is not None  # fitted
    say(describe_inputs(config.corpus))
    drawn = draw(config)
    print(describe_sample(drawn))
    size = n_bytes(sum(one.kept.n_bytes for one in drawn))
    say(f"training {options.vocab_size:,} pieces ({options.model_type}) on {size}; some minutes for 200 MB")
    begin = time.perf_counter()
    coverage = options.character_coverage
    if options.byte_fallback:
        coverage = min(coverage, affordable_coverage(lambda: _texts(drawn), options.vocab_size))
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
    sample = [
        {"source": one.source, "share": one.share, "bytes": one.kept.n_bytes, "documents": one.n_documents}
        | {"left_out": dict(sorted(one.left_out.items()))}
        for one in drawn
    ]
    publish(path, model, training_settings(config) | {"sample": sample})


def _texts(drawn: list[SourceSample]) -> Iterator[str]:
    return chain.from_iterable(one.kept.texts() for one in drawn)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once: the trainer would not look at it for minutes, and nothing is half-written."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def describe_sample(drawn: list[SourceSample]) -> str:
    """Describe the sample in a row for each source, and name the sources smaller than their share."""
    rows = []
    for one in drawn:
        left_out = ", ".join(f"{n:,} {why}" for why, n in sorted(one.left_out.items())) or "none"
        numbers = [f"{n:,}" for n in (one.kept.target_bytes, one.kept.n_bytes, one.n_documents)]
        rows.append((one.source, percent(one.share), *numbers, left_out, f"{one.n_read:,}"))
    text = plain(HEADER, rows)
    short = [one.source for one in drawn if one.kept.n_bytes < one.kept.target_bytes]
    if short and len(drawn) > 1:
        text += f"All there is, and less than their share: {', '.join(short)}\n"
    return text + "Sizes in bytes. Held-out documents are never in the sample.\n"
