"""Compare what other engines rotate by with exact numbers, and with what our exports should make of them.

    python -m tests.outside.rotations [ENGINE==version …]
    python -m tests.outside.rotations --record [ENGINE==version …]    and write what they say into docs/conformance.json

Each version is installed into a folder of its own under .outside/, and used with the torch that is here. What is known
to differ of exports is in KNOWN, of the exact numbers (`verify rope=…`) in docs/conformance.json; the exit code is 1
where anything else does, and where something known does not.
"""

import json
import subprocess
import sys
from pathlib import Path

from coca_train.hub import rope_check
from coca_train.hub.rope_check import Findings
from tests.outside.plain import FOLDER, ROOT, UV, variables

ENGINES = (
    *(f"transformers=={v}" for v in ("4.46.3", "4.51.3", "4.55.4", "4.57.6", "5.3.0", "5.4.0", "5.23.0", "5.24.0")),
    "mlx_lm==0.32.2",
)
MORE = {"mlx_lm": ("mlx[cpu]",)}  # packages that an engine needs and does not ask for
RECORD = ROOT / "docs/conformance.json"
# (the first version that computes the same, part of an export's name): how the older ones show it.
KNOWN = {
    ("4.48", "mistral "): "differs",  # its class reads no rope_scaling
    ("4.48", "yarn_mistral"): "differs",
    ("4.53", "smollm3 "): "refused",  # there is no such class
    ("4.51", "yarn"): "differs",  # the ramp is that of max_position_embeddings
    ("4.51", "by-parts-indices"): "differs",
    ("4.51", "llama longrope"): "differs",  # one list for all lengths
    ("5.5", "partial"): "refused",
}


def known(version: str, case: str) -> str:
    """How an export is known to end with a version of transformers."""
    if "plain" in case or "one-list" in case:
        return "same"
    older = (way for (since, part), way in KNOWN.items() if part in case and _parts(version) < _parts(since))
    return next(older, "same")


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def recorded() -> dict[str, dict[str, str]]:
    """What engines were found to make of the exact numbers: engine==version -> case -> outcome."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def installed(wanted: str) -> Path:
    """A folder with this version of an engine and what it needs, but torch."""
    engine, _, version = wanted.partition("==")
    folder = FOLDER / f"{engine}-{version}"
    if not (folder / "ready").exists():
        words = ["pip", "install", "--quiet", "--target", str(folder), wanted, *MORE.get(engine, ())]
        subprocess.run([str(UV), *words, "-p", sys.executable], cwd=ROOT, env=variables(), check=True)
        (folder / "ready").touch()
    return folder


def wrong(wanted: str, exact: Findings, exports: Findings) -> list[str]:
    """What nobody knew."""
    before = recorded().get(wanted, exact.outcomes)
    news = [f"{name}: {each}" for name, each in exact.outcomes.items() if before.get(name) != each]
    version = wanted.partition("==")[2]
    ways = {name: each.partition(" ")[0].rstrip(":") for name, each in exports.outcomes.items()}
    return news + [f"{name}: {exports.outcomes[name]}" for name, way in ways.items() if way != known(version, name)]


def main(words: list[str]) -> int:
    from tests.hub.rope_cases import cases

    FOLDER.mkdir(exist_ok=True)
    vectors, exports, failed = rope_check.vectors(), cases(), False
    chosen = [word for word in words if word != "--record"]
    for wanted in chosen or ENGINES:
        engine, path = wanted.partition("==")[0], f"{installed(wanted)}:{ROOT}"
        exact = rope_check.ask(engine, sys.executable, vectors, path)
        ours = exports if engine == "transformers" else {}
        of_exports = rope_check.ask(engine, sys.executable, ours, path)
        if "--record" in words:
            text = json.dumps(recorded() | {wanted: exact.outcomes}, indent=1)
            RECORD.write_text(text + "\n", encoding="utf-8")
        for what, found in (("exact numbers", exact), ("exports", of_exports)):
            print(f"{wanted}, {what}: {len(found.that('same'))} of {len(found.outcomes)} the same")
            print(*(f"  {name}: {each}" for name, each in found.outcomes.items() if each != "same"), sep="\n")
        news = wrong(wanted, exact, of_exports)
        print(*(f"  WRONG  {line}" for line in news), sep="\n")
        failed |= bool(news)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
