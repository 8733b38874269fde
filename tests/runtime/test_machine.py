"""Whatever an option counts is lowered to what the machine serves, and a line says so."""

import os
from dataclasses import replace

import pytest

from coca_train.runtime import dist, machine
from coca_train.settings import load
from coca_train.training.stage import steps_ahead

GIB = 1 << 30


@pytest.fixture
def sized(monkeypatch):
    """sized(cores, memory): a machine like that, of which nothing was said yet."""
    machine._lowered.cache_clear()

    def make(cores: int, memory: int) -> None:
        monkeypatch.setattr(machine, "cores", lambda: cores)
        monkeypatch.setattr(machine, "memory", lambda: memory)

    return make


@pytest.mark.parametrize(
    ("cores", "memory", "wanted", "bytes_each", "number"),
    [
        (2, 16 * GIB, 4, 50_000_000, 4),  # twice as many as cores: as asked
        (2, 16 * GIB, 8, 50_000_000, 8),
        (2, 16 * GIB, 9, 50_000_000, 8),
        (1, 16 * GIB, 3000, 50_000_000, 8),
        (64, 512 * GIB, 256, 50_000_000, 256),
        (64, 512 * GIB, 3000, 50_000_000, 256),
        (64, 2 * GIB, 3000, GIB // 4, 4),  # the memory is the lower bound
        (64, 2 * GIB, 5, GIB // 4, 4),
        (64, GIB, 5, 4 * GIB, 1),
        (2, GIB, 10**30, 1, 8),
    ],
)
def test_processes_are_bounded_by_cores_and_memory(sized, capsys, cores, memory, wanted, bytes_each, number):
    sized(cores, memory)
    assert machine.bounded_processes("work.workers", wanted, bytes_each) == number
    said = capsys.readouterr().err
    assert len(said.splitlines()) == (number != wanted)
    if number != wanted:
        assert f"work.workers={wanted}: " in said and f"Fix: write work.workers={number}" in said


def test_the_fix_is_taken_as_it_is(sized, capsys):
    sized(2, 16 * GIB)
    machine.bounded_processes("work.workers", 3000, 50_000_000)
    fixed = capsys.readouterr().err.strip().rpartition("work.workers=")[2]
    assert machine.bounded_processes("work.workers", int(fixed), 50_000_000) == int(fixed)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {"memory.max": "1000000\n"}, 1_000_000),
        ("0::/jobs/mine\n", {"jobs/mine/memory.max": "max\n", "jobs/memory.max": "3000000\n"}, 3_000_000),
        ("4:memory:/mine\n2:cpu:/\n", {"memory/mine/memory.limit_in_bytes": "2000000\n"}, 2_000_000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, None),
        ("0::/\n", {"memory.max": "nonsense\n"}, None),
    ],
)
def test_memory_is_that_of_the_control_groups(monkeypatch, tmp_path, membership, files, limit):
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "MEMBERSHIP", tmp_path / "membership")
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.memory() == (physical if limit is None else limit)


@pytest.mark.parametrize(
    ("ranks_here", "memory", "steps"), [(1, GIB, 1000), (1, GIB // 64, 256), (4, GIB // 64, 64), (1, 1000, 1)]
)
def test_batches_read_ahead_are_bounded_by_memory(sized, capsys, monkeypatch, ranks_here, memory, steps):
    """8 sequences x 128 tokens x 3 tensors of 8 bytes, and a fourth where documents are masked."""
    sized(2, memory)
    monkeypatch.setattr(dist, "all_gather_object", lambda host: ["another", *[host] * ranks_here, "another"])
    config = load(["data.prefetch_steps=1000", "train.seq_len=128", "train.global_batch_size=8"]).config
    config = replace(config, data=replace(config.data, document_mask=True))
    assert steps_ahead(config, n_readers=1) == steps
    said = capsys.readouterr().err
    assert ("data.prefetch_steps=1000: " in said) == (steps != 1000)
    assert steps_ahead(replace(config, data=replace(config.data, prefetch_steps=0)), 1) == 0


def test_the_processor_is_named_as_the_system_names_it(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.processor()  # where there is no such file, what Python knows
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some  CPU @ 2 GHz\nflags : fpu\n")
    assert machine.processor() == "Some CPU @ 2 GHz"
