"""Start-up: find the newest checkpoint that verifies, report what was skipped, never start at 0 silently."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from coca_train.checkpoint import manifest
from coca_train.checkpoint.manifest import CUT, FOLDER, STEP_FOLDER, Checkpoint, Meta, Refused, Spec, unused_name
from coca_train.checkpoint.weights import MODEL, Stored, open_weights, plain, read_merged
from coca_train.engine.base import Engine, InitParameter, ReadRange
from coca_train.models.lora import adapter_of, is_adapter
from coca_train.runtime import dist, durable, untrusted_io
from coca_train.runtime.errors import CheckpointError, DataError, ResourceError
from coca_train.runtime.shortage import lacking
from coca_train.runtime.untrusted_io import JsonObject

TEMPORARY = ".tmp-"
TRASH = ".trash-"

_verified: set[tuple[str, str]] = set()  # (folder, manifest digest), by this process


def step_folders(root: Path) -> list[Path]:
    """Return everything named like a checkpoint, newest step first."""
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if STEP_FOLDER.fullmatch(path.name)), reverse=True)


def sweep(run_dir: Path) -> list[str]:
    """Rank 0: remove unfinished saves and unfinished deletions; return their names. Only while holding the run's
    lock."""
    root = run_dir / FOLDER
    names = sorted(os.listdir(root)) if root.is_dir() else []
    leftovers = [name for name in names if name.startswith((TEMPORARY, TRASH, ".latest."))]
    for name in leftovers:
        durable.remove_tree(root / name)
    return leftovers


def find(run_dir: Path, run_id: str | None = None, clean: bool = False) -> Checkpoint | None:
    """COLLECTIVE. Return the newest verified checkpoint of a run, or None when there never was one.

    run_id: refuse those of another run; None: any. clean: also sweep (needs the run's lock). Rank 0 lists the folder;
    the ranks share the hashing. One `RECOVERY:` line reports what was skipped or removed. Raises CheckpointError when
    there are checkpoints and none can be trusted.
    """
    root = run_dir / FOLDER
    # Rank 0 looks for all: ranks that list a network folder at different moments could choose different checkpoints.
    folders, swept, hint = dist.broadcast_object(_look(run_dir, clean) if dist.is_main() else ([], [], None))
    checkpoint, refused = first_verified(folders, run_id)
    notes = [f"passed over {reason}" for reason in refused]
    if swept:
        notes.append(f"removed what an interrupted process left: {', '.join(swept)}")
    if checkpoint and hint != checkpoint.path.name:
        notes.append(f"`latest` said {hint or 'nothing usable'}")
    if folders and checkpoint is None:
        raise CheckpointError(
            f"E-CKP-01 {root}: none of {len(folders)} checkpoints can be trusted: {'; '.join(refused)}; "
            "the run does not start at step 0 by itself. Fix: restore one, or begin another run: "
            f"{unused_name(run_dir)}"
        )
    if notes:
        start = f"step 0, {root} holds no finished checkpoint"
        if checkpoint is not None:
            start = f"step {checkpoint.step} from {checkpoint.path}"
        dist.log(f"RECOVERY: {start}; {'; '.join(notes)}")
    return checkpoint


def newest(run_dir: Path, run_id: str | None) -> Checkpoint | None:
    """Return the newest checkpoint by its manifest alone, without reading its tensors; None: there is none. For its
    manifest, never for its weights."""
    for folder in step_folders(run_dir / FOLDER):
        body, _ = _inspect(folder, run_id)
        if body is not None:
            return Checkpoint(folder, body["step"], body)
    return None


def _look(run_dir: Path, clean: bool) -> tuple[list[Path], list[str], str | None]:
    """Rank 0: return step folders, names swept, and what `latest` says when it is a plain step name."""
    folders = step_folders(run_dir / FOLDER)
    swept = sweep(run_dir) if clean else []
    try:
        hint = untrusted_io.read_bytes(run_dir / FOLDER / "latest", 64, follow=False).decode("ascii", "replace").strip()
    except OSError:
        hint = ""
    return folders, swept, hint if STEP_FOLDER.fullmatch(hint) else None


def first_verified(folders: Sequence[Path], run_id: str | None) -> tuple[Checkpoint | None, list[str]]:
    """COLLECTIVE. Return the first folder that verifies, and why the ones before it were refused."""
    refused = []
    for folder in folders:
        checkpoint, reason = verified(folder, run_id)
        if checkpoint:
            return checkpoint, refused
        refused.append(f"{folder.name}: {reason}")
    return None, refused


def verified(folder: Path, run_id: str | None, again: bool = True) -> tuple[Checkpoint | None, str]:
    """COLLECTIVE. Verify manifest and bytes of one folder, each rank some of the files; return the checkpoint, or the
    reason against it.

    again=False trusts the bytes of what this run has written or verified before.
    """
    body, reason = dist.broadcast_from_rank0(lambda: _inspect(folder, run_id))
    if body is None:
        return None, reason
    known = (str(folder), body["digest"])
    # Pruning looks at the same folders after every save. What this run has written or verified it need not hash again
    # to delete an older one; the one it continues from it must.
    if again or known not in _verified:
        reports = dist.all_gather_object(_examine(folder, body))
        for lack in (reason for reason, _ in reports if isinstance(reason, ResourceError)):
            raise lack  # the checkpoint may be good
        reasons = [str(reason) for reason, _ in reports if reason] or _missing(body, [spec for _, spec in reports])
        if reasons:
            _verified.discard(known)
            return None, "; ".join(reasons)
        _verified.add(known)
    return Checkpoint(folder, body["step"], body), ""


def mark_verified(folder: Path, digest: str) -> None:
    """COLLECTIVE. Trust a checkpoint that this run has just written, its bytes digested on their way to the disk.
    digest: of its manifest."""
    _verified.add((str(folder), digest))


def _inspect(folder: Path, run_id: str | None) -> tuple[JsonObject | None, str]:
    try:
        body = manifest.read(folder)
        if run_id is not None and body["run_id"] != run_id:
            raise Refused(f"E-CKP-16 belongs to run {body['run_id']}, this is run {run_id}")
        return body, ""
    except (Refused, OSError) as error:
        if (lack := lacking(error)) is not None:
            raise lack from None  # the checkpoint may be good
        return None, str(error) if isinstance(error, Refused) else f"E-CKP-29 cannot be read: {error}"


def _missing(body: JsonObject, specs: Sequence[Spec]) -> list[str]:
    """Return what is wrong with a checkpoint whose files are whole: they do not hold the tensors that were saved."""
    cut = {name: tuple(entry["shape"]) for name, entry in body.get(CUT, {}).items()}
    whole = {name: shape for spec in specs for name, shape in spec.items() if name not in cut}
    if manifest.digest_of_spec(whole | cut) == body["tensors"]:
        return []
    return [f"E-CKP-08 {manifest.NAME} is damaged: the files do not hold the tensors that were saved"]


def _examine(folder: Path, body: JsonObject) -> tuple[str | ResourceError, Spec]:
    """Return what is wrong with this rank's share of the files, "" for nothing, and the shapes of tensors in them; or
    what it lacks to read them."""
    share = range(len(body["files"]))[dist.rank() :: dist.world_size()]
    entries = [body["files"][number] for number in share]
    with ExitStack() as stack:
        try:
            readers = [stack.enter_context(closing(manifest.open_shard(folder, entry))) for entry in entries]
            wrong = manifest.damage(readers, entries, again=True)
        except Refused as refusal:
            return str(refusal), {}
        except ResourceError as lack:
            return lack, {}
        wrong = wrong or manifest.find_miscut(body.get(CUT, {}), dict(zip(share, readers, strict=True)))
        return wrong, {name: shape for reader in readers for name, shape in reader.spec().items()}


def load(checkpoint: Checkpoint, engine: Engine, meta: Meta) -> JsonObject:
    """COLLECTIVE. Load a checkpoint into the engine; return the `progress` it was saved with.

    World size and ZeRO stage may differ from those of the save. Raises CheckpointError when precision, model or trained
    parameters differ, DataError when the data does. Each rank verifies its share of the files, where they have changed
    since it did so last, and then reads of all of them what it needs.
    """
    _check_run(checkpoint, engine, meta)
    with _opened(checkpoint) as source:
        # Before the first tensor is read: afterwards the engine would hold half of another state.
        _check_tensors(checkpoint, source.stored.spec, engine.state_spec())
        engine.load_state(source.read, checkpoint.manifest["counters"])
    return checkpoint.manifest["progress"]


def begin(checkpoint: Checkpoint, engine: Engine, init: InitParameter, keep_optimizer: bool = False) -> None:
    """COLLECTIVE. Load the weights of another stage, or of another run, into the engine; its adapters are merged.

    init: fills one parameter by its name; the adapters of the stage that begins get its values. keep_optimizer: load
    Adam's moments too, for the parameters that have them, and the memory of the rows; all others begin at zero. Raises
    CheckpointError where the model is another one.
    """
    with _opened(checkpoint) as source:
        spec, stored = engine.state_spec(), source.stored
        _check_tensors(checkpoint, plain(stored.spec), plain(spec))

        @lru_cache(maxsize=1)  # a rank reads parts of the same tensor in a row
        def merged(name: str) -> Tensor:
            return read_merged(name, checkpoint, stored.spec, stored.tensor).float().flatten()

        def read(name: str, start: int, stop: int) -> Tensor:
            if name.startswith(MODEL) and is_adapter(name):
                init(name.removeprefix(MODEL), fresh := torch.empty(spec[name]))
                return fresh.flatten()[start:stop]
            if name.startswith(MODEL) and adapter_of(name)[0] in stored.spec:
                return merged(name)[start:stop]
            kept = name.startswith(MODEL) or (keep_optimizer and stored.spec.get(name) == spec[name])
            return stored.values(name, start, stop).float() if kept else torch.zeros(stop - start)

        counters = checkpoint.manifest["counters"]
        counters = {key: counters[key] for key in ("loss_scaler",) if keep_optimizer and key in counters} | {
            "adam_step": counters.get("adam_step", 0.0) if keep_optimizer else 0.0,
            "skipped_steps": 0,
        }
        engine.load_state(source.guarded(read), counters)


def load_weights(checkpoint: Checkpoint, module: nn.Module) -> None:
    """Load a checkpoint's weights into a plain module. Not collective: every caller reads the files itself."""
    held = {name: tensor for name, tensor in module.state_dict(keep_vars=True).items()}
    missing = set(dict(module.named_parameters()))
    with open_weights(checkpoint) as weights:
        for name, shape in weights.spec.items():
            if name not in held or tuple(held[name].shape) != shape:
                raise _other_model(checkpoint, f"{name} {list(shape)} has no place in it")
            with torch.no_grad():
                held[name].copy_(weights.tensor(name))
            missing.discard(name)
    if missing:
        raise _other_model(checkpoint, f"{', '.join(sorted(missing)[:5])} not in the checkpoint")


def _other_model(checkpoint: Checkpoint, what: str) -> CheckpointError:
    return CheckpointError(
        f"E-CKP-14 {checkpoint.path}: is of another model: {what}. Fix: use the model configuration of the run"
    )


def _check_run(checkpoint: Checkpoint, engine: Engine, meta: Meta) -> None:
    body, another = checkpoint.manifest, unused_name(checkpoint.path.parents[1])
    if body["data_fingerprint"] != meta.data_fingerprint:
        keys = set(body["data_fingerprint"]) | set(meta.data_fingerprint)
        changed = sorted(k for k in keys if body["data_fingerprint"].get(k) != meta.data_fingerprint.get(k))
        raise DataError(
            f"E-CKP-22 {checkpoint.path} data: {', '.join(changed)} differ from the data the run began with. "
            f"Fix: give back the old data, or begin another run: {another}"
        )
    if body["dtype"] != engine.dtype:
        raise CheckpointError(
            f"E-CKP-12 {checkpoint.path} engine.dtype: saved with {body['dtype']}, now {engine.dtype}; a run keeps its "
            f"precision. Fix: engine.dtype={body['dtype']}, or begin another run: {another}"
        )
    if body["model_digest"] != meta.model_digest:
        raise _other_model(checkpoint, "the model settings differ")
    if body["trainable"] != engine.trainable:
        changed = sorted(set(body["trainable"]) ^ set(engine.trainable))
        raise CheckpointError(
            f"E-CKP-15 {checkpoint.path} trainable: {len(body['trainable'])} parameters were trained, now "
            f"{len(engine.trainable)}; first differences: {', '.join(changed[:5])}. Fix: keep the stage's patterns"
        )


def _check_tensors(checkpoint: Checkpoint, stored: Spec, model: Spec) -> None:
    differing = sorted(name for name in stored.keys() | model.keys() if stored.get(name) != model.get(name))
    if differing:
        listed = ", ".join(f"{name}: saved {stored.get(name)}, model {model.get(name)}" for name in differing[:5])
        raise _other_model(checkpoint, listed)


class _Source:
    """A checkpoint's tensors, of which this rank reads what it needs; read errors are reported at the end.

    Not at once: the other ranks would wait for this one in a collective of the engine.
    """

    def __init__(self, stored: Stored) -> None:
        self.stored, self.problem = stored, ""
        self.read = self.guarded(lambda name, start, stop: stored.values(name, start, stop).float())

    def guarded(self, read: ReadRange) -> ReadRange:
        """Return a reader that gives zeros where the disk refuses."""

        def values(name: str, start: int, stop: int) -> Tensor:
            try:
                return read(name, start, stop)
            except OSError as error:
                self.problem = self.problem or f"{name} cannot be read: {error}"
                return torch.zeros(stop - start)

        return values


@contextmanager
def _opened(checkpoint: Checkpoint) -> Iterator[_Source]:
    """COLLECTIVE. Open the files of a checkpoint on all ranks, each verified by one. Raises CheckpointError, the same
    on every rank, when one is damaged, and at the end when one could not be read."""
    stored, problem = None, ""
    n_files = len(checkpoint.manifest["files"])
    try:
        stored = Stored(checkpoint, range(n_files)[dist.rank() :: dist.world_size()])
    except Refused as refusal:
        problem = str(refusal)
    # All ranks report before any raises: one that left here would leave the others in this very collective.
    problems = dist.all_gather_object(problem)
    if stored is not None:
        with stored:
            if not any(problems):
                yield (source := _Source(stored))
                problems = dist.all_gather_object(source.problem)
    if any(problems):
        reasons = "; ".join(dict.fromkeys(filter(None, problems)))
        raise CheckpointError(f"E-CKP-01 {checkpoint.path}: {reasons}. Fix: run the same command again")
