"""The shape of a run: frozen, typed, described. Values live in `configs/*.yaml`, never here.

Every field carries its description (unit in square brackets) and its bounds; `--help`, the
generated reference in `docs/` and the error messages read them from here.
"""

from dataclasses import Field as DataclassField
from typing import Annotated, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SkipValidation
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from coca_train.config.fields import Names

DEFAULT = "default"  # the layer type that has the run's own position and attention pattern
MAX_SEED = 2**63 - 1  # what torch.manual_seed takes
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def _whole(value: object) -> int:
    """Refuse 1.0 and true, which pydantic takes where 1 is one of the choices."""
    if type(value) is not int:
        raise PydanticCustomError("literal_error", "not a whole number")
    return value


class ModuleSettings(Protocol):
    """Settings of a module that a section names: a frozen dataclass, whose fields only the module knows."""

    __dataclass_fields__: ClassVar[dict[str, DataclassField[object]]]


class SchemeSettings(ModuleSettings, Protocol):
    """Settings of a position scheme, which they name."""

    @property
    def scheme(self) -> str: ...


@runtime_checkable
class CheckedSettings(SchemeSettings, Protocol):
    """Settings of a position scheme that does not fit every model."""

    def problems(self, model: "ModelConfig") -> list[tuple[str, str, str]]: ...


