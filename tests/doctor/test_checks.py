"""What is out of line, by code and rank: machines, disks, data, clocks; who is slow; the table and the exit code."""

import json
import math
import random
from dataclasses import asdict, replace

import pytest

from coca_train.doctor import machine
from coca_train.doctor.machine import UNLIMITED, Gpu, Machine, is_in_range, read_machine, summarize
from coca_train.doctor.measurements import (
    COMPUTE_FACTOR,
    DataState,
    DiskState,
    check_clocks,
    check_computing,
    check_data,
    check_disks,
    clock_offsets,
    find_slow_ranks,
    show_all_reduce,
    upper_end,
)
from coca_train.doctor.table import Finding, Row, exit_code, group_by_value, print_findings, print_table, rank_ranges
from coca_train.planning.outline import Storage
from coca_train.runtime.errors import DataError, StorageError
from coca_train.runtime.printing import WIDTH
from tests.fixes import installed

GIB = 2**30
REQUIRED = {"torch": ">=2.10", "numpy": ">=1.26"}
RANK = Machine(
    host="n1",
    local_rank=0,
    device="cpu",
    no_device="",
    gpu=None,
    versions={"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6"},
    nofile=4096,
    memlock=UNLIMITED,
    shm_free=25_000_000_000,
    infiniband=False,
)
A100 = Gpu("NVIDIA A100-SXM4-80GB", 80 * GIB, 79 * GIB, "a")
GPU = replace(RANK, device="cuda", gpu=A100)
TWIN = replace(GPU, gpu=replace(A100, uuid="b"))
NO_COMPILER = ("no C compiler", "apt install gcc")
WITHOUT = replace(GPU, no_compiler=NO_COMPILER)
TWO_HOSTS = [RANK, replace(RANK, host="n2")]


def with_versions(**versions):
    return replace(RANK, versions=RANK.versions | versions)


def found(rows):
    """(mark, code, where) of each finding, in the order of the rows."""
    rows = [rows] if isinstance(rows, Row) else rows
    return [("!" if each.must else "~", each.code, each.where) for row in rows for each in row.findings]


@pytest.mark.parametrize(("machines", "expected"), [
    ([RANK, RANK], []),
    ([with_versions(torch="2.13.0+cu128")], []),
    ([RANK, with_versions(torch="2.9.0")], [("!", "E-DOC-03", "torch 2.9.0 on rank 1")]),
    ([RANK, RANK, with_versions(numpy="2.4.5")], [("!", "E-DOC-04", "numpy 2.4.5 on rank 2")]),
    ([RANK, with_versions(python="3.12.1")], [("!", "E-DOC-04", "python 3.12.1 on rank 1")]),
])  # fmt: skip
def test_versions(machines, expected):
    assert found(machine.check_versions(machines, REQUIRED)) == expected


def test_the_version_that_is_needed_is_the_one_here():
    (row,) = [row for row in machine.check_versions([with_versions(torch="2.9.0")], REQUIRED) if row.findings]
    (finding,) = row.findings
    assert finding.code == "E-DOC-03" and installed(finding.fix)


@pytest.mark.parametrize(("specifier", "version", "fits"), [
    (">=2.10", "2.9.1", False), (">=2.10", "2.13.0+cu128", True), ("==0.19.8", "0.19.8", True), ("", "1", True),
    ("<1.4,>=1.3.6", "1.4.0", False), (">=2.10", "2.14.0.dev20261101+cu130", True), (">=2", "not a version", False),
])  # fmt: skip
def test_ranges_of_versions(specifier, version, fits):
    assert is_in_range(specifier, version) is fits


def test_own_requirements_are_read():
    assert machine.read_requirements()["deepspeed"] == "==0.19.8"


@pytest.mark.parametrize(("machines", "expected"), [
    ([GPU, TWIN], []),
    ([GPU, GPU], [("!", "E-DOC-26", "ranks 0-1")]),
    ([GPU, replace(GPU, gpu=Gpu("NVIDIA A100-SXM4-40GB", 40 * GIB, 39 * GIB, "b"))],
     [("~", "E-DOC-07", "NVIDIA A100-SXM4-40GB, 40.0 GiB on rank 1")]),
    ([GPU, replace(TWIN, local_rank=1, gpu=replace(A100, uuid="b", free=40 * GIB))],
     [("!", "E-DOC-09", "rank 1 on n1, GPU 1")]),
    ([RANK, replace(RANK, no_device="E-RUN-04 none")], [("!", "", "rank 1 on n1")]),
])  # fmt: skip
def test_devices(machines, expected):
    assert found(machine.check_devices(machines)) == expected


