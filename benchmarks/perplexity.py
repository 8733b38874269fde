"""`python -m benchmarks.perplexity`: the row of a long-context table, ours beside loops of one window at a time.

A row is the perplexity of documents of 16 training windows, read in windows of 1, 2, 4, 8 and 16 training windows,
stride = training window (CoCA paper, table 1). All read the same tokens in the same process and take turns; the weights
are random. ours: `score_documents`. plain: the same model, window by window, all logits in float32, predictions made
before masked in the cross-entropy. transformers: that loop over GPTNeoXForCausalLM of the same shape (the peer).
cut: documents cut to each window instead (YaRN, tables 1 and 2); measured for the row as a whole, since one pass of
ours gives every window.

Tokens are those that the loop reads. Ratios: the loop's time over ours, so above 1 we are faster; median (range).
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.cases import DTYPES, Setup
from benchmarks.measure import interleaved_seconds, machine, median_ratio, say
from coca_train.config.load import load
from coca_train.evals.perplexity import score_documents, score_share, sliding_windows, tokens_read
from coca_train.evals.prefixes import cut
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.tables import markdown

MULTIPLES = (1, 2, 4, 8, 16)
OURS, PLAIN, PEER = "ours", "plain", "transformers"
Logits = Callable[[torch.Tensor], torch.Tensor]


def model_of(options: argparse.Namespace, vocab_size: int) -> Transformer:
    """The paper's kind in small: GPT-NeoX, four layers, 256 wide, four heads."""
    config = load(["model=neox_tiny", "model.n_layers=4", "model.n_heads=4", f"position={options.position}"]).config
    model = Transformer(
        config.model, config.position, config.visibility, vocab_size=vocab_size, max_seq_len=options.window
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


def ours(model: Transformer, documents: Sequence[np.ndarray], window: int, options: argparse.Namespace) -> float:
    """Mean NLL [nats per token]."""
    scores = score_documents(
        model, documents, window=window, stride=options.window, micro_batch_tokens=options.micro_batch_tokens
    )
    return scores.documents[:, 0].sum() / scores.documents[:, 1].sum()


def ours_cut(model: Transformer, documents: Sequence[np.ndarray], windows: Sequence[int], options: Any) -> list[float]:
    """Mean NLL of the documents cut to each window: one pass, then cuts."""
    curves: dict[int, np.ndarray] = {}
    score_share(
        model, documents, window=windows[-1], stride=options.window, micro_batch_tokens=options.micro_batch_tokens,
        first=curves.__setitem__,
    )  # fmt: skip
    sums = [cut(curves, len(documents), window).documents.sum(0) for window in windows]
    return [nll / count for nll, count in sums]


def bench(options: argparse.Namespace, vocab_size: int) -> list[list[str]]:
    """A row of cells for each window, for all of them, and for documents cut to each window."""
    torch.manual_seed(0)
    model, windows = model_of(options, vocab_size), [options.window * m for m in MULTIPLES]
    peer: Any = peer_of(model, options)
    loops: dict[str, Logits] = {PLAIN: model, PEER: lambda tokens: peer(input_ids=tokens).logits}
    random = np.random.default_rng(0)
    documents = [random.integers(0, vocab_size, windows[-1] + 1) for _ in range(options.documents)]
    setup, rows = replace(Setup(options.device, options.dtype), vocab_size=vocab_size), []
    row: dict[str, list[float]] = {}
    for window in windows:
        say(f"vocabulary {vocab_size:,}, window {window:,}")
        works: dict[str, Callable[[], Any]] = {OURS: lambda w=window: ours(model, documents, w, options)}
        for name, logits in loops.items():
            works[name] = lambda f=logits, w=window: plain(f, documents, w, options.window, options.device)
        difference = works[OURS]() - works[PLAIN]()
        seconds = interleaved_seconds(works, setup, options.rounds)
        n_tokens = options.documents * tokens_read(windows[-1], window, options.window)
        rows.append(cells(vocab_size, f"{window:,}", n_tokens, seconds, f"{difference:.0e}"))
        row = {
            name: [a + b for a, b in zip(row.get(name, [0.0] * len(t)), t, strict=True)] for name, t in seconds.items()
        }
    total = options.documents * sum(tokens_read(windows[-1], window, options.window) for window in windows)
    rows.append(cells(vocab_size, "all", total, row, ""))
    say(f"vocabulary {vocab_size:,}, documents cut to each window")
    works = {OURS: lambda: ours_cut(model, documents, windows, options)}
    for name, logits in loops.items():
        works[name] = lambda f=logits: [
            plain(f, [d[: w + 1] for d in documents], w, options.window, options.device) for w in windows
        ]
    difference = max(abs(a - b) for a, b in zip(works[OURS](), works[PLAIN](), strict=True))
    seconds = interleaved_seconds(works, setup, options.rounds)
    return [*rows, cells(vocab_size, "cut, all", options.documents * sum(windows), seconds, f"{difference:.0e}")]


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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.perplexity", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
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
    rows = [line for vocab_size in options.vocabularies for line in bench(options, vocab_size)]
    speeds, ratios = (
        [f"{name} [tokens/s]" for name in (OURS, PLAIN, PEER)],
        [f"{name} / ours" for name in (PLAIN, PEER)],
    )
    print(markdown(["vocabulary", "window", *speeds, *ratios, "loss, ours - plain [nats]"], rows))


if __name__ == "__main__":
    main()
