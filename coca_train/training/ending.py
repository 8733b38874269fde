"""What a finished run leaves behind: loss curve, extrapolation report, a sample, and where everything lies."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from coca_train.config.schema import Config
from coca_train.data.tokenizer import Tokenizer
from coca_train.data.validation import long_documents
from coca_train.engine.base import Engine
from coca_train.evaluation.extrapolation.measure import NothingToScore, extrapolate
from coca_train.evaluation.extrapolation.pages import text_of, write_extrapolation, write_loss_curve
from coca_train.evaluation.extrapolation.reach import write_reach
from coca_train.models.generation import check_positions, generate
from coca_train.runtime import dist
from coca_train.runtime.durable import read_json, write_json, write_text
from coca_train.runtime.errors import DataError
from coca_train.vary import variants


def final_report(
    config: Config, run_dir: Path, runner: Engine, tokenizer: Tokenizer, step: int, stage: str = ""
) -> None:
    """Write the report on the model at `step` and show it. COLLECTIVE. A finished report is not made again.

    stage: the report is on a stage that others follow, and goes to report/<stage>.
    """
    directory = run_dir / "report" / stage
    done, mark = directory / "done.json", {"step": step, "eval": _asked(config)}
    if dist.on_main(lambda: done.exists() and read_json(done) == mark):
        dist.log(f"The report on step {step} is there already.")
        return
    dist.on_main(lambda: write_loss_curve(run_dir, config.run.name))
    for sentence in dist.on_main(lambda: write_reach(run_dir, config.run.name)):
        dist.log(f"reach     {sentence}")
    if config.eval.extrapolation.enabled:
        report_extrapolation(config, directory, runner, tokenizer)
    if config.eval.sample_prompt and config.eval.sample_tokens:
        write_sample(config, directory, runner, tokenizer)
    dist.on_main(lambda: write_json(done, mark))


def _asked(config: Config) -> dict[str, Any]:
    """What the report depends on: probes during the training do not make another one."""
    asked = asdict(config.eval)
    del asked["extrapolation"]["every_steps"], asked["extrapolation"]["probe_documents"]
    return asked


def write_sample(config: Config, directory: Path, runner: Engine, tokenizer: Tokenizer) -> None:
    """What the model goes on with after the prompt; no sample where learned positions end before it does."""
    prompt, n_tokens = tokenizer.encode(config.eval.sample_prompt), config.eval.sample_tokens
    with runner.eval_module() as module:
        try:
            check_positions(module, len(prompt), n_tokens)
        except ValueError as error:
            dist.log(f"WARNING: no sample, eval.sample_tokens={n_tokens}: {error}")
            return
        tokens = generate(module, prompt, n_tokens, eod=tokenizer.eod)
    text = config.eval.sample_prompt + tokenizer.decode(tokens)
    dist.on_main(lambda: write_text(directory / "sample.txt", text + "\n"))
    dist.log(f"\nSample (greedy, prompt {config.eval.sample_prompt!r}):\n{text}\n")


def report_extrapolation(config: Config, directory: Path, runner: Engine, tokenizer: Tokenizer) -> None:
    """Perplexity far beyond the training window, as table, JSON and picture."""
    windows = [multiple * config.train.seq_len for multiple in config.eval.extrapolation.multiples]
    documents = held_out_documents(config, windows)
    try:
        with runner.eval_module() as module:
            result = extrapolate(
                module,
                documents,
                variants(config),
                run=config.run.name,
                windows=windows,
                training_window=config.train.seq_len,
                micro_batch_tokens=config.eval.extrapolation.micro_batch_tokens,
                n_bytes=byte_counter(tokenizer),
            )
    except NothingToScore as error:
        dist.log(f"WARNING: no extrapolation report: {error}")
        return
    dist.on_main(lambda: write_extrapolation(result, directory))
    dist.log("\n" + text_of(result))


def held_out_documents(config: Config, windows: list[int]) -> dict[str, list[np.ndarray]]:
    """By source, documents as long as the largest window that any of its documents fills."""
    found: dict[str, list[np.ndarray]] = {}
    for name, source in config.data.sources.items():
        for window in sorted(windows, reverse=True) if source.valid_path else []:
            try:
                found[name] = long_documents(
                    str(source.valid_path), window + 1, config.eval.extrapolation.max_documents
                )
                break
            except DataError as error:
                dist.log(f"WARNING: extrapolation report, {name}: {error}")
    return found


def byte_counter(tokenizer: Tokenizer) -> Callable[[np.ndarray], int]:
    """Size in UTF-8 of the text of some tokens [bytes]."""
    return lambda tokens: len(tokenizer.decode(tokens.tolist()).encode("utf-8"))
