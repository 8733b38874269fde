"""Models that no class of transformers computes: their classes, and the files that an export ships for them."""

from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from coca_train.hub import own_json
from coca_train.runtime import outside
from coca_train.runtime.errors import UserError

FOLDER = Path(__file__).parent / "export_files"


def files(model_type: str) -> dict[str, bytes]:
    """The code beside the weights, by name: two files of a `coca` model, none of a `coca_train` one."""
    names = (own_json.CONFIGURATION, own_json.MODELING) if model_type == own_json.COCA else ()
    return {f"{name}.py": (FOLDER / f"{name}.py").read_bytes() for name in names}


def classes(model_type: str) -> tuple[Any, Any]:
    """(model class, config class) as they are in this package, which is where an export has them from."""
    if model_type == own_json.COCA:
        from coca_train.hub.export_files.modeling_coca import CocaConfig, CocaForCausalLM

        return CocaForCausalLM, CocaConfig
    from coca_train.hub.installed.modeling import CocaTrainConfig, CocaTrainForCausalLM

    return CocaTrainForCausalLM, CocaTrainConfig


def check_code(folder: Path, model_type: str) -> None:
    """Compare the code in a folder with what an export of this version holds, byte by byte; nothing of it is imported.

    Also refused is whatever Python would import before a modelling file or in place of it: packages, extension modules
    and compiled files. Raises UserError E-IOP-16.
    """
    expected = {folder / name: text for name, text in files(model_type).items()}
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
