"""May these runs be compared? What a fair comparison holds fixed, checked from what the runs recorded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from coca_train.evals.extrapolation import Extrapolation
from coca_train.sinks import read_jsonl

LAST_SHARE = 0.1  # of the logged steps, for the training loss shown
MAY_DIFFER = ("position", "run")


def checks(run_dirs: Mapping[str, Path], results: Mapping[str, Extrapolation]) -> tuple[list[str], list[str]]:
    """(what was verified to be the same, what is not), in words."""
    verified: list[str] = []
    problems: list[str] = []
    for line, wrong in (
        same_settings(run_dirs),
        same_batches(run_dirs),
        same_initial_weights(run_dirs),
        same_text(results),
    ):
        (problems if wrong else verified).append(line)
    return verified, problems


def same_settings(run_dirs: Mapping[str, Path]) -> tuple[str, bool]:
    """Every setting but the position scheme and the run's name; the seed of the weights too."""
    trees = {}
    for name, run_dir in run_dirs.items():
        tree = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
        seed = tree["run"]["seed"]
        trees[name] = {key: value for key, value in tree.items() if key not in MAY_DIFFER} | {"seed": seed}
    first_name, first = next(iter(trees.items()))
    for name, tree in trees.items():
        for section in first.keys() | tree.keys():
            if first.get(section) != tree.get(section):
                return f"settings: section {section} of {first_name} and {name} differ", True
    return f"settings: the same for {', '.join(trees)}, but for the position scheme", False


def same_batches(run_dirs: Mapping[str, Path]) -> tuple[str, bool]:
    """The digests of the global batches at every step that was logged, and the number of steps."""
    digests = {name: batch_digests(run_dir) for name, run_dir in run_dirs.items()}
    first_name, first = next(iter(digests.items()))
    if not first:
        return f"data order: {first_name} recorded no batch digests", True
    for name, mine in digests.items():
        if not mine or max(mine) != max(first):
            return f"data order: {first_name} and {name} ended at different steps", True
        for step in mine.keys() & first.keys():  # a resumed run logs its first step too
            if mine[step] != first[step]:
                return f"data order: {first_name} and {name} saw other batches at step {step}", True
    common = set.intersection(*(set(mine) for mine in digests.values()))
    return f"data order: identical batches at all {len(common)} common logged steps, the last one {max(first)}", False


def batch_digests(run_dir: Path) -> dict[int, str]:
    return {r["step"]: r["batch_digest"] for r in read_jsonl(run_dir / "metrics.jsonl") if "batch_digest" in r}


def same_initial_weights(run_dirs: Mapping[str, Path]) -> tuple[str, bool]:
    """Parameters that all runs have in one shape must have begun with the same values."""
    digests = {name: json.loads((d / "run.json").read_text())["init_digests"] for name, d in run_dirs.items()}
    shapes = {name: parameter_shapes(run_dir) for name, run_dir in run_dirs.items()}
    first_name, first = next(iter(digests.items()))
    everywhere = [name for name in first if all(name in other for other in digests.values())]
    shared = [name for name in everywhere if len({shapes[run].get(name) for run in run_dirs}) == 1]
    for parameter in shared:
        for run, mine in digests.items():
            if mine[parameter] != first[parameter]:
                return f"initial weights: {parameter} of {first_name} and {run} differ", True
    total = len({name for other in digests.values() for name in other})
    own = sorted({name.split(".")[-2] for other in digests.values() for name in other if name not in shared})
    rest = f"; not shared, because of another shape: {', '.join(own)}" if own else ""
    return f"initial weights: identical for {len(shared)} of {total} parameters{rest}", not shared


def parameter_shapes(run_dir: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a run's parameters, from the headers of its newest checkpoint."""
    newest = max((run_dir / "checkpoints").glob("step-*"))
    shapes = {}
    for path in sorted(newest.glob("*.safetensors")):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {
            key.removeprefix("model/"): tuple(entry["shape"])
            for key, entry in header.items()
            if key.startswith("model/")
        }
    return shapes


def same_text(results: Mapping[str, Extrapolation]) -> tuple[str, bool]:
    """Windows, stride and the number of tokens scored of each text."""
    kept = {
        name: (r.stride, {(c.source, c.window, c.result.n_documents, c.result.n_tokens) for c in r.cells})
        for name, r in results.items()
    }
    first_name, first = next(iter(kept.items()))
    for name, mine in kept.items():
        if mine != first:
            return f"held-out text: {first_name} and {name} were scored on other windows or tokens", True
    return "held-out text: the same windows, stride, documents and tokens", False


def facts_of(run_dir: Path) -> dict[str, Any]:
    """loss: mean over the last tenth of the logged steps [nats per token]; tokens_per_s: median; valid/*: the last."""
    records = read_jsonl(run_dir / "metrics.jsonl")
    losses = [r["loss"] for r in records if r.get("loss") is not None]
    speeds = sorted(r["tokens_per_s"] for r in records if r.get("tokens_per_s") is not None)
    last = losses[-max(1, round(len(losses) * LAST_SHARE)) :]
    facts: dict[str, Any] = {"run_dir": str(run_dir), "loss": sum(last) / len(last) if last else None}
    facts["tokens_per_s"] = speeds[len(speeds) // 2] if speeds else None
    for record in records:
        facts |= {key: value for key, value in record.items() if key.startswith("valid/")}
    return facts
