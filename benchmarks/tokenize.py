"""`python -m benchmarks.tokenize`: from .jsonl to .bin/.idx, beside the bare tokenizer library and a line at a time.

ours: `python -m data_prep tokenize` without its start, from the file to the finished, merged and digested data set.
library: the bare library's own batch, texts already in memory, all cores, ids thrown away: nothing is read or written.
line by line: what GPT-NeoX's preprocess_data.py does: json.loads and encode a line at a time in multiprocessing.Pool
(imap, 25 lines at a time), ids sent back and appended to a .bin by the main process.

All of them take turns on the same text, with the same tokenizer, on the same cores; what they make must be the same.
Peak memory of ours is measured in processes of its own, at two sizes of the corpus.
"""

import argparse
import gzip
import io
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import SentencePieceProcessor

from benchmarks.cases import Setup
from benchmarks.measure import MIB, ROOT, machine, median_ratio, say
from coca_train.data.corpus_config import load
from coca_train.data.dataset import IndexedWriter, best_dtype
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import markdown
from data_prep.verbs import tokenize as verb
from data_prep.verbs.embedded import installation
from data_prep.workers import cores

OURS, LIBRARY, LINES, ONE = "ours", "library, batch", "line by line", "line by line, 1 process"
LINES_AT_A_TIME = 25  # as GPT-NeoX's preprocess_data.py
POLL_S = 0.05
Work = Callable[[], object]
_worker: list[tuple[Callable[[str], list[int]], int]] = []  # encode, end of document


def texts(inputs: Sequence[Path]) -> Iterator[str]:
    """Of .jsonl or .jsonl.gz files with a field text; without files, of this Python installation."""
    if not inputs:
        yield from (document.text for document in installation())
    for path in inputs:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            yield from (json.loads(line)["text"] for line in file)


def write(path: Path, documents: Iterable[str], n_bytes: int) -> list[str]:
    """A .jsonl of at least n_bytes of text; documents come again, with a number in front, until there are enough."""
    source, texts, size, turn = list(documents), [], 0, 0
    if not source:
        raise SystemExit("there is no text in the input")
    with open(path, "w", encoding="utf-8") as file:
        while size < n_bytes:
            for text in source:
                text = f"{turn}\n{text}" if turn else text
                texts.append(text)
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                size += len(text.encode())
                if size >= n_bytes:
                    break
            turn += 1
    return texts


def overrides(file: Path, folder: Path, tokenizer: Path, workers: int) -> list[str]:
    """Settings under which everything that is read is written, in its order."""
    return [
        f"corpus.sources.text.files=['{file}']",
        "corpus.sources.text.hold_out=none",
        "corpus.exact_duplicates=keep",
        f"corpus.dir='{folder}'",
        f"tokenizer.path='{tokenizer}'",
        f"work.workers={workers}",
        "work.progress_bar=false",
    ]


