"""`python -m coca_train.generate run=runs/quickstart prompt="def main"`: what a trained model writes.

  python -m coca_train.generate run=runs/quickstart prompt="def main" visibility=sinks visibility.window=64

options (key=value)
  run              directory of a run
  prompt           text to go on from
  max_new_tokens   length of the continuation [tokens]; it may end earlier, at the end of the document
  temperature      0: always the most probable token (greedy); 1: sample as the model says
  top_k            sample among the k most probable tokens; 0: all
  top_p            sample among the fewest tokens whose probabilities reach p together; 1: all
  seed             of the sampling
  dynamic_length   what dynamic frequencies adapt to: sequence (prompt + max_new_tokens) or step (tokens so far)
  use_cache        false: recompute the whole text for every token (slow; for comparison)
  device           auto, cpu or cuda
  visibility, position/frequencies, and options inside them: as in a training (python -m coca_train --help); other
                   choices than the model was trained with, on the same weights. The base theta stays
"""

import sys
import time
from dataclasses import dataclass
from typing import Literal

from coca_train.config.arguments import parse
from coca_train.runtime import dist, entry
from coca_train.runtime.errors import UserError
from coca_train.vary import GROUPS, varies, vary


@dataclass(frozen=True)
class Options:
    """See the module's docstring."""

    run: str
    prompt: str
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    dynamic_length: Literal["sequence", "step"] = "sequence"
    use_cache: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"


def _main(argv: list[str]) -> int:
    if not argv or {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    words = [word for word in argv if word != "--debug"]
    options = parse(Options, [word for word in words if not varies(word)], also=GROUPS)
    import torch

    from coca_train.checkpoint.opening import load_run
    from coca_train.models.generation import check_options, check_positions, generate

    run = load_run(options.run, options.device)
    config = vary(run.loaded.config, [word for word in words if varies(word)])
    run.model.set_position(config.position)
    run.model.set_visibility(config.visibility)
    tokens = run.tokenizer.encode(options.prompt)
    try:
        check_options(tokens, options.max_new_tokens, options.temperature, options.top_k, options.top_p)
        check_positions(run.model, len(tokens), options.max_new_tokens)
    except ValueError as error:
        raise UserError(f"E-CFG-02 command line: {error}. Fix: change that option") from error
    begin = time.perf_counter()
    new = generate(
        run.model,
        tokens,
        options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        generator=torch.Generator().manual_seed(options.seed),
        eod=run.tokenizer.eod,
        dynamic_length=options.dynamic_length,
        use_cache=options.use_cache,
    )
    seconds = time.perf_counter() - begin
    print(options.prompt + run.tokenizer.decode(new))
    speed = f"{len(new) / seconds:,.0f} tokens/s" if new else "nothing to add"
    dist.log(f"\n[{options.run}, step {run.step}: {len(tokens)} + {len(new)} tokens, {speed}]")
    return 0


if __name__ == "__main__":
    sys.exit(entry.run(_main))
