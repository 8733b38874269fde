"""`export merge=false`: the adapters of a run whose last stage is a LoRA stage, as a folder that `peft` reads.

They belong to the model that the stage began with: the folder that `start.path` names or was imported from, or an
export of the run before, which `base` names. Where a family keeps several of our matrices in one of its own, their
adapters become one, of the sum of their ranks.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from coca_train import checkpoint
from coca_train.checkpoint import Checkpoint, Weights
from coca_train.checkpoint.format import file_size
from coca_train.checkpoint.manifest import LORA
from coca_train.checkpoint.opening import read_record
from coca_train.hub import config_json, forms
from coca_train.hub.architecture import Architecture, Shapes
from coca_train.hub.config_keys import Json
from coca_train.hub.families import FAMILIES, name_of
from coca_train.hub.layouts import Columns, Layout
from coca_train.hub.options import ExportConfig
from coca_train.hub.publishing import Tensors, new_folder, write_shards
from coca_train.hub.weights import Source, imported, locate, open_source
from coca_train.models.lora import DOWN, LAYER, UP, adapters_alone, trained_in_full
from coca_train.positions.hugging_face import NotTheSame
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import UserError
from coca_train.settings import load_saved
from coca_train.stages import resolve, stage_at

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # what peft writes before every name
# Lengths, which may differ between a run and its base.
SAME_LOGITS = ("max_position_embeddings", "original_max_position_embeddings", "seq_length", "max_seq_len")


class Matrix(NamedTuple):
    """A matrix of a family. parts: our layers in it, by rows; adapted: those that have adapters; layout: None where
    the only part is in it as it is."""

    parts: list[str]
    adapted: list[str]
    layout: Layout | None


def export_adapters(options: ExportConfig) -> Path:
    """Write the adapters of a run in float32; return the new folder.

    Raises UserError E-IOP-21 where the newest weights are not only adapters, or options.base is not the model they were
    trained on, and what `open_source` raises.
    """
    run, to = Path(options.run), Path(options.to)
    with open_source(run) as source:
        newest = checkpoint.find(run) if source.kind == "run" else None
        if newest is None or LORA not in newest.manifest:
            raise _refused(run, "its newest checkpoint is not of a stage with lora.rank")
        rank, alpha = newest.manifest[LORA]["rank"], newest.manifest[LORA]["alpha"]
        trained = newest.manifest["trainable"]
        if in_full := trained_in_full(trained):
            raise _refused(
                run,
                f"the stage trained {', '.join(in_full)} in full as well",
                f"; or train the stage with trainable={adapters_alone(trained)}",
            )
        with checkpoint.open_weights(newest, merged=False) as weights:
            base, family = _base(options, source, newest, weights)
            matrices = _matrices([name.removesuffix(UP) for name in weights.adapters if name.endswith(UP)], family)
            several = {name: len(matrix.adapted) for name, matrix in matrices.items() if len(matrix.adapted) > 1}
            settings = {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": base,
                "r": rank,
                "lora_alpha": alpha,
                "rank_pattern": {name: n * rank for name, n in several.items()},
                "alpha_pattern": {name: n * alpha for name, n in several.items()},
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": sorted(matrices),
                "fan_in_fan_out": any(isinstance(matrix.layout, Columns) for matrix in matrices.values()),
                "inference_mode": True,
            }
            tensors = _tensors(matrices, weights, source, rank)
            with new_folder(to, file_size(tensors.shapes)) as folder:
                durable.write_new(folder / CONFIG, (json.dumps(settings, indent=2) + "\n").encode())
                write_shards(folder, tensors, WEIGHTS, {"format": "pt"}, PREFIX)
    if base is None:
        dist.log(f"Done. Load it over the model the stage began with: PeftModel.from_pretrained(model, {str(to)!r})")
    else:
        dist.log(f"Done. It loads with its base, {base}: AutoPeftModelForCausalLM.from_pretrained({str(to)!r})")
    return to


def _refused(run: Path, why: str, otherwise: str = "") -> UserError:
    return UserError(f"E-IOP-21 {run} merge=false: {why}. Fix: merge=true, which exports the whole model{otherwise}")


def _base(options: ExportConfig, source: Source, newest: Checkpoint, weights: Weights) -> tuple[str | None, str]:
    """Return the name of the model that the adapters belong to, None where no folder is it; and its family."""
    base, why = (options.base, "") if options.base is not None else _began_with(Path(options.run), newest)
    if base is not None and config_json.is_folder(Path(base)):
        with open_source(base) as theirs:
            why = _difference(source, weights, theirs)
            family = theirs.family
        if not why:
            return base, family
        why = f"{base} is not the model the stage began with: {why}"
        if options.base is not None:
            raise _refused(Path(options.run), why, "; or give its own base=<folder>")
        base = None
    if base is None:
        dist.log(f"WARNING: {CONFIG} names no base model ({why}); base=<folder, or name at a hub> does")
    forms.require_causal(source.architecture)
    if options.form == "auto":
        config = forms.config_to_compare(source.architecture, source.family)
    else:
        config = forms.choose(source.architecture, options.form, source.family)
    return base, name_of(config)


def _began_with(run: Path, newest: Checkpoint) -> tuple[str | None, str]:
    """Return the folder that holds the weights a stage began with, as it was typed; or None, and why there is none."""
    config = load_saved(run).config
    path = config.start.path
    if stage_at(resolve(config), newest.step).first_step > 0:
        return None, "the stage began with what the one before it had trained"
    if path is None:
        return None, "the stage began with random weights"
    if config_json.is_folder(Path(path)):
        return path, ""
    try:
        record = read_record(Path(path))
    except UserError:
        return None, f"{path} is not there any more"
    origin = imported(record) if "imported" in record else None
    return (None, f"{path} is a run: export it first") if origin is None else (str(origin["folder"]), "")


def _difference(source: Source, weights: Weights, base: Source) -> str:
    """Return why a folder is not the model whose weights a stage did not train; empty: it is."""
    try:
        ours, theirs = (_config(each.architecture, base.family) for each in (source, base))
    except NotTheSame as error:
        return str(error)
    if differing := [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]:
        key = min(differing)
        return f"its config.json means {key}={theirs.get(key)}, the run has {ours.get(key)}"
    for name in source.names:
        tensor = base.read(name)
        if not torch.equal(weights.tensor(name).to(tensor.dtype), tensor):
            return f"its {name} has other values"
    return ""


def _config(architecture: Architecture, family: str) -> Json:
    """Return what of a config.json decides the logits. Raises NotTheSame."""
    if family in FAMILIES:
        config = forms.native_config(architecture, family)
    else:
        config = forms.own_config(architecture)
        sections = config.pop(forms.OWN_SECTIONS)
        assert isinstance(sections, dict)
        config |= {name: sections[name] for name in ("position", "attention_pattern", "layers")}
    return {key: value for key, value in config.items() if key not in SAME_LOGITS}


def _matrices(layers: Iterable[str], family: str) -> dict[str, Matrix]:
    """Return the matrices of a family that hold adapted layers of ours, by their names."""
    adapted, found = list(layers), {}
    for name, place in locate([layer + LAYER for layer in adapted], family).items():
        layer = name.removesuffix(LAYER)
        block = layer.split(".")[:2]
        parts = [layer] if place.layout is None else [".".join((*block, part)) for part in place.layout.parts]
        theirs = [part for part in parts if part in adapted]
        found[place.tensor.removesuffix(LAYER)] = Matrix(parts, theirs, place.layout)
    return found


def _tensors(matrices: dict[str, Matrix], weights: Weights, source: Source, rank: int) -> Tensors:
    """Return the halves of the adapters of a family's matrices.

    B A of a matrix with several of our layers is the B A of each in its rows: their A one below the other, and every B
    in columns of its own.
    """

    def down(matrix: Matrix) -> Tensor:
        return torch.cat([weights.adapter(layer + DOWN).float() for layer in matrix.adapted])

    def up(matrix: Matrix) -> Tensor:
        parts = []
        for layer in matrix.parts:
            part = torch.zeros(source.shapes[layer + LAYER][0], rank * len(matrix.adapted))
            if layer in matrix.adapted:
                column = rank * matrix.adapted.index(layer)
                part[:, column : column + rank] = weights.adapter(layer + UP)
            parts.append(part)
        joined = parts[0] if matrix.layout is None else matrix.layout.join(parts, source.architecture)
        return joined.T if isinstance(matrix.layout, Columns) else joined  # peft transposes B A itself

    shapes: Shapes = {}
    for name, (parts, adapted, _) in matrices.items():
        ranks = rank * len(adapted)
        shapes[name + DOWN] = (ranks, source.shapes[parts[0] + LAYER][1])
        shapes[name + UP] = (sum(source.shapes[part + LAYER][0] for part in parts), ranks)

    def read(name: str) -> Tensor:
        half, end = (down, DOWN) if name.endswith(DOWN) else (up, UP)
        return half(matrices[name.removesuffix(end)])

    return Tensors(shapes, dict.fromkeys(shapes, torch.float32), read)
