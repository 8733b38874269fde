"""What is out of line of disks, data, clocks and links; the table, and the exit code."""

from dataclasses import replace

import pytest

from coca_train.doctor import measured
from coca_train.doctor.disk import DiskState
from coca_train.doctor.files import DataState
from coca_train.doctor.finding import Finding, Quoted, Row, unlike
from coca_train.doctor.rates import Offset, Slow
from coca_train.doctor.table import conclusion, exit_code, table
from coca_train.planning.storage import Storage
from coca_train.runtime.errors import DataError, StorageError
from coca_train.runtime.printing import WIDTH
from tests.doctor.test_machines import RANK, codes, told

TWO = [RANK, replace(RANK, host="n2")]
NEED = Storage(checkpoint=1_000_000_000, kept=3)
DISK = DiskState("/runs", rates=[1e8] * 6, small_s=0.004, free=10**11, identity=(7, 1234), changed_s=1e6)


def test_room_for_the_plan():
    assert codes(measured.disks([DISK] * 2, TWO, NEED, {}, 600.0)) == []
    full = replace(DISK, free=2_000_000_000)
    ((code, text, must),) = told(measured.disks([DISK, full], TWO, NEED, {}, 600.0))
    assert (
        code == "E-DOC-18" and must and "n2, /runs: 2.0 GB free, and 3 checkpoints of 1.0 GB need 3.0 GB more" in text
    )
    assert codes(measured.disks([replace(full, kept=2_000_000_000)] * 2, TWO, NEED, {}, 600.0)) == []
    assert told(measured.disks([full], TWO[:1], None, {}, 600.0, "E-PLN-01 unknown")) == [
        ("", "E-PLN-01 unknown", False)
    ]


def test_one_folder_for_all_hosts():
    own = replace(DISK, identity=(7, 999))
    assert codes(measured.disks([DISK, own], TWO, NEED, {}, 600.0)) == ["E-DOC-17"]
    assert codes(measured.disks([DISK, own], [RANK, RANK], NEED, {}, 600.0)) == []  # on one host it changed between
    assert codes(measured.disks([DISK, replace(own, changed_s=3.0)], TWO, NEED, {}, 600.0)) == []


def test_a_disk_that_fails_is_slow_or_too_slow_for_a_save():
    broken = replace(DISK, problem="no answer within 55 s", rates=[])
    assert codes(measured.disks([DISK, broken], TWO, NEED, {}, 600.0)) == ["E-DOC-16"]
    slow = measured.slow_writing([DISK, DISK, replace(DISK, rates=[1e7] * 6)])
    assert list(slow) == [2]
    rows = measured.disks([DISK] * 3, [*TWO, RANK], NEED, slow, 600.0)
    assert codes(rows) == ["E-DOC-20"] and "rank 2 on n1" in told(rows)[0][1]
    ((code, text, _),) = told(measured.disks([replace(DISK, rates=[1e6] * 6)] * 2, TWO, NEED, {}, 300.0))
    assert (
        code == "E-DOC-19" and "takes 500 s, more than engine.timeout_s=300" in text and "engine.timeout_s=1000" in text
    )


def test_only_who_is_slow_twice():
    assert measured.slow_in_both([1, 2], {2: Slow(0.5, 0.6), 3: Slow(0.5, 0.6)}) == {2: Slow(0.5, 0.6)}


def test_data_of_each_host():
    good = DataState(digest="aa", n_files=4, size=10, blocks=2, checked=1)
    assert codes([measured.data({0: good, 1: good}, TWO)]) == []
    row = measured.data({0: good, 1: replace(good, digest="bb")}, TWO)
    assert codes([row]) == ["E-DOC-14"] and "n2 (rank 1): other data" in told([row])[0][1]
    row = measured.data({0: good, 1: DataState(problem="E-TOK-08 x.bin block 3")}, TWO)
    assert told([row]) == [("", "E-TOK-08 x.bin block 3 (rank 1 on n2)", True)] and exit_code([row]) == 3
    assert measured.data({0: DataState(to_come=True)}, [RANK]).summary == "made at the first start"


