"""Generate text from a trained model."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.arguments import Arguments
from coca_train.config.fields import Text
from coca_train.config.inheritance import GROUPS
from coca_train.config.load import Loaded
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Seed
from coca_train.config.verb import Verb
from coca_train.data.tokenizer import SpecialTokensInText, Tokenizer
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.runtime.printing import printed
from coca_train.vary import is_inference_option, vary

if TYPE_CHECKING:
    from coca_train.checkpoint.opening import TrainedRun

USAGE = """\
Generate text from a trained run.

  python -m coca_train generate run=runs/quickstart prompt="def main("
  python -m coca_train generate run=runs/quickstart prompt=Once attention_pattern=sinks attention_pattern.window=64

attention_pattern=, position/rope_scaling=, their options and model.logit_scale.… mean what they do in a training
(python -m coca_train train --help). They exchange what the model was trained with, on the same weights. The base theta
stays.
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GenerateConfig:
    """The run, the prompt, and how tokens are sampled."""

    run: str = Field(description="directory of a run")
    prompt: Text = Field(description="the prompt; everything after prompt= is taken literally")
    begin: Literal["auto", "bos", "none"] = Field(
        default="auto",
        description="tokens before the prompt. bos: the one that begins a text; none: no token; auto: those that the "
        "tokenizer of the Hugging Face folder puts there, where the weights come from one",
    )
    special_tokens: SpecialTokensInText = Field(
        default="text",
        description="what <|im_start|> and the like become where the prompt has them. text: plain text; tokens: the "
        "special tokens of that name, for a prompt written as the model's chat template has it",
    )
    max_new_tokens: int = Field(
        default=64,
        ge=0,
        description="length of the continuation [tokens]; it may end earlier, at the end of the document",
    )
    temperature: float = Field(
        default=0.0, ge=0, description="0: always the most probable token (greedy); 1: sample as the model says"
    )
    top_k: int = Field(default=0, ge=0, description="sample among the k most probable tokens; 0: all")
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="sample among the fewest tokens whose probabilities reach p together; 1: all",
    )
    seed: Seed = Field(default=0, description="of the sampling")
    dynamic_length: Literal["sequence", "step"] = Field(
        default="sequence",
        description="what dynamic frequencies adapt to: sequence (prompt + max_new_tokens) or step (tokens so far)",
    )
    use_cache: bool = Field(
        default=True, description="false: recompute the whole text for every token (slow; for comparison)"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: cuda where there is a GPU")


def _tokens(run: "TrainedRun", tokenizer: Tokenizer, given: GenerateConfig) -> list[int]:
    """Those that begin it and its own. UserError where prompt and continuation leave more in the cache than this
    machine holds."""
    from coca_train.config.sizes import check_cache
    from coca_train.evaluation.subject import begin_of, run_begins

    begins = run_begins(Path(given.run), tokenizer) if given.begin == "auto" else ()
    tokens = [*begin_of(given.begin, begins, tokenizer), *tokenizer.encode(given.prompt, given.special_tokens)]
    for problem in check_cache(run.loaded.config.model, len(tokens) + given.max_new_tokens):
        raise UserError(f"{problem.id} command line {problem.message}. Fix: {problem.fix}")
    return tokens


def _generate(loaded: Loaded[GenerateConfig], arguments: Arguments) -> None:
    import torch

    from coca_train.checkpoint.opening import load_run
    from coca_train.evaluation.subject import no_tokenizer
    from coca_train.models.generation import check_options, check_positions, generate, require_causal

    given: GenerateConfig = loaded.config
    run = load_run(given.run, given.device)
    if (tokenizer := run.tokenizer) is None:
        raise no_tokenizer(Path(given.run))
    require_causal(run.model, f"run={given.run}")
    config = vary(run.loaded.config, arguments.overrides)
    run.model.set_position(config.position)
    run.model.set_attention_pattern(config.attention_pattern)
    run.model.set_logit_scale(config.model.logit_scale)
    tokens = _tokens(run, tokenizer, given)
    try:
        check_options(tokens, given.max_new_tokens, given.temperature, given.top_k, given.top_p)
        check_positions(run.model, len(tokens), given.max_new_tokens)
    except ValueError as error:
        raise UserError(f"E-CFG-02 command line: {error}. Fix: change that option") from error
    begin = time.perf_counter()
    new = generate(
        run.model,
        tokens,
        given.max_new_tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        generator=torch.Generator().manual_seed(given.seed),
        eod=tokenizer.eod,
        dynamic_length=given.dynamic_length,
        use_cache=given.use_cache,
    )
    seconds = time.perf_counter() - begin
    print(printed(given.prompt + tokenizer.decode(new)))
    speed = f"{len(new) / seconds:,.0f} tokens/s" if new else "nothing to add"
    dist.log(f"\n[{given.run}, step {run.step}: {len(tokens)} + {len(new)} tokens, {speed}]")


GENERATE = Root(
    name="generate",
    schema=GenerateConfig,
    command="coca_train generate",
    examples="temperature=0.8",
    passthrough_groups=tuple(GROUPS),
)
VERB = Verb(GENERATE, USAGE, _generate, needs_words=True, is_for_training=is_inference_option)
