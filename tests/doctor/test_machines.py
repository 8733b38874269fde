"""What is out of line of versions, GPUs, limits and environment."""

import json
from dataclasses import asdict, replace

import pytest

from coca_train.doctor import machines
from coca_train.doctor.facts import (
    CONSTRAINTS,
    UNLIMITED,
    Facts,
    GpuFacts,
    Pins,
    driver_of,
    fits,
    of_smi,
    pins,
    same_version,
)
from coca_train.doctor.short import lines

GIB = 2**30
PINS = Pins(
    {"torch": ">=2.10", "numpy": ">=1.26"}, {"torch": "2.13.0", "numpy": "2.4.6"}, frozenset({"torch", "numpy"})
)
A100 = GpuFacts("NVIDIA A100-SXM4-80GB", 80 * GIB, 79 * GIB, "a", "550.54.15", "Enabled", 0, "Disabled")
RANK = Facts(
    host="n1",
    local_rank=0,
    device="cpu",
    no_device="",
    gpu=None,
    versions={"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6"},
    limits={"nofile": 4096, "memlock": UNLIMITED, "core": 0},
    shm=(25_000_000_000, 25_000_000_000),
    cores=8,
    cpus=8,
    threads=1,
    infiniband=0,
)
GPU = replace(RANK, device="cuda", gpu=A100)


def with_version(**versions):
    return replace(RANK, versions=RANK.versions | versions)


def told(rows):
    """The findings, and whether each must be mended."""
    return [(finding.code, str(finding), finding.must) for row in rows for finding in row.findings]


def codes(rows):
    return [code for code, _, _ in told(rows)]


def test_our_own_pins_are_read():
    own = pins()
    assert own.required["deepspeed"] == "==0.19.8" and {"torch", "numpy", "pyyaml"} <= own.always
    assert "wandb" not in own.always and CONSTRAINTS.is_file()
    assert own.tested["torch"] == "2.13.0" and own.tested["antlr4-python3-runtime"] == "4.9.3"


@pytest.mark.parametrize(("specifier", "version", "right"), [
    (">=2.10", "2.9.1", False), (">=2.10", "2.13.0+cu128", True), ("==0.19.8", "0.19.8", True), ("", "1", True),
    ("<1.4,>=1.3.6", "1.4.0", False), (">=2.10", "2.14.0.dev20261101+cu130", True), (">=2", "not a version", False),
])  # fmt: skip
def test_ranges(specifier, version, right):
    assert fits(specifier, version) is right


def test_how_it_was_built_is_no_other_version():
    assert same_version("2.13.0+cu128", "2.13.0") and not same_version("2.13.1", "2.13.0")
    assert codes(machines.versions([with_version(torch="2.13.0+cu128")], PINS)) == []


def test_versions_out_of_range_unequal_untested_missing():
    assert codes(machines.versions([RANK, RANK], PINS)) == []
    old = machines.versions([RANK, with_version(torch="2.9.0")], PINS)
    assert told(old) == [
        ("E-DOC-03", "E-DOC-03 torch 2.9.0 on rank 1: torch>=2.10 is needed. Fix: pip install torch==2.13.0", True)
    ]
    (unequal,) = told(machines.versions([RANK, RANK, with_version(numpy="2.4.5")], PINS))
    assert unequal[0] == "E-DOC-04" and "numpy 2.4.5 on rank 2: most ranks have 2.4.6" in unequal[1] and unequal[2]
    (untested,) = told(machines.versions([with_version(numpy="2.4.5")] * 2, PINS))
    assert untested[0] == "E-DOC-05" and "ranks 0-1" in untested[1] and not untested[2]
    bare = replace(RANK, versions={"python": "3.11.7", "torch": "2.13.0"})
    assert codes(machines.versions([bare], PINS)) == ["E-DOC-03"]


def test_gpus_alike_sound_and_free():
    twin = replace(GPU, local_rank=1, gpu=replace(A100, uuid="b"))
    assert codes(machines.devices([GPU, twin])) == []
    assert codes(machines.devices([GPU, GPU])) == ["E-DOC-26"]
    other = replace(twin, gpu=replace(A100, uuid="b", name="NVIDIA A100-SXM4-40GB", memory=40 * GIB, free=39 * GIB))
    assert codes(machines.devices([GPU, other])) == ["E-DOC-07"]
    broken = replace(twin, gpu=replace(A100, uuid="b", ecc_errors=3, free=40 * GIB, driver="535.1"))
    assert codes(machines.devices([GPU, broken])) == ["E-DOC-04", "E-DOC-08", "E-DOC-09"]
    fewer = replace(twin, gpu=replace(A100, uuid="b", reaches=6, others=7))
    assert codes(machines.devices([replace(GPU, gpu=replace(A100, reaches=7, others=7)), fewer])) == ["E-DOC-28"]
    (missing,) = told(machines.devices([RANK, replace(RANK, no_device="E-RUN-04 engine.device cuda: none")]))
    assert missing[1] == "E-RUN-04 engine.device cuda: none (rank 1 on n1)" and missing[2]


