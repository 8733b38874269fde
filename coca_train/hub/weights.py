"""Weights under our parameter names, from a Hugging Face folder or a run directory."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coca_train import checkpoint
from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.opening import read_record
from coca_train.config.files import runs_in
from coca_train.hub import config_json, families, forms
from coca_train.hub.architecture import Architecture, Shapes
from coca_train.hub.config_keys import Json, read_json
from coca_train.hub.families import FAMILIES, QWEN3_NAMES
from coca_train.hub.layouts import Layout
from coca_train.hub.publishing import Tensors
from coca_train.hub.safetensors_folder import Folder
from coca_train.positions.schemes import rope
from coca_train.runtime.errors import CheckpointError, UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import load_saved
from coca_train.stages import resolve, stage_at

MOST_LISTED = 5  # folders in a message
T_PROJ = "self_attn.t_proj"
OWN_PREFIX = "model."  # of our decoder in the class of model_type coca_train
COCA_NAMES = QWEN3_NAMES | {
    "embedding_norm": "model.embedding_norm",
    "attention_out_norm": "attention_out_norm",
    "mlp_out_norm": "mlp_out_norm",
}


@dataclass(frozen=True)
class Source:
    """Weights that are read one at a time: `with open_source(path) as source`. Names are ours."""

    path: Path
    kind: Literal["huggingface", "run"]
    family: str  # of a Hugging Face folder: its name in FAMILIES, or one of our model types
    architecture: Architecture
    shapes: Shapes
    dtypes: dict[str, torch.dtype]
    read: Callable[[str], Tensor]
    close: Callable[[], None] = lambda: None
    origin: Json = field(default_factory=dict)  # for records
    step: int | None = None  # of a run's checkpoint, as is
    manifest_digest: str | None = None

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


class Place(NamedTuple):
    """The tensor of a folder that holds a parameter of ours, and its part there; layout None: it is as ours."""

    tensor: str
    layout: Layout | None = None
    part: int = 0


def locate(ours: Iterable[str], family: str, names: Mapping[str, str] | None = None) -> dict[str, Place]:
    """Return the place of each of our parameters in a folder of this family, or of one of our model types.

    names: of its modules by ours, where they differ from those of its family.
    """
    if family == forms.INSTALLED:
        return {name: Place(OWN_PREFIX + name) for name in ours}
    declared = FAMILIES.get(family)
    table = names or (COCA_NAMES if declared is None else declared.names)
    layouts = {module: layout for layout in (declared.layouts if declared else ()) for module in layout.parts}

    def place(name: str) -> Place:
        inner, _, leaf = name.rpartition(".")
        stack = ""
        if inner.startswith("blocks."):
            _, layer, inner = inner.split(".", 2)
            stack = f"{table['blocks']}.{layer}."
        tensor, layout = f"{stack}{table[inner]}.{leaf}", layouts.get(inner)
        return Place(tensor) if layout is None else Place(tensor, layout, layout.parts.index(inner))

    return {name: place(name) for name in ours}


def name_in_files(tensor: str, stored: Container[str]) -> str:
    """Return the name of a tensor in the files of a folder: without its first part where the model was saved without
    its head (GPT-2, BLOOM)."""
    bare = tensor.partition(".")[2]
    return bare if tensor not in stored and bare in stored else tensor


def _contents(places: Mapping[str, Place]) -> dict[str, list[str]]:
    """Return our parameters in each of their tensors, in the order of the parts."""
    contents: dict[str, list[str]] = {}
    for name, place in sorted(places.items(), key=lambda item: item[1].part):
        contents.setdefault(place.tensor, []).append(name)
    return contents


def _shapes_of(places: Mapping[str, Place], shapes: Shapes) -> Shapes:
    """Return the shape of each of their tensors. shapes: by our names."""
    found: Shapes = {}
    for tensor, parts in _contents(places).items():
        layout, of_parts = places[parts[0]].layout, [shapes[part] for part in parts]
        found[tensor] = of_parts[0] if layout is None else layout.shape(*of_parts)
    return found


def translate(source: Source, family: str, dtype: torch.dtype | None = None) -> Tensors:
    """Return a source's weights under the names and in the layout of an export of this family, or of one of our
    model types. dtype None: that of the source."""
    places = locate(source.names, family)
    contents = _contents(places)
    dtypes = {tensor: dtype or source.dtypes[parts[0]] for tensor, parts in contents.items()}

    def read(tensor: str) -> Tensor:
        tensors, layout = [source.read(part) for part in contents[tensor]], places[contents[tensor][0]].layout
        return (tensors[0] if layout is None else layout.join(tensors, source.architecture)).to(dtypes[tensor])

    return Tensors(_shapes_of(places, source.shapes), dtypes, read)


def open_source(path: Path | str, *, ignore: tuple[str, ...] = (), keys: str = "auto", verified: bool = True) -> Source:
    """Open the weights of a run directory (its newest verified checkpoint) or of a Hugging Face folder.

    ignore: keys of config.json known to change nothing. keys: what a Hugging Face folder's key projections are: k, or t
    (CoCA's official weights); auto: t where the tensors have that name. verified: hash a checkpoint; False: where no
    weight is read.
    Raises UserError and CheckpointError (E-IOP-01 to 09, 18; those of a run directory) before any weight is read.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"E-IOP-01 {path}: there is no such folder. Fix: give the folder of a model or of a run")
    if (path / FOLDER).is_dir():
        return _open_run(path, verified)
    if not config_json.is_folder(path) and (held := runs_in(path)):
        listed = ", ".join(map(str, held[:MOST_LISTED])) + (", …" if len(held) > MOST_LISTED else "")
        raise UserError(
            f"E-IOP-01 {path}: this is a folder of runs, not one of them; it holds {listed}. Fix: write {held[0]}"
        )
    return _open_huggingface(path, ignore, keys)


