"""Hold the tests against the drawn mutations: `python -m tests.mutations.run [--only ROOM] [--ids ID ...] [--record]`.

On a copy of the checkout, one mutation at a time, until a test fails: first the test that caught it before, then the
tests that execute the mutated lines, quickest first, then those of its room that work in processes of their own, where
no line is seen. Exit code 1 when one that was caught before survives, or is lost.
"""

import argparse
import compileall
import hashlib
import json
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType

from tests.mutations.mutation import SOURCES, Lost, Mutation, Place, find, load, mutated_source, places, save

CACHE = Path(".pytest_cache/mutations")
LINES = CACHE / "lines"  # which tests execute which, as coverage keeps it
# Folders of tests that belong to a room besides the one of its own name and `smoke`; what counts are tests that work in
# processes of their own, as those that execute its lines in theirs are known.
ALSO = {
    "checkpoint": ("faults", "stages"), "engine": ("stages",), "evaluation": ("measures", "generation"),
    "hub": ("stages",), "models": ("engine", "recurrence"), "positions": ("engine",), "runtime": ("faults", "slurm"),
    "training": ("stages", "faults"), "modules": ("api", "config", "stages"),
}  # fmt: skip
QUICK_S = 20.0  # a first session of the quickest tests catches most


class Server:
    """The fork server's other end, with the copy it works in."""

    def __init__(self, checkout: Path) -> None:
        self.checkout, self.folder = checkout, Path(tempfile.mkdtemp(prefix="coca-mutations-"))
        self.copy = self.folder / "copy"

    def __enter__(self) -> "Server":
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=self.checkout, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (self.checkout / name).is_file():
                (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.checkout / name, self.copy / name)
        for source in SOURCES:  # by content: a mutation may be as long and as old as what it replaces
            mode = py_compile.PycInvalidationMode.CHECKED_HASH
            compileall.compile_dir(self.copy / source, quiet=2, invalidation_mode=mode)
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        others = [path for path in paths if path and Path(path).resolve() != self.checkout]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(self.copy), *others]), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutations.server", self.folder],
            cwd=self.copy, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, tests: dict[str, float]) -> dict:
        """One session of these tests and their expected seconds; what `server._run` answers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"tests": tests, "limit_s": 300 + 5 * sum(tests.values())}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Tests:
    """What is known of the quick tests: how long each takes, which lines it executes."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout

    @cached_property
    def known(self) -> dict[str, dict[str, float]]:
        """By node id, those that pass; measured again, which takes long, when sources or tests have changed."""
        state, key = CACHE / "state", self._state()
        if not LINES.exists() or not state.exists() or state.read_text() != key:
            print("measuring which tests execute which lines; takes longer than `make test`", flush=True)
            command = [sys.executable, "-m", "pytest", "-p", "tests.mutations.cover"]
            subprocess.run(command, cwd=self.checkout, check=False)
            if not LINES.exists():
                sys.exit(f"{LINES} was not written. Run first, and mend what it says: {' '.join(command)}")
            state.write_text(key)
        return json.loads((CACHE / "tests.json").read_text())

    def _state(self) -> str:
        paths = (path for folder in (*SOURCES, "tests") for path in sorted((self.checkout / folder).rglob("*.py")))
        own = Path(__file__).parent
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.parent != own)).hexdigest()

    def executing(self, place: Place) -> set[str]:
        """Tests that execute a line of the statement."""
        import coverage

        known = self.known  # first: it writes the lines where they are missing or old
        data = coverage.CoverageData(str(LINES))
        data.read()
        by_line = data.contexts_by_lineno(str(place.path))
        return {test for line in place.lines() for test in by_line.get(line, ())} & known.keys()

    def of_room(self, room: str) -> set[str]:
        folders = tuple(f"tests/{folder}/" for folder in (room, "smoke", *ALSO.get(room, ())))
        return {test for test in self.known if test.startswith(folders)}

    def elsewhere(self, room: str) -> set[str]:
        """Tests of the room that work in processes of their own."""
        tests = self.of_room(room)
        sources = {test.partition("::")[0] for test in tests}
        starting = re.compile("subprocess|multiprocessing|fork_server")
        files = {file for file in sources if starting.search((self.checkout / file).read_text(encoding="utf-8"))}
        return {test for test in tests if self.known[test]["in_children"] > 0.1 or test.partition("::")[0] in files}

    def named(self, test: str) -> list[str]:
        """This test, or file that could not be imported, wherever it is now. Asks nothing that needs measuring."""
        file, _, name = test.partition("::")
        function = name.partition("[")[0].rpartition("::")[2]
        paths = sorted(self.checkout.glob("tests/**/test_*.py"))
        if not function:
            return [str(path.relative_to(self.checkout)) for path in paths if path.name == Path(file).name]
        files = [path for path in paths if f"def {function}(" in path.read_text(encoding="utf-8")]
        if not files and (self.checkout / file).exists():  # a test of a contract, which is inherited from the package
            return [test]
        return [f"{path.relative_to(self.checkout)}::{name}" for path in files]

    def sessions(self, mutation: Mutation, place: Place) -> Iterator[dict[str, float]]:
        """The tests to try together, with the seconds they may take: those that caught it, quick ones, the others."""
        yield {test: 60.0 for test in self.named(mutation.by)} if mutation.by else {}
        executing = sorted(self.executing(place) or self.of_room(mutation.room), key=self._seconds)
        total, quick = 0.0, 0
        while quick < len(executing) and total < QUICK_S:
            total += self._seconds(executing[quick])
            quick += 1
        yield self._timed(executing[:quick])
        yield self._timed(executing[quick:])
        yield self._timed(self.elsewhere(mutation.room) - set(executing))

    def _seconds(self, test: str) -> float:
        return self.known[test]["seconds"]

    def _timed(self, chosen: Iterable[str]) -> dict[str, float]:
        return {test: self._seconds(test) for test in chosen}


