"""The command itself, killed and interrupted: workers vanish, and the same command ends with the same bytes."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from data_prep.__main__ import main
from tests.data_prep import slowly
from tests.data_prep.tokenizing import (
    ENVIRONMENT,
    bytes_of,
    model,
    overrides,
    run,
    write_inputs,
)
from tests.processes import has_ended, workers_of

DELAY_S = 0.01
VANISH_S = 5.0


def words_for(raw: Path, dir: Path, **more: object) -> list[str]:
    """The tokenizer lies in the corpus: its manifest says where it is from there."""
    dir.mkdir(exist_ok=True)
    if not (dir / "tokenizer.model").exists():
        shutil.copy(model(), dir / "tokenizer.model")
    return overrides(raw, dir, tokenizer_path=dir / "tokenizer.model", **more)


class Forked:
    """As subprocess.Popen, as far as it is used here: the slow command in a fork of this process, a second sooner."""

    def __init__(self, arguments: list[str], output: Path) -> None:
        self.output = output
        self._process = multiprocessing.get_context("fork").Process(target=self._run, args=(arguments,))
        self._process.start()
        self.pid = self._process.pid or 0

    def _run(self, arguments: list[str]) -> None:
        os.setsid()
        for stream in (1, 2):  # those of the workers too
            os.dup2(os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        slowly.slow_down(float(arguments[0]))
        code = main(arguments[1:])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float) -> tuple[str, None]:
        self._process.join(timeout)
        return self.output.read_text(), None


class Command:
    """`tokenize` in a session of its own; with `merge` of its own accord. cold: as from a shell."""

    def __init__(self, raw: Path, dir: Path, delay_s: float = DELAY_S, cold: bool = False, workers: int = 2) -> None:
        self.dir = dir
        words = [str(delay_s), "tokenize", *words_for(raw, dir, work_workers=workers)]
        if not cold:
            self.process: Any = Forked(words, dir.parent / f"{dir.name}.log")
            return
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.data_prep.slowly", *words],
            env=ENVIRONMENT, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def wait_for_parts(self, n: int = 1) -> None:
        """Until so many parts are finished."""
        end = time.monotonic() + 60
        while len(list(self.dir.glob("parts/*/*/*.json"))) < n:
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < end
            time.sleep(0.005)

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        text, _ = self.process.communicate(timeout=100)
        return self.process.returncode, text


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), n_inputs=3, n_documents=100)


@pytest.fixture(scope="module")
def reference(raw: Path) -> dict[str, str]:
    """What an undisturbed run leaves. Its parts: parts/."""
    run(raw, raw.parent / "alone")
    (raw.parent / "alone" / "parts").rename(raw.parent / "parts")
    assert main(["tokenize", *words_for(raw, raw.parent / "reference")]) == 0
    digests = bytes_of(raw.parent / "reference")
    assert {"manifest.json", "text_train.bin", "text_valid.idx"} <= digests.keys()
    return digests


def vanish(pids: list[int]) -> bool:
    end = time.monotonic() + VANISH_S
    while time.monotonic() < end and not all(map(has_ended, pids)):
        time.sleep(0.02)
    return all(map(has_ended, pids))


def kill(command: Command) -> None:
    """kill -9, also where it has ended already; its workers must end with it."""
    workers = workers_of(command.process.pid) if command.process.poll() is None else []
    command.process.kill()
    command.end()
    assert vanish(workers)


def finish(raw: Path, dir: Path, reference: dict[str, str]) -> None:
    """The same command again, in this process: the number of workers changes nothing."""
    assert main(["tokenize", *words_for(raw, dir)]) == 0
    assert bytes_of(dir) == reference


def test_killed_the_same_command_ends_with_the_same_bytes(raw, tmp_path, reference, capsys):
    command = Command(raw, tmp_path)
    command.wait_for_parts(4)
    assert len(workers_of(command.process.pid)) == 2
    kill(command)
    assert not (tmp_path / "manifest.json").exists()
    code, text = Command(raw, tmp_path, 0.0).end()
    assert code == 0, text
    assert bytes_of(tmp_path) == reference
    shutil.rmtree(tmp_path / "parts", ignore_errors=True)
    finish(raw, tmp_path, reference)
    assert "is there already, nothing to do" in capsys.readouterr().out


def test_a_killed_worker_ends_the_run_in_words(raw, tmp_path, reference):
    command = Command(raw, tmp_path)
    command.wait_for_parts(2)
    workers = workers_of(command.process.pid)
    os.kill(workers[1], signal.SIGKILL)
    code, text = command.end()
    assert code == 76
    assert text.startswith("E-RUN-25 worker process") and "SIGKILL" in text and len(text.splitlines()) == 1
    assert vanish(workers)
    finish(raw, tmp_path, reference)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGTERM, 75, "SIGTERM"),
        pytest.param(signal.SIGUSR1, 75, "SIGUSR1", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, "Interrupted", marks=pytest.mark.slow),
    ],
)
def test_stop_signal(raw, tmp_path, reference, number, code, word):
    """The signal goes to every process of the job, as from SLURM or a terminal."""
    command = Command(raw, tmp_path)
    command.wait_for_parts(3)
    workers = workers_of(command.process.pid)
    os.killpg(command.process.pid, number)
    status, text = command.end()
    assert status == code and word in text and len(text.splitlines()) == 1
    assert vanish(workers)
    assert not list(tmp_path.rglob("*.tmp"))
    assert len(list(tmp_path.rglob("0*.json"))) < len(list((raw.parent / "parts").rglob("*.json"))) - 5
    finish(raw, tmp_path, reference)


@pytest.mark.slow
def test_interrupt_during_start(raw, tmp_path, reference):
    """Ctrl-C while workers are being started: no traceback of theirs on the terminal."""
    command = Command(raw, tmp_path, cold=True)
    while not workers_of(command.process.pid):
        time.sleep(0.001)
    os.killpg(command.process.pid, signal.SIGINT)
    status, text = command.end()
    assert status == 130 and "Interrupted" in text and len(text.splitlines()) == 1
    finish(raw, tmp_path, reference)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_from_the_first_worker_on(raw, tmp_path, reference, number):
    """A signal to the main process alone, while it starts its workers: it starts no more, and leaves none."""
    command = Command(raw, tmp_path, workers=8)
    while not (workers := workers_of(command.process.pid)):
        assert command.process.poll() is None
        time.sleep(0.001)
    os.kill(command.process.pid, number)
    began = time.monotonic()
    code, text = command.end()
    assert (code, len(text.splitlines())) == (75 if number == signal.SIGTERM else 130, 1), text
    assert time.monotonic() - began < VANISH_S
    assert vanish(workers)
    assert not list(tmp_path.rglob("*.tmp"))
    finish(raw, tmp_path, reference)


@pytest.mark.slow
def test_shards_side_by_side(raw, tmp_path, reference):
    commands = []
    for shard in ("0/2", "1/2"):
        words = words_for(raw, tmp_path, work_workers=1)
        arguments = [sys.executable, "-m", "data_prep", "tokenize", *words, f"shard={shard}"]
        commands.append(
            subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    texts = [command.communicate(timeout=100)[0] for command in commands]
    assert [command.returncode for command in commands] == [0, 0], texts
    assert any("(3 inputs)" in text for text in texts)
    words = words_for(raw, tmp_path)
    subprocess.run([sys.executable, "-m", "data_prep", "merge", *words], env=ENVIRONMENT, check=True, timeout=100)
    assert bytes_of(tmp_path) == reference
