"""The record of a run in its directory: config.yaml and run.json, written when it begins, compared at every start."""

import hashlib
import json
import os
import platform
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from coca_train import __version__
from coca_train.checkpoint.manifest import FOLDER, unused_name
from coca_train.checkpoint.recovery import newest, step_folders
from coca_train.config.load import FORMAT, Loaded, check_format, saved_settings
from coca_train.config.messages import ConfigError
from coca_train.config.schema import Config
from coca_train.data.mixture import fingerprint_diff
from coca_train.positions import SCHEMES
from coca_train.runtime import dist, untrusted_io
from coca_train.runtime.durable import write_text
from coca_train.runtime.errors import CheckpointError, DataError
from coca_train.runtime.trees import flatten, section
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.stages import Stage, words_of

NAME, CONFIG_YAML = "run.json", "config.yaml"
PACKAGES = ("torch", "deepspeed", "numpy", "sentencepiece")
# What a stage that has begun depends on, and what one that is done does not depend on. The data has its fingerprint.
FIXED = (
    "model", "position", "attention_pattern", "layers", "engine.dtype", "optim.name", "train.seq_len",
    "train.global_batch_size", "run.seed", "start", "stages",
)  # fmt: skip
FREE = ("run", "data", "engine", "checkpoint", "tracking", "eval", "train.micro_batch_size")


def texts_of(record: JsonObject, configuration: str) -> dict[str, str]:
    """Return the texts of the files in a run's directory that describe it, by name; configuration: config.yaml."""
    return {CONFIG_YAML: configuration, NAME: _as_text(record)}


def _as_text(record: JsonObject) -> str:
    return json.dumps(record, indent=1) + "\n"


def write_record(run_dir: Path, record: JsonObject, configuration: str) -> None:
    """Rank 0: write the files that describe a run."""
    # run.json last: it makes the directory a run, and a start that was killed in between finds none and writes both.
    for name, text in texts_of(record, configuration).items():
        write_text(run_dir / name, text)


def restore(run_dir: Path) -> list[str]:
    """Rank 0: write the files that describe a run from its newest checkpoint where they are lost or damaged; return a
    line on each. Only while holding the run's lock. Raises StorageError."""
    lines = []
    for name, problem in damaged_files(run_dir).items():
        found = newest(run_dir, None)
        if found is not None and name in found.manifest["run_files"]:
            write_text(run_dir / name, found.manifest["run_files"][name])
            lines.append(f"RECOVERY: {run_dir / name} {problem}, restored from {found.path}")
    return lines


def damaged_files(run_dir: Path) -> dict[str, str]:
    """Return which of the files that describe a run are lost or damaged, and how."""
    problems = {}
    for name, parse in ((CONFIG_YAML, saved_settings), (NAME, _parse)):
        try:
            parse(run_dir / name)
        except (ConfigError, OSError, _Damaged):
            problems[name] = "was damaged" if os.path.lexists(run_dir / name) else "was missing"
        except CheckpointError:
            continue  # of another version of coca_train
    return problems


def open_record(
    run_dir: Path,
    loaded: Loaded[Config],
    stages: Sequence[Stage],
    fingerprints: Mapping[str, JsonObject],
    held_out: Mapping[str, JsonObject],
    init_digests: Mapping[str, str],
    start: JsonObject | None = None,
) -> tuple[JsonObject, bool]:
    """Rank 0: return the run's record, and whether it is to be written: first, and where it changed.

    fingerprints: of the training data, by stage; held_out: of the held-out files of each source, by stage.
    init_digests: of the initial weights by name, for comparisons. start: the origin of the first weights, and how they
    were converted. Both are stored only where no checkpoint is resumed.

    Raises DataError when the data of a stage that has begun is not what it began with, CheckpointError when a setting
    changed that the state in the directory depends on. Other changed settings are logged.
    """
    path = run_dir / NAME
    settings = flatten(asdict(loaded.config))
    if is_new_run(run_dir):
        first = stages[0]
        record = {
            "format": FORMAT,
            "run_id": uuid.uuid4().hex,
            "settings": settings,
            "model_digest": digest(
                {key: settings[key] for key in settings if key.startswith(("model.", "position.", "layers."))}
            ),
            "fingerprint": fingerprints[first.name],
            "stages": [_entry(first, fingerprints[first.name], held_out[first.name])],
            "overrides": list(loaded.overrides),
            "schedule": words_of(loaded.overrides),
            "folder": os.getcwd(),
            "versions": made_with(loaded),
            "init_digests": dict(init_digests),
        } | ({} if start is None else {"start": start})
    else:
        record = _read(path)
        changed = _compare(run_dir, record["stages"], stages, fingerprints, held_out, settings)
        for key, (old, new) in changed.items():
            dist.log(f"CHANGED since this run began: {key} {old!r} -> {new!r}")
        now = made_with(loaded)
        for package, old in record["versions"].items():
            if now.get(package) != old:
                dist.log(
                    f"CHANGED since this run began: {package} {old} -> {now.get(package)}; resume may not be exact"
                )
        last, stage = record["stages"][-1], stages[len(record["stages"]) - 1]
        kept = record["settings"] == settings and last["held_out"] == held_out[stage.name]
        if kept and record["folder"] == os.getcwd():
            return record, False
        record |= {"settings": settings, "schedule": words_of(loaded.overrides)}
        record |= {"folder": os.getcwd()}  # relative paths of data begin there
        record["stages"][-1] = _entry(stage, last["fingerprint"], held_out[stage.name])
    return record, True


