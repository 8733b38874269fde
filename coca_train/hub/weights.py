"""Weights under our parameter names, wherever they lie: a Hugging Face folder, or a run of ours."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coca_train import checkpoint
from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.opening import read_record
from coca_train.config.files import runs_in
from coca_train.hub import config_json, names, own_json
from coca_train.hub.architecture import Architecture, Shapes
from coca_train.hub.families import COCA, FAMILIES
from coca_train.hub.keys import read_json
from coca_train.hub.shards import Folder
from coca_train.runtime.errors import CheckpointError, UserError
from coca_train.schedule import resolve, stage_at
from coca_train.settings import load_saved

MOST_LISTED = 5  # folders in a message
T_PROJ = "self_attn.t_proj"
KEYS = ("attention.k.weight", "attention.k.bias")  # K, and in its place CoCA's T


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


class Theirs(NamedTuple):
    """A source's weights under the names and in the layout of a class of transformers."""

    shapes: Shapes
    dtypes: dict[str, torch.dtype]
    read: Callable[[str], Tensor]


def translate(source: Source, config: dict[str, Any], dtype: torch.dtype | None = None) -> Theirs:
    """The tensors of an export with this config.json. dtype None: as the source has them."""
    holds = names.contents(places(source.names, config["model_type"]))
    dtypes = {tensor: dtype or source.dtypes[parts[0]] for tensor, parts in holds.items()}

    def read(tensor: str) -> Tensor:
        whole = names.fuse([source.read(part) for part in holds[tensor]], source.architecture)
        return whole.to(dtypes[tensor])

    return Theirs(names.whole_shapes(holds, source.shapes), dtypes, read)


def places(ours: Iterable[str], model_type: str) -> dict[str, names.Place]:
    """Where each of our parameters lies in a folder of this model_type: a family's, or one of ours."""
    if model_type == own_json.INSTALLED:
        return names.own_places(ours)
    return names.places(ours, COCA if model_type == own_json.COCA else FAMILIES[model_type].names)


def open_source(path: Path | str, *, ignore: tuple[str, ...] = (), keys: str = "auto", verified: bool = True) -> Source:
    """Weights of a run directory (its newest verified checkpoint) or of a Hugging Face folder.

    ignore: keys of config.json known to change nothing. keys: what a Hugging Face folder's key projections are: k, or t
    (CoCA's official weights); auto: t where the tensors are called so. verified: hash a checkpoint; False: only what
    the weights are is wanted, and hashing hundreds of gigabytes is for whoever reads them.
    Raises UserError and CheckpointError (E-IOP-01 to 09, 18; those of a run directory) before any weight is read.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"E-IOP-01 {path}: there is no such folder. Fix: give the folder of a model or of a run")
    if (path / FOLDER).is_dir():
        return _run(path, verified)
    if not (path / config_json.NAME).is_file() and (held := runs_in(path)):
        listed = ", ".join(map(str, held[:MOST_LISTED])) + (", …" if len(held) > MOST_LISTED else "")
        raise UserError(
            f"E-IOP-01 {path}: this is a folder of runs, not one of them; it holds {listed}. Fix: write {held[0]}"
        )
    return _huggingface(path, ignore, keys)


def _huggingface(path: Path, ignore: tuple[str, ...], keys: str) -> Source:
    values = read_json(path / config_json.NAME)
    architecture = config_json.architecture(path, ignore)
    folder = Folder(path)
    name = values["model_type"]
    if name in own_json.TYPES:
        shapes = architecture.shapes()
        found = places(shapes, name)
    else:
        architecture, table = _official(path, architecture, FAMILIES[name].names, folder.shapes, keys)
        shapes = architecture.shapes()
        found = names.places(shapes, table)
    head = places(["head.weight"], name)["head.weight"].tensor
    _hold_against(path, folder, shapes, found, head)
    return Source(
        path=path,
        kind="huggingface",
        family=values.get("model_type", ""),
        architecture=architecture,
        shapes=shapes,
        dtypes={name: folder.dtypes[place.tensor] for name, place in found.items()},
        read=lambda name: names.take(folder.read(found[name].tensor), found[name], architecture),
        close=folder.close,
        origin={"folder": str(path.resolve()), "model_type": values.get("model_type")},
    )


def _official(
    path: Path, architecture: Architecture, table: Mapping[str, str], shapes: Shapes, keys: str
) -> tuple[Architecture, Mapping[str, str]]:
    """The architecture and the names of its weights, with CoCA's scheme where the folder holds T in place of K, as the
    weights of its authors do (github.com/codefuse-ai/Collinear-Constrained-Attention).

    Their LLaMA calls the key projection t_proj; their GPT-NeoX keeps the name query_key_value for q, t and v, so
    nothing in the folder tells it from plain GPT-NeoX (`keys=t` says it). T is as wide as K was: its halves are
    averaged before the ReLU, which is our t_width=full_mean. The score is q ∘ R q · R t, our variant=slack.
    """
    named_t = any(f".{T_PROJ}." in name for name in shapes)
    if keys == "k" and named_t:
        raise UserError(
            f"E-IOP-04 {path}: its tensors are called {T_PROJ}, and keys=k was asked for. Fix: leave keys away"
        )
    if not named_t and keys != "t":
        return architecture, table
    if architecture.position.rotary_pct < 1:
        raise UserError(
            f"E-IOP-04 {path} rotary_pct={architecture.position.rotary_pct:g}: CoCA rotates the whole head. "
            "Fix: leave keys=t away if this is no CoCA model"
        )
    table = {**table, "attention.k": T_PROJ} if named_t else table
    tensor = f"{table['blocks']}.0.{table['attention.k']}.weight"
    full = architecture.n_kv_heads * architecture.head_dim
    half = tensor in shapes and shapes[tensor][0] * 2 == full
    return architecture.with_coca("slack", "half" if half else "full_mean"), table


def _hold_against(path: Path, folder: Folder, shapes: Shapes, places: dict[str, names.Place], head: str) -> None:
    """Every tensor is there, is of its shape, and none is left over. head: what that of the output is called. Raises
    CheckpointError."""
    wanted = names.whole_shapes(names.contents(places), shapes)
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


def imported(record: dict[str, Any]) -> dict[str, Any] | None:
    """What a run's record says of the Hugging Face folder that its weights come from, in however many trainings."""
    origin = record.get("imported") or record.get("start", {}).get("origin", {})
    return origin if "folder" in origin else origin.get("imported")


def _run(path: Path, verified: bool) -> Source:
    record = read_record(path)
    loaded = load_saved(path)
    find = checkpoint.find if verified else checkpoint.newest
    newest = find(path, record["run_id"])
    if newest is None:
        raise CheckpointError(f"E-CKP-28 {path}: holds no checkpoint yet. Fix: finish the run first")
    weights = checkpoint.open_weights(newest, verified)
    config = stage_at(resolve(loaded.config), newest.step).config
    architecture = Architecture.of(config, weights.spec["embed.weight"][0])
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
            "imported": imported(record),
        },
    )
