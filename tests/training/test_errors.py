"""What ends a run from outside becomes one line and its own exit code; a bug of ours stays a traceback."""

import pytest
import torch

from coca_train.commands import train as cli
from coca_train.training import run as train

CASES = {
    "gpu": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore"), 8, "E-RUN-16"),
    "host": (MemoryError(), 8, "E-RUN-16"),
    "allocator": (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), 8, "E-RUN-16"),
    "bug": (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 1, "This is a bug in coca_train"),
}


@pytest.mark.parametrize("case", CASES)
def test_exit_code_and_words(case, monkeypatch, capsys):
    error, code, words = CASES[case]

    def fail(loaded):
        raise error

    monkeypatch.setattr(train, "_train", fail)
    assert cli.main(["train.max_steps=100"]) == code
    shown = capsys.readouterr().err
    assert words in shown
    assert ("Traceback" in shown) is (case == "bug")
