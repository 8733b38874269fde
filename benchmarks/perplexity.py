"""`python -m benchmarks.perplexity`: the row of a long-context table, ours beside loops of one window at a time.

A row is the perplexity of documents of 16 training windows, read in windows of 1, 2, 4, 8 and 16 training windows,
stride = training window (CoCA paper, table 1), or cut to each window (YaRN, tables 1 and 2). All read the same tokens
in the same process and take turns. ours: `score_share`, each window by itself and all windows of the row together, as
the suite `perplexity` does where nothing depends on the window's length. plain: the same model, window by window, all
logits in float32, predictions made before masked in the cross-entropy. transformers: that loop over the peer.

Without --checkpoint, weights are random and the peer is a GPTNeoXForCausalLM of the same shape. With it, the peer is
the run's export, and its loss is ours.

Tokens are those that the loop reads. Ratios: the loop's time over ours, so above 1 we are faster; median (range).
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.cases import DTYPES, Setup
from benchmarks.measure import interleaved_seconds, machine, median_ratio, say
from coca_train.checkpoint.opening import load_run
from coca_train.evaluation.measures.perplexity import score_share
from coca_train.evaluation.measures.windows import Windowing, sliding_windows
from coca_train.hub import exporting
from coca_train.hub.options import ExportConfig
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.runtime.printing import markdown
from coca_train.settings import load

MULTIPLES = (1, 2, 4, 8, 16)
OURS, PLAIN, PEER = "ours", "plain", "transformers"
Logits = Callable[[torch.Tensor], torch.Tensor]


def model_of(options: argparse.Namespace, vocab_size: int) -> Transformer:
    """The paper's kind in small: GPT-NeoX, four layers, 256 wide, four heads."""
    config = load(["model=neox_tiny", "model.n_layers=4", "model.n_heads=4", f"position={options.position}"]).config
    model = Transformer(
        config.model, config.position, config.attention_pattern, vocab_size=vocab_size, max_seq_len=options.window
    )
    init_weights(model, config.model, seed=0)
    return model.to(options.device, DTYPES[options.dtype]).eval()