@pytest.mark.parametrize(("machines", "n_files", "expected"), [
    ([RANK] * 4, 8, []),
    ([RANK, replace(RANK, nofile=256)], 100, [("!", "E-DOC-10", "rank 1")]),
    ([replace(RANK, nofile=UNLIMITED)], 10**6, []),
    ([replace(GPU, infiniband=True, memlock=65536)], 8, [("!", "E-DOC-11", "rank 0")]),
    ([replace(GPU, memlock=65536)], 8, []),
    ([replace(GPU, shm_free=64_000_000)] * 8, 8, [("!", "E-DOC-12", "/dev/shm of n1")]),
    ([replace(GPU, shm_free=64_000_000)], 8, []),
    ([replace(RANK, shm_free=64_000_000)] * 8, 8, []),
])  # fmt: skip
def test_limits(machines, n_files, expected):
    assert found(machine.check_limits(machines, n_files)) == expected


@pytest.mark.parametrize(("machines", "compiles_blocks", "expected"), [
    ([GPU, TWIN], True, []),
    ([GPU, WITHOUT, GPU], False, [("~", "E-DOC-29", "rank 1")]),
    ([replace(RANK, no_compiler=NO_COMPILER)], False, []),  # a CPU compiles nothing of its own accord
    ([replace(RANK, no_compiler=NO_COMPILER)], True, [("~", "E-DOC-29", "rank 0")]),
])  # fmt: skip
def test_compilers(machines, compiles_blocks, expected):
    assert found(machine.check_compilers(machines, compiles_blocks)) == expected
    assert [read_machine(json.loads(json.dumps(asdict(each)))) for each in machines] == machines


def test_the_first_lines_of_a_log():
    ranks = [replace(GPU, host=host, gpu=replace(A100, uuid=f"{host}{i}")) for host in ("n1", "n2") for i in range(2)]
    (line,) = summarize(ranks, REQUIRED, 2)
    assert line == "2 hosts (n1 x 2, n2 x 2), 4 x NVIDIA A100-SXM4-80GB; python 3.11.7, torch 2.13.0 on all ranks"
    ranks[3] = replace(ranks[3], versions=ranks[3].versions | {"torch": "2.12.0"})
    first, second = summarize(ranks, REQUIRED, 2)
    assert first.endswith("NOT ON ALL") and "E-DOC-04 torch 2.12.0 on rank 3:" in second
    # Rank 0 says itself what it lacks, as it trains.
    assert "E-DOC-29 rank 1:" in summarize([GPU, replace(WITHOUT, gpu=replace(A100, uuid="b"))], REQUIRED, 2)[1]
    assert len(summarize([WITHOUT, TWIN], REQUIRED, 2)) == 1


NEED = Storage(checkpoint=1_000_000_000, kept=3)
DISK = DiskState("/runs", rates=[1e8] * 12, small_s=0.004, free=10**11, changed_ns=1234, changed_s=1e6)
FULL = replace(DISK, free=2_000_000_000)
OTHER = replace(DISK, changed_ns=999)


@pytest.mark.parametrize(("states", "machines", "timeout_s", "expected"), [
    ([DISK] * 2, TWO_HOSTS, 600.0, []),
    ([DISK, FULL], TWO_HOSTS, 600.0, [("!", "E-DOC-18", "n2, /runs")]),
    ([replace(FULL, kept=2_000_000_000)] * 2, TWO_HOSTS, 600.0, []),
    ([DISK, OTHER], TWO_HOSTS, 600.0, [("!", "E-DOC-17", "run.root /runs")]),
    ([DISK, OTHER], [RANK, RANK], 600.0, []),  # on one host the folder changed between the two looks
    ([DISK, replace(OTHER, changed_s=3.0)], TWO_HOSTS, 600.0, []),  # just now, which hosts may see late
    ([DISK, replace(DISK, problem="no answer", rates=[])], TWO_HOSTS, 600.0,
     [("!", "E-DOC-16", "rank 1 on n2, /runs")]),
    ([DISK, DISK, replace(DISK, rates=[1e7] * 12)], [*TWO_HOSTS, RANK], 600.0, [("!", "E-DOC-20", "rank 2 on n1")]),
    ([replace(DISK, rates=[1e6] * 12)] * 2, TWO_HOSTS, 300.0, [("!", "E-DOC-19", "run.root")]),
])  # fmt: skip
def test_disks(states, machines, timeout_s, expected):
    rows = check_disks(states, machines, NEED, timeout_s)
    assert found(rows) == expected and exit_code(rows) == (7 if expected else 0)


