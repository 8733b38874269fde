"""Whether this machine computes in bfloat16 at a rate worth it. Asks without a CUDA context: the engine makes it."""

import re
import subprocess
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
FROM = 8.0  # CUDA's compute capability of Ampere, the first with units for it


def on_gpus() -> bool:
    """Of the GPUs of this machine; true where nothing tells their generation (not NVIDIA's)."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return True
    return all(float(each) >= FROM for each in re.findall(r"\d+\.\d+", text))


def on_cpu() -> bool:
    """Of its CPU: x86's or ARM's own instructions; torch emulates them elsewhere, slower than float32."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return bool(re.search(r"^(?:flags|Features)\s*:.*\b(?:avx512_bf16|amx_bf16|bf16)\b", text, re.M))
