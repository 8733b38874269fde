"""The manifest that makes a folder a checkpoint: who it belongs to, what it holds, digests of all of it."""

import hashlib
import itertools
import json
import math
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError, model_validator

from coca_train.checkpoint.format import ShardReader
from coca_train.engine.base import Engine
from coca_train.runtime import dist, untrusted_io
from coca_train.runtime.shortage import lacking
from coca_train.runtime.threads import map_in_threads
from coca_train.runtime.untrusted_io import JsonObject

NAME = "MANIFEST.json"
FORMAT = 2
LIMIT = 64 << 20  # [bytes]
THREADS = 4  # that read files at the same time
FOLDER = "checkpoints"
LONGEST_NAME = 100  # of a run, as run.name is checked
STEP_FOLDER = re.compile(r"step-(\d{8})")
SHARD = re.compile(r"state-\d{5}-of-\d{5}\.safetensors")
LORA = "lora"  # a further key of checkpoints with adapters: programs that know none refuse them
# Another one, of checkpoints with tensors that lie in several files: {name: {shape, parts: [[file, start, stop], …]}},
# elements [start, stop) by the number of the file that has them, under the tensor's own name and flat.
CUT = "cut"

Spec = Mapping[str, tuple[int, ...]]  # shapes of the tensors of a state, by name
Range = tuple[str, int, int]  # elements [start, stop) of a tensor, by its name
Count = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _File(BaseModel, strict=True):
    name: str
    bytes: int
    sha256: str


class _Adapters(BaseModel, strict=True):
    rank: Positive
    alpha: Positive


class _Counters(BaseModel, strict=True):
    adam_step: Number
    skipped_steps: Number
    loss_scaler: JsonObject = {}


class _Metrics(BaseModel, strict=True):
    """What metrics.jsonl held, and was synced with, at the step."""

    records: Count
    bytes: Count
    sha256: str


class _CutTensor(BaseModel, strict=True, extra="forbid"):
    """A tensor that lies in several files, of which each has elements [start, stop)."""

    shape: list[Count]
    parts: list[Annotated[list[Count], Field(min_length=3, max_length=3)]]

    @model_validator(mode="after")
    def _is_whole(self) -> "_CutTensor":
        """Refuse a tensor that lacks an element, or has one twice."""
        ends = [0, *(stop for _, _, stop in self.parts)]
        if [start for _, start, _ in self.parts] != ends[:-1] or ends != sorted(ends):
            raise ValueError("parts do not follow one another")
        if ends[-1] != math.prod(self.shape):
            raise ValueError("parts do not cover the shape")
        return self


class _Manifest(BaseModel, strict=True, extra="forbid"):
    """Schema of a manifest."""

    format: int
    run_id: str
    step: Annotated[int, Field(ge=0, lt=10**8)]
    world_size: int
    zero_stage: int
    dtype: str
    trainable: list[str]
    model_digest: str
    data_fingerprint: JsonObject
    counters: _Counters | Annotated[JsonObject, Field(max_length=0)]  # none where no step was ever done: an import
    progress: JsonObject
    files: list[_File]
    tensors: str
    run_files: dict[str, str] = {}
    metrics: _Metrics | None = None
    digest: str
    lora: _Adapters = _Adapters(rank=1.0, alpha=1.0)
    cut: dict[str, _CutTensor] = {}

    @model_validator(mode="after")
    def _files_exist(self) -> "_Manifest":
        if any(file >= len(self.files) for tensor in self.cut.values() for file, _, _ in tensor.parts):
            raise ValueError("a tensor lies in a file that is not listed")
        return self


class Refused(ValueError):
    """A folder is not a checkpoint that can be trusted. Its text says why, with the error's code."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint. Every byte of it has been verified, except where `newest` returned it."""

    path: Path
    step: int
    manifest: JsonObject


