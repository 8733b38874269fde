"""python -m data_prep tokenize: documents to token ids, by many processes; a killed run can be continued.

All inputs of a corpus become parts: read here, encoded by workers, written here in the order they were read. The bytes
of every part depend on the input and the settings alone, so shards, workers and kills leave no trace.
"""

import fcntl
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.dataset import best_dtype
from coca_train.data.readers import all_inputs, chunks, documents
from coca_train.data.readers.base import Chunk, Input, Reject, escape
from coca_train.data.storage import storage
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError, Preempted
from coca_train.runtime.shutdown import StopRequest
from data_prep.fitting import fit_valid_share
from data_prep.manifest import describe, existing
from data_prep.messages import bar, say
from data_prep.parts import DOCS, SPLITS, Encoded, InputParts, input_folder, is_done, settings
from data_prep.selection import Rules, digest_of, pieces, selected
from data_prep.verbs.merge import merge
from data_prep.verbs.sources import describe_inputs
from data_prep.workers import map_ordered

NO_ID = bytes(16)


class Task(NamedTuple):
    """source: its name; path: of the input, for messages."""

    source: str
    path: str
    chunk: Chunk


class Encoder:
    """Encode tasks; the tokenizer is loaded when the encoder is made, the rules of a source with its first task.

    digest: of the tokenizer the main process knows. Raises DataError E-TOK-11 when the file is another one by now.
    """

    def __init__(self, config: PrepareConfig, digest: str) -> None:
        self._config = config
        self._tokenizer = Tokenizer(config.tokenizer.path)
        if self._tokenizer.digest != digest:
            raise DataError(
                f"E-TOK-11 {config.tokenizer.path}: was replaced while it was in use; one tokenizer is needed from the "
                "beginning to the end. Fix: bring the file back, and run the same command again"
            )
        self._dtype = np.dtype(best_dtype(self._tokenizer.vocab_size))
        self._rules = cache(lambda name: Rules(config.corpus.sources[name].filter))

    def __call__(self, task: Task) -> Encoded:
        config, source, rules = self._config, self._config.corpus.sources[task.source], self._rules(task.source)
        encode, end = self._tokenizer.encode_array, np.array([self._tokenizer.eod], self._dtype)
        tokens: tuple[list[np.ndarray], ...] = tuple([] for _ in SPLITS)
        counts: Counter[str] = Counter(documents=0, characters=0, bytes=0)
        rejects: list[Reject] = []
        rows: list[tuple[int | bytes, ...]] = []
        for item in selected(documents(task.path, source, config.work, task.chunk), source, rules):
            if isinstance(item, Reject):
                rejects.append(item)
                continue
            if isinstance(item, str):
                counts[item] += 1
                continue
            name = NO_ID if source.id_field is None or item.id is None else digest_of(item.id)
            for text, digest, split in pieces(item.text, source, config.corpus):
                ids = encode(text)
                tokens[split].extend((ids, end))
                n_bytes = len(text.encode())
                rows.append((item.line, len(ids) + 1, len(text), n_bytes, split, digest, name))
                name = NO_ID  # the record's, whose other pieces have other texts
                counts["documents"] += 1
                counts["characters"] += len(text)
                counts["bytes"] += n_bytes
        little, table = self._dtype.newbyteorder("<"), np.zeros(len(rows), DOCS)
        for name, column in zip(DOCS.names or (), zip(*rows, strict=True), strict=False):  # half the time of by row
            table[name] = np.frombuffer(b"".join(column), "V16") if DOCS[name] == "V16" else column
        arrays = tuple(np.concatenate([np.empty(0, little), *ids]).astype(little, copy=False) for ids in tokens)
        return Encoded(arrays, table, dict(counts), rejects)


MERGE_LOCK = ".merge.lock"  # held alone by merge


class Stop(StopRequest):
    """`with Stop() as stop:` and `stop.check()` where the work may end. A second Ctrl-C interrupts at once."""

    def check(self) -> None:
        """Raises Preempted or KeyboardInterrupt when a signal has come."""
        if self.received == "SIGINT":
            raise KeyboardInterrupt
        if self.received is not None:
            raise Preempted(f"Asked to stop ({self.received}). The same command goes on where it stopped.")


class Ticket(NamedTuple):
    """What of a chunk stays in the main process.

    resumed: the input was begun by an earlier run; last: the input ends with this chunk.
    """

    parts: InputParts
    n_bytes: int
    position: int
    after: dict[str, int]
    ends_part: bool
    last: bool
    resumed: bool


def shard(config: PrepareConfig) -> tuple[int, int]:
    """Return (i, n) of work.shard=i/n."""
    number, n_shards = config.work.shard.split("/")
    return int(number), int(n_shards)


def unfinished(config: PrepareConfig, every: list[Input]) -> list[Input]:
    """Return the inputs whose last part is not there yet."""
    return [input for input in every if not is_done(input_folder(config.corpus.dir, input))]


