"""`export merge=false`: the adapters of a run whose last stage is a LoRA stage, as a folder that `peft` reads.

The folder goes on the model that the stage began with: the one `start.path` was imported from, or an export of the run
before it. Which that is, peft is told by whoever loads it: `PeftModel.from_pretrained(model, folder)`.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coca_train import checkpoint
from coca_train.checkpoint.format import file_size
from coca_train.checkpoint.manifest import LORA
from coca_train.hub import forms, shard_files
from coca_train.hub.options import Form
from coca_train.hub.publish import building
from coca_train.hub.weights import open_source, places
from coca_train.models.lora import is_adapter
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import UserError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # what peft writes before every name


def write_adapters(run: Path, to: Path, form: Form) -> Path:
    """The new folder, in float32. Raises UserError E-IOP-21 where the run's newest weights are no adapters of a class
    of transformers alone, and what `open_source` raises."""
    with open_source(run) as source:
        asked = forms.to_compare if form == "auto" else partial(forms.choose, form=form)
        config = asked(source.architecture, family=source.family)
    newest = checkpoint.find(run) if source.kind == "run" else None
    if newest is None or LORA not in newest.manifest:
        raise _refused(run, "its newest checkpoint is not of a stage with lora.rank")
    in_full = [name for name in newest.manifest["trainable"] if not is_adapter(name)]
    if in_full:
        raise _refused(run, f"the stage trained {len(in_full)} parameters in full as well, {in_full[0]} the first")
    with checkpoint.open_weights(newest) as weights:
        halves = {name: name.rsplit(".", 2) for name in weights.adapters}  # layer, lora_A or lora_B, weight
        found = places([f"{layer}.weight" for layer, _, _ in halves.values()], config["model_type"])
        if any(place.part is not None for place in found.values()):
            raise _refused(
                run, f"{config['model_type']} holds queries, keys and values in one matrix, and these do not"
            )
        layers = {name.removesuffix(".weight"): place.tensor.removesuffix(".weight") for name, place in found.items()}
        ours = {f"{layers[layer]}.{half}.weight": name for name, (layer, half, _) in halves.items()}
        shapes = {theirs: weights.adapters[name] for theirs, name in ours.items()}

        def read(theirs: str) -> Tensor:
            return weights.adapter(ours[theirs])

        settings = _settings(newest.manifest[LORA], sorted(layers.values()))
        dtypes = dict.fromkeys(shapes, torch.float32)
        with building(to, file_size(shapes)) as folder:
            durable.write_new(folder / CONFIG, (json.dumps(settings, indent=2) + "\n").encode())
            shard_files.write(
                folder,
                [list(shapes)],
                lambda i, n: WEIGHTS,
                shapes,
                dtypes,
                read,
                prefix=PREFIX,
                metadata={"format": "pt"},
            )
    dist.log(f"Done. {to} goes on the model the stage began with: peft.PeftModel.from_pretrained(model, {str(to)!r})")
    return to


def _settings(lora: dict[str, Any], layers: list[str]) -> dict[str, Any]:
    """adapter_config.json."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": layers,
        "inference_mode": True,
    }


def _refused(run: Path, why: str) -> UserError:
    return UserError(f"E-IOP-21 {run} merge=false: {why}. Fix: merge=true, which exports the whole model")
