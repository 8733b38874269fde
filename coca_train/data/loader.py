"""Steps to batches: each rank's share of every global batch, read ahead by a thread.

The global batch of step s is samples s*G .. (s+1)*G - 1 of the mixture, from first_sample on, whatever the world size
and the accumulation; rank r takes the r-th stretch of G / world_size of them, cut into micro batches.
"""

import contextlib
import queue
import threading
from collections.abc import Iterator

from coca_train.data.batch import Batch
from coca_train.data.curriculum import cut, piece_length
from coca_train.data.mixture import Mixture
from coca_train.runtime.staging import Staging
from coca_train.runtime.threads import Thread


class Loader:
    """Iterate over steps: next(loader) is the list of this rank's micro batches of one optimizer step.

    Begins at start_step and ends (StopIteration) when a source with on_exhausted=stop cannot fill another global batch.
    first_sample: where in the mixture step 0 begins. prefetch_steps: read ahead by a thread, whose errors next()
    raises; 0: no thread. staging: copies the tensors of the next step, if it has been read by then.
    Call close(), or use it as a context manager.
    """

    def __init__(
        self,
        mixture: Mixture,
        global_batch_size: int,
        micro_batch_size: int,
        rank: int,
        world_size: int,
        start_step: int,
        prefetch_steps: int,
        first_sample: int = 0,
        staging: Staging | None = None,
    ) -> None:
        assert 0 <= rank < world_size, (rank, world_size)
        batch = (global_batch_size, micro_batch_size, world_size)
        assert global_batch_size % (micro_batch_size * world_size) == 0, batch
        assert mixture.global_batch_size in (None, global_batch_size), (mixture.global_batch_size, global_batch_size)
        self.mixture, self.global_batch_size, self.micro_batch_size = mixture, global_batch_size, micro_batch_size
        self.share = global_batch_size // world_size
        self.first = first_sample + rank * self.share
        end = mixture.max_samples()
        self.max_steps = None if end is None else max(0, end - first_sample) // global_batch_size
        self._steps = self._read(start_step)
        self._queue: queue.Queue[list[Batch] | BaseException] = queue.Queue(maxsize=max(prefetch_steps, 1))
        self._staging = staging
        self._next: list[Batch] | BaseException | None = None  # taken from the queue, and on its way to the device
        self._closed = threading.Event()
        self._thread = Thread(self._prefetch) if prefetch_steps else None

    def step(self, step: int) -> list[Batch]:
        """Return the micro batches of this rank for any step."""
        places = self.mixture.places(step * self.global_batch_size + self.first, self.share)
        size = self.micro_batch_size
        length = piece_length(self.mixture.config.curriculum, self.mixture.seq_len, step)
        return [cut(self.mixture.batch(places[begin : begin + size]), length) for begin in range(0, self.share, size)]

    def _read(self, step: int) -> Iterator[list[Batch]]:
        while self.max_steps is None or step < self.max_steps:
            yield self.step(step)
            step += 1

    def _prefetch(self) -> None:
        item: list[Batch] | BaseException
        while not self._closed.is_set():
            try:
                item = next(self._steps)
            except BaseException as error:  # StopIteration too: it ends the consumer's iteration
                item = error
            # With a time limit: put() alone would wait for ever when the consumer leaves while the queue is full.
            while not self._closed.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> list[Batch]:
        if self._thread is None:
            return next(self._steps)
        assert not self._closed.is_set(), "the loader is closed"
        item = self._queue.get() if self._next is None else self._next
        if isinstance(item, BaseException):
            self._next = item  # every later call raises it too
            raise item
        self._next = None
        if self._staging is not None:
            with contextlib.suppress(queue.Empty):  # the disk is too slow: the step will copy what it needs itself
                self._next = self._queue.get_nowait()
            for batch in self._next if isinstance(self._next, list) else ():
                for tensor in (batch.tokens_BT, batch.targets_BT, batch.pos_BT, batch.doc_BT):
                    self._staging.ahead(tensor)
        return item

    def close(self) -> None:
        """Stop reading ahead and wait for the thread. May be called twice."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
