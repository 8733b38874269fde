"""What is out of line, by code and rank: machines, disks, data, clocks; who is slow; the table and the exit code."""

import json
import random
from dataclasses import asdict, replace

import pytest

from coca_train.doctor import machine
from coca_train.doctor.examine import (
    COMPUTE_FACTOR,
    LATER,
    Data,
    Disk,
    Network,
    check_clocks,
    check_computing,
    check_data,
    check_disks,
    exit_code,
    find_slow_ranks,
    render,
    show_all_reduce,
)
from coca_train.doctor.machine import (
    UNLIMITED,
    Finding,
    Gpu,
    Machine,
    Row,
    is_in_range,
    name_ranks,
    ranks_of,
    read_machine,
    show_values,
    summarize,
)
from coca_train.planning.outline import Storage
from coca_train.runtime.errors import DataError, StorageError
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
HOSTS = ["n1", "n2"]


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


def test_a_machine_travels_as_json():
    assert [read_machine(json.loads(json.dumps(asdict(each)))) for each in (RANK, GPU)] == [RANK, GPU]


def test_the_first_lines_of_a_log():
    ranks = [replace(GPU, host=host, gpu=replace(A100, uuid=f"{host}{i}")) for host in ("n1", "n2") for i in range(2)]
    (line,) = summarize(ranks, REQUIRED, 2)
    assert line == "2 hosts (n1 x 2, n2 x 2), 4 x NVIDIA A100-SXM4-80GB; python 3.11.7, torch 2.13.0 on all ranks"
    ranks[3] = replace(ranks[3], versions=ranks[3].versions | {"torch": "2.12.0"})
    first, second = summarize(ranks, REQUIRED, 2)
    assert first.endswith("NOT ON ALL") and "E-DOC-04 torch 2.12.0 on rank 3:" in second


NEED = Storage(checkpoint=1_000_000_000, kept=3)
DISK = Disk("/runs", rates=[1e8] * 12, free=10**11, changed_ns=1234, changed_s=1e6)
FULL = replace(DISK, free=2_000_000_000)
OTHER = replace(DISK, changed_ns=999)


@pytest.mark.parametrize(("disks", "hosts", "expected"), [
    ([DISK] * 2, HOSTS, []),
    ([DISK, FULL], HOSTS, [("!", "E-DOC-18", "n2, /runs")]),
    ([replace(FULL, kept=2_000_000_000)] * 2, HOSTS, []),
    ([DISK, OTHER], HOSTS, [("!", "E-DOC-17", "run.root /runs")]),
    ([DISK, OTHER], ["n1", "n1"], []),  # on one host the folder changed between the two looks
    ([DISK, replace(OTHER, changed_s=3.0)], HOSTS, []),  # just now, which hosts may see late
    ([DISK, DISK, replace(DISK, rates=[1e7] * 12)], [*HOSTS, "n1"], [("!", "E-DOC-20", "rank 2 on n1")]),
])  # fmt: skip
def test_disks(disks, hosts, expected):
    rows = check_disks(disks, hosts, NEED)
    assert found(rows) == expected and exit_code(rows) == (7 if expected else 0)


def test_amounts_of_disks():
    assert "need 3.0 GB more" in str(check_disks([FULL], ["n1"], NEED)[-1].findings[0])
    assert found(check_disks([replace(FULL, rates=[])], ["n1"], None)) == []  # what a run needs is not known


GOOD = Data("aa", n_files=4)


@pytest.mark.parametrize(("data", "expected", "shown"), [
    ([GOOD, GOOD], [], "4 token files"),
    ([GOOD, replace(GOOD, digest="bb")], [("!", "E-DOC-14", "n2 (rank 1)")], "4 token files"),
    ([GOOD, Data()], [], "4 token files"),  # another rank of the host looks
    ([Data(LATER), Data(LATER)], [], LATER),
])  # fmt: skip
def test_data(data, expected, shown):
    row = check_data(data, HOSTS)
    assert found(row) == expected and exit_code([row]) == (3 if expected else 0)
    assert row.shown.startswith(shown)


EVEN = [100.0] * 18