@dataclass(frozen=True)
class Meta:
    """The properties that a checkpoint must share with a run to continue it.

    run_id: the run's identity. model_digest, data_fingerprint: of the model and the data. progress: the loop's own
    counters, returned on resume; JSON. lora: rank and alpha of the adapters in the state.

    run_files: texts of files of the run directory by name, which are restored from a checkpoint where they are lost.
    metrics: what metrics.jsonl holds at the step.
    """

    run_id: str
    model_digest: str
    data_fingerprint: JsonObject
    progress: JsonObject
    lora: JsonObject | None = None
    run_files: Mapping[str, str] = field(default_factory=dict[str, str])
    metrics: JsonObject | None = None


def folder_name(step: int) -> str:
    assert 0 <= step < 10**8
    return f"step-{step:08d}"


def step_of(folder: Path) -> int:
    """Return the step in the name of a checkpoint's folder."""
    return int(folder.name.rpartition("-")[2])


def shard_name(rank: int, world_size: int) -> str:
    return f"state-{rank:05d}-of-{world_size:05d}.safetensors"


def unused_name(run_dir: Path) -> str:
    """Return the override that begins another run next to this one: `run.name=quickstart-2`."""
    base = re.sub(r"-\d+$", "", run_dir.name)[: LONGEST_NAME - 5]
    names = (f"{base}-{number}" for number in itertools.count(2))
    return f"run.name={next(name for name in names if not (run_dir.parent / name).exists())}"


def digest_of(manifest: JsonObject) -> str:
    """Return the SHA-256 over everything but the digest itself: a flipped bit in the manifest is found too."""
    body = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def encode(manifest: JsonObject) -> bytes:
    return json.dumps({**manifest, "digest": digest_of(manifest)}, indent=1, sort_keys=True, allow_nan=False).encode()


def describe_state(step: int, engine: Engine, meta: Meta) -> JsonObject:
    """Return the body of a manifest without the files: the engine's state at this moment."""
    return {
        "format": FORMAT,
        "run_id": meta.run_id,
        "step": step,
        "world_size": dist.world_size(),
        "zero_stage": engine.zero_stage,
        "dtype": engine.dtype,
        "trainable": engine.trainable,
        "model_digest": meta.model_digest,
        "data_fingerprint": meta.data_fingerprint,
        "counters": engine.counters(),
        "progress": meta.progress,
        "run_files": dict(meta.run_files),
        "metrics": meta.metrics,
    } | ({} if meta.lora is None else {LORA: meta.lora})


def add_files(
    body: JsonObject, spec: Spec, files: Sequence[JsonObject | None], ranges: list[list[Range]]
) -> JsonObject:
    """Return the manifest's body with the files, and what each holds. files, ranges: of each rank."""
    cut = _cut_tensors(ranges, spec)
    return body | {"files": files, "tensors": digest_of_spec(spec)} | ({CUT: cut} if cut else {})


def digest_of_spec(spec: Spec) -> str:
    """Return the SHA-256 of the names and shapes of a state: what its files must hold, no more and no less."""
    return hashlib.sha256(json.dumps(sorted((name, *shape) for name, shape in spec.items())).encode()).hexdigest()


def _cut_tensors(ranges: list[list[Range]], spec: Spec) -> JsonObject:
    """Return the entries of tensors that lie in several shards, for the key `cut`."""
    parts: dict[str, list[list[int]]] = {}
    for file, of_one in enumerate(ranges):
        for name, start, stop in of_one:
            parts.setdefault(name, []).append([file, start, stop])
    assert parts.keys() == spec.keys(), sorted(parts.keys() ^ spec.keys())
    for name, pieces in parts.items():
        pieces.sort(key=lambda part: part[1:])
        ends = [0, *(stop for *_, stop in pieces)]
        # Else a checkpoint would be published that nothing can be loaded from.
        assert [start for _, start, _ in pieces] == ends[:-1] and ends[-1] == math.prod(spec[name]), (name, pieces)
    return {name: {"shape": list(spec[name]), "parts": pieces} for name, pieces in parts.items() if len(pieces) > 1}