def peer_of(model: Transformer, options: argparse.Namespace) -> nn.Module:
    """The same shape in `transformers`, rotary, fused attention."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    shape = model.config
    config = GPTNeoXConfig(
        vocab_size=model.embed.num_embeddings,
        hidden_size=shape.d_model,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        intermediate_size=shape.d_ff,
        max_position_embeddings=options.window * MULTIPLES[-1],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = "sdpa"
    peer: Any = GPTNeoXForCausalLM(config)
    return peer.to(options.device, DTYPES[options.dtype]).eval()


@torch.no_grad()
def plain(logits: Logits, documents: Sequence[np.ndarray], window: int, stride: int, device: str) -> float:
    """Mean NLL [nats per token], one window at a time."""
    nll = count = 0.0
    for document in documents:
        for w in sliding_windows(len(document) - 1, window, stride):
            tokens = torch.from_numpy(document[w.start : w.stop + 1]).to(device)[None]
            targets = tokens[:, 1:].clone()
            targets[:, : w.scored - w.start] = -100
            nll += float(F.cross_entropy(logits(tokens[:, :-1])[0].float(), targets[0], reduction="sum"))
            count += w.stop - w.scored
    return nll / count


def ours(model: Transformer, documents: Sequence[np.ndarray], rows: Sequence[Windowing], options: Any) -> list[float]:
    """Mean NLL [nats per token] of each row."""
    sums = [scores.documents.sum(0) for scores in score_share(model, documents, rows, options.micro_batch_tokens)]
    return [nll / count for nll, count in sums]


def bench(model: Transformer, peer: Any, options: argparse.Namespace) -> list[list[str]]:
    """A line for each window, for all of them, and for documents cut to each window."""
    loops: dict[str, Logits] = {PLAIN: model, PEER: lambda tokens: peer(input_ids=tokens).logits}
    random, windows = np.random.default_rng(0), [options.window * m for m in MULTIPLES]
    vocab_size, stride = model.embed.num_embeddings, options.window
    documents = [random.integers(0, vocab_size, windows[-1] + 1) for _ in range(options.documents)]
    setup = replace(Setup(options.device, options.dtype), vocab_size=vocab_size)

    def line(name: str, rows: Sequence[Windowing]) -> list[str]:
        say(f"vocabulary {vocab_size:,}, {name}")
        read = [(row, [d[: row.cut and row.cut + 1] for d in documents]) for row in rows]
        works: dict[str, Callable[[], list[float]]] = {OURS: lambda: ours(model, documents, rows, options)}
        for loop, logits in loops.items():
            works[loop] = lambda f=logits: [plain(f, ds, row.window, stride, options.device) for row, ds in read]
        nlls = {name: work() for name, work in works.items()}
        compared = [PLAIN, PEER] if options.checkpoint else [PLAIN]
        apart = max(abs(a - b) for loop in compared for a, b in zip(nlls[OURS], nlls[loop], strict=True))
        seen = [window for row, ds in read for d in ds for window in sliding_windows(len(d) - 1, row.window, stride)]
        n_tokens = sum(window.stop - window.start for window in seen)
        seconds = interleaved_seconds(works, setup, options.rounds)
        return cells(vocab_size, name, n_tokens, seconds, f"{apart:.0e}")

    whole, cut = (
        [Windowing(window, stride) for window in windows],
        [Windowing(window, stride, window) for window in windows],
    )
    alone = [line(f"{row.window:,}", [row]) for row in whole]
    return [*alone, line("all, together", whole), line("all, cut to each", cut)]


def cells(vocab_size: int, window: str, n_tokens: int, seconds: dict[str, list[float]], difference: str) -> list[str]:
    """One line of the table."""
    speeds = [f"{n_tokens / statistics.median(seconds[name]):,.0f}" for name in (OURS, PLAIN, PEER)]
    ratios = [median_ratio(seconds[name], seconds[OURS]) for name in (PLAIN, PEER)]
    return [
        f"{vocab_size:,}",
        window,
        *speeds,
        *(f"{m:.2f} ({low:.2f}-{high:.2f})" for m, low, high in ratios),
        difference,
    ]


def pairs(options: argparse.Namespace) -> Iterator[tuple[Transformer, Any]]:
    """Models and their peers."""
    if not options.checkpoint:
        for vocab_size in options.vocabularies:
            model = model_of(options, vocab_size)
            yield model, peer_of(model, options)
        return
    from transformers import AutoModelForCausalLM

    model = load_run(options.checkpoint).model
    stored: Any = {dtype: name for name, dtype in DTYPES.items()}[next(model.parameters()).dtype]
    with tempfile.TemporaryDirectory() as folder:
        request = ExportConfig(run=options.checkpoint, to=f"{folder}/export", form="native", dtype=stored)
        peer: Any = AutoModelForCausalLM.from_pretrained(exporting.export_run(request), trust_remote_code=False)
    dtype = DTYPES[options.dtype]
    yield model.to(options.device, dtype).eval(), peer.to(options.device, dtype).eval()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.perplexity", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--checkpoint", help="a run with RoPE; default: random weights")
    parser.add_argument("--position", default="rope", help="configs/position/<name>.yaml")
    parser.add_argument("--vocabularies", nargs="+", type=int, default=[8192, 32000])
    parser.add_argument("--window", type=int, default=256, help="training window and stride [tokens]")
    parser.add_argument("--documents", type=int, default=1)
    parser.add_argument("--micro-batch-tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each competitor")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(
        "  ".join(f"{key}: {value}" for key, value in machine(Setup(options.device, options.dtype)).items()), flush=True
    )
    rows = [line for model, peer in pairs(options) for line in bench(model, peer, options)]
    speeds, ratios = (
        [f"{name} [tokens/s]" for name in (OURS, PLAIN, PEER)],
        [f"{name} / ours" for name in (PLAIN, PEER)],
    )
    print(markdown(["vocabulary", "window", *speeds, *ratios, "loss apart [nats]"], rows))


if __name__ == "__main__":
    main()
