"""python -m data_prep tokenize: documents to token ids, by many processes; a killed run goes on.

All inputs of a corpus become parts: read here, encoded by workers, written here in the order they were read. The bytes
of every part depend on the input and the settings alone, so shards, workers and kills leave no trace.
"""

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from coca_train.data.storage import storage
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError, Preempted
from coca_train.runtime.shutdown import StopRequest
from data_prep.merging.manifest import describe, existing
from data_prep.progress import say
from data_prep.readers import chunks, inputs
from data_prep.readers.base import Chunk, Input, shown
from data_prep.schema import PrepareConfig
from data_prep.selection.fitting import with_share
from data_prep.tokenizing.encode import Encoded, Encoder, Task
from data_prep.tokenizing.part_writer import InputParts
from data_prep.tokenizing.parts import input_folder, is_done, settings
from data_prep.tokenizing.pool import ordered
from data_prep.verbs.merge import merge
from data_prep.verbs.sources import reading

MERGE_LOCK = ".merge.lock"  # held alone by merge


class Stop(StopRequest):
    """`with Stop() as stop:` and `stop.check()` wherever the work may end. A second Ctrl-C interrupts at once."""

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


def all_inputs(config: PrepareConfig) -> list[Input]:
    """The inputs of all sources; sources by name, so that every process of a job counts them alike."""
    sources = config.corpus.sources
    return [input for name in sorted(sources) for input in inputs(name, sources[name])]


def shard(config: PrepareConfig) -> tuple[int, int]:
    """(i, n) of work.shard=i/n."""
    number, n_shards = config.work.shard.split("/")
    return int(number), int(n_shards)


def unfinished(config: PrepareConfig, every: list[Input]) -> list[Input]:
    """Those inputs whose last part is not there yet."""
    return [input for input in every if not is_done(input_folder(config.corpus.dir, input))]


def tokenize(config: PrepareConfig, every: list[Input]) -> None:
    """Finish the parts of this shard's inputs. every: `all_inputs`. Finished ones are passed over.

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
            encoding = ordered(Encoder, arguments, tasks, work.workers, chunk_bytes=work.chunk_bytes, check=stop.check)
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
    """Every chunk that is not in a finished part. An input is opened when the one before it is read to its end."""
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
        for chunk, last in _with_last(chunks(input, source, config.work, parts.after)):
            in_part += chunk.n_bytes
            ends_part = in_part >= config.work.part_bytes
            in_part = 0 if ends_part else in_part
            ticket = Ticket(parts, chunk.n_bytes, chunk.position, chunk.after, ends_part, last, resumed)
            yield ticket, Task(input.source, input.path, chunk)


def _with_last(chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, bool]]:
    """Each chunk, and whether it is the last one: an input that is found damaged at its end has no last chunk."""
    held = next(chunks, None)
    while held is not None:
        following = next(chunks, None)
        yield held, following is None
        held = following


class Progress:
    """One bar over the bytes on disk of this call's inputs; what was done before counts for nothing in its speed."""

    def __init__(self, config: PrepareConfig, mine: list[Input]) -> None:
        from tqdm import tqdm

        sizes = [input.size for input in mine]
        self._bar: Any = tqdm(
            total=sum(sizes) if all(sizes) else None,
            desc="tokenizing",
            unit="B",
            unit_scale=True,
            smoothing=0,  # the speed of the whole run: chunks come in bursts
            disable=None if config.work.progress_bar else True,
        )
        self._documents = 0
        self._input: InputParts | None = None
        self._position = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def skip(self, input: Input) -> None:
        """An input that was finished before."""
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
def beside_merge(config: PrepareConfig) -> Iterator[None]:
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
            raise DataError(
                f"E-TOK-15 {shown(dir)}: another process is merging this corpus; nothing may be tokenized meanwhile. "
                "Fix: wait for it to end"
            ) from None
        yield


def run(config: PrepareConfig) -> None:
    """Tokenize this shard's inputs; without shards, merge too. A corpus that is finished is left as it is."""
    config = with_share(config)
    with beside_merge(config):
        manifest = existing(config)
        if manifest is None:
            say(reading(config.corpus), config.work.progress_bar)
            every = all_inputs(config)
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
