"""The model card of an export: its origin, how to load it, how it was checked."""

import hashlib
import json
from pathlib import Path

import yaml

from coca_train import __version__
from coca_train.checkpoint.opening import read_record
from coca_train.data.provenance import read_manifest
from coca_train.hub import forms, parity
from coca_train.hub.config_keys import Json
from coca_train.hub.weights import Source
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import markdown
from coca_train.settings import load_saved
from coca_train.stages import resolve

VARIABLES = {"AutoModelForCausalLM": "model", "AutoTokenizer": "tokenizer"}
HASHED_IN_LLAMA_CPP = (
    "llama.cpp's `convert_hf_to_gguf.py` knows how a byte-level tokenizer splits a text by a hash of its token ids, so "
    "it knows those that are published. Where it ends with `BPE pre-tokenizer was not recognized`, add the hash it "
    "prints (`chkhsh`) to `get_vocab_base_pre` in its `conversion/base.py`, with the name there of a published "
    "tokenizer that has the same splits (`pre_tokenizer` in `tokenizer.json`), such as `llama-bpe` or `qwen2`.\n"
)
DIFFERS = "## Where it computes something else"


def render_card(name: str, source: Source, family: str, report: parity.Report, tokenizer: Path | None) -> str:
    """Return README.md of the folder."""
    architecture = source.architecture
    frequencies = architecture.rope_scaling
    scheme = architecture.position.scheme + ("" if frequencies is None else f" with RoPE scaling {frequencies.name}")
    front = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["coca_train", architecture.position.scheme],
    }
    loaders = ["AutoModelForCausalLM", *(["AutoTokenizer"] if tokenizer else [])]
    caveats = "\n".join(f"- {each}" for each in forms.caveats(architecture, family))
    data = b"" if tokenizer is None else untrusted_io.read_bytes(tokenizer)
    digest, byte_level = hashlib.sha256(data).hexdigest(), b'"ByteLevel"' in data
    tokenizer_line = "- tokenizer: none" if tokenizer is None else f"- tokenizer: `{tokenizer.name}`, sha256 `{digest}`"
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n",
        f"# {name}\n",
        f"{source.n_parameters:,} parameters, position scheme {scheme}, trained with windows of "
        f"{architecture.seq_len:,} tokens. Written by coca_train {__version__}.\n",
        "\n".join(["```python", *loading_lines(name, family, *loaders), "```\n"]),
        _kind(family),
        *([HASHED_IN_LLAMA_CPP] if byte_level and family not in forms.OWN_TYPES else []),
        *([f"{DIFFERS}\n", f"{caveats}\n"] if caveats else []),
        "## Where it comes from\n",
        "\n".join([*_provenance(source.origin), f"{tokenizer_line}\n"]),
        "## Data\n",
        _data(source),
        "## Parity\n",
        "Logits of the run and of this folder; they may differ by "
        f"{parity.BOUND:.0e} of max(1, largest logit){_rounded(report.results)}.\n",
        f"```\n{report.lines()}\n```\n",
        "## Configuration\n",
        f"```yaml\n{yaml.safe_dump(json.loads(json.dumps(architecture.sections())), sort_keys=False)}```\n",
    ]
    return "\n".join(parts)


def loading_lines(folder: str, family: str, *loaders: str) -> list[str]:
    """Return the code that loads a folder. Its own code must be allowed, for the tokenizer too."""
    allowed = ", trust_remote_code=True" if family == forms.COCA else ""
    return [
        *(["import coca_train.transformers"] if family == forms.INSTALLED else []),
        f"from transformers import {', '.join(loaders)}",
        *(f"{VARIABLES[loader]} = {loader}.from_pretrained({json.dumps(folder)}{allowed})" for loader in loaders),
    ]


def _kind(family: str) -> str:
    if family not in forms.OWN_TYPES:
        return f"It is a plain `{forms.class_name(family)}`: no code of this folder is needed.\n"
    where = (
        f"its code is in two files next to the weights, `{forms.MODELING}.py` and "
        f"`{forms.CONFIGURATION}.py` (or in coca_train, where `import coca_train.transformers` was run first)"
        if family == forms.COCA
        else "its class comes with coca_train: `pip install 'coca-train[interop]'`, and before it is loaded `import "
        "coca_train.transformers`"
    )
    return (
        f"Its `model_type` is `{family}`, and {where}; loaded as a LLaMA or GPT-NeoX it would compute "
        "something else. Batches may be padded on either side; packed texts are kept apart by `position_ids` that "
        "restart at 0, without a mask. Dynamic frequencies follow the longest text of a batch; "
        "`generate(..., length=n)` fixes the length they adapt to.\n"
    )


def _provenance(origin: Json) -> list[str]:
    """Return a line for each fact, the nearest first; the source of an import is indented below it."""
    lines = []
    for key, value in origin.items():
        if isinstance(value, dict):
            lines += [f"- {key}:", *(f"  {line}" for line in _provenance(value))] if key != "parity" else []
        elif value is not None:
            lines.append(f"- {key}: `{Path(str(value)).name if _is_absolute(value) else value}`")
    return lines


def _is_absolute(value: object) -> bool:
    """Whether it is the path of a folder or file on this machine, which says nothing to who loads the export."""
    return isinstance(value, str) and Path(value).is_absolute()


def _rounded(results: list[parity.Result]) -> str:
    """Explain larger differences that come of frequencies of another rounding."""
    off = [each.frequencies for each in results if each.frequencies is not None]
    if not off:
        return ""
    return (
        f" with equal frequencies: transformers rounds them otherwise (by {max(off):.0e}), which far positions multiply"
    )


def _data(source: Source) -> str:
    """Return a table of sources, weights and licences by stage, from the run and the manifests of its data."""
    if source.step is None:
        return "Not known: these weights came from a Hugging Face folder.\n"
    record = read_record(source.path)
    if not record["fingerprint"].get("sources"):
        return "Not known: these weights were imported.\n"
    trained = [stage for stage in resolve(load_saved(source.path).config) if stage.first_step < source.step]
    begun = {entry["name"]: entry["fingerprint"]["sources"] for entry in record["stages"]}
    rows = [
        [stage.name, name, f"{entry['weight']:g}", f"{entry['tokens']:,}", _licences(data[name].path)]
        for stage in trained
        for data in [stage.config.data.sources]
        for name, entry in begun[stage.name].items()
    ]
    return markdown(["stage", "source", "weight", "tokens", "licences"], rows)


def _licences(prefix: str) -> str:
    """Return the licences in data_prep's manifest.json next to the data."""
    try:
        manifest = read_manifest(prefix)
    except DataError:  # no reason to refuse the export
        return "not known: the manifest of the data is damaged"
    if manifest is None:
        return "the data have no manifest"
    terms = [str(licence) for source in manifest.get("sources", {}).values() if (licence := source.get("licence"))]
    return "; ".join(dict.fromkeys(terms)) or "not stated"