@pytest.mark.parametrize(("rates", "slow"), [
    pytest.param([EVEN, EVEN, [40.0] * 17 + [90.0], EVEN], [2], id="one"),
    pytest.param([[30.0] * 18, EVEN, [30.0] * 18, EVEN], [0, 2], id="two of four"),
    pytest.param([EVEN] * 4, [], id="all alike"),
    pytest.param([[80.0] * 18, EVEN, EVEN, EVEN], [], id="within the factor"),
    pytest.param([[20.0] * 9 + [100.0] * 9, EVEN, EVEN], [], id="for a while"),
    pytest.param([[20.0, 20.0, 100.0] * 6, EVEN, EVEN], [], id="in most moments only"),
    pytest.param([[10.0 * (i + 1) for i in range(18)]] * 3, [], id="the machine is busy for all of them"),
    pytest.param([[1.0] * 5, *[[100.0] * 5] * 3], [], id="too few moments"),
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
def test_clocks_are_compared_where_all_leave_a_barrier(ahead_s, off):
    """One moment in which a rank came late is none."""
    noise, now = random.Random(2), [1000.0, 1000.1, 1010.0]
    ranks = [Network([at + ahead + noise.uniform(0, 0.01) for at in now], [1.0]) for ahead in ahead_s]
    ranks[1].clock_s[1] += 20
    assert found(check_clocks(ranks, ["n1"] * 3)) == [("!", "E-DOC-23", f"rank {rank} on n1") for rank in off]


def test_bus_bandwidth_is_that_of_nccl_tests():
    """Their PERFORMANCE.md: busbw = algbw * 2 (n - 1) / n."""
    row = show_all_reduce(1 << 20, [Network([], each) for each in ([0.010] * 3, [0.010, 0.008, 0.012])])
    assert row.check == "all-reduce 1 MiB" and row.shown == "10.00 ms (8.00 to 12.00), 105 MB/s bus"
    assert "1.8 GB/s bus" in show_all_reduce(1 << 20, [Network([], [1e-3])] * 8).shown  # 1.75 times size / time


SLOW = Finding("E-DOC-21", "rank 2", "slow", "look")
NOTE = Finding("E-DOC-07", "n1", "others", "hosts of one kind", must=False)


def test_the_table_and_what_is_out_of_line():
    rows = [Row("host", "n1"), Row("device", "cpu", [NOTE]), Row("compute", "1 to 9", [SLOW])]
    assert render(rows).splitlines() == [
        "   check    all ranks",
        "-  -------  ---------",
        "   host     n1",
        "~  device   cpu",
        "!  compute  1 to 9",
        "1 must be fixed, 1 worth a look:",
        "! E-DOC-21 rank 2: slow. Fix: look",
        "~ E-DOC-07 n1: others. Fix: hosts of one kind",
    ]
    assert render(rows[:1]).endswith("Nothing is out of line.\n") and render([]) == ""


def test_of_many_ranks_what_differs_is_named():
    hosts = show_values([f"n{rank // 8}" for rank in range(64)])
    assert hosts == "n0 (ranks 0-7); n1 (ranks 8-15); n2 (ranks 16-23); 5 more"
    assert show_values(["2.13"] * 63 + ["2.12"]) == "2.13 (ranks 0-62); 2.12 (rank 63)"
    assert show_values(["2.13"] * 64) == "2.13"
    assert (name_ranks([5, 0, 1, 2]), name_ranks([3]), name_ranks([1, 4])) == ("ranks 0-2, 5", "rank 3", "ranks 1, 4")
    assert ranks_of(["a", "b", "b", "c"]) == {"b": [1, 2], "a": [0], "c": [3]}


def test_exit_codes():
    noted = [Row("device", "cpu", [NOTE])]
    assert exit_code([Row("host", "n1")]) == exit_code(noted) == 0
    disk, data = (replace(SLOW, kind=kind) for kind in (StorageError, DataError))
    assert [exit_code([*noted, Row("", "", [one])]) for one in (SLOW, disk, data)] == [2, 7, 3]


@pytest.mark.parametrize("where", ["", "rank 1"])
def test_errors_of_other_packages_keep_their_words(where):
    assert str(Finding("", where, "E-TOK-01 x. Fix: y", "")) == "E-TOK-01 x. Fix: y" + (f" ({where})" if where else "")