def ours(file: Path, folder: Path, tokenizer: Path, workers: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with redirect_stdout(io.StringIO()):
        verb.run(load(overrides(file, folder, tokenizer, workers)))


def library(documents: list[str], tokenizer: Path, threads: int) -> None:
    """The library itself, not our wrapper."""
    model = bare(tokenizer)
    if isinstance(model, SentencePieceProcessor):
        model.encode(documents, num_threads=threads)
    else:
        model.encode_batch(documents, add_special_tokens=False)


def bare(tokenizer: Path) -> Any:
    if Tokenizer(tokenizer).kind == "sentencepiece":
        return SentencePieceProcessor(model_file=str(tokenizer))
    from tokenizers import Tokenizer as HuggingFace

    return HuggingFace.from_file(str(tokenizer))


def line_by_line(file: Path, prefix: Path, tokenizer: Path, workers: int) -> None:
    dtype = best_dtype(Tokenizer(tokenizer).vocab_size)
    pool = multiprocessing.get_context("fork").Pool(workers, _begin, (tokenizer,))
    with pool, open(file, encoding="utf-8") as lines, IndexedWriter(prefix, dtype) as writer:
        for ids in pool.imap(_encode_line, lines, LINES_AT_A_TIME):
            writer.add_document(np.array(ids, dtype))


def _begin(tokenizer: Path) -> None:
    model, eod = bare(tokenizer), Tokenizer(tokenizer).eod
    if isinstance(model, SentencePieceProcessor):
        _worker[:] = [(model.encode, eod)]
    else:
        _worker[:] = [(lambda text: model.encode(text, add_special_tokens=False).ids, eod)]


def _encode_line(line: str) -> list[int]:
    ((encode, eod),) = _worker
    return [*encode(json.loads(line)["text"]), eod]


def take_turns(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work, in turn (A B A B)."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(1, rounds + 1):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - begin)
            say(f"round {number} of {rounds}: {name} {seconds[name][-1]:.2f} s")
    return seconds


def peak_memory(words: Sequence[str]) -> int:
    """Most resident memory of `python -m data_prep tokenize` and its workers together [bytes]."""
    process = subprocess.Popen(
        [sys.executable, "-m", "data_prep", "tokenize", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(POLL_S)
    if process.returncode:
        raise RuntimeError(f"data_prep tokenize ended with {process.returncode}")
    return peak


def resident(session: int) -> int:
    """Resident memory of the processes of a session [bytes]; pages that they share count for each."""
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[3]) == session:
                total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


def table(seconds: Mapping[str, Sequence[float]], n_bytes: int) -> str:
    """Speeds, and how many times as fast ours is, turn by turn: median (lowest to highest)."""
    rows = []
    for name, times in seconds.items():
        middle, low, high = median_ratio(times, seconds[OURS])
        median = statistics.median(times)
        rows.append([name, f"{median:.2f}", f"{n_bytes / 1e6 / median:.2f}", f"{middle:.2f} ({low:.2f}-{high:.2f})"])
    return markdown(["what", "s", "MB/s", "ours is so many times as fast"], rows)


def memory_table(peaks: Mapping[int, int]) -> str:
    first = next(iter(peaks.values()))
    rows = [[f"{size / 1e6:,.0f}", f"{peak / MIB:,.0f}", f"{peak / first:.2f}"] for size, peak in peaks.items()]
    return markdown(["text, MB", "peak memory of all processes, MiB", "ratio"], rows)


def verdict(seconds: Mapping[str, Sequence[float]]) -> str:
    """Whether what was asked for holds: 0.95 x the library's batch, 2 x one line at a time."""
    bars = ((LIBRARY, 0.95), (LINES, 2.0))
    parts = [f"{median_ratio(seconds[name], seconds[OURS])[0]:.2f} x {name} (wanted {bar})" for name, bar in bars]
    return "Ours: " + ", ".join(parts)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenize", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--input", type=Path, nargs="*", default=[], help=".jsonl(.gz) with a field text")
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "data/embedded/tokenizer.model")
    parser.add_argument("--text-mb", type=float, default=100, help="text that is tokenized [MB]")
    parser.add_argument(
        "--memory-mb", type=float, nargs="*", default=None, help="sizes for peak memory; text-mb and 4 x"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=cores(), help="processes and threads of everybody")
    parser.add_argument("--skip", nargs="*", choices=[LIBRARY, LINES, ONE], default=[])
    parser.add_argument("--out", type=Path, default=None, help="also write the figures as JSON here")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    facts = machine(Setup("cpu", "fp32")) | {"workers": options.workers, "tokenizer": options.tokenizer.name}
    print(", ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    tokenizer = options.tokenizer.resolve()
    try:
        Tokenizer(tokenizer)
    except DataError as error:
        raise SystemExit(str(error)) from error
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
        folder = Path(scratch)
        file = folder / "text.jsonl"
        documents = write(file, texts(options.input), round(options.text_mb * 1e6))
        n_bytes = sum(len(text.encode()) for text in documents)
        works: dict[str, Work] = {
            OURS: lambda: ours(file, folder / "ours", tokenizer, options.workers),
            LIBRARY: lambda: library(documents, tokenizer, options.workers),
            LINES: lambda: line_by_line(file, folder / "lines", tokenizer, options.workers),
            ONE: lambda: line_by_line(file, folder / "one", tokenizer, 1),
        }
        seconds = take_turns({name: work for name, work in works.items() if name not in options.skip}, options.rounds)
        if LINES in seconds:
            same(folder / "ours/text_train", folder / "lines")
        print(f"\n{n_bytes / 1e6:,.1f} MB of text, {len(documents):,} documents, {options.rounds} rounds in turn\n")
        print(table(seconds, n_bytes))
        peaks = {}
        for size in [options.text_mb, 4 * options.text_mb] if options.memory_mb is None else options.memory_mb:
            write(file, texts(options.input), round(size * 1e6))
            shutil.rmtree(folder / "ours", ignore_errors=True)
            peaks[round(size * 1e6)] = peak_memory(overrides(file, folder / "ours", tokenizer, options.workers))
        if peaks:
            print(memory_table(peaks))
    if {LIBRARY, LINES} <= set(seconds):
        print(verdict(seconds))
    if options.out:
        record: dict[str, Any] = {"machine": facts, "bytes": n_bytes, "seconds": seconds, "peak_bytes": peaks}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def same(one: Path, other: Path) -> None:
    """The same bytes in both .bin files, else SystemExit: a faster way to something else is no result."""
    with open(f"{one}.bin", "rb") as mine, open(f"{other}.bin", "rb") as theirs:
        while block := mine.read(MIB):
            if theirs.read(MIB) != block:
                raise SystemExit(f"{one}.bin and {other}.bin differ")
        if theirs.read(1):
            raise SystemExit(f"{one}.bin is shorter than {other}.bin")


if __name__ == "__main__":
    sys.exit(main())
