"""The model card of an export: what it is, where it comes from, how it was checked."""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from coca_train import __version__
from coca_train.checkpoint.opening import read_record
from coca_train.data.provenance import read_manifest
from coca_train.hub import forms
from coca_train.hub.weights import Source
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import markdown
from coca_train.schedule import resolve
from coca_train.settings import load_saved

COLUMNS = ("probe", "positions", "tokens", "max difference", "max logit", "relative, with equal frequencies")


def text(name: str, source: Source, config: dict[str, Any], parity: dict[str, Any], tokenizer: Path | None) -> str:
    """Return README.md of the folder."""
    front = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["coca_train", source.architecture.position.scheme],
    }
    rows = figures(parity)
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n",
        f"# {name}\n",
        f"{source.n_parameters:,} parameters, {_position(source)}, trained with windows of "
        f"{source.architecture.seq_len:,} tokens. Written by coca_train {__version__}.\n",
        _loading(name, config, tokenizer),
        _kind(config),
        *_caveats(forms.caveats(source.architecture, config)),
        "## Where it comes from\n",
        "\n".join(_provenance(source.origin)) + _tokenizer(tokenizer),
        "## Data\n",
        _data(source),
        "## Parity\n",
        f"Logits of the run and of this folder ({parity['against']}), {parity['dtype']}; the bound is "
        f"{parity['bound']:.0e} of max(1, largest logit){_rounded(parity)}.\n",
        markdown([*COLUMNS[: len(rows[0])]], rows, n_left=1),
        "## Configuration\n",
        f"```yaml\n{yaml.safe_dump(json.loads(json.dumps(source.architecture.sections())), sort_keys=False)}```\n",
    ]
    return "\n".join(parts)


def call(loader: str, folder: str, config: dict[str, Any]) -> str:
    """Return the call that loads the folder. Code that goes with it must be allowed, for the tokenizer too."""
    allowed = ", trust_remote_code=True" if "auto_map" in config else ""
    return f"{loader}.from_pretrained({json.dumps(folder)}{allowed})"


def before(config: dict[str, Any]) -> str:
    """Return what must be imported first; "": nothing."""
    return "import coca_train.transformers" if config["model_type"] == forms.INSTALLED else ""


def _loading(name: str, config: dict[str, Any], tokenizer: Path | None) -> str:
    loaders = {"model": "AutoModelForCausalLM"} | ({"tokenizer": "AutoTokenizer"} if tokenizer else {})
    lines = [f"{what} = {call(loader, name, config)}" for what, loader in loaders.items()]
    imports = [*filter(None, [before(config)]), f"from transformers import {', '.join(loaders.values())}"]
    return "\n".join(["```python", *imports, "", *lines, "```\n"])


def _position(source: Source) -> str:
    position = source.architecture.position
    rope_scaling = getattr(position, "rope_scaling", None)
    return f"position scheme {position.scheme}" + (f" with frequencies {rope_scaling.name}" if rope_scaling else "")


def _kind(config: dict[str, Any]) -> str:
    if config["model_type"] not in forms.OWN_TYPES:
        return f"It is a plain `{config['architectures'][0]}`: no code of this folder is needed.\n"
    where = (
        f"what it computes is in two files beside the weights, `{forms.MODELING}.py` and "
        f"`{forms.CONFIGURATION}.py` (or in coca_train, where `import coca_train.transformers` was run first)"
        if config["model_type"] == forms.COCA
        else "its class comes with coca_train: `pip install 'coca-train[interop]'`, and before it is loaded `import "
        "coca_train.transformers`"
    )
    return (
        f"Its `model_type` is `{config['model_type']}`, and {where}; loaded as a LLaMA or GPT-NeoX it would compute "
        "something else. Batches may be padded on either side; packed texts are kept apart by `position_ids` that "
        "restart at 0, without a mask. Dynamic frequencies follow the longest text of a batch; "
        "`generate(..., length=n)` fixes the length they adapt to.\n"
    )


def _caveats(sentences: list[str]) -> list[str]:
    """Return a section about who computes something else; empty where nobody is known to."""
    if not sentences:
        return []
    return ["## Where it computes something else\n", "\n".join(f"- {each}" for each in sentences) + "\n"]


def _provenance(origin: dict[str, Any]) -> list[str]:
    """Return a line for each fact, the nearest first; what it was imported from is indented below it."""
    lines = []
    for key, value in origin.items():
        if isinstance(value, dict):
            lines += [f"- {key}:", *(f"  {line}" for line in _provenance(value))] if key != "parity" else []
        elif value is not None:
            lines.append(f"- {key}: `{value}`")
    return lines


def _tokenizer(path: Path | None) -> str:
    if path is None:
        return "\n- tokenizer: none\n"
    return f"\n- tokenizer: `{path.name}`, sha256 `{hashlib.sha256(untrusted_io.read_bytes(path)).hexdigest()}`\n"


def _rounded(parity: dict[str, Any]) -> str:
    """Say what the bound holds for where frequencies that are rounded otherwise make larger differences."""
    again = [probe["frequencies"] for probe in parity["probes"] if probe["with_our_frequencies"] is not None]
    if not again:
        return ""
    return (
        f", and holds for the last column: transformers rounds frequencies otherwise (by {max(again):.0e}), which far "
        "positions multiply"
    )


def figures(parity: dict[str, Any]) -> list[list[str]]:
    """Return the rows of the table of parity.

    The last column, differences relative to the largest logit, is there where some probes were compared twice.
    """
    rows = []
    for probe in parity["probes"]:
        again = probe["with_our_frequencies"]
        equal = probe["relative"] if again is None else again
        rows.append(
            [
                probe["probe"],
                f"{probe['length']:,}",
                f"{probe['n_tokens']:,}",
                f"{probe['max_abs_difference']:.2e}",
                f"{probe['max_abs_logit']:.3f}",
                f"{equal:.1e}",
            ]
        )
    twice = any(probe["with_our_frequencies"] is not None for probe in parity["probes"])
    return rows if twice else [row[:-1] for row in rows]


def _data(source: Source) -> str:
    """Return a table by stage: sources, weights and licences, as far as the run and the manifests of its data know."""
    if source.kind != "run":
        return "Not known: these weights came from a Hugging Face folder.\n"
    record = read_record(source.path)
    if not record["fingerprint"].get("sources"):
        return "Not known: these weights were imported.\n"
    trained = [stage for stage in resolve(load_saved(source.path).config) if stage.first_step < source.origin["step"]]
    begun = {entry["name"]: entry["fingerprint"]["sources"] for entry in record["stages"]}
    rows = [
        [stage.name, name, f"{entry['weight']:g}", f"{entry['tokens']:,}", _licences(data[name].path)]
        for stage in trained
        for data in [stage.config.data.sources]
        for name, entry in begun[stage.name].items()
    ]
    return markdown(["stage", "source", "weight", "tokens", "licences"], rows)


def _licences(prefix: str) -> str:
    """Return the licences that a manifest.json of data_prep next to the data names."""
    try:
        manifest = read_manifest(prefix)
    except DataError:  # no reason to keep the model back
        return "not known: the manifest of the data is damaged"
    if manifest is None:
        return "the data have no manifest"
    terms = [str(entry["licence"]) for entry in manifest.get("sources", {}).values() if entry.get("licence")]
    terms += [f"{what}: {licence}" for what, licence in manifest.get("licences", {}).items()]
    return "; ".join(dict.fromkeys(terms)) or "not stated"