def tokenize(config: PrepareConfig, every: list[Input]) -> None:
    """Make the parts of this shard's inputs that are not finished. every: `all_inputs`.

    Raises what readers, rules and tokenizers raise; DataError E-TOK-11, 15, 18, 08, E-RAW-19, 21 and the first bad
    document under work.on_error=stop; PeerLost E-RUN-25; StorageError; Preempted (SIGTERM), KeyboardInterrupt.
    """
    tokenizer = Tokenizer(config.tokenizer.path)
    number, n_shards = shard(config)
    mine = every[number::n_shards]
    opened: set[InputParts] = set()
    with Stop() as stop, Progress(config, mine) as progress:
        tasks = _tasks(config, tokenizer, mine, progress, opened)
        try:
            arguments, work = (config, tokenizer.digest), config.work
            encoding = map_ordered(
                Encoder, arguments, tasks, work.workers, chunk_bytes=work.chunk_bytes, check=stop.check
            )
            with closing(encoding) as results:
                for ticket, encoded in results:
                    stop.check()
                    ticket.parts.add(encoded, ticket.after, ticket.ends_part, ticket.last)
                    progress.add(ticket, encoded)
                    if ticket.last:
                        ticket.parts.close()
                        opened.remove(ticket.parts)
                    del encoded  # while the next one is waited for
        finally:
            for parts in opened:
                parts.close()
        stop.check()


def _tasks(
    config: PrepareConfig, tokenizer: Tokenizer, mine: list[Input], progress: "Progress", opened: set[InputParts]
) -> Iterator[tuple[Ticket, Task]]:
    """Yield every chunk that is not in a finished part. An input is opened when the one before it is read to its
    end."""
    settings_of = {name: settings(config, name, tokenizer) for name in config.corpus.sources}
    for input in mine:
        source = config.corpus.sources[input.source]
        parts = InputParts(config, input, settings_of[input.source])
        if parts.done:
            parts.close()
            progress.skip(input)
            continue
        opened.add(parts)
        in_part, resumed = 0, parts.after is not None
        cut = chunks(input, source, config.work, parts.after)
        following = next(cut, None)
        while (chunk := following) is not None:
            following = next(cut, None)  # before the chunk is given out: an input damaged at its end has no last chunk
            in_part += chunk.n_bytes
            ends_part = in_part >= config.work.part_bytes
            in_part = 0 if ends_part else in_part
            last = following is None
            ticket = Ticket(parts, chunk.n_bytes, chunk.position, chunk.after, ends_part, last, resumed)
            yield ticket, Task(input.source, input.path, chunk)


class Progress:
    """One bar over the bytes on disk of this call's inputs; what was done before counts for nothing in its speed."""

    def __init__(self, config: PrepareConfig, mine: list[Input]) -> None:
        sizes = [input.size for input in mine]
        # smoothing=0: the speed of the whole run, as chunks come in bursts
        total = sum(sizes) if all(sizes) else None
        self._bar = bar("tokenizing", total, config.work.progress_bar, smoothing=0)
        self._documents = self._position = 0
        self._input: InputParts | None = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def skip(self, input: Input) -> None:
        """Count an input that was finished before."""
        self._jump(input.size)

    def _jump(self, n_bytes: int) -> None:
        if not self._bar.disable:
            self._bar.initial += n_bytes
            self._bar.update(n_bytes)

    def add(self, ticket: Ticket, encoded: Encoded) -> None:
        self._documents += encoded.counts["documents"]
        self._bar.set_postfix_str(f"{self._documents:,} documents", refresh=False)
        size = ticket.parts.input.size
        position = size if ticket.last else ticket.position
        if not size:  # a shard of the hub
            self._bar.update(ticket.n_bytes)
        elif ticket.parts is self._input:
            self._bar.update(position - self._position)
        elif ticket.resumed:
            self._jump(position)
        else:
            self._bar.update(position)
        self._input, self._position = ticket.parts, position


@contextmanager
def shared_corpus_lock(config: PrepareConfig) -> Iterator[None]:
    """Keep a merge from starting; several tokenizers may be at work. Raises DataError E-TOK-15 while one merges."""
    dir = Path(config.corpus.dir)
    with storage(str(dir)):
        dir.mkdir(parents=True, exist_ok=True)
        # Not emptied, not removed: merge locks the same file alone, tokenizers share it.
        file = open(dir / MERGE_LOCK, "a+b")  # noqa: SIM115
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"E-TOK-15 {escape(dir)}: another process is merging it. Fix: wait for it to end") from None
        yield


def run(config: PrepareConfig) -> None:
    """Tokenize this shard's inputs; without shards, merge too. A corpus that is finished is left as it is."""
    config = fit_valid_share(config)
    with shared_corpus_lock(config):
        manifest = existing(config)
        if manifest is None:
            say(describe_inputs(config.corpus), config.work.progress_bar)
            every = all_inputs(config.corpus.sources)
            tokenize(config, every)
            left = unfinished(config, every)
    if manifest is not None:
        merge(config)  # of what a killed run did not sweep
        print(f"{config.corpus.dir}: is there already, nothing to do\n{describe(manifest)}")
    elif shard(config)[1] == 1:
        print(describe(merge(config)))
    elif left:
        print(f"Shard {config.work.shard} is done; {len(left)} of {len(every)} inputs are left to other shards.")
        print("When all shards are done: python -m data_prep merge, with the same settings and without shard=.")
    else:
        print(f"Shard {config.work.shard} is done, and so is every other one ({len(every)} inputs).")
        print("Now: python -m data_prep merge, with the same settings and without shard=.")