def _open_huggingface(path: Path, ignore: tuple[str, ...], keys: str) -> Source:
    name = families.name_of(read_json(path / config_json.NAME))
    architecture = config_json.read_architecture(path, ignore)
    folder, names = Folder(path), None
    if name in FAMILIES:
        architecture, names = _official(path, architecture, FAMILIES[name].names, folder.shapes, keys)
    shapes = architecture.shapes()
    places = {
        ours: place._replace(tensor=name_in_files(place.tensor, folder.shapes))
        for ours, place in locate(shapes, name, names).items()
    }
    _check_tensors(path, folder, shapes, places, locate(["head.weight"], name)["head.weight"].tensor)

    def read(ours: str) -> Tensor:
        tensor, layout, part = places[ours]
        return folder.read(tensor) if layout is None else layout.split(folder.read(tensor), part, architecture)

    return Source(
        path=path,
        kind="huggingface",
        family=name,
        architecture=architecture,
        shapes=shapes,
        dtypes={ours: folder.dtypes[place.tensor] for ours, place in places.items()},
        read=read,
        close=folder.close,
        origin={"folder": str(path.resolve()), "model_type": name},
    )


def _official(
    path: Path, architecture: Architecture, table: Mapping[str, str], shapes: Shapes, keys: str
) -> tuple[Architecture, Mapping[str, str]]:
    """Return the architecture and the names of its modules, with CoCA's scheme where the folder has T instead of K, as
    the weights of its authors do (github.com/codefuse-ai/Collinear-Constrained-Attention).

    Their LLaMA calls the key projection t_proj; their GPT-NeoX keeps the name query_key_value for q, t and v, as in
    plain GPT-NeoX, so `keys=t` is needed. T is as wide as K: its halves are averaged before the ReLU, which is our
    t_width=full_mean. The score is q ∘ R q · R t, our variant=slack.
    """
    named_t = any(f".{T_PROJ}." in name for name in shapes)
    if keys == "k" and named_t:
        raise UserError(f"E-IOP-04 {path} keys=k: its tensors are called {T_PROJ}. Fix: omit keys")
    if not named_t and keys != "t":
        return architecture, table
    position = architecture.position
    if not isinstance(position, rope.Settings) or position.rotary_pct < 1:
        share = f" rotary_pct={position.rotary_pct:g}" if isinstance(position, rope.Settings) else ""
        raise UserError(
            f"E-IOP-04 {path} {position.scheme}{share}: weights of CoCA's authors rotate the whole head. "
            "Fix: omit keys=t if this is no CoCA model"
        )
    table = {**table, "attention.k": T_PROJ} if named_t else table
    tensor = f"{table['blocks']}.0.{table['attention.k']}.weight"
    full = architecture.n_kv_heads * architecture.head_dim
    half = tensor in shapes and shapes[tensor][0] * 2 == full
    return architecture.with_coca("slack", "half" if half else "full_mean"), table


def _check_tensors(path: Path, folder: Folder, shapes: Shapes, places: dict[str, Place], head: str) -> None:
    """Raise CheckpointError for tensors that are missing, of another shape, or unknown.

    head: the tensor of the output head, which a model with tied embeddings need not have.
    """
    wanted = _shapes_of(places, shapes)
    tied = head not in wanted
    missing = sorted(wanted.keys() - folder.shapes.keys())
    if missing == [head]:
        raise CheckpointError(
            f"E-IOP-09 {path}: {head} is missing, and config.json says tie_word_embeddings=false. "
            "Fix: write true there if the output head is the embedding, else download the missing file"
        )
    if missing:
        raise _refused(5, path, f"{_some(missing)} missing", "every parameter of config.json's model is needed")
    wrong = [
        f"{name} {list(folder.shapes[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if folder.shapes[name] != shape
    ]
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
        raise _refused(6, path, f"{_some(extra)} unexpected", "config.json's model has no such tensor")


def _some(items: list[str]) -> str:
    return ", ".join(items[:4]) + (f" and {len(items) - 4} more" if len(items) > 4 else "")


def _refused(number: int, path: Path, what: str, needed: str) -> CheckpointError:
    return CheckpointError(
        f"E-IOP-{number:02d} {path}: {what}; {needed}. Fix: take config.json and weights from the same release"
    )


def imported(record: JsonObject) -> JsonObject | None:
    """Return the record of the Hugging Face folder that a run's weights come from, directly or through other runs."""
    origin = record.get("imported") or record.get("start", {}).get("origin", {})
    return origin if "folder" in origin else origin.get("imported")


def _open_run(path: Path, verified: bool) -> Source:
    record, loaded = read_record(path), load_saved(path)
    newest = (checkpoint.find if verified else checkpoint.newest)(path, record["run_id"])
    if newest is None:
        raise CheckpointError(f"E-CKP-28 {path}: holds no checkpoint yet. Fix: finish the run first")
    weights = checkpoint.open_weights(newest, verified)
    config = stage_at(resolve(loaded.config), newest.step).config
    architecture = Architecture.of(config, weights.spec["embed.weight"][0])
    shapes, stored = architecture.shapes(), weights.spec
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
        step=newest.step,
        manifest_digest=newest.manifest["digest"],
    )