def read(path: Path) -> JsonObject:
    """Read the manifest of a step folder, and check everything that needs no reading of shards. Raises Refused."""
    # A link could lead to a folder that changes after it was verified, or out of the run.
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise Refused("E-CKP-20 is not a folder (a link or a file)")
    try:
        manifest = untrusted_io.read_object(path / NAME, LIMIT, follow=False)
    except FileNotFoundError:
        raise Refused(f"E-CKP-07 {NAME} is missing") from None
    except (OSError, ValueError) as error:
        raise Refused(f"E-CKP-08 {NAME} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("digest") != digest_of(manifest):
        raise Refused(f"E-CKP-08 {NAME} is damaged: its digest differs")
    if manifest.get("format") != FORMAT or manifest.keys() - _Manifest.model_fields:
        raise Refused(f"E-CKP-09 format {manifest.get('format')!r}, this version reads {FORMAT}")
    try:
        _Manifest.model_validate(manifest)  # a right digest proves only that someone computed it
    except ValidationError as error:
        key = str((*error.errors()[0]["loc"], CUT)[0])
        raise Refused(f"E-CKP-08 {NAME} is damaged: {key} is {str(manifest.get(key))[:80]!r}") from None
    if folder_name(manifest["step"]) != path.name:
        raise Refused(f"E-CKP-13 the manifest is of step {manifest['step']}")
    listed, present = {entry["name"] for entry in manifest["files"]}, {entry.name for entry in path.iterdir()} - {NAME}
    if listed - present:
        raise Refused(f"E-CKP-03 {', '.join(sorted(listed - present))} missing")
    if present - listed:
        raise Refused(f"E-CKP-04 {', '.join(sorted(present - listed))} not in the manifest")
    for entry in manifest["files"]:
        size = (path / entry["name"]).lstat().st_size
        if not SHARD.fullmatch(entry["name"]) or size != entry["bytes"]:
            raise Refused(f"E-CKP-05 {entry['name']} has {size} bytes, not {entry['bytes']}")
    return manifest


def find_miscut(cut: Mapping[str, JsonObject], readers: Mapping[int, ShardReader]) -> str:
    """Return why some shards, by their numbers, do not hold the parts of tensors that the manifest lists; empty: they
    do."""
    for name, entry in cut.items():
        for file, start, stop in entry["parts"]:
            if file in readers and readers[file].spec().get(name) != (stop - start,):
                return f"E-CKP-08 {NAME} is damaged: {name} is not cut as it says"
    return ""


def open_shard(path: Path, entry: JsonObject) -> ShardReader:
    """Open a shard, whose bytes are not verified. Raises Refused, naming the file, and ResourceError."""
    try:
        return ShardReader(path / entry["name"])
    except (OSError, ValueError) as error:
        if (lack := lacking(error)) is not None:
            raise lack from None
        raise Refused(f"E-CKP-06 {entry['name']} cannot be read: {error}") from None


def damage(readers: Sequence[ShardReader], entries: Sequence[JsonObject], again: bool = False) -> str:
    """Return why the bytes of some shards differ from the manifest's entries; empty: they do not. again: as
    `ShardReader.sha256`. The files are read at the same time."""
    found = map_in_threads(lambda pair: _damage(*pair, again=again), zip(readers, entries, strict=True), THREADS)
    return next(filter(None, found), "")


def _damage(reader: ShardReader, entry: JsonObject, again: bool) -> str:
    name = entry["name"]
    try:
        digest = reader.sha256(again)
    except OSError as error:
        if (lack := lacking(error)) is not None:
            raise lack from None
        return f"E-CKP-06 {name} cannot be read: {error}"
    if digest == entry["sha256"]:
        return ""
    claim = ", ".join(f"{key} {value}" for key, value in sorted(reader.metadata.items()))
    return f"E-CKP-06 {name} has sha256 {digest[:12]}, not {entry['sha256'][:12]} (it says: {claim})"
