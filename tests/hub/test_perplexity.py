"""Perplexity of an imported model is what a plain loop over transformers' own gives, for any window and stride."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from coca_train.evaluation.measures.perplexity import score_share
from coca_train.evaluation.measures.windows import Windowing
from coca_train.hub.weights import open_source
from coca_train.models.transformer import Transformer

LENGTHS = (61, 40, 23)


def documents(vocab_size: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.integers(3, vocab_size, length).astype(np.uint16) for length in LENGTHS]


def ours(folder: Path) -> Transformer:
    with open_source(str(folder)) as source:
        model = source.architecture.build()
        for name, parameter in model.named_parameters():
            parameter.data.copy_(source.read(name))
    return model.eval()


@torch.no_grad()
def one_window_at_a_time(folder: Path, document: np.ndarray, window: int, stride: int) -> float:
    """Sum of NLL [nats]: every window by itself, scoring what no window before it scored."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids, total, scored = torch.from_numpy(document.astype(np.int64)), 0.0, 1
    for begin in range(0, len(ids), stride):
        end = min(begin + window + 1, len(ids))  # the last token is only predicted
        if scored >= len(ids):
            break
        logits_TV = model(input_ids=ids[None, begin : end - 1]).logits[0]
        new = end - scored
        total += float(cross_entropy(logits_TV[-new:].double(), ids[scored:end], reduction="sum"))
        scored = end
    return total


@pytest.mark.parametrize(("window", "stride"), [(24, 24), (24, 7), (16, 1), (48, 16), (60, 60), (5, 3)])
@pytest.mark.parametrize(("kind", "scaling"), [("llama", "plain"), ("llama_gqa", "yarn"), ("gpt_neox", "linear")])
def test_perplexity_equals_a_plain_loop(model, kind: str, scaling: str, window: int, stride: int) -> None:
    folder = model(kind, scaling)
    network = ours(folder)
    texts = documents(network.embed.num_embeddings)
    sums = score_share(network, texts, [Windowing(window, stride)], micro_batch_tokens=64)[0].documents
    assert sums[:, 1].tolist() == [length - 1 for length in LENGTHS]
    theirs = [one_window_at_a_time(folder, text, window, stride) for text in texts]
    assert sums[:, 0] == pytest.approx(theirs, rel=1e-5)
