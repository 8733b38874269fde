"""Code planted in a folder of weights, which creates a file, the canary, wherever it runs."""

import json
import py_compile
import shutil
import subprocess
import sysconfig
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from coca_train.hub import forms

MODULE = forms.MODELING
C = """
#include <stdio.h>
void *PyInit_{module}(void) {{ FILE *f = fopen("{canary}", "w"); if (f) fclose(f); return 0; }}
"""


def trap(canary: Path) -> str:
    """Python that writes the canary, and is a model, a configuration and a tokenizer to whoever asks for one."""
    return (
        f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
        "class C(LlamaConfig):\n    model_type = 'evil'\n"
        "class M(LlamaForCausalLM):\n    config_class = C\n"
        "class T(PreTrainedTokenizerFast):\n    pass\n"
        "def generate(model, **kwargs):\n    pass\n"
    )


def package(folder: Path, canary: Path) -> Path:
    (folder / MODULE).mkdir()
    (folder / MODULE / "__init__.py").write_text(trap(canary))
    return folder / MODULE


def extension(folder: Path, canary: Path) -> Path:
    """A shared object; Python prefers it to the .py file of its name. Needs gcc."""
    source = folder.parent / "trap.c"
    source.write_text(C.format(module=MODULE, canary=canary))
    target = folder / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(source)], check=True, timeout=60)
    return target


def _compiled(folder: Path, canary: Path, target: Path) -> Path:
    """Bytecode that Python takes without a look at the source."""
    source = folder.parent / "trap.py"
    source.write_text(trap(canary))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), cfile=str(target), invalidation_mode=mode, doraise=True)
    return target


def cached_bytecode(folder: Path, canary: Path) -> Path:
    return _compiled(folder, canary, Path(cache_from_source(str(folder / f"{MODULE}.py")))).parent


def bare_bytecode(folder: Path, canary: Path) -> Path:
    """Of a module whose source is not there; one whose source is there goes first."""
    return _compiled(folder, canary, folder / "positions_mine.pyc")


def startup(folder: Path, canary: Path) -> Path:
    (folder / "sitecustomize.py").write_text(trap(canary))
    return folder / "sitecustomize.py"


def library(folder: Path, canary: Path) -> Path:
    (folder / "torch.py").write_text(trap(canary))
    return folder / "torch.py"


def changed(folder: Path, canary: Path) -> Path:
    """In place of a file of the export."""
    path = folder / f"{MODULE}.py"
    path.write_text(trap(canary) + (path.read_text() if path.exists() else ""))
    return path


PLANTS: dict[str, Any] = {
    each.__name__: each for each in (package, extension, cached_bytecode, bare_bytecode, startup, library, changed)
}
NEED_GCC = {name for name in PLANTS if name == "extension" and shutil.which("gcc") is None}


def everything(folder: Path, canary: Path) -> None:
    """All of them, and the ways of transformers to its own code."""
    for name, plant in PLANTS.items():
        if name not in NEED_GCC:
            plant(folder, canary)
    for name in ("modeling_evil", "configuration_evil", "tokenization_evil"):
        (folder / f"{name}.py").write_text(trap(canary))
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(trap(canary))


def name_code(folder: Path, model_type: str | None = None) -> None:
    """Let config.json name code of the folder, under another model_type where one is given."""
    path = folder / "config.json"
    named = {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    values = json.loads(path.read_text()) | {"auto_map": named}
    path.write_text(json.dumps(values if model_type is None else values | {"model_type": model_type}))


def name_tokenizer(folder: Path, tokenizer_class: str) -> None:
    """Let tokenizer_config.json name code of the folder."""
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text()) if path.exists() else {}
    auto_map = {"AutoTokenizer": ["tokenization_evil.T", "tokenization_evil.T"]}
    path.write_text(json.dumps(values | {"auto_map": auto_map, "tokenizer_class": tokenizer_class}))