def test_amounts_of_disks():
    assert "need 3.0 GB more" in str(check_disks([FULL], [RANK], NEED, 600.0)[-1].findings[0])
    slow = check_disks([replace(DISK, rates=[1e6] * 12)] * 2, TWO_HOSTS, NEED, 300.0)[0].findings[0]
    assert " 500 s" in slow.what and "engine.timeout_s=1000" in slow.fix
    unknown = check_disks([FULL], [RANK], None, 600.0, "E-PLN-01 unknown")[-1].findings
    assert [(str(each), each.must) for each in unknown] == [("E-PLN-01 unknown", False)]


GOOD = DataState(digest="aa", n_files=4, size=10, blocks=2, checked=1)


@pytest.mark.parametrize(("states", "expected"), [
    ({0: GOOD, 1: GOOD}, []),
    ({0: GOOD, 1: replace(GOOD, digest="bb")}, [("!", "E-DOC-14", "n2 (rank 1)")]),
    ({0: GOOD, 1: DataState(problem="E-TOK-08 x.bin block 3")}, [("!", "", "rank 1 on n2")]),
    ({0: DataState(made_at_start=True)}, []),
])  # fmt: skip
def test_data(states, expected):
    row = check_data(states, TWO_HOSTS)
    assert found(row) == expected and exit_code([row]) == (3 if expected else 0)


# Order statistics that hold the median with 95 % or more, as tables of the sign test give them: 1 to 6 of 6, 2 to 8
# of 9, 2 to 9 of 10, 6 to 15 of 20.
@pytest.mark.parametrize(("n", "kth_largest"), [(6, 1), (9, 2), (10, 2), (20, 6)])
def test_the_interval_is_that_of_the_sign_test(n, kth_largest):
    assert upper_end([float(i) for i in range(n)]) == n - kth_largest
    assert upper_end([1.0] * 5) == math.inf  # no such interval


EVEN = [100.0] * 18


@pytest.mark.parametrize(("rates", "slow"), [
    pytest.param([EVEN, EVEN, [40.0] * 17 + [90.0], EVEN], [2], id="one"),
    pytest.param([[30.0] * 18, EVEN, [30.0] * 18, EVEN], [0, 2], id="two of four"),
    pytest.param([EVEN] * 4, [], id="all alike"),
    pytest.param([[80.0] * 18, EVEN, EVEN, EVEN], [], id="within the factor"),
    pytest.param([[20.0] * 9 + [100.0] * 9, EVEN, EVEN], [], id="for a while"),
    pytest.param([[20.0, 20.0, 100.0] * 6, EVEN, EVEN], [], id="in most moments only"),
    pytest.param([[10.0 * (i + 1) for i in range(18)]] * 3, [], id="the machine is busy for all of them"),
    pytest.param([[1.0] * 11, *[[100.0] * 11] * 3], [], id="too few moments"),
    pytest.param([[1.0] * 18], [], id="no peers"),
    pytest.param([[0.0] * 18] * 3, [], id="nobody ends anything"),
    pytest.param([], [], id="no ranks"),
])  # fmt: skip
def test_who_is_slow(rates, slow):
    assert list(find_slow_ranks(rates, COMPUTE_FACTOR)) == slow
    if rates:
        assert found(check_computing(rates, [RANK] * 4)) == [("!", "E-DOC-21", f"rank {rank} on n1") for rank in slow]


def test_noise_names_nobody():
    """Rates that differ by a factor of two from moment to moment, on 8 equal ranks."""
    noise, named = random.Random(1), 0
    for _ in range(300):
        named += len(find_slow_ranks([[noise.lognormvariate(0, 0.7) for _ in range(18)] for _ in range(8)], 1.3))
    assert named <= 3  # of 2,400


