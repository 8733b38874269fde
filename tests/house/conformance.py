"""docs/conformance.md from docs/conformance.json, which `python -m tests.outside.rotations --record` writes.
`python -m tests.house.conformance`."""

from coca_train.hub import rope_check
from tests.outside.rotations import recorded

HEAD = """\
# Who computes what of rope_scaling

Made by `python -m tests.house.conformance`; do not edit. A cell says what a version of an engine makes of a config.json
with this `rope_scaling`: the *same* frequencies and temperature as 50-digit arithmetic (to 2e-6, at the lengths of
`coca_train/hub/rope_vectors.json`), others, by the largest relative difference, or nothing (*refused*). Other versions:

```
python -m coca_train verify rope=transformers python=other-env/bin/python
```

`differs` is what an engine computes and no judgement of it: a version may be older than a key. A temperature is that of
the rotated features of q' and of k'. Which exports avoid what differs: [interop](interop.md#export).
"""
FOOT = """
transformers builds the class of the model; mlx_lm is run on a CPU. Not asked: vLLM, whose wheel on the package index
finds no device on a machine without a GPU, and llama.cpp, whose converter is in no package.
"""


def page() -> str:
    """docs/conformance.md."""
    found = recorded()
    heads = ["configuration", *(wanted.replace("==", " ") for wanted in found)]
    rows = [
        [name, *(_cell(outcomes.get(name, "not asked")) for outcomes in found.values())]
        for name in rope_check.vectors()
    ]
    lines = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    counts = [f"{sum(each == 'same' for each in outcomes.values())} of {len(outcomes)}" for outcomes in found.values()]
    return "\n".join([HEAD, *lines, f"| the same | {' | '.join(counts)} |", FOOT])


def _cell(outcome: str) -> str:
    if outcome.startswith("refused"):
        return "refused"
    return outcome.partition(" in a frequency")[0].replace("differs: a temperature of", "temperature")


if __name__ == "__main__":
    print(page(), end="")
