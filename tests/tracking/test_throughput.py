import numpy as np
import pytest
import torch
from torch import nn

from coca_train.tracking import throughput
from coca_train.tracking.throughput import (
    GPU_PEAKS,
    MIB,
    Peak,
    PeakMemory,
    Throughput,
    flops_per_token,
    gpu_peak,
    measured_peak,
    peak,
)
from tests.faults.fork_server import ForkServer, values
from tests.flops import matmul_parameters


def test_flops_by_hand():
    # 2 layers, width 8 (2 heads of 4), d_ff 32, vocab 100, window 16:
    # q k v out 4*64, mlp 2*8*32 a layer; head 800.  N = 2*(256+512)+800 = 2336
    # attention, forward: scores 2*8 and values 2*8 FLOPs a key, 8 of 16 keys on average: 256 a layer; x3 with backward
    assert flops_per_token(2336, n_layers=2, attention_width=8, seq_len=16) == 6 * 2336 + 2 * 3 * 256


def test_flops_of_the_paper_s_model():
    # PaLM 540B (arXiv 2204.02311): 118 layers, 48 heads of 256, window 2048; full attention there, causal half here.
    full = 6 * 540e9 + 12 * 118 * 48 * 256 * 2048
    assert flops_per_token(540 * 10**9, 118, 48 * 256, 2048) == pytest.approx(full - 12 * 118 * 48 * 256 * 1024)


class Toy(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        self.position = nn.Embedding(50, 8)
        self.block = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 100, bias=False)
        if tied:
            self.head.weight = self.embed.weight


@pytest.mark.parametrize("tied", [False, True])
def test_matmul_parameters_leave_out_lookups_norms_biases_positions(tied):
    assert matmul_parameters(Toy(tied)) == 64 + 800
    with torch.device("meta"):
        assert matmul_parameters(Toy(tied)) == 64 + 800


class NoMemory(PeakMemory):
    def record(self):
        return {}


def held_memory() -> list[float]:
    """Peaks [MiB]: before a block is held, with it, after it, and of a new meter."""

    def peak_of(meter: PeakMemory) -> float:
        return meter.record()["peak_memory_mib"]

    before = PeakMemory(torch.device("cpu"))
    start = peak_of(before)
    block = np.ones(256 << 20, np.uint8)  # numpy gives so large a block back at once
    grown = peak_of(before)
    del block
    return [start, grown, peak_of(before), peak_of(PeakMemory(torch.device("cpu")))]


def test_peak_memory_is_what_was_held_since_and_falls_with_a_new_meter(server: ForkServer):
    """In a process of its own: what hundreds of tests left may be given back at any moment."""
    start, grown, later, again = values(server.run("tests.tracking.test_throughput:held_memory"))[0]
    assert grown - start == pytest.approx(256, abs=30)
    assert later == pytest.approx(grown, abs=5)
    assert again < grown - 200


def test_the_meter_has_the_peak_from_the_first_step_on():
    meter = Throughput(flops=1e6, peak=Peak(1e9, "toy"), world_size=1, memory=PeakMemory(torch.device("cpu")))
    meter.add(1000, 1.0)
    assert list(meter.recent()) == ["peak_memory_mib"]
    meter.add(1000, 1.0)
    assert list(meter.recent()) == ["tokens_per_s", "mfu", "peak_memory_mib"]


def test_memory_that_is_not_known_is_not_recorded(monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError

    monkeypatch.setattr(throughput.Path, "write_text", refuse)
    memory = PeakMemory(torch.device("cpu"))
    assert memory.record()["peak_memory_mib"] > 10
    monkeypatch.setattr(throughput.Path, "read_text", refuse)
    assert memory.record() == {}


@pytest.mark.gpu
def test_peak_memory_on_cuda_is_that_of_tensors():
    device = torch.device("cuda")
    memory = PeakMemory(device)
    start = memory.record()["peak_memory_mib"]
    block = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    del block
    assert memory.record()["peak_memory_mib"] - start == pytest.approx(64, abs=1)


def test_mfu_by_hand_and_the_first_step_is_left_out():
    meter = Throughput(flops=1e6, peak=Peak(1e9, "toy"), world_size=2, memory=NoMemory(torch.device("cpu")))
    meter.add(1000, 100.0)
    assert meter.recent() == {}
    meter.add(1000, 2.0)
    meter.add(1000, 3.0)
    assert meter.recent() == {"tokens_per_s": 400.0, "mfu": pytest.approx(1e6 * 400 / 2e9)}
    assert meter.recent() == {}
    meter.peak = None
    meter.add(1000, 1.0)
    assert meter.recent() == {"tokens_per_s": 1000.0}  # without a peak there is no MFU


@pytest.mark.parametrize(
    ("name", "dtype", "tf32", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", False, 312.0),
        ("NVIDIA A100-SXM4-80GB", "fp32", False, 19.5),
        ("NVIDIA A100-SXM4-80GB", "fp32", True, 156.0),
        ("NVIDIA H100 80GB HBM3", "bf16", False, 989.4),
        ("NVIDIA H100 PCIe", "bf16", False, 756.5),
        ("NVIDIA H200", "fp16", False, 989.4),
        ("NVIDIA L40S", "bf16", False, 362.0),
        ("NVIDIA GeForce RTX 4090", "bf16", False, 165.2),
        ("Tesla V100-SXM2-16GB", "fp16", False, 125.0),
        ("Tesla V100-SXM2-16GB", "fp32", False, 15.7),
    ],
)
def test_data_sheet_peaks(name, dtype, tf32, teraflops):
    flops_peak = gpu_peak(name, dtype, tf32)
    assert flops_peak is not None and flops_peak.flops == teraflops * 1e12
    assert name in flops_peak.source and "data sheet" in flops_peak.source


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("NVIDIA H200 MIG 1g.18gb", "bf16"),
        ("NVIDIA RTX A4000", "bf16"),  # not an A40
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("Tesla V100-SXM2-16GB", "bf16"),  # has none
        ("Some GPU of 2031", "bf16"),
    ],
)
def test_what_is_not_in_the_table_is_not_guessed(name, dtype):
    assert gpu_peak(name, dtype, False) is None


def test_peaks_are_ordered_within_each_device():
    for _, peaks in GPU_PEAKS:
        assert peaks["fp16"] >= peaks.get("tf32", 0) >= 0
        assert peaks["fp16"] > peaks["fp32"]


def test_measured_peak_says_so_and_is_plausible():
    flops_peak = measured_peak(torch.device("cpu"), "fp32", seconds=0.05, size=256)
    assert "measured" in flops_peak.source and "threads" in flops_peak.source
    assert 1e8 < flops_peak.flops < 1e14
    assert "measured" in peak(torch.device("cpu"), "fp32").source
