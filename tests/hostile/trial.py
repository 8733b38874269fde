"""One hostile input, tried on a copy of the world; and what may come of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.faults.fork_server import ForkServer
from tests.hostile.draws import Case

MOST_BYTES = 2_000_000_000
LONGEST_LINE = 2500  # characters
DOCUMENTED = {0, 2, 3, 4, 5, 6, 7, 8, 75}  # docs/operations.md; 1 is a bug, 76 needs peers, 130 two interrupts
STOPPED = 130
WALL_S = 150.0  # processor time has a limit of its own; this is for who waits


@dataclass(frozen=True)
class Outcome:
    """code: exit code, or minus the signal. wrong: what must not be; empty: nothing."""

    case: Case
    code: int
    peak_bytes: int
    text: str
    wrong: str


def attempt(server: ForkServer, case: Case, world: Path, folder: Path) -> Outcome:
    """Copy the world to `folder`, damage it, run the command there, remove it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world, folder, symlinks=True)
    case.change(folder)
    arguments = {"program": case.program, "words": case.words}
    target = "tests.hostile.child:command"
    (rank,) = server.run(target, arguments, cwd=folder, launcher=False, timeout_s=WALL_S)
    shutil.rmtree(folder, ignore_errors=True)
    code, peak = (rank.value["code"], rank.value["peak_bytes"]) if rank.code == 0 else (rank.code, 0)
    return Outcome(case, code, peak, rank.text, _wrong(case, code, peak, rank.err, rank.text))


def _wrong(case: Case, code: int, peak_bytes: int, err: str, text: str) -> str:
    if code < 0:
        return {-24: "more than 20 s", -9: "waits for ever"}.get(code, f"killed by signal {-code}")
    if "Traceback" in text or code == 1:
        return "a traceback"
    if code == STOPPED:
        # Asked to stop after many seconds of work: right where the input asks for much, and work was seen.
        return "" if case.kind.startswith("words") and err.count("\n") > 1 else "more than 13 s, and nothing seen"
    if code not in DOCUMENTED:
        return f"exit code {code}"
    if peak_bytes > MOST_BYTES:
        return f"{peak_bytes / 1e9:.1f} GB"
    if code and not text.strip():
        return "no reason"
    if any(len(line) > LONGEST_LINE for line in err.splitlines()):
        return "a line that nobody reads"
    if any(not sign.isprintable() and sign not in "\n\t\r" for sign in err):
        return "control characters"
    return ""
