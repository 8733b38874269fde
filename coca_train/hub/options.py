"""The options of import, export and verify. Torch-free."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.fields import Names
from coca_train.config.messages import Problem
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Name, Positive

Form = Literal[
    "auto", "native", "own",
    # families: hub/families.py
    "arcee", "bloom", "cohere", "cohere2", "exaone4", "falcon", "falcon_11b", "falcon_40b", "gemma", "gemma2",
    "gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "llama", "ministral", "mistral", "mpt",
    "olmo", "olmo2", "olmo3", "opt", "phi", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2",
]  # fmt: skip
Token = int | str | None
Engine = Literal["coca_train", "mlx_lm", "transformers"]  # hub/rope_engines.py
OF_PARITY = "tokens of each parity probe"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ImportConfig:
    """Weights from anywhere as a run directory, which generation, evaluation and `start.path` read."""

    source: str = Field(
        description="folder of safetensors of a known family (docs/interop.md) or of our exports, or a run directory"
    )
    name: Name = Field(description="name of the new run; its directory is <root>/<name>")
    root: str = Field(default="runs", description="folder that holds the run directories")
    position: Literal["as_source", "coca", "coca_strict"] = Field(
        default="as_source", description="coca, coca_strict: T is made from K"
    )
    t_from_k: Literal["mean_of_halves", "first_half", "random"] = Field(
        default="mean_of_halves", description="how T is made"
    )
    t_width: Literal["as_source", "half", "full_mean"] = Field(
        default="as_source",
        description="of a T made from K (as_source: as wide as K, full_mean); half folds a T of full width",
    )
    keys: Literal["auto", "k", "t"] = Field(
        default="auto", description="what a folder's key projections are; t: CoCA's official GPT-NeoX weights"
    )
    seed: int = Field(default=1234, ge=0, description="of t_from_k=random")
    tokenizer: str = Field(default="auto", description="auto (that of the weights), none, or a file")
    eod: Token = Field(
        default=None, description="token that ends a document, an id or its text; null = as the folder says"
    )
    bos: Token = Field(
        default=None, description="token that begins a text, an id or its text; null = as the folder says"
    )
    pad: Token = Field(
        default=None, description="token that fills a batch, an id or its text; null = as the folder says"
    )
    ignore: Names = Field(
        default_factory=list,
        description="keys of config.json known to change nothing, with commas between them; of a section with a dot, "
        "such as rope_scaling.finetuned",
    )
    parity_tokens: Positive = Field(default=2048, description=OF_PARITY)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ExportConfig:
    """A run as a folder for transformers, with no code of ours where a class of theirs computes the same."""

    run: str = Field(description="directory of a run, or a Hugging Face folder")
    to: str = Field(description="the new folder")
    dtype: Literal["as_run", "fp32", "bf16", "fp16"] = Field(default="as_run", description="precision of the weights")
    form: Form = Field(default="auto", description="auto: native where a class of transformers fits")
    tokenizer: str = Field(default="auto", description="auto (the run's), none, or a file")
    parity_tokens: Positive = Field(default=2048, description=OF_PARITY)
    merge: bool = Field(
        default=True,
        description="true: the whole model; false: the adapters of a LoRA stage alone, for peft, in float32",
    )
    base: str | None = Field(
        default=None,
        description="with merge=false: folder, or name at a hub, of the model that the stage began with; null = the "
        "folder that start.path names or was imported from",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class VerifyConfig:
    """A run's own files; or the parity check between a run and a folder that both exist; or an engine's frequencies."""

    run: str | None = Field(default=None, description="directory of a run; with against, a Hugging Face folder too")
    against: str | None = Field(
        default=None,
        description="a Hugging Face folder whose logits are compared with the run's; null: the run's files",
    )
    rope: Engine | None = Field(
        default=None,
        description="engine whose rotary frequencies are compared with exact ones, in place of a run with a folder",
    )
    python: str | None = Field(
        default=None, description="interpreter that has the engine of `rope`; null: the one that runs this"
    )
    tokenizer: str = Field(default="auto", description="auto (the run's), none, or a file")
    parity_tokens: Positive = Field(default=2048, description=OF_PARITY)


def _rules(given: Mapping[str, object], launch: bool) -> list[Problem]:
    """Require a run, or an engine alone."""
    said = {key for key, value in given.items() if value is not None}
    if "rope" in said:
        text = "an engine is compared with exact numbers, not with a model"
        return [Problem("E-CFG-31", (key,), text, f"omit {key}") for key in ("run", "against") if key in said]
    if "rope" not in given:
        return []  # a problem of its own
    missing = [] if "run" in said else ["run"]
    problems = [Problem("E-CFG-11", (key,), "it has no value; it needs text", f"pass {key}=…") for key in missing]
    text = "only the interpreter of an engine can be chosen"
    return problems + ([Problem("E-CFG-31", ("python",), text, "add rope=transformers")] if "python" in said else [])


IMPORT = Root(
    name="import", schema=ImportConfig, command="coca_train import", examples="source=Llama-2-7b-hf name=llama2"
)
EXPORT = Root(name="export", schema=ExportConfig, command="coca_train export", examples="run=runs/llama2 to=llama2-hf")
VERIFY = Root(
    name="verify",
    schema=VerifyConfig,
    check=_rules,
    command="coca_train verify",
    examples="run=runs/llama2 against=Llama-2-7b-hf",
)