class Attempt:
    """One mutation, tried session by session."""

    def __init__(self, server: Server, tests: Tests, mutation: Mutation, place: Place) -> None:
        self.server, self.mutation, self.seconds = server, mutation, 0.0
        self.path = server.copy / place.path.relative_to(server.checkout)
        self.right, self.wrong = place.path.read_text(encoding="utf-8"), mutated_source(place, mutation.mutated)
        self.sessions = tests.sessions(mutation, place)

    def go_on(self) -> str | None:
        """The test that fails with the mutation, in the next session with any; "" when none does, None at the end."""
        began = time.monotonic()
        try:
            session = next(self.sessions, None)
            return None if session is None else self._caught(session)
        finally:
            self.seconds += time.monotonic() - began

    def _caught(self, session: dict[str, float]) -> str:
        while session:
            self.path.write_text(self.wrong, encoding="utf-8")
            answer = self.server.run(session)
            self.path.write_text(self.right, encoding="utf-8")
            failed = answer["failed"]
            if answer["timeout"] or failed not in session:  # none, or one that could not even be imported
                return failed
            if not self.server.run({failed: session[failed]})["failed"]:
                return failed
            print(f"   {failed} fails without the mutation too", flush=True)
            gone = {failed, *answer["passed"]}
            session = {test: seconds for test, seconds in session.items() if test not in gone}
        return ""


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--only", metavar="ROOM", help="mutations of this room")
    words.add_argument("--ids", nargs="+", metavar="ID", help="these mutations")
    words.add_argument("--record", action="store_true", help="write what is seen into drawn.json, skip what it has")
    words.add_argument("--caught", action="store_true", help="those caught before; quick, as the tests are known")
    options = words.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no copy behind
    drawn, checkout = load(), Path.cwd()
    chosen = [
        mutation
        for mutation in drawn
        if options.only in (None, mutation.room) and (options.ids is None or mutation.id in options.ids)
        if mutation.outcome != "equivalent" and (mutation.outcome == "caught" or not options.caught)
        if options.ids or not (options.record and mutation.outcome)
    ]
    known, tests, weaker, survivors = places(checkout), Tests(checkout), [], []
    with Server(checkout) as server:
        trying = []
        for mutation in chosen:
            try:
                trying.append(Attempt(server, tests, mutation, find(mutation, known)))
            except Lost as lost:
                print(f"lost      {lost}", flush=True)
                weaker.append(mutation.id)
        while trying:  # the first session of all, then the second of those left: most are caught early
            attempt = trying.pop(0)
            mutation, by = attempt.mutation, attempt.go_on()
            if by == "":
                trying.append(attempt)
                continue
            outcome = "caught" if by else "survived"
            print(f"{outcome:9} {mutation.id}  {attempt.seconds:.0f} s  {by or mutation.original}", flush=True)
            if not by:
                survivors.append(mutation.id)
                weaker += [mutation.id] if mutation.outcome == "caught" else []
            if options.record:
                mutation.outcome, mutation.by, mutation.seconds = outcome, by or "", round(attempt.seconds, 1)
                save(drawn)
    print(f"{len(chosen)} mutations; survivors: {', '.join(survivors) or 'none'}")
    print(f"weaker than before: {', '.join(weaker) or 'none'}")
    return 1 if weaker else 0


if __name__ == "__main__":
    sys.exit(main())
