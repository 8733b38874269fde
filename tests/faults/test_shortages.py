"""The machine refuses the n-th thread, process, descriptor, map, allocation, lock or socket, for every n by powers.

Whatever becomes of that process, what it says is true, and the same command ends afterwards as if nothing had been. The
slow tests try each kind of work and each kind of shortage until there is no n-th any more.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.faults.fork_server import ForkServer, Rank, preloaded
from tests.faults.works import Works

WHAT = {
    "thread": "threads or processes", "process": "threads or processes", "descriptor": "open files", "map": "memory",
    "memory": "memory", "lock": "file locks", "socket": "memory",
}  # fmt: skip
KINDS = ("training", "report", "evaluation", "tokenizing", "export", "import")
# Done, storage, resources; a peer lost of one rank; or ended by C++, which has no other way where it lacks memory.
CODES = {0, 7, 8, 76, -6, -11}
MOST = 60_000  # calls of a process; one has some ten thousand

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="a compiler is needed")


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    with ForkServer(preloaded("shortage", tmp_path_factory.mktemp("shortage"))) as server:
        yield Works(server, tmp_path_factory.mktemp("works"))


def powers() -> Iterator[int]:
    """0, 1, 2, 3, 5, 8, 12, 18, …"""
    number = 0
    while number < MOST:
        yield number
        number = max(number + 1, number * 3 // 2)


def check(ended: list[Rank], kind: str, where: str) -> None:
    for rank in ended:
        if kind == "socket" and rank.code == 2:  # to torch this machine has no address then
            assert "E-RUN-02 " in rank.err and "GLOO_SOCKET_IFNAME" in rank.err, where
            continue
        assert rank.code in CODES, (where, rank.code, rank.text[-3000:])
        assert "This is a bug" not in rank.text, (where, rank.text[-3000:])
        if rank.code == 8:  # in one line, of what there was no more
            (line,) = [line for line in rank.err.splitlines() if re.match(r"E-RUN-(16|30|33) ", line)]
            assert WHAT[kind] in line and " Fix: " in line, (where, line)


def refuse(works: Works, part: str, kind: str, numbers: Iterator[int], ranks: int = 1) -> Counter[int]:
    """Refuse each of these calls once, until there is none of that number; how the processes ended."""
    work, codes = works.of(part, ranks, zero=1), Counter[int]()
    mark = work.folder.with_name("refused")
    for number in numbers:
        work.fresh()
        works.server.environment = {"LATER_SHORT_OF": kind, "SHORT_AT": str(number), "SHORT_MARK": str(mark)}
        ended = work.launch(None)
        works.server.environment = {}
        if not mark.exists():
            break
        mark.unlink()
        check(ended, kind, f"{part}, {kind} {number}")
        codes.update(rank.code for rank in ended)
        work.finish()
    return codes


QUICK = [("training", "thread", (1, 3)), ("training", "descriptor", (40, 200)), ("training", "memory", (60, 300))]


@pytest.mark.parametrize(("part", "kind", "numbers"), QUICK)
def test_one_is_refused(works: Works, part: str, kind: str, numbers: tuple[int, ...]) -> None:
    assert refuse(works, part, kind, iter(numbers))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", KINDS)
@pytest.mark.parametrize("kind", WHAT)
def test_every_one_is_refused(works: Works, part: str, kind: str) -> None:
    codes = refuse(works, part, kind, powers())
    print(f"\n{part}, {kind}: {sum(codes.values())} refused, ended {dict(codes)}, all ended alike afterwards")