def test_a_clock_that_is_off_by_more_than_it_may_be_wrong():
    right = [Offset(0.0, 0.0), Offset(0.2, 0.001), Offset(-0.1, 0.001)]
    assert codes([measured.clocks(right, [RANK] * 3)]) == []
    assert codes([measured.clocks([*right[:2], Offset(4.0, 2.0)], [RANK] * 3)]) == []
    row = measured.clocks([Offset(0.0, 0.0), Offset(60.0, 0.01), Offset(60.1, 0.01)], [RANK] * 3)
    assert codes([row]) == ["E-DOC-23"] and "rank 0 on n1: its clock is 60.0 s behind" in told([row])[0][1]


def test_a_slow_adapter_and_a_slow_cable():
    rates = {(0, 1): [1e9] * 9, (1, 2): [1e8] * 9, (2, 3): [1e8] * 9, (3, 0): [1e9] * 9}
    slow = {link: Slow(0.1, 0.2) for link in ((1, 2), (2, 3))}
    row = measured.links(rates, [RANK] * 4, slow)
    assert str(row.findings[0]).startswith("E-DOC-25 rank 2 on n1: its links run at 0.10 or less")
    assert len(row.findings) == 1
    row = measured.links(rates, [RANK] * 4, {(1, 2): Slow(0.1, 0.2)})
    assert "link of ranks 1 and 2" in str(row.findings[0])
    assert row.cells[2] == "100 MB/s"


def test_all_reduce_in_words():
    row = measured.all_reduce(1 << 20, [[0.010] * 3, [0.010, 0.008, 0.012]])
    assert row.check == "all-reduce 1 MiB" and row.cells[0] == "10.00 ms (8.00 to 12.00), 105 MB/s bus"


def test_what_fails_together():
    row = measured.failed("links", ["", "Connection reset"])
    assert codes([row]) == ["E-DOC-24"] and row.mark == "!" and row.cells == ["works", "failed"]


SLOW = Finding("E-DOC-21", "rank 2", "slow", "look")
NOTE = Finding("E-DOC-22", "n1", "many", "fewer", must=False)


def test_a_column_for_each_of_few_ranks():
    rows = [Row("host", ["n1"] * 3), Row("compute", ["9", "9", "3"], [SLOW]), Row("threads", ["1"] * 3, [NOTE])]
    assert table(rows, 3).splitlines() == [
        "   check    rank 0  rank 1  rank 2",
        "-  -------  ------  ------  ------",
        "   host     n1",
        "!  compute       9       9       3",
        "~  threads  1",
    ]
    assert table(rows[:1], 1).splitlines()[2] == "   host   n1"


def test_of_many_ranks_what_differs_is_named():
    hosts = [f"n{rank // 8}" for rank in range(64)]
    rows = [Row("host", hosts), Row("torch", ["2.13"] * 63 + ["2.12"]), Row("compute", hosts, brief="1 to 2, median 1")]
    shown = table(rows, 64)
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "n0 (ranks 0-7); n1 (ranks 8-15); n2 (ranks 16-23); 5 more" in shown
    assert "2.13 (ranks 0-62); 2.12 (rank 63)" in shown and "1 to 2, median 1" in shown


def test_the_conclusion_and_the_exit_code():
    assert conclusion([Row("host", ["n1"])]) == "All in line.\n" and exit_code([Row("host", ["n1"])]) == 0
    noted = [Row("threads", ["1"], [NOTE])]
    assert exit_code(noted) == 0 and conclusion(noted).splitlines()[1] == "~ E-DOC-22 n1: many. Fix: fewer"
    disk, data = (replace(SLOW, kind=kind) for kind in (StorageError, DataError))
    assert [exit_code([*noted, Row("", [""], [one])]) for one in (SLOW, disk, data)] == [2, 7, 3]
    assert conclusion([*noted, Row("", [""], [SLOW])]).splitlines()[:2] == [
        "1 to be mended, 1 worth a look:",
        "! E-DOC-21 rank 2: slow. Fix: look",
    ]


@pytest.mark.parametrize("where", ["", "rank 1"])
def test_errors_of_other_rooms_keep_their_words(where):
    assert str(Quoted("", where, "E-TOK-01 x. Fix: y", "")) == "E-TOK-01 x. Fix: y" + (f" ({where})" if where else "")


def test_the_most_frequent_first():
    assert unlike(["a", "b", "b", "c"]) == {"b": [1, 2], "a": [0], "c": [3]}
