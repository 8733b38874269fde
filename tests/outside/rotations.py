"""Compare what an exported config.json makes some versions of transformers rotate by with what the run rotates by.

    python -m tests.outside.rotations [version …]

Each version is installed into a folder of its own under .outside/, and used with the torch that is here. What is known
to differ is in KNOWN; the exit code is 1 where anything else does, and where something of KNOWN does not.
"""

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.outside.plain import FOLDER, ROOT, UV, variables

VERSIONS = ("4.46.3", "4.51.3", "4.55.4", "4.57.6", "5.3.0", "5.23.0", "5.24.0")
SAME = 1e-6  # relative: transformers computes frequencies in float32
# (the first version that computes the same, part of a case's name): how the older ones show it.
KNOWN = {
    ("4.48", "mistral "): "differs",  # its class reads no rope_scaling
    ("4.48", "yarn_mistral"): "differs",
    ("4.53", "smollm3 "): "refused",  # there is no such class
    ("4.51", "yarn"): "differs",  # the ramp is that of max_position_embeddings
    ("4.51", "by-parts-indices"): "differs",
    ("4.51", "llama longrope"): "differs",  # one list for all lengths
    ("5.5", "partial"): "refused",
}


def known(version: str, case: str) -> str:
    """How a case is known to end with a version."""
    if "plain" in case or "one-list" in case:
        return "same"
    older = (way for (since, part), way in KNOWN.items() if part in case and _parts(version) < _parts(since))
    return next(older, "same")


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def outcome(case: list[Any]) -> str:
    """`same`, or what the transformers at hand makes of a case (tests/hub/rope_cases.py). Imports nothing of ours."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    config, *probes = case
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            read = transformers.AutoConfig.from_pretrained(folder)
            rotated = [_rotation(read, length, torch) for length in probes[0]]
        except (KeyError, ValueError, ImportError) as error:
            return f"refused: {type(error).__name__} {error}"[:100]
    worst = 0.0
    for (found, found_temperature), expected, temperature in zip(rotated, *probes[1:], strict=True):
        wanted = torch.tensor(expected)
        if found.shape != wanted.shape:
            return f"differs: {len(found)} frequencies, {len(wanted)} are ours"
        least = torch.finfo(torch.float32).tiny
        apart = ((found - wanted).abs() / wanted.clamp(min=least)).max().item()
        worst = max(worst, apart, abs(found_temperature / temperature - 1))
    return "same" if worst <= SAME else f"differs: by {worst:.2g}"


def _rotation(config: Any, length: int, torch: Any) -> tuple[Any, float]:
    """(inverse frequencies, temperature) of the class for a text of this length [tokens]."""
    transformers = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_config(config)
    rotary = next(module for module in model.modules() if hasattr(module, "inv_freq"))
    cos, sin = rotary(torch.zeros(1), torch.tensor([[length - 1]]))
    return rotary.inv_freq, math.sqrt((cos[0, 0, 0] ** 2 + sin[0, 0, 0] ** 2).item())


def installed(version: str) -> Path:
    """A folder with this version and what it needs, but torch."""
    folder = FOLDER / f"transformers-{version}"
    if not (folder / "ready").exists():
        words = ["pip", "install", "--quiet", "--target", str(folder), f"transformers=={version}"]
        subprocess.run([str(UV), *words, "-p", sys.executable], cwd=ROOT, env=variables(), check=True)
        (folder / "ready").touch()
    return folder


def main(versions: Iterable[str]) -> int:
    from tests.hub.rope_cases import cases

    FOLDER.mkdir(exist_ok=True)
    written, wrong = FOLDER / "rotations.json", 0
    every = cases()
    written.write_text(json.dumps(every), encoding="utf-8")
    print(f"{len(every)} cases: {', '.join(every)}\n")
    for version in versions or VERSIONS:
        path = f"{installed(version)}:{ROOT}"
        command = [sys.executable, "-m", "tests.outside.rotations", "--these", str(written)]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        others = {name: way for name, way in found.items() if way != "same"}
        bad = [name for name, way in found.items() if way.partition(":")[0] != known(version, name)]
        wrong += len(bad)
        print(f"transformers {version}: {len(found) - len(others)} of {len(found)} the same")
        for name in dict.fromkeys([*others, *bad]):
            print(f"  {'WRONG' if name in bad else 'known'}  {name}: {found[name]}")
    return int(wrong > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--these"]:
        these = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
        print(json.dumps({name: outcome(case) for name, case in these.items()}))
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