def test_what_nvidia_tells():
    text = (
        "GPU-5f3a, 550.54.15, Enabled, 0, Disabled\n"
        "GPU-77aa, 550.54.15, [N/A], [N/A], [N/A]\n"
    )  # fmt: skip
    assert of_smi(text, "5f3a")["ecc.errors.uncorrected.volatile.total"] == "0"
    assert of_smi(text, "GPU-77aa") == {"uuid": "GPU-77aa", "driver_version": "550.54.15"}
    assert of_smi(text, "other") == {} and of_smi("", "5f3a") == {} and of_smi(text, "") == {}
    proprietary = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:"
    )
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.51.03  Release Build  (dvs-builder)\n"
    assert driver_of(proprietary) == "550.54.15" and driver_of(opened) == "575.51.03" and driver_of("") == ""


def test_limits_that_a_run_needs():
    assert codes(machines.limits([RANK] * 4, 8)) == []
    low = replace(RANK, limits=RANK.limits | {"nofile": 256})
    ((code, text, must),) = told(machines.limits([RANK, low], 100))
    assert code == "E-DOC-10" and must and "rank 1: 256 open files are allowed, and 336 needed" in text
    unlimited = replace(RANK, limits=RANK.limits | {"nofile": UNLIMITED})
    assert codes(machines.limits([unlimited], 10**6)) == []
    locked = replace(GPU, infiniband=2, limits=RANK.limits | {"memlock": 65536})
    assert codes(machines.limits([locked], 8)) == ["E-DOC-11"]
    assert codes(machines.limits([replace(locked, infiniband=0)], 8)) == []


def test_shared_memory_of_a_small_container():
    small = replace(GPU, shm=(64_000_000, 64_000_000))
    assert codes([machines.shared_memory([small] * 8)]) == ["E-DOC-12"]
    assert codes([machines.shared_memory([small])]) == []
    assert codes([machines.shared_memory([replace(small, device="cpu")] * 8)]) == []


def test_more_threads_than_cores():
    assert codes([machines.threads([RANK] * 8)]) == []
    ((code, text, must),) = told([machines.threads([replace(RANK, threads=8)] * 4)])
    assert code == "E-DOC-22" and not must and text.endswith("32 threads share 8 cores. Fix: OMP_NUM_THREADS=2")
    assert "at most 2 ranks" in told([machines.threads([replace(RANK, cpus=2)] * 4)])[0][1]


def test_environment_that_differs():
    one, other = (replace(RANK, environment={"NCCL_SOCKET_IFNAME": name}) for name in ("ib0", "eth0"))
    ((code, text, must),) = told([machines.environment([one, one, other])])
    assert code == "E-DOC-13" and not must and "eth0 on rank 2; most ranks have ib0" in text
    local = replace(RANK, environment={"MASTER_ADDR": "localhost"})
    assert codes([machines.environment([local, local])]) == []
    assert codes([machines.environment([local, replace(local, host="n2")])]) == ["E-DOC-27"]


def test_the_first_lines_of_a_log():
    ranks = [replace(GPU, host=host, gpu=replace(A100, uuid=f"{host}{i}")) for host in ("n1", "n2") for i in range(2)]
    (line,) = lines(ranks, PINS, 2)
    assert line == ("2 hosts (n1 x 2, n2 x 2), 4 x NVIDIA A100-SXM4-80GB; python 3.11.7, torch 2.13.0 on all ranks")
    ranks[3] = replace(ranks[3], versions=ranks[3].versions | {"torch": "2.12.0"})
    first, second = lines(ranks, PINS, 2)
    assert first.endswith("torch 2.13.0 on rank 0, NOT ON ALL")
    assert second.startswith("OUT OF LINE: E-DOC-04 torch 2.12.0 on rank 3: most ranks have 2.13.0")


NO_COMPILER = ("no C compiler: gcc or clang is not on PATH", "apt install gcc")


def test_a_log_names_the_ranks_that_have_no_compiler():
    """Rank 0 says its own, as it trains."""
    ranks = [replace(GPU, gpu=replace(A100, uuid=name)) for name in "abc"]
    ranks[2] = replace(ranks[2], no_compiler=NO_COMPILER)
    assert "E-DOC-29 rank 2: " in lines(ranks, PINS, 2)[1]
    assert not any("E-DOC-29" in line for line in lines([*reversed(ranks)], PINS, 2))
    on_cpus = [RANK, replace(RANK, no_compiler=NO_COMPILER)]
    assert [any("E-DOC-29" in line for line in lines(on_cpus, PINS, 2, blocks)) for blocks in (False, True)] == [
        False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "compiles_blocks", "found"),
    [
        ([GPU, GPU], True, []),
        ([GPU, replace(GPU, no_compiler=NO_COMPILER), GPU], False, ["rank 1"]),
        ([replace(RANK, no_compiler=NO_COMPILER)], False, []),  # a CPU compiles nothing of its own accord
        ([replace(RANK, no_compiler=NO_COMPILER)], True, ["rank 0"]),
    ],
)
def test_a_compiler_that_is_not_there(ranks, compiles_blocks, found):
    row = machines.compilers(ranks, compiles_blocks)
    assert [(each.code, each.where, each.fix) for each in row.findings] == [
        ("E-DOC-29", where, "apt install gcc") for where in found
    ]
    assert row.mark == ("~" if found else "")
    assert [cell == "none" for cell in row.cells] == [bool(each.no_compiler[0]) for each in ranks]
    assert [Facts.read(json.loads(json.dumps(asdict(each)))) for each in ranks] == ranks
