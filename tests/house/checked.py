"""docs/checked.md: what every position scheme is compared with, and by how much it differs.

python -m tests.house.checked                 the page, with the costs that docs/checked.json has
python -m tests.house.checked --costs         measure these first: memory and time of a layer, some minutes
"""

import argparse
import importlib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from torch import Tensor

from benchmarks import schemes as costs
from benchmarks.cases import Setup
from coca_train.positions import SCHEMES
from coca_train.runtime.printing import markdown
from coca_train.testing import definition
from coca_train.testing.scheme import SchemeContract

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "positions"
PAGE, COSTS = ROOT / "docs" / "checked.md", ROOT / "docs" / "checked.json"
LENGTHS = (1024, 2048, 4096)
# Who else says the same: numbers in many digits, worked from the papers (mpmath), numbers made outside this project on
# inputs on which the authors' code gave the same (outside), and implementations that the tests run.
SOURCES = {
    "mpmath": ("golden.terms", "golden/terms.json", "golden/positions.json", "golden.rope"),
    "outside": ("golden.methods",),
    "transformers": ("transformers.models", "from transformers import", 'importorskip("transformers")'),
    "x-transformers": ("x_transformers",),
}
INTRODUCTION = """\
# What each scheme is compared with

Made by `python -m tests.house.checked`; do not edit.

Every scheme has a second implementation in its test: the paper's formula for each pair of tokens by itself, in float64
(`coca_train/testing/definition.py`). Attention, its gradients, a step with cached keys and grouped heads are compared
with it on every kernel, on one document and on packed ones; the table has the largest differences in units of the
largest value. About 1e-15 is float64; about 1e-8 is float32 inside a scheme, such as angles that are computed in it.
Documents, caches and grouped-query attention have no column: the contract asks them of every scheme.

Numbers: who else says the same. mpmath: from the papers' formulas in 40 digits (`tests/golden`); outside: numbers made
outside this project, on inputs on which the authors' own code gave the same; transformers, x-transformers: run in the
tests. Slope: of log memory against log T, 1,024 to 4,096 tokens, one layer forward and backward on a CPU in float32 (1
is linear); time over RoPE's at 4,096. What goes with what: [schemes](schemes.md); on a GPU: [gpu](gpu.md).
"""


def contracts() -> Iterator[tuple[ModuleType, type[SchemeContract]]]:
    """Yield the contract of every scheme and the module that it is in."""
    for path in sorted(TESTS.glob("test_*.py")):
        module = importlib.import_module(f"tests.positions.{path.stem}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, SchemeContract) and value is not SchemeContract:
                yield module, value


def differences(contract: type[SchemeContract]) -> dict[str, float]:
    """Return the largest differences of a scheme from its definition, relative to the largest value, by what is
    compared."""
    found: dict[str, float] = {}
    close = definition._close

    def record(ours: Tensor, exact: Tensor, within: float, what: str, least: float = 0.0) -> None:
        close(ours, exact, within, what, least)
        of = "gradients" if "gradient" in what else "cached step" if what.startswith("the query") else "attention"
        largest = float(exact.detach().abs().max())
        if largest > least:  # a sum that cancels has no relative difference
            apart = float((ours.detach() - exact.detach()).abs().max()) / largest
            found[of] = max(found.get(of, 0.0), apart)

    settings = next(iter(contract.settings().values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definition, "_close", record)
        test = contract()
        test.test_attention_and_its_gradients_equal_the_definition(settings, "causal", patch)
        test.test_a_step_with_cached_keys_equals_the_definition(settings, "causal")
        test.test_heads_equal_the_definition(settings)
    return found


def sources(module: ModuleType, scheme: str) -> str:
    """Return who else says the same, by what the tests of a scheme read."""
    own = Path(str(module.__file__)).read_text(encoding="utf-8")
    shared = [(TESTS / name).read_text(encoding="utf-8") for name in ("test_golden.py", "test_parity_schemes.py")]
    cases = json.loads((ROOT / "tests/golden/terms.json").read_text(encoding="utf-8"))["cases"]
    known = {case["settings"]["scheme"] for case in cases}
    about = [text for whole in shared for text in re.split(r"\n(?=def |@)", whole) if re.search(rf"\b{scheme}\b", text)]
    said = [name for name, marks in SOURCES.items() if any(mark in text for mark in marks for text in (own, *about))]
    if scheme in known and "mpmath" not in said:
        said.insert(0, "mpmath")
    return ", ".join(said) or "the definition alone"


def measure() -> Mapping[str, Mapping[str, float]]:
    """Return slope and time over RoPE's of every scheme."""
    names = [*SCHEMES.names()]
    measured, failed = costs.measure(names, LENGTHS, Setup("cpu", "fp32"))
    for line in failed:
        print(line, file=sys.stderr)
    base = measured["rope"][LENGTHS[-1]].seconds
    return {
        name: {"slope": costs.slope(by_length), "time": by_length[LENGTHS[-1]].seconds / base}
        for name, by_length in measured.items()
        if LENGTHS[-1] in by_length
    }


def page(known: Mapping[str, Mapping[str, float]]) -> str:
    rows = []
    for module, contract in contracts():
        apart, scheme = differences(contract), contract.scheme
        cost = known.get(scheme, {})
        numbers = [f"{cost[key]:.2f}" if math.isfinite(cost.get(key, math.nan)) else "–" for key in ("slope", "time")]
        shown = [f"{apart[of]:.0e}" for of in ("attention", "gradients", "cached step")]
        rows.append([f"`{scheme}`", sources(module, scheme), *shown, *numbers])
    head = ["scheme", "numbers", "attention", "gradients", "cached step", "slope", "time/rope"]
    return f"{INTRODUCTION}\n{markdown(head, sorted(rows), n_left=2)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.house.checked", description=__doc__)
    parser.add_argument("--costs", action="store_true", help="measure memory and time first")
    if parser.parse_args().costs:
        COSTS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    known = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}
    PAGE.write_text(page(known), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