def is_new_run(run_dir: Path) -> bool:
    """Whether a run has no checkpoint to continue from. It then begins with a new run_id: nothing in its directory was
    computed with the old settings."""
    return not step_folders(run_dir / FOLDER)


def begin_stage(run_dir: Path, record: JsonObject, stage: Stage, fingerprint: JsonObject, held_out: JsonObject) -> None:
    """Record that a stage begins, unless it has begun already. COLLECTIVE."""
    if stage.name not in [one["name"] for one in record["stages"]]:
        record["stages"].append(_entry(stage, fingerprint, held_out))
        dist.broadcast_from_rank0(lambda: write_text(run_dir / NAME, _as_text(record)))


class _Damaged(ValueError):
    """A file is no record of a run."""


def _read(path: Path) -> JsonObject:
    """Read a run's record. Raises CheckpointError E-CKP-23 (damaged), E-CKP-24 (of an import), E-CKP-31 (format)."""
    try:
        record = _parse(path)
    except (OSError, _Damaged) as error:
        raise CheckpointError(
            f"E-CKP-23 {path}: not a run record ({getattr(error, 'strerror', None) or error}); every run directory has "
            f"one. Fix: restore it, or begin another run: {unused_name(path.parent)}"
        ) from error
    if "imported" in record:
        raise CheckpointError(
            f"E-CKP-24 {path.parent}: holds imported weights, which a training starts from and does not continue. "
            f"Fix: start.path={path.parent} in another run: {unused_name(path.parent)}"
        )
    return record


