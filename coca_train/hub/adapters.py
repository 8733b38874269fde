"""`export merge=false`: the adapters of a run whose last stage is a LoRA stage, as a folder that `peft` reads.

They belong to the model that the stage began with: the one `start.path` was imported from, or an export of the run
before it, which the user gives to `PeftModel.from_pretrained(model, folder)`.
"""

import json
from functools import partial
from pathlib import Path

import torch

from coca_train import checkpoint
from coca_train.checkpoint.format import file_size
from coca_train.checkpoint.manifest import LORA
from coca_train.hub import forms
from coca_train.hub.families import name_of
from coca_train.hub.options import Form
from coca_train.hub.publishing import Tensors, new_folder, write_shards
from coca_train.hub.weights import locate, open_source
from coca_train.models.lora import is_adapter
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import UserError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # what peft writes before every name


def export_adapters(run: Path, to: Path, form: Form) -> Path:
    """Write the adapters of a run in float32; return the new folder.

    Raises UserError E-IOP-21 where the newest weights are not only adapters of a class of transformers, and what
    `open_source` raises.
    """
    with open_source(run) as source:
        choose = forms.config_to_compare if form == "auto" else partial(forms.choose, form=form)
        model_type = name_of(choose(source.architecture, family=source.family))
    newest = checkpoint.find(run) if source.kind == "run" else None
    if newest is None or LORA not in newest.manifest:
        raise _no_adapters(run, "its newest checkpoint is not of a stage with lora.rank")
    in_full = [name for name in newest.manifest["trainable"] if not is_adapter(name)]
    if in_full:
        raise _no_adapters(run, f"the stage trained {len(in_full)} parameters in full as well, {in_full[0]} the first")
    with checkpoint.open_weights(newest) as weights:
        halves = {name: name.rsplit(".", 2) for name in weights.adapters}  # layer, lora_A or lora_B, weight
        places = locate([f"{layer}.weight" for layer, _, _ in halves.values()], model_type)
        if any(place.layout is not None for place in places.values()):
            raise _no_adapters(run, f"{model_type} has other matrices than the run")
        layers = {name.removesuffix(".weight"): place.tensor.removesuffix(".weight") for name, place in places.items()}
        ours = {f"{layers[layer]}.{half}.weight": name for name, (layer, half, _) in halves.items()}
        shapes = {theirs: weights.adapters[name] for theirs, name in ours.items()}
        tensors = Tensors(shapes, dict.fromkeys(shapes, torch.float32), lambda theirs: weights.adapter(ours[theirs]))
        lora = newest.manifest[LORA]
        settings = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": lora["rank"],
            "lora_alpha": lora["alpha"],
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted(layers.values()),
            "inference_mode": True,
        }
        with new_folder(to, file_size(shapes)) as folder:
            durable.write_new(folder / CONFIG, (json.dumps(settings, indent=2) + "\n").encode())
            write_shards(folder, tensors, WEIGHTS, {"format": "pt"}, PREFIX)
    dist.log(f"Done. Load it over the model the stage began with: peft.PeftModel.from_pretrained(model, {str(to)!r})")
    return to


def _no_adapters(run: Path, why: str) -> UserError:
    return UserError(f"E-IOP-21 {run} merge=false: {why}. Fix: merge=true, which exports the whole model")
