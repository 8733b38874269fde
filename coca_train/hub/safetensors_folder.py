"""The safetensors files of a Hugging Face folder, read tensor by tensor. Never a pickle."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coca_train.checkpoint.format import DTYPES
from coca_train.data.storage import digest
from coca_train.hub.architecture import Shapes
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import CheckpointError, UserError

if TYPE_CHECKING:
    from safetensors import safe_open

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
READ = ("config.json", INDEX, "tokenizer.model", "tokenizer.json")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
PLAIN_NAME = re.compile(r"[\w.-]+\.safetensors")
# Tables that older transformers saved with the weights; they follow from config.json.
TABLES = re.compile(r".*\.(rotary_emb\.inv_freq|(attention|attn)\.(bias|masked_bias))")


class Folder:
    """Names, shapes and precisions of the tensors of a folder, and a read of one at a time (memory: that tensor).

    Raises UserError E-IOP-01 (no folder, no weights), E-IOP-02 (pickles only), CheckpointError E-IOP-08 (a file that is
    missing or damaged), E-IOP-18 (a precision that is not kept here).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, safe_open] = {}
        self._owner: dict[str, str] = {}
        self.shapes: Shapes = {}
        self.dtypes: dict[str, torch.dtype] = {}
        listed = self._listed()
        for file in sorted(set(listed.values())) if listed else self._present():
            self._open(file)
        absent = sorted(name for name in listed if name not in self._owner)
        if absent:
            raise _damaged(path / INDEX, f"{', '.join(absent[:3])} is listed, but in no file")

    def _listed(self) -> dict[str, str]:
        """Return the file of each tensor, as the index has it; empty without an index."""
        path = self.path / INDEX
        if not path.is_file():
            return {}
        try:
            owners = untrusted_io.read_object(path)["weight_map"]
            if not owners or not all(isinstance(f, str) and PLAIN_NAME.fullmatch(f) for f in owners.values()):
                raise ValueError("weight_map names no safetensors files of this folder")
            return owners
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(path, str(error)) from None

    def _present(self) -> list[str]:
        """Return the files of a folder without an index."""
        if not self.path.is_dir():
            raise UserError(
                f"E-IOP-01 {self.path}: there is no such folder. Fix: give the folder of a model or of a run"
            )
        names = [SINGLE] if (self.path / SINGLE).exists() else sorted(p.name for p in self.path.glob("*.safetensors"))
        if names:
            return names
        pickles = sorted(path.name for pattern in PICKLES for path in self.path.glob(pattern))
        if pickles:
            raise UserError(
                f"E-IOP-02 {self.path}: its weights are pickles only ({', '.join(pickles[:3])}), which can run any "
                "code when they are read; safetensors are needed. Fix: download the safetensors files, or convert them "
                "in a sandbox: model.save_pretrained(folder, safe_serialization=True)"
            )
        raise UserError(f"E-IOP-01 {self.path}: holds no *.safetensors. Fix: give the folder of a model or of a run")

    def _open(self, name: str) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            os.close(untrusted_io.open_file(self.path / name))  # refuses pipes, which would block, and devices
            file = safe_open(self.path / name, framework="pt")
            entries = {key: file.get_slice(key) for key in list(file.keys())}
        except (OSError, SafetensorError, ValueError) as error:
            raise _damaged(self.path / name, str(error)) from None
        self._files[name] = file
        for key, entry in entries.items():
            if TABLES.fullmatch(key):
                continue
            if key in self._owner:
                raise _damaged(self.path / name, f"{key} is in {self._owner[key]} as well")
            dtype = DTYPES.get(entry.get_dtype())
            if dtype is None:
                raise CheckpointError(
                    f"E-IOP-18 {self.path / name}: {key} is {entry.get_dtype()}; F32, BF16 or F16 are needed. "
                    "Fix: take the weights in one of these"
                )
            self._owner[key], self.shapes[key], self.dtypes[key] = name, tuple(entry.get_shape()), dtype

    def read(self, name: str) -> Tensor:
        """Read one tensor, in the precision of the file."""
        return self._files[self._owner[name]].get_tensor(name)

    def close(self) -> None:
        self._files.clear()


def content_digest(path: Path) -> str:
    """Return the SHA-256 over names and digests of a folder's weights, configuration and tokenizer.

    Of large files samples are hashed.
    """
    read = [*path.glob("*.safetensors"), *(path / name for name in READ if (path / name).is_file())]
    return hashlib.sha256(json.dumps({file.name: digest(file) for file in sorted(read)}).encode()).hexdigest()


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"E-IOP-08 {path}: cannot be read: {what}; whole safetensors files are needed. Fix: download the file again"
    )
