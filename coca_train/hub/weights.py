"""Weights under our parameter names, wherever they lie: a Hugging Face folder, or a run of ours."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from coca_train import checkpoint
from coca_train.checkpoint.opening import read_record
from coca_train.hub import config_json, names, official
from coca_train.hub.architecture import Architecture, Shapes
from coca_train.hub.shards import Folder
from coca_train.runtime.errors import CheckpointError, UserError
from coca_train.schedule import resolve, stage_at
from coca_train.settings import load_saved


@dataclass(frozen=True)
class Source:
    """Weights that are read one at a time: `with open_source(path) as source`.

    architecture: what they compute. shapes, dtypes: by our names. kind: huggingface or run.
    family: model_type of a Hugging Face folder. origin: what a record says about where they came from, JSON.
    """

    path: Path
    kind: str
    family: str
    architecture: Architecture
    shapes: Shapes
    dtypes: dict[str, torch.dtype]
    read: Callable[[str], Tensor]
    close: Callable[[], None] = lambda: None
    origin: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> "Source":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def names(self) -> list[str]:
        return list(self.shapes)

    @property
    def n_parameters(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())


def open_source(path: Path | str, *, ignore: tuple[str, ...] = (), keys: str = "auto") -> Source:
    """Weights of a run directory (its newest verified checkpoint) or of a Hugging Face folder.

    ignore: keys of config.json known to change nothing. keys: what a Hugging Face folder's key projections are: k, or t
    (CoCA's official weights); auto: t where the tensors are called so.
    Raises UserError and CheckpointError (E-IOP-01 to 09, 18; those of a run directory) before any weight is read.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"E-IOP-01 {path}: there is no such folder. Fix: give the folder of a model or of a run")
    if (path / "run.json").is_file():
        return _run(path)
    return _huggingface(path, ignore, keys)


def _huggingface(path: Path, ignore: tuple[str, ...], keys: str) -> Source:
    values = config_json.read_json(path / config_json.NAME)
    architecture = config_json.architecture(path, ignore)
    folder = Folder(path)
    if config_json.OWN in values:
        shapes = architecture.shapes()
        places = names.own_places(shapes, folder.shapes)
        head = places["embed.weight"].tensor.replace("embed.weight", "head.weight")
    else:
        table = names.TABLES[values["model_type"]]
        architecture, table = official.adapt(path, architecture, table, folder.shapes, keys)
        shapes = architecture.shapes()
        places, head = names.places(shapes, table), f"{table['head']}.weight"
    _hold_against(path, folder, shapes, places, head)
    return Source(
        path=path,
        kind="huggingface",
        family=values.get("model_type", ""),
        architecture=architecture,
        shapes=shapes,
        dtypes={name: folder.dtypes[place.tensor] for name, place in places.items()},
        read=lambda name: names.take(folder.read(places[name].tensor), places[name], architecture),
        close=folder.close,
        origin={"folder": str(path.resolve()), "model_type": values.get("model_type")},
    )


def _hold_against(path: Path, folder: Folder, shapes: Shapes, places: dict[str, names.Place], head: str) -> None:
    """Every tensor is there, is of its shape, and none is left over. head: what that of the output is called. Raises
    CheckpointError."""
    wanted: Shapes = {}
    for tensor, parts in names.contents(places).items():
        rows, *rest = shapes[parts[0]]
        wanted[tensor] = (rows * len(parts), *rest)
    tied = head not in wanted
    missing = sorted(wanted.keys() - folder.shapes.keys())
    if missing == [head]:
        raise CheckpointError(
            f"E-IOP-09 {path}: {head} is missing, and config.json says tie_word_embeddings=false. "
            "Fix: write true there if the output head is the embedding, else download the missing file"
        )
    if missing:
        raise _refused(5, path, f"{_some(missing)} missing", "every parameter of config.json's model is needed")
    wrong = [f"{name} {list(folder.shapes[name])}, not {list(wanted[name])}" for name in wanted
             if folder.shapes[name] != wanted[name]]  # fmt: skip
    if wrong:
        raise _refused(7, path, _some(wrong), "the shapes must be those of config.json's model")
    extra = sorted(folder.shapes.keys() - wanted.keys())
    if tied and head in extra:
        extra.remove(head)
        embedding = places["embed.weight"].tensor
        if folder.shapes[head] != folder.shapes[embedding] or not torch.equal(
            folder.read(head), folder.read(embedding)
        ):
            raise CheckpointError(
                f"E-IOP-09 {path}: config.json says tie_word_embeddings=true, and {head} is not {embedding}. "
                "Fix: write false there if the two were trained apart"
            )
    if extra:
        raise _refused(6, path, f"{_some(extra)} left over", "config.json's model has no place for it")


def _some(items: list[str]) -> str:
    return ", ".join(items[:4]) + (f" and {len(items) - 4} more" if len(items) > 4 else "")


def _refused(number: int, path: Path, what: str, needed: str) -> CheckpointError:
    return CheckpointError(
        f"E-IOP-{number:02d} {path}: {what}; {needed}. Fix: take config.json and weights from the same release"
    )


def _run(path: Path) -> Source:
    record = read_record(path)
    loaded = load_saved(path)
    newest = checkpoint.find(path, record["run_id"])
    if newest is None:
        raise CheckpointError(f"E-CKP-28 {path}: holds no checkpoint yet. Fix: finish the run first")
    weights = checkpoint.open_weights(newest)
    rows = weights.spec["embed.weight"][0]
    config = stage_at(resolve(loaded.config), newest.step).config
    model = replace(config.model, vocab_size=rows)
    architecture = Architecture(model, config.position, config.visibility, config.train.seq_len, config.layers)
    shapes = architecture.shapes()
    stored = weights.spec
    if stored != shapes:
        differing = sorted(name for name in stored.keys() | shapes.keys() if stored.get(name) != shapes.get(name))
        raise _refused(7, newest.path, f"{_some(differing)} differ", "the weights must be those of config.yaml's model")
    return Source(
        path=path,
        kind="run",
        family=record.get("imported", {}).get("model_type", ""),
        architecture=architecture,
        shapes=shapes,
        dtypes={name: weights.dtype(name) for name in shapes},
        read=weights.tensor,
        close=weights.close,
        origin={
            "run": config.run.name,
            "run_id": record["run_id"],
            "step": newest.step,
            "manifest_digest": newest.manifest["digest"],
            "commit": record.get("versions", {}).get("commit"),
            "imported": record.get("imported"),
        },
    )
