"""Models that no class of transformers computes: config.json and modelling files of our own (hub/remote)."""

import importlib.util
import math
import sys
import uuid
from pathlib import Path
from typing import Any

from coca_train.hub.architecture import Architecture
from coca_train.hub.config_json import OWN
from coca_train.positions.hugging_face import NotTheSame
from coca_train.positions import frequencies
from coca_train.positions.frequencies import _shared
from coca_train.runtime.errors import UserError

CODE = Path(__file__).parent / "remote"
SHARED = ("configuration_coca_train.py", "modeling_coca_train.py", "position_base.py", "rotary.py")
CLASS = "CocaTrainForCausalLM"
VISIBILITIES = ("causal", "sliding_window")
BY_PARTS = {"dynamic_linear": False, "dynamic_ntk_by_parts": False, "dynamic_yarn": True}  # -> whether with temperature


def config(architecture: Architecture) -> dict[str, Any]:
    """config.json: our sections as they are, and what transformers wants to know. Raises NotTheSame, in words."""
    scheme = architecture.position.scheme
    if not (CODE / f"position_{scheme}.py").is_file():
        raise NotTheSame(f"position scheme {scheme} has no modelling file")
    if architecture.visibility.name not in VISIBILITIES:
        raise NotTheSame(f"visibility {architecture.visibility.name}; exports have {' and '.join(VISIBILITIES)}")
    model = architecture.model
    if len(set(architecture.kinds)) > 1 or architecture.kinds[0].logit_scale.name != "none" or model.qk_norm != "none":
        what = "layers of several kinds, normalised queries and keys, and scores that grow with the length"
        raise NotTheSame(f"{what} have no modelling file yet")
    return {
        "architectures": [CLASS],
        "model_type": model_type(architecture),
        "auto_map": {
            "AutoConfig": "configuration_coca_train.CocaTrainConfig",
            "AutoModelForCausalLM": f"modeling_coca_train.{CLASS}",
        },
        "vocab_size": architecture.n_rows,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "max_position_embeddings": architecture.seq_len,
        "tie_word_embeddings": model.tie_embeddings,
        "use_cache": False,
        "rotary": _rotary(architecture),
        OWN: architecture.sections(),
    }


def model_type(architecture: Architecture) -> str:
    return f"coca_train_{architecture.position.scheme}"


def _rotary(architecture: Architecture) -> dict[str, Any] | None:
    """The frequencies as remote/rotary.py reads them; None for a scheme that has none."""
    settings = getattr(architecture.position, "frequencies", None)
    if settings is None:
        return None
    module = frequencies.frequency_module(settings.name)
    if hasattr(module, "Learned"):
        raise NotTheSame(f"frequencies {settings.name}, which are learned, have no modelling file")
    width = round(architecture.head_dim * architecture.position.rotary_pct)
    if settings.name == "dynamic_ntk":
        return {"kind": "ntk", "theta": settings.theta, "alpha": settings.alpha,
                "original_seq_len": settings.original_seq_len, "width": width}  # fmt: skip
    if settings.name in BY_PARTS:
        all_J = _shared.base_frequencies(settings.theta, width)
        kept_J = all_J * 0 if settings.name == "dynamic_linear" else _shared.by_parts(settings, math.inf, width)
        return {"kind": "by_parts", "kept": kept_J.tolist(), "slowed": (all_J - kept_J).tolist(),
                "original_seq_len": settings.original_seq_len, "yarn": BY_PARTS[settings.name]}  # fmt: skip
    if settings.name == "longrope":
        short, long = (module.spectrum(settings, width, settings.original_seq_len + more) for more in (0, 1))
        return {"kind": "two", "short": short.inv_freq_J.tolist(), "long": long.inv_freq_J.tolist(),
                "original_seq_len": settings.original_seq_len, "temperature": short.temperature}  # fmt: skip
    fixed = module.spectrum(settings, width, architecture.seq_len)
    return {"kind": "fixed", "inv_freq": fixed.inv_freq_J.tolist(), "temperature": fixed.temperature}


def code(scheme: str) -> dict[str, str]:
    """The modelling files of a scheme, by name."""
    files = {name: (CODE / name).read_text(encoding="utf-8") for name in SHARED}
    files["position.py"] = (CODE / f"position_{scheme}.py").read_text(encoding="utf-8")
    configuration = files["configuration_coca_train.py"]
    files["configuration_coca_train.py"] = configuration.replace('"coca_train"\n', f'"coca_train_{scheme}"\n')
    return files


def check_code(folder: Path, scheme: str) -> None:
    """Refuse a folder whose modelling files are not exactly ours: they are about to be run. UserError E-IOP-16."""
    expected = code(scheme)
    for path in sorted({*folder.glob("*.py"), *(folder / name for name in expected)}):
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != expected.get(path.name):
            raise UserError(
                f"E-IOP-16 {path}: is not the modelling file that this version writes, so it is not run. "
                "Fix: export the run again"
            )


def model_class(folder: Path) -> tuple[type, type]:
    """(model class, config class) from modelling files that `check_code` has passed or `code` has made."""
    package = f"coca_train_export_{uuid.uuid4().hex}"
    spec = importlib.util.spec_from_loader(package, loader=None, is_package=True)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__path__ = [str(folder)]
    sys.modules[package] = module
    modeling = importlib.import_module(f"{package}.modeling_coca_train")
    return getattr(modeling, CLASS), modeling.CocaTrainConfig