def _parse(path: Path) -> JsonObject:
    """Read the record of a run or of an import. Raises OSError, _Damaged, and CheckpointError E-CKP-31 (format)."""
    try:
        record = untrusted_io.read_object(path)
        check_format(path, record)
        assert isinstance(record["run_id"], str) and isinstance(record["fingerprint"], dict)
        if "imported" not in record:
            _check_types(record)
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise _Damaged(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
    return record


def _check_types(record: JsonObject) -> None:
    kinds = {"folder": str, "settings": dict, "versions": dict, "stages": list}
    assert record["stages"] and all(isinstance(record[key], kind) for key, kind in kinds.items())
    for stage in record["stages"]:
        assert isinstance(stage["name"], str)
        assert isinstance(stage["settings"], dict) and isinstance(stage["fingerprint"], dict)
        assert all(isinstance(each, dict) for each in stage["held_out"].values())


def _entry(stage: Stage, fingerprint: JsonObject, held_out: JsonObject) -> JsonObject:
    """Return the description of a stage for run.json. train.max_steps is its length."""
    settings = {key: value for key, value in flatten(asdict(stage.config)).items() if not key.startswith("stages.")}
    settings |= {
        f"stages.{stage.name}.trainable": list(stage.trainable),
        f"stages.{stage.name}.optimizer": "keep" if stage.keeps_optimizer else "fresh",
        f"stages.{stage.name}.lora": None if stage.lora is None else asdict(stage.lora),
        f"stages.{stage.name}.first_sample": stage.first_sample,
    }
    return {"name": stage.name, "settings": settings, "fingerprint": fingerprint, "held_out": held_out}


def _compare(
    run_dir: Path,
    begun: Sequence[JsonObject],
    stages: Sequence[Stage],
    fingerprints: Mapping[str, JsonObject],
    held_out: Mapping[str, JsonObject],
    settings: Mapping[str, object],
) -> dict[str, tuple[object, object]]:
    """Return the settings of the current stage that changed and may change; errors as `open_record`.

    The stages ahead may change freely, those that are done may not, and the current one only in what its weights do not
    depend on. settings: the run's own now, which the stages start from.
    """
    names, done = [stage.name for stage in stages], [stage["name"] for stage in begun]
    another = unused_name(run_dir)
    if names[: len(done)] != done:
        raise CheckpointError(
            f"E-CKP-24 {run_dir}: the stages {', '.join(done)} have begun, in this order, and the schedule is "
            f"{', '.join(names)} now; what has run stays. Fix: undo the change, or begin another run: {another}"
        )
    changed: dict[str, tuple[object, object]] = {}
    for number, (before, stage) in enumerate(zip(begun, stages, strict=False), 1):
        where = f"stage {stage.name}: " if len(stages) > 1 else ""
        if (difference := fingerprint_diff(before["fingerprint"], fingerprints[stage.name])) is not None:
            raise DataError(
                f"E-TOK-14 {run_dir}: {where}the data is not what this run began with: {difference}; a run goes on "
                f"with its own data only. Fix: restore the data, or begin another run: {another}"
            )
        if number == len(begun):  # what is done validates no more
            _compare_held_out(run_dir, where, stage, before["held_out"], held_out[stage.name])
        old, now = before["settings"], _entry(stage, {}, {})["settings"]
        keys = [*now]
        keys += [key for key in old if key.startswith("layers.") and key not in now]  # what a layer type no longer sets
        changed = {key: (old.get(key), now.get(key)) for key in keys if old.get(key) != now.get(key)}
        fixed = [key for key in changed if key.startswith(FIXED)]
        if number < len(begun):
            fixed += [key for key in changed if not key.startswith((*FREE, *FIXED))]
        if fixed:
            listed = "; ".join(f"{key} {changed[key][0]!r} -> {changed[key][1]!r}" for key in fixed)
            fix = _restoring_overrides({key: changed[key] for key in fixed}, settings) or "undo the change"
            raise CheckpointError(
                f"E-CKP-24 {run_dir}: {where}changed since the run began: {listed}; its weights depend on that. "
                f"Fix: {fix}, or begin another run: {another}"
            )
    end = stages[len(begun) - 1].last_step
    last = newest(run_dir, None)  # by its manifest: a stray folder of a later step is none
    reached = 0 if last is None else last.step
    if reached > end:
        longer = f"train.max_steps={reached} or more" if len(stages) == 1 else "a longer stage"
        raise CheckpointError(
            f"E-CKP-21 {run_dir}: is at step {reached}, and stage {done[-1]}, which has begun, would end at step {end} "
            f"now; training does not go back. Fix: {longer}, or begin another run: {another}"
        )
    return changed


def _restoring_overrides(changed: Mapping[str, tuple[object, object]], settings: Mapping[str, object]) -> str:
    """Return the overrides that restore what the run began with; "" where overrides cannot: another choice of a
    section, whose options change with it, or what a stage sets itself."""
    words = []
    for key, (old, now) in changed.items():
        of_layer_type = key.startswith("layers.types.") and None in (old, now)  # said on one side only
        if key.startswith("stages.") or of_layer_type or key.endswith((".scheme", ".name")) or settings.get(key) != now:
            return ""
        words.append(f"{key}={old if isinstance(old, str) else json.dumps(old, separators=(',', ':'))}")
    return " ".join(words)


def _compare_held_out(
    run_dir: Path, where: str, stage: Stage, before: Mapping[str, JsonObject], now: Mapping[str, JsonObject]
) -> None:
    """Raise DataError E-TOK-14 for a source whose held-out files changed. A source that has none now, or had none, is a
    changed setting, which is logged."""
    for name in sorted(before.keys() & now.keys()):
        if (difference := fingerprint_diff(before[name], now[name])) is not None:
            source, own = stage.config.data.sources[name], stage.config.stages[stage.name].data
            place = f"stages.{stage.name}." if "valid_path" in section(own, f"sources.{name}") else ""
            raise DataError(
                f"E-TOK-14 {run_dir}: {where}the held-out text of {name}, {source.valid_path}, "
                f"is not what this run began with: {difference}; validations are of one text from the first to the "
                f"last. Fix: restore the file, or validate without it: {place}data.sources.{name}.valid_path=null"
            )


def digest(value: object) -> str:
    """Return the SHA-256 of any JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def made_with(loaded: Loaded[Config]) -> dict[str, str]:
    """Return the versions that a run of this configuration would use, and a digest of its position scheme's source."""
    scheme = loaded.config.position.scheme
    return versions() | {source_key(scheme): SCHEMES.digest(scheme)}


def source_key(scheme: str) -> str:
    """Return the key of the digest of a scheme's source among the versions."""
    return f"source of {scheme}"


def versions() -> dict[str, str]:
    """Return the versions in use: packages, Python, and the commit when run from a checkout."""
    names = {"coca_train": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            names[package] = version(package)
        except PackageNotFoundError:
            continue
    return names | _commit()


@cache  # the code of this process is what it was when it began
def _commit() -> dict[str, str]:
    """Return the commit, and a digest of the uncommitted changes; empty where this is not a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {}
    try:
        commit, status = (
            subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=10, check=True).stdout
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    uncommitted = hashlib.sha256(status.encode()).hexdigest()[:12] if status else "none"
    return {"commit": commit.strip(), "uncommitted": uncommitted}
