"""`python -m benchmarks.passkey`: passkey answers by shared prefixes, caches and batches, beside plain loops.

ours: coca_train.models.continuations, all cases together: one prefix, a cache, one batch.
unshared: the same without the prefix: every prompt is computed from its beginning.
one by one: coca_train.models.generation with a cache, a case after the other.
plain loop: the whole sequence again for every new token, a case after the other; on the first --plain-cases only.

Cases are those of the suite passkey, tokens are bytes, weights are random; time depends on none of this. Everybody
answers the same prompts with all new tokens; how many answers agree with the plain loop's is told.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.cases import Setup
from benchmarks.measure import machine, say
from coca_train.evaluation.suites.passkey import cases
from coca_train.models.continuations import continuations
from coca_train.models.generation import generate
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.runtime.printing import markdown
from coca_train.settings import load

OURS, UNSHARED, SINGLY, PLAIN = "ours", "unshared", "one by one", "plain loop"
WANTED = 10.0  # times as fast as the plain loop
Answers = dict[int, list[int]]


def build(options: argparse.Namespace) -> Transformer:
    setup = Setup(options.device, options.dtype)
    config = load([f"model={options.model}", f"position={options.position}"]).config
    with torch.device(options.device):
        model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=256, max_seq_len=512)
    init_weights(model, config.model, seed=0)
    return model.to(setup.torch_dtype).eval()


def works(model: Transformer, prompts: Sequence[Sequence[int]], options: argparse.Namespace) -> dict[str, Callable]:
    """By name; each returns the answers by the case's number."""
    n_new, length = options.new_tokens, options.length + options.new_tokens

    def together(share: bool) -> Answers:
        return continuations(
            model, prompts, n_new, length=length, micro_batch_tokens=options.micro_batch_tokens, share=share
        )

    def singly(use_cache: bool, n_cases: int) -> Answers:
        return {i: generate(model, prompts[i], n_new, use_cache=use_cache) for i in range(n_cases)}

    return {
        OURS: lambda: together(True),
        UNSHARED: lambda: together(False),
        SINGLY: lambda: singly(True, len(prompts)),
        PLAIN: lambda: singly(False, options.plain_cases),
    }


def timed(work: Callable[[], Answers], device: str) -> tuple[float, Answers]:
    """Seconds a case, and the answers. On the CPU they are the process's own, so that other work counts little."""
    if device == "cpu":
        begin = time.process_time()
        answers = work()
        return (time.process_time() - begin) / len(answers), answers
    torch.cuda.synchronize()
    begin = time.perf_counter()
    answers = work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / len(answers), answers


def table(seconds: dict[str, float], agree: dict[str, str]) -> str:
    rows = [[n, f"{s:.2f}", f"{s / seconds[OURS]:.1f}", agree[n]] for n, s in seconds.items()]
    return markdown(["what", "s a case", "ours is so many times as fast", "answers as the plain loop"], rows)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.passkey", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if gpu else "cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--model", default="neox_350m" if gpu else "neox_tiny", help="configs/model/<name>.yaml")
    parser.add_argument("--position", default="rope")
    parser.add_argument("--length", type=int, default=4096, help="of the prompts [tokens]")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--plain-cases", type=int, default=1, help="of these, how many the plain loop answers")
    parser.add_argument("--places", choices=["uniform", "even"], default="uniform")
    parser.add_argument("--micro-batch-tokens", type=int, default=65536)
    parser.add_argument("--out", type=Path, default=None, help="also write the figures as JSON here")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    facts = machine(Setup(options.device, options.dtype))
    print(", ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    model = build(options)
    problems = cases(
        lambda text: list(text.encode()), options.length, options.cases, places=options.places, n_depths=10, seed=0
    )
    prompts = [case.tokens for case in problems]
    generate(model, prompts[0][:64], 2)  # the first call of anything is slow
    seconds, answers = {}, {}
    for name, work in works(model, prompts, options).items():
        seconds[name], answers[name] = timed(work, options.device)
        say(f"{name}: {seconds[name]:.2f} s a case")
    agree = {
        name: f"{sum(texts[i] == answer for i, answer in answers[PLAIN].items())} of {len(answers[PLAIN])}"
        for name, texts in answers.items()
    }
    sizes = f"{options.cases} prompts of {len(prompts[0]):,} tokens, {options.new_tokens} new ones each"
    print(f"\n{options.model}, {options.position}, {options.dtype}: {sizes}\n\n{table(seconds, agree)}")
    ratio = seconds[PLAIN] / seconds[OURS]
    print(f"Ours: {ratio:.1f} x the plain loop (wanted {WANTED:.0f}); prefix {seconds[UNSHARED] / seconds[OURS]:.2f} x")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": facts, "what": vars(options) | {"out": str(options.out)}, "seconds_a_case": seconds}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if ratio >= WANTED else 1


if __name__ == "__main__":
    raise SystemExit(main())
