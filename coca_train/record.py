"""What a run directory says about itself: config.yaml and run.json, written once, compared at every start."""

import hashlib
import json
import os
import platform
import subprocess
import uuid
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from coca_train import __version__, dist
from coca_train.config.errors import CheckpointError, DataError
from coca_train.config.load import Loaded
from coca_train.config.older import ADDED
from coca_train.data.mixture import fingerprint_diff
from coca_train.report.files import write_text

PACKAGES = ("torch", "deepspeed", "numpy", "sentencepiece")
FIXED = ("model", "position", "visibility", "engine.dtype", "train.seq_len", "train.global_batch_size", "run.seed")


def open_record(
    run_dir: Path, loaded: Loaded, fingerprint: dict[str, Any], init_digests: Callable[[], dict[str, str]]
) -> dict[str, Any]:
    """The run's record, made on the first start. COLLECTIVE: rank 0 reads and writes, all get the same.

    init_digests: called on the first start only; digests of the initial weights by name, for comparisons.

    Raises DataError when the data is not what the run began with, CheckpointError when a setting was
    changed that the state in the directory depends on. Other changed settings are announced.
    """
    return dist.on_main(lambda: _open(run_dir, loaded, fingerprint, init_digests))


def _open(
    run_dir: Path, loaded: Loaded, fingerprint: dict[str, Any], init_digests: Callable[[], dict[str, str]]
) -> dict[str, Any]:
    path = run_dir / "run.json"
    settings = json.loads(json.dumps(flatten(asdict(loaded.config))))  # tuples as JSON has them
    if not path.exists() or not any(run_dir.glob("checkpoints/step-*")):  # nothing depends on the old settings
        record = {
            "run_id": uuid.uuid4().hex,
            "settings": settings,
            "model_digest": digest({key: settings[key] for key in settings if key.startswith(("model.", "position."))}),
            "fingerprint": fingerprint,
            "overrides": list(loaded.overrides),
            "folder": os.getcwd(),
            "versions": versions(),
            "init_digests": init_digests(),
        }
        write_text(run_dir / "config.yaml", loaded.yaml)
        write_text(path, json.dumps(record, indent=1) + "\n")
        return record
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        run_id, before, data = record["run_id"], record["settings"], record["fingerprint"]
        assert isinstance(run_id, str) and isinstance(before, dict) and isinstance(data, dict)
        before = ADDED | before
    except (ValueError, KeyError, TypeError, AssertionError):
        raise CheckpointError(
            f"E-CKP-23 {path}: not a run record; every run directory holds one. "
            "Fix: restore it, or choose another run.name"
        ) from None
    if (difference := fingerprint_diff(data, fingerprint)) is not None:
        raise DataError(
            f"E-TOK-14 {run_dir}: the data is not what this run began with: {difference}; a run goes on with its own "
            "data only. Fix: restore the data, or choose another run.name"
        )
    changed = {key: (before.get(key), now) for key, now in settings.items() if before.get(key) != now}
    fixed = [key for key in changed if key.startswith(FIXED) or key.endswith(".trainable")]
    if fixed:
        shown = "; ".join(f"{key} {changed[key][0]!r} -> {changed[key][1]!r}" for key in fixed)
        raise CheckpointError(
            f"E-CKP-24 {run_dir}: changed since the run began: {shown}; its weights depend on that. "
            "Fix: undo the change, or choose another run.name"
        )
    for key, (old, new) in changed.items():
        dist.log(f"CHANGED since this run began: {key} {old!r} -> {new!r}")
    now = versions()
    for package, old in record.get("versions", {}).items():
        if now.get(package) != old:
            dist.log(f"CHANGED since this run began: {package} {old} -> {now.get(package)}; resume may not be exact")
    if changed or record.get("folder") != os.getcwd():
        record |= {"settings": settings, "folder": os.getcwd()}  # relative paths of data begin there
        write_text(run_dir / "config.yaml", loaded.yaml)
        write_text(path, json.dumps(record, indent=1) + "\n")
    return record


def digest(value: Any) -> str:
    """SHA-256 of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def versions() -> dict[str, str]:
    """What the run is made with: packages, Python, the commit when run from a checkout."""
    found = {"coca_train": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    root = Path(__file__).resolve().parent.parent
    if (root / ".git").exists():
        for key, command in (("commit", ["rev-parse", "HEAD"]), ("uncommitted", ["status", "--porcelain"])):
            try:
                out = subprocess.run(
                    ["git", *command], cwd=root, capture_output=True, text=True, timeout=10, check=True
                ).stdout
            except (OSError, subprocess.SubprocessError):
                break
            found[key] = (
                out.strip() if key == "commit" else hashlib.sha256(out.encode()).hexdigest()[:12] if out else "none"
            )
    return found
