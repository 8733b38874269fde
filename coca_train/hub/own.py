"""Models that no class of transformers computes: a config.json and code of our own, cut out by hub/bundle.py."""

import importlib.util
import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.machinery import all_suffixes
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from coca_train import positions
from coca_train.hub import remote
from coca_train.hub.architecture import Architecture
from coca_train.hub.bundle import Bundle, NotBundled, Wanted, flat_name
from coca_train.hub.config_json import OWN
from coca_train.positions import FREQUENCIES, SCHEMES, VISIBILITIES
from coca_train.positions.hugging_face import NotTheSame
from coca_train.runtime import outside
from coca_train.runtime.errors import UserError

MODELING, CONFIGURATION = "modeling_coca_train", "configuration_coca_train"
CLASS, CONFIG_CLASS = "CocaTrainForCausalLM", "CocaTrainConfig"

PACKAGE = positions.__name__.partition(".")[0]
REGISTRY = '''def _registry(folder: str, tag: str) -> Shipped:
    """The modules of this export."""
    from {remote}.registry import Shipped

    files = {files}
    return Shipped(files[folder])
'''


def config(architecture: Architecture) -> dict[str, Any]:
    """config.json: our sections as they are, every kind of layer in full, and what transformers wants to know. Raises
    NotTheSame, in words."""
    try:
        code(architecture)
    except NotBundled as reason:
        raise NotTheSame(str(reason)) from None
    model, layer_kinds = architecture.model, architecture.layer_kinds
    return {
        "architectures": [CLASS],
        "model_type": OWN,
        "auto_map": {"AutoConfig": f"{CONFIGURATION}.{CONFIG_CLASS}", "AutoModelForCausalLM": f"{MODELING}.{CLASS}"},
        "vocab_size": architecture.n_rows,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "max_position_embeddings": architecture.seq_len,
        "tie_word_embeddings": model.tie_embeddings,
        "use_cache": True,
        OWN: architecture.sections(),
        "layer_kinds": list(layer_kinds),
        "kinds": {
            name: {part: asdict(settings) for part, settings in kind._asdict().items()}
            for name, kind in architecture.settings.items()
        },
    }


def code(architecture: Architecture) -> dict[str, str]:
    """The modelling files by name, with the schemes, frequencies and visibilities of this model. Raises NotBundled."""
    modules = _modules(architecture)
    files = {
        folder: {name: flat_name(each.__name__) for name, each in named.items()} for folder, named in modules.items()
    }
    registry = REGISTRY.format(remote=remote.__name__, files=json.dumps(files, indent=4).replace("\n", "\n    "))
    bundle = Bundle(
        {each.__name__.partition(".")[0] for named in modules.values() for each in named.values()} | {PACKAGE},
        {positions.__name__: {"_registry": registry}},
    )
    names = {f"{remote.__name__}.{name}": name for name in (MODELING, CONFIGURATION, "past", "registry")}
    first, second, *_ = names
    bundle.add([Wanted(first, CLASS), Wanted(second, CONFIG_CLASS)])
    for named, entries in zip(modules.values(), (["Scheme"], ["Learned", "spectrum"], ["Rules"]), strict=True):
        for module in named.values():
            entry = next((name for name in entries if hasattr(module, name)), entries[-1])
            bundle.add([Wanted(module.__name__, entry)])
    return bundle.files(names)


def _modules(architecture: Architecture) -> dict[str, dict[str, ModuleType]]:
    """What config.json names, by folder of positions/ and name."""
    kinds = architecture.settings.values()
    scalings = [each for kind in kinds if (each := getattr(kind.position, "frequencies", None)) is not None]
    return {
        "schemes": {kind.position.scheme: SCHEMES.module(kind.position.scheme) for kind in kinds},
        "frequencies": {each.name: FREQUENCIES.module(each.name) for each in scalings},
        "visibilities": {kind.visibility.name: VISIBILITIES.module(kind.visibility.name) for kind in kinds},
    }


def check_code(folder: Path, architecture: Architecture) -> None:
    """Compare the code in a folder with what an export of this version holds, byte by byte; nothing of it is imported.

    Also refused is whatever Python would import before a modelling file or in place of it: packages, extension modules
    and compiled files. Raises UserError E-IOP-16.
    """
    expected = {folder / name: text.encode() for name, text in code(architecture).items()}
    modules = {path.stem for path in expected} | {"__pycache__"}
    importable = {
        path for path in folder.iterdir() if path.name.endswith(tuple(all_suffixes())) or path.name in modules
    }
    for path in sorted(importable | expected.keys()):
        if (text := expected.get(path)) is None:
            what = "it is additional"
        elif not path.is_file():
            what = "it is missing"
        elif path.stat().st_size != len(text) or outside.read_bytes(path) != text:
            what = "its bytes differ"
        else:
            continue
        raise UserError(
            f"E-IOP-16 {path}: is not what this version exports ({what}); code of a folder is never run, so nothing "
            "is known of what it computes. "
            "Fix: remove what an export did not write, or export the run again"
        )


@contextmanager
def classes(architecture: Architecture) -> Iterator[tuple[type, type]]:
    """(model class, config class) as an export has them, while the context is open.

    They are imported from a fresh folder that holds `code` and nothing else, never from a folder that was given.
    """
    package = f"coca_train_export_{uuid.uuid4().hex}"
    spec = importlib.util.spec_from_loader(package, loader=None, is_package=True)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with TemporaryDirectory() as folder:
        for name, text in code(architecture).items():
            (Path(folder) / name).write_bytes(text.encode())
        module.__path__ = [folder]
        sys.modules[package] = module
        try:
            modeling = importlib.import_module(f"{package}.{MODELING}")
            yield getattr(modeling, CLASS), getattr(modeling, CONFIG_CLASS)
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == package]:
                del sys.modules[name]
