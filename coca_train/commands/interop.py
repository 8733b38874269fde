"""`python -m coca_train.interop import|export|verify`: weights from the Hugging Face world and back, proven equal.

  python -m coca_train.interop import source=Llama-2-7b-hf name=llama2
  python -m coca_train.interop import source=runs/llama2 name=coca_llama position=coca t_from_k=mean_of_halves
  python -m coca_train.interop export run=runs/llama2 to=llama2-hf dtype=bf16
  python -m coca_train.interop verify run=runs/llama2 against=Llama-2-7b-hf

import (key=value): a run directory, which generation, evaluation and `start.path` read
  source           Hugging Face folder with safetensors (llama, mistral, gpt_neox, our exports), or a run directory
  name, root       the new run is <root>/<name>
  position         as_source, coca or coca_strict: T is made from K
  t_from_k         mean_of_halves, first_half or random
  t_width          half or full_mean, of a T made from K (as_source: half); half folds the full-width T of CoCA's
                   official weights
  keys             auto, k or t: what a folder's key projections are (t: CoCA's official GPT-NeoX weights)
  seed             of t_from_k=random
  tokenizer        auto (the one beside the weights), none, or a file
  ignore           keys of config.json known to change nothing, with commas between them
  parity_tokens    tokens of each parity probe

export: a folder for transformers, with no code of ours where a class of theirs computes the same
  run              directory of a run, or a Hugging Face folder
  to               the new folder
  dtype            as_run, fp32, bf16 or fp16
  form             auto (native where one fits), native, own, llama, mistral or gpt_neox
  tokenizer        auto (the run's), none, or a file
  parity_tokens    tokens of each parity probe
  merge            true: the whole model; false: the adapters of a LoRA stage alone, for peft, in float32

verify: the same parity check between two that exist
  run              directory of a run, or a Hugging Face folder
  against          a Hugging Face folder
  tokenizer        auto (the run's), none, or a file
  parity_tokens    tokens of each parity probe
"""

import sys
from collections.abc import Callable
from importlib import import_module

from coca_train import hub
from coca_train.config.arguments import parse
from coca_train.runtime import entry
from coca_train.runtime.errors import UserError

VERBS = {"import": "importing", "export": "exporting", "verify": "verifying"}


def _main(argv: list[str]) -> int:
    words = [word for word in argv if word != "--debug"]
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    verb, *rest = words
    if verb not in VERBS:
        raise UserError(f"E-CFG-01 command line {verb!r}: no such verb. Fix: write import, export or verify first")
    module = import_module(f"{hub.__name__}.{VERBS[verb]}")
    run: Callable[[object], object] = module.run
    run(parse(module.Options, rest))
    return 0


if __name__ == "__main__":
    sys.exit(entry.run(_main, goes_on="from the beginning; nothing half-made is left"))