class PatternSettings(ModuleSettings, Protocol):
    """Settings of an attention pattern, which they name."""

    @property
    def name(self) -> str: ...


Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
UpToAMillion = Annotated[int, Field(gt=0, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Heads = Annotated[int, Field(gt=0, le=65536)]
GATED = ("swiglu", "geglu", "geglu_tanh")
BIASED = ("qkv", "out", "mlp", "norm", "head")
Biases = Annotated[
    list[Literal["qkv", "out", "mlp", "norm", "head"]],
    AfterValidator(lambda parts: [part for part in BIASED if part in parts]),  # equal sets are equal lists
]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunConfig:
    """Where a run lives and how it starts."""

    name: Name = Field(
        description="name of the run; its directory is <root>/<name>. Where start.path is set and neither the command "
        "line nor an experiment names the run: the folder's name and a digest of its path"
    )
    root: str = Field(default="runs", description="folder that holds the run directories")
    seed: Seed = Field(default=1234, description="seed of the weights and of dropout")
    resume: Literal["auto", "must", "never"] = Field(
        default="auto",
        description="auto: go on from the newest verified checkpoint; must: refuse to start without one; "
        "never: refuse a directory that holds one",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LogitScaleConfig:
    """Scores multiplied by a number that grows with the query's position, or with the length of the text
    (docs/positions.md, "Layers")."""

    name: Literal["none", "log", "ssmax", "steps", "shifted_log", "by_length"] = Field(
        default="none",
        description="none; log: max(1, ln(m+1) / ln(length)); ssmax: ln(m+1) / ln(length), to be learned by "
        "model.score_scale; steps: 1 + beta ln(1 + floor((m+1) / length)), Llama "
        "4's; shifted_log: ln(m + length) / ln(length), HyPE's, of layers without positions; by_length: 1 + beta ln(l "
        "/ length) in a text of l tokens, DroPE's",
    )
    length: Annotated[int, Field(gt=1)] | None = Field(
        default=None,
        description="context length up to which scores are not scaled [tokens]; of shifted_log a number to tune "
        "(HyPE: 500); null = train.seq_len",
    )
    beta: float = Field(
        default=0.1,
        gt=0,
        description="coefficient of the logarithm of steps and by_length (DroPE: 0.412 from scratch, 0.103 for SmolLM)",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelConfig:
    """The Transformer: GPT-NeoX or LLaMA, by these values only."""

    n_layers: Annotated[int, Field(gt=0, le=2000)] = Field(description="number of Transformer blocks")
    d_model: Positive = Field(description="width of the residual stream")
    n_heads: Heads = Field(description="query heads")
    n_kv_heads: Heads | None = Field(default=None, description="key/value heads (GQA); null = n_heads")
    head_dim: Heads | None = Field(default=None, description="width of a head; null = d_model / n_heads")
    d_ff: Positive = Field(description="width of the feed-forward layer")
    vocab_size: Positive | None = Field(
        default=None, description="embedding rows [tokens]; null = the tokenizer's, rounded up to 64"
    )
    norm: Literal["layernorm", "rmsnorm"] = Field(default="rmsnorm", description="normalisation")
    norm_eps: float = Field(default=1e-5, gt=0, description="added to the variance in the normalisation")
    norm_weight: Literal["plain", "one_plus", "none"] = Field(
        default="plain",
        description="what the normalised input is multiplied by: its weight w; 1 + w (rmsnorm only; Gemma); nothing "
        "(OLMo)",
    )
    norm_placement: Literal["pre", "post", "both"] = Field(
        default="pre",
        description="normalisation of the input of attention and feed-forward (pre), of their output before it is "
        "added (post; OLMo 2), or both (Gemma 2, GLM-4)",
    )
    embedding_norm: bool = Field(default=False, description="normalise the token embeddings (BLOOM)")
    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "swiglu", "geglu", "geglu_tanh"] = Field(
        default="swiglu", description="feed-forward activation; swiglu, geglu and geglu_tanh are gated"
    )
    qk_norm: Literal["none", "head", "full"] = Field(
        default="none",
        description="RMSNorm of queries and keys before the position scheme: over each head (Qwen 3, Gemma 3), or over "
        "all heads together (full; OLMo 2)",
    )
    score_scale: Literal["none", "head"] = Field(
        default="none",
        description="head: each head of each layer learns a factor of its scores, which begins at 1 (Scalable-Softmax, "
        "with model.logit_scale.name=ssmax)",
    )
    learned_sink: bool = Field(
        default=False,
        description="each head of each layer learns the score of a key without a value, which takes attention where "
        "no key fits (gpt-oss)",
    )
    attention_multiplier: float | None = Field(
        default=None, gt=0, description="factor of q·k; null = 1 / sqrt(head_dim)"
    )
    clip_qkv: float | None = Field(
        default=None, gt=0, description="queries, keys and values are clipped to ±this as projected (MPT); null = no"
    )
    score_cap: float | None = Field(
        default=None,
        gt=0,
        description="scores are capped: cap tanh(score / cap), before the softmax (Gemma 2); null = no",
    )
    embedding_multiplier: float = Field(default=1.0, gt=0, description="factor of the token embeddings")
    residual_multiplier: float = Field(
        default=1.0, gt=0, description="factor of the outputs of attention and feed-forward before they are added"
    )
    logits_multiplier: float = Field(default=1.0, gt=0, description="factor of the logits")
    logits_cap: float | None = Field(
        default=None, gt=0, description="logits are capped: cap tanh(logit / cap) (Gemma 2); null = no"
    )
    logit_scale: LogitScaleConfig = Field(
        default=LogitScaleConfig(), description="growth of the scores with the length"
    )
    residual: Literal["parallel", "parallel_one_norm", "sequential"] = Field(
        default="sequential",
        description="parallel: x + attention(norm x) + mlp(another norm x), GPT-NeoX; parallel_one_norm: the same norm "
        "for both (Cohere); sequential: one after the other",
    )
    bias: Biases = Field(
        default_factory=list,
        description="which parts have biases: qkv, out (attention's output projection), mlp, norm (layernorm only), "
        "head (the output head)",
    )
    tie_embeddings: bool = Field(default=False, description="share the input embedding with the output head")
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="dropout probability on attention and feed-forward outputs"
    )
    init_std: float = Field(default=0.02, gt=0, description="standard deviation of the initial weights")
    init_depth_scaled: bool = Field(
        default=False, description="divide the std of residual output projections by sqrt(2 n_layers)"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LayerTypeConfig:
    """One layer type: overrides of the run's sections. What is left out is inherited."""

    position: dict[str, object] = Field(
        default_factory=dict, description="e.g. {scheme: nope}, or {rope_scaling: {name: plain, theta: 10000.0}}"
    )
    attention_pattern: dict[str, object] = Field(
        default_factory=dict, description="e.g. {name: sliding_window, window: 512}, or {name: causal}"
    )
    logit_scale: dict[str, object] = Field(
        default_factory=dict, description="over model.logit_scale, e.g. {name: steps, length: 8192}"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LayersConfig:
    """Which position and attention pattern each layer has."""

    pattern: list[str] = Field(
        default_factory=list,
        description="types of the layers from the first on, repeated to the last: `default` (as the run says) "
        "and names of `types`; [] = every layer is `default`",
    )
    types: dict[str, LayerTypeConfig] = Field(
        default_factory=dict, description="layer types other than `default`, by name"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainConfig:
    """Length of the training, window and batch sizes."""

    max_steps: Positive = Field(description="length of the training [optimizer steps]")
    seq_len: Positive = Field(description="training window [tokens]")
    micro_batch_size: Positive = Field(
        description="upper limit of [sequences] per device and forward pass; lowered to a divisor of the device's "
        "share of the global batch"
    )
    global_batch_size: UpToAMillion = Field(description="[sequences] per optimizer step, over all devices")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StartConfig:
    """The weights that training starts from."""

    path: str | None = Field(
        default=None,
        description="run directory, or Hugging Face folder (imported first, into `start` of this run's directory); "
        "null = random initialization",
    )
    check_tokenizer: bool = Field(
        default=True,
        description="refuse weights that were trained with another tokenizer file; false: skip this check, where the "
        "token ids are the same",
    )
    convert: Names = Field(
        default_factory=list,
        description="conversions applied to the weights, with commas between them, e.g. rope_to_coca (`python -m "
        "coca_train schemes` lists them); [] = none: another scheme or theta is refused",
    )
    t_from_k: Literal["mean_of_halves", "first_half", "random"] = Field(
        default="mean_of_halves", description="rope_to_coca: how T is computed from K (docs/interop.md)"
    )
    keys: Literal["auto", "k", "t"] = Field(
        default="auto",
        description="how to read a folder's key projections: k: W_K; t: CoCA's W_T, as in its official GPT-NeoX "
        "weights",
    )
    ignore: list[str] = Field(
        default_factory=list, description="keys of a folder's config.json to ignore, because they change nothing"
    )
    parity_tokens: Positive = Field(
        default=2048, description="length of each probe in the parity check of an imported folder [tokens]"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LoraConfig:
    """Low-rank adapters in place of weight matrices (arXiv 2106.09685)."""

    rank: Annotated[int, Field(gt=0, le=65536)] | None = Field(
        default=None,
        description="every weight matrix of a linear layer that `trainable` matches is trained as W + alpha/rank B A, "
        "B and A of this rank (needs the lora extra); null = in full",
    )
    alpha: float = Field(default=16.0, gt=0, description="scale of the adapters is alpha/rank")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StageConfig:
    """One stage of the schedule: overrides of the run's sections. What is left out is inherited."""

    trainable: list[str] = Field(
        default_factory=lambda: ["*"],
        min_length=1,
        description="patterns over parameter names (shell style); '*' = all",
    )
    max_steps: Positive | None = Field(
        default=None, description="length of the stage [optimizer steps]; null = as `tokens` says, or train.max_steps"
    )
    tokens: Positive | None = Field(
        default=None, description="the same in [tokens], rounded up to whole steps; null = max_steps"
    )
    optimizer: Literal["fresh", "keep"] = Field(
        default="fresh",
        description="fresh: reset the optimizer's state; keep: carry it over for the parameters that the stage before "
        "trained",
    )
    lora: LoraConfig = Field(default=LoraConfig(), description="low-rank adapters")
    train: dict[str, object] = Field(default_factory=dict, description="e.g. {seq_len: 32768, micro_batch_size: 1}")
    optim: dict[str, object] = Field(default_factory=dict, description="e.g. {lr: 2.0e-5, schedule: constant}")
    data: dict[str, object] = Field(
        default_factory=dict, description="e.g. {packing: segments}; a source of null is left out"
    )
    position: dict[str, object] = Field(
        default_factory=dict, description="e.g. {rope_scaling: {name: linear, factor: 16}}"
    )
    attention_pattern: dict[str, object] = Field(
        default_factory=dict, description="e.g. {name: sliding_window, window: 4096}"
    )
    layers: dict[str, object] = Field(
        default_factory=dict, description="e.g. {types: {local: {attention_pattern: {window: 1024}}}}"
    )
    engine: dict[str, object] = Field(
        default_factory=dict, description="e.g. {zero_stage: 3, activation_checkpointing: full}"
    )
    eval: dict[str, object] = Field(default_factory=dict, description="e.g. {every_steps: 50}")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SourceConfig:
    """One part of the training mixture."""

    path: str = Field(description="prefix of the .bin/.idx pair")
    valid_path: str | None = Field(default=None, description="prefix of the held-out .bin/.idx pair; null = none")
    weight: float = Field(gt=0, description="share of the training tokens, relative to the other sources")
    on_exhausted: Literal["repeat", "stop"] = Field(
        default="repeat", description="after the last token of the source: start again, or stop the run"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PlacementConfig:
    """Where the tokens of a training row are said to stand (docs/positions.md, "Placement")."""

    name: Literal["text", "pose", "random", "cream", "longrecipe"] = Field(
        default="text",
        description="text: one after the other; pose: in two pieces with a gap between them (PoSE); random: a sorted "
        "sample of all positions; cream: head, middle and tail (CREAM); longrecipe: sentences in one piece, gaps "
        "between them (LongRecipe). Drawn for each document of a row",
    )
    target: Positive | None = Field(
        default=None, description="length to reach: positions are drawn below it [tokens]; needed unless name=text"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AnswersConfig:
    """The pieces around the answers of a text, where these alone are to be learned."""

    begin: str | None = Field(
        default=None,
        description="piece after which predictions are scored, until `end` or the end of the document; null = all are",
    )
    end: str | None = Field(default=None, description="piece that is the last one scored of an answer")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ObjectiveConfig:
    """What is predicted of a text (docs/data.md, "Masked tokens")."""

    name: Literal["next_token", "masked_token"] = Field(
        default="next_token",
        description="next_token: each token from those before it; masked_token: some tokens, which are hidden, from "
        "those on both sides (BERT)",
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.15, description="masked_token: of the tokens that are chosen to be predicted"
    )
    masked: Share = Field(default=0.8, description="masked_token: of the chosen tokens, shown as the mask")
    random: Share = Field(
        default=0.1, description="masked_token: of the chosen tokens, shown as a random one; the rest is shown as it is"
    )
    mask: str | None = Field(
        default=None,
        description="masked_token: piece that is shown for what is hidden; null = the tokenizer's <mask>, [MASK] or "
        "<|mask|>, else its unknown piece, where no text is encoded as it",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CurriculumConfig:
    """Contexts that grow within a stage (SkyLadder; docs/data.md, "Contexts that grow")."""

    begin: Positive | None = Field(
        default=None,
        description="tokens that see each other at the first step: rows are cut into pieces, which grow until rows are "
        "whole; null = whole rows from the first step",
    )
    steps: Positive | None = Field(default=None, description="steps of a stage until rows are whole")
    shape: Literal["linear", "sine", "exponential"] = Field(
        default="linear",
        description="how pieces grow with the step; sine: sooner; exponential: by the same factor each step, so later",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataConfig:
    """The training mixture and its tokenizer."""

    path: str | None = Field(
        default=None,
        description="folder of raw text to train on (.txt, .md, .jsonl, .jsonl.gz, .jsonl.zst, .parquet, mixed, with "
        "subfolders): tokenized once, into a folder of its own, and dir, sources and, without start.path, tokenizer "
        "follow from it; null = dir and sources name prepared files",
    )
    text_field: str = Field(default="text", description="path: dotted field of .jsonl and .parquet that holds the text")
    vocab_size: Positive | None = Field(
        default=None,
        description="path: size of the vocabulary to train [token ids]; null = from the size of the text: twice the "
        "square root of its bytes, in hundreds, 32,000 at most",
    )
    valid_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="path: share of the documents held out; null = as many as a report needs, within 10 % of the text",
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop",
        description="path: a bad document: stop with file, line and reason; or skip it, and list it in <dir>/rejects",
    )
    prepare: Literal["embedded", "diagnostics", "none"] = Field(
        default="none",
        description="make the corpus when it is missing: embedded: the quickstart's; diagnostics: short tasks with "
        "exact answers; none: the files exist, or are made from path",
    )
    dir: str = Field(description="folder of the prepared data")
    tokenizer: str = Field(default="${data.dir}/tokenizer.model", description="SentencePiece model file")
    sources: dict[str, SourceConfig] = Field(min_length=1, description="the parts of the mixture, by name")
    seed: Seed = Field(default=1234, description="seed of the data order")
    order: Literal["shuffled", "stream"] = Field(
        default="shuffled",
        description="shuffled: windows in random order; stream: row i of a batch continues row i of the batch before "
        "(which position.memory_len needs)",
    )
    packing: Literal["windows", "segments", "documents"] = Field(
        default="windows",
        description="windows: the token stream cut every train.seq_len tokens; segments: a BOS, seq_len - 2 tokens of "
        "the stream, an EOS (YaRN's recipe); documents: whole documents side by side (needs document_mask)",
    )
    upsample_from_tokens: Positive | None = Field(
        default=None,
        description="documents of at least this length are repeated upsample_factor times an epoch (packing=segments "
        "or documents) [tokens]; null = each once",
    )
    upsample_factor: Positive = Field(default=1, description="repetitions of those long documents in an epoch")
    document_mask: bool = Field(
        default=False, description="no attention across documents; positions restart at each document"
    )
    placement: PlacementConfig = Field(
        default=PlacementConfig(), description="positions that a shorter row is trained at; evaluation has its own"
    )
    answers: AnswersConfig = Field(
        default=AnswersConfig(), description="pieces around the answers of prompts: only these are learned"
    )
    objective: ObjectiveConfig = Field(default=ObjectiveConfig(), description="what is predicted of a text")
    curriculum: CurriculumConfig = Field(
        default=CurriculumConfig(), description="contexts that are short at first, and grow to train.seq_len"
    )
    length_of: Literal["row", "document"] = Field(
        default="row",
        description="the length that frequencies follow in training. row: train.seq_len; document: that of the longest "
        "document of a row, so that short ones have the frequencies of short texts (LongRoPE2's mixed windows; needs "
        "document_mask and train.micro_batch_size=1)",
    )
    verify_blocks: bool = Field(
        default=True,
        description="verify the checksum of each 4 MiB block of training and held-out data on its first read, where "
        "data_prep wrote a .sums file",
    )
    prefetch_steps: int = Field(
        default=4,
        ge=0,
        le=1000,
        description="batches that a thread reads ahead [steps], limited to half of the memory; 0 = none",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MuonConfig:
    """Muon (Jordan 2024; Moonlight, arXiv 2502.16982); weight decay is `optim.weight_decay`."""

    lr: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="peak learning rate of the blocks' matrices, on the schedule of optim.lr; null = optim.lr",
    )
    momentum: float = Field(default=0.95, ge=0, lt=1, description="Nesterov momentum")
    adjust_lr: Literal["match_rms_adamw", "original"] = Field(
        default="match_rms_adamw",
        description="factor of an update; match_rms_adamw: 0.2 sqrt(max(rows, columns)), so that AdamW's learning "
        "rate fits (Moonlight); original: sqrt(max(1, rows / columns))",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OptimConfig:
    """Optimizer: AdamW (Loshchilov & Hutter, arXiv 1711.05101), or Muon with AdamW; learning-rate schedule."""

    lr: float = Field(gt=0, description="peak learning rate")
    min_lr: float = Field(default=0.0, ge=0, description="learning rate at the last step")
    warmup_steps: int = Field(ge=0, description="linear warm-up [steps]")
    warmup_init_lr: float = Field(default=0.0, ge=0, description="learning rate at step 0 of the warm-up")
    schedule: Literal["linear", "cosine", "constant", "wsd"] = Field(
        default="linear",
        description="decay after the warm-up; wsd: constant, then down in the last `cooldown` of the steps",
    )
    cooldown: float = Field(
        default=0.1, gt=0, le=1, description="fraction of the steps spent in the cooldown (wsd only)"
    )
    cooldown_shape: Literal["linear", "sqrt"] = Field(
        default="linear", description="shape of the cooldown: linear, or 1 - sqrt(progress) (wsd only)"
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.95), description="Adam's moment decay rates"
    )
    eps: float = Field(default=1e-8, gt=0, description="Adam's epsilon")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay, on matrices only")
    max_grad_norm: float = Field(default=1.0, gt=0, description="gradient clipping, global L2 norm")
    name: Literal["adamw", "muon"] = Field(
        default="adamw", description="muon: Muon for the blocks' matrices, AdamW for all other parameters"
    )
    muon: MuonConfig = Field(default=MuonConfig(), description="Muon's options (name=muon only)")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EngineConfig:
    """What executes a training step."""

    kind: Literal["deepspeed", "local"] = Field(
        default="deepspeed", description="deepspeed, or plain torch on one process (the reference)"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: cuda when there is one")
    dtype: Literal["fp32", "bf16", "fp16"] = Field(
        default="bf16", description="compute precision; master weights stay float32"
    )
    zero_stage: Annotated[Literal[0, 1, 2, 3], BeforeValidator(_whole)] = Field(
        default=1, description="what ZeRO shards: 1 optimizer, 2 + gradients, 3 + weights"
    )
    attention: Literal["auto", "eager", "sdpa", "blocked"] = Field(
        default="auto", description="attention kernel; auto picks the fastest"
    )
    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        default="none",
        description="what the backward pass recomputes: none; selective: all but matmuls with weights and fused "
        "attention; full: each block from its input",
    )
    compile: Literal["auto", "none", "blocks"] = Field(
        default="auto",
        description="blocks: torch.compile, block by block, in training, 0.67 to 0.79 of the time on Hopper "
        "(docs/gpu.md); auto: none",
    )
    sequence_parallel: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1,
        description="processes that share each sequence: each has a slice of its tokens, and in attention some of the "
        "heads (Ulysses); 1 = none",
    )
    mlp_tile: Positive | None = Field(
        default=None,
        description="positions that a feed-forward layer computes at a time, recomputed in the backward pass "
        "[tokens]; null = all at once",
    )
    bucket_size: Annotated[int, Field(ge=1, le=10**10)] = Field(
        default=5_000_000, description="ZeRO reduce and all-gather bucket [elements]"
    )
    gradient_reduction: Literal["all_reduce", "owner"] = Field(
        default="all_reduce",
        description="how ZeRO 1 (except in bf16) and 2 reduce gradients: all_reduce: every rank gets the sum and "
        "keeps its partition; owner: each partition goes to its owner, half the traffic. ZeRO 3 always "
        "reduce-scatters",
    )
    communication_dtype: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="dtype in which gradients are communicated; auto: fp32, or fp16 where dtype=fp16"
    )
    overlap_communication: bool | None = Field(
        default=None, description="send gradients while the backward pass runs; null = in ZeRO 2 and 3"
    )
    prefetch_size: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="ZeRO 3: parameters gathered ahead of use [elements]; null = 0.9 d_model^2"
    )
    persistence_threshold: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="ZeRO 3: parameters up to this size are not partitioned [elements]; null = 10 d_model"
    )
    deterministic: bool = Field(
        default=False,
        description="on GPUs: bit-identical results in every run of the same layout, slower (docs/operations.md, "
        "Resume); on CPUs results always are",
    )
    timeout_s: UpToAMillion = Field(
        default=600, description="timeout of a collective, after which a rank counts as dead or hung [seconds]"
    )
    max_skipped_steps: Positive = Field(
        default=20, description="consecutive steps with non-finite gradients to skip before the run gives up [steps]"
    )
    recheck_every_steps: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="interval between steps whose gradients are computed twice, and after which nothing may change "
        "until the next one, to find faulty memory and devices; 0 = never [steps]. On GPUs it needs deterministic=true",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CheckpointConfig:
    """When checkpoints are saved, and how many are kept."""

    save_every_steps: Positive = Field(
        default=100, description="interval between checkpoints [steps]; the last step is always saved"
    )
    keep: int = Field(default=2, ge=2, description="verified checkpoints kept (at least 2)")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrackingConfig:
    """Where metrics go; metrics.jsonl is always written."""

    log_every_steps: Positive = Field(default=10, description="interval between metric records [steps]")
    progress_bar: bool = Field(default=True, description="live progress on the terminal")
    tensorboard: bool = Field(default=False, description="write TensorBoard events (needs the tensorboard extra)")
    wandb: Literal["disabled", "offline", "online"] = Field(
        default="disabled", description="Weights & Biases (needs the wandb extra)"
    )
    wandb_project: str = Field(default="coca_train", description="Weights & Biases project")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ExtrapolationConfig:
    """Perplexity beyond the training window, of the finished run and optionally during training."""

    enabled: bool = Field(
        default=True, description="evaluate the finished run, and write its report (docs/evaluation.md)"
    )
    multiples: list[Positive] = Field(
        default_factory=lambda: [1, 2, 4, 8, 16],
        min_length=1,
        description="window lengths [multiples of train.seq_len]",
    )
    rope_scalings: list[str] = Field(
        default_factory=lambda: ["plain", "dynamic_ntk@alpha:4"],
        min_length=1,
        description="choices of position/rope_scaling to evaluate on the trained weights, with options after an @: "
        "dynamic_ntk@alpha:4",
    )
    attention_patterns: list[str] = Field(
        default_factory=list,
        description="choices of attention_pattern to evaluate on the trained weights, with options: sinks@window:256",
    )
    max_documents: Positive = Field(
        default=24,
        description="held-out documents to score, equally many of each source, each at least as long as the longest "
        "window",
    )
    micro_batch_tokens: Positive = Field(default=4096, description="[tokens] per forward")
    every_steps: int = Field(
        default=0, ge=0, description="interval between probes of the same windows during training [steps]; 0 = none"
    )
    probe_documents: Positive = Field(default=2, description="held-out documents per source in such a probe")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvalConfig:
    """What is measured on held-out text."""

    every_steps: Positive = Field(default=100, description="interval between validations [steps]")
    max_tokens: Positive = Field(default=16384, description="held-out [tokens] per source in a validation")
    sample_prompt: str = Field(default="The", description="prompt of the generated sample at the end; empty = none")
    sample_tokens: int = Field(default=64, ge=0, description="length of that sample [tokens]")
    extrapolation: ExtrapolationConfig = Field(
        default=ExtrapolationConfig(), description="the evaluation at the end of the run"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    """All sections of a run. The module that `position` or `attention_pattern` names types it (its class Settings)."""

    run: RunConfig
    model: ModelConfig
    position: SkipValidation[SchemeSettings] = Field(description="Position encoding.")
    attention_pattern: SkipValidation[PatternSettings] = Field(
        description="Which keys a query attends to, and at what distance."
    )
    layers: LayersConfig
    train: TrainConfig
    start: StartConfig
    stages: dict[str, StageConfig] = Field(description="the stage schedule, in order; at least one")
    data: DataConfig
    optim: OptimConfig
    engine: EngineConfig
    checkpoint: CheckpointConfig
    tracking: TrackingConfig
    eval: EvalConfig