@pytest.mark.parametrize(("ahead_s", "off"), [([0.0, 0.5, -1.0], []), ([0.0, 60.0, 60.1], [0])])
def test_clocks_are_known_within_their_uncertainty(ahead_s, off):
    noise, now, stamps = random.Random(2), 1000.0, [[] for _ in ahead_s]
    for _ in range(20):
        entered = [now + noise.uniform(0, 0.05) for _ in ahead_s]
        left = [max(entered) + noise.uniform(0.0001, 0.01) for _ in ahead_s]
        for rank, ahead in enumerate(ahead_s):
            stamps[rank].append((entered[rank] + ahead, left[rank] + ahead))
        now = max(left)
    offsets = clock_offsets(stamps)
    for offset, ahead in zip(offsets, ahead_s, strict=True):
        assert abs(offset.ahead_s - ahead) <= offset.uncertainty_s < 0.02
    assert found(check_clocks(stamps, [RANK] * 3)) == [("!", "E-DOC-23", f"rank {rank} on n1") for rank in off]


def test_a_clock_is_off_by_more_than_it_may_be_wrong():
    long = [[(0.0, 3.0)] * 20, [(0.0, 3.0)] * 20, [(4.0, 7.0)] * 20]
    assert found(check_clocks(long, [RANK] * 3)) == []


def test_bus_bandwidth_is_that_of_nccl_tests():
    """Their PERFORMANCE.md: busbw = algbw * 2 (n - 1) / n."""
    row = show_all_reduce(1 << 20, [[0.010] * 3, [0.010, 0.008, 0.012]])
    assert row.check == "all-reduce 1 MiB" and row.common == "10.00 ms (8.00 to 12.00), 105 MB/s bus"
    assert "1.8 GB/s bus" in show_all_reduce(1 << 20, [[1e-3]] * 8).common  # 1.75 times size / time


SLOW = Finding("E-DOC-21", "rank 2", "slow", "look")
NOTE = Finding("E-DOC-29", "n1", "none", "install", must=False)


def test_a_column_for_each_of_few_ranks():
    rows = [Row("host", ["n1"] * 3), Row("compute", ["9", "9", "3"], [SLOW]), Row("compiler", ["1"] * 3, [NOTE])]
    assert print_table(rows, 3).splitlines() == [
        "   check     rank 0  rank 1  rank 2",
        "-  --------  ------  ------  ------",
        "   host      n1",
        "!  compute        9       9       3",
        "~  compiler  1",
    ]
    assert print_table(rows[:1], 1).splitlines()[2] == "   host   n1"


def test_of_many_ranks_what_differs_is_named():
    hosts = [f"n{rank // 8}" for rank in range(64)]
    rows = [Row("host", hosts), Row("torch", ["2.13"] * 63 + ["2.12"]), Row("compute", hosts, brief="1 to 2, median 1")]
    shown = print_table(rows, 64)
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "n0 (ranks 0-7); n1 (ranks 8-15); n2 (ranks 16-23); 5 more" in shown
    assert "2.13 (ranks 0-62); 2.12 (rank 63)" in shown and "1 to 2, median 1" in shown
    assert rank_ranges([5, 0, 1, 2]) == "0-2, 5"
    assert group_by_value(["a", "b", "b", "c"]) == {"b": [1, 2], "a": [0], "c": [3]}


def test_findings_and_exit_code():
    noted = [Row("compiler", ["1"], [NOTE])]
    assert exit_code([Row("host", ["n1"])]) == exit_code(noted) == 0
    disk, data = (replace(SLOW, kind=kind) for kind in (StorageError, DataError))
    assert [exit_code([*noted, Row("", [""], [one])]) for one in (SLOW, disk, data)] == [2, 7, 3]
    lines = print_findings([*noted, Row("", [""], [SLOW])]).splitlines()
    assert [line[:10] for line in lines[1:]] == ["! E-DOC-21", "~ E-DOC-29"]


@pytest.mark.parametrize("where", ["", "rank 1"])
def test_errors_of_other_packages_keep_their_words(where):
    assert str(Finding("", where, "E-TOK-01 x. Fix: y", "")) == "E-TOK-01 x. Fix: y" + (f" ({where})" if where else "")
