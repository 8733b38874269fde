"""YaRN's presets of perplexity, held to what its authors' script prints.

PRINTED was recorded from their function compute_perplexity (github.com/jquesnelle/yarn, eval/perplexity.py, as of
995db5b), with torch 2.13.0 and transformers 5.23.0 on the folder and the documents below: max_length and truncate as
named, sliding_window=STRIDE, add_start_token=True, device="cpu", in float32. `as_the_script` states it independently.
"""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
BEGIN, END, FIRST = 1, 2, 3  # ids of <s>, </s> and "a"
STRIDE, LEAST = 7, 60
PRINTED = {
    "whole": {24: 39.63921356201172},
    "truncated": {8: 37.430965423583984, 16: 37.82870101928711, 24: 38.21099090576172},
}
NEAR = 1e-6


def documents() -> list[str]:
    """Of 40 to 120 letters; one is shorter than LEAST."""
    draw = random.Random(2309)
    return ["".join(draw.choices(LETTERS, k=n)) for n in (97, 40, 61, 120, 75)]


def ids(text: str) -> list[int]:
    return [FIRST + LETTERS.index(letter) for letter in text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A Llama with YaRN's frequencies whose weights NumPy draws, and a tokenizer of letters."""
    path = tmp_path_factory.mktemp("yarn") / "llama"
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=32,
        max_position_embeddings=24, bos_token_id=BEGIN, eos_token_id=END,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 3.0, "original_max_position_embeddings": 8,
        },
    )  # fmt: skip
    model, draw = transformers.LlamaForCausalLM(config), np.random.default_rng(71)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = draw.normal(float(name.endswith("norm.weight")), 0.12, tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(drawn))
    model.save_pretrained(path)
    pieces = ["<unk>", "<s>", "</s>", *LETTERS]
    tokenizer = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(pieces[:3])
    tokenizer.save(str(path / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    return path


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def as_the_script(model, window: int, truncate: bool, begin: int | None = BEGIN) -> float:
    """exp of the mean, over the windows of all documents, of each window's mean loss. A window has `window` tokens, the
    one that begins it included, and scores what no earlier one of its document did."""
    losses, room = [], window - (begin is not None)
    for text in documents():
        tokens = ids(text)
        if len(tokens) < LEAST:
            continue
        tokens = tokens[:room] if truncate else tokens
        scored = 0
        for first in range(0, len(tokens), STRIDE):
            last = min(first + room, len(tokens))
            read = [*([] if begin is None else [begin]), *tokens[first:last]]
            log_p = model(input_ids=torch.tensor([read])).logits[0].double().log_softmax(-1)
            n = min(last - scored, len(read) - 1)
            losses.append(-np.mean([log_p[place - 1, read[place]] for place in range(len(read) - n, len(read))]))
            scored = last
            if last == len(tokens):
                break
    return math.exp(np.mean(losses))


@pytest.fixture
def measured(folder, tmp_path, evaluated):
    """measured(choice, windows, words …): the perplexity in each window, and all of its figures."""
    books = tmp_path / "letters.jsonl"
    books.write_text("".join(f"{json.dumps({'text': text})}\n" for text in documents()))

    def results(choice: str, windows: list[int], *words: str) -> dict[int, dict]:
        own = [f"checkpoint={folder}", f"text.files=[{books}]", "text.corpus=null", f"grid.lengths={windows}"]
        record, _ = evaluated(choice, *own, f"eval.stride={STRIDE}", f"eval.min_document_tokens={LEAST}", *words)
        return {cell["point"]: cell["result"]["sources"]["letters"] for cell in record["cells"]}

    return results


def test_whole_documents_as_in_table_4(measured, theirs):
    found = measured("perplexity_gov_report", [24])[24]
    assert found["n_documents"] == 4
    assert found["perplexity"] == pytest.approx(as_the_script(theirs, 24, truncate=False), rel=NEAR)
    assert found["perplexity"] == pytest.approx(PRINTED["whole"][24], rel=NEAR)
    assert found["ci_low"] < found["perplexity"] < found["ci_high"]


def test_documents_cut_to_the_window_as_in_tables_1_and_2(measured, theirs):
    for window, found in measured("perplexity_proof_pile", [8, 16, 24]).items():
        assert found["perplexity"] == pytest.approx(as_the_script(theirs, window, truncate=True), rel=NEAR)
        assert found["perplexity"] == pytest.approx(PRINTED["truncated"][window], rel=NEAR)
        assert found["n_tokens"] == 4 * (window - 1)


def test_without_a_token_that_begins_texts(measured, theirs):
    found = measured("perplexity_gov_report", [24], "text.begin=none")[24]
    assert found["perplexity"] == pytest.approx(as_the_script(theirs, 24, truncate=False, begin=None), rel=NEAR)


def test_each_of_the_three_words_changes_the_figure(measured):
    words = ("eval.weighting=tokens", "eval.window_counts=predictions", "eval.begin_windows=false")
    found = [measured("perplexity_gov_report", [24], *chosen)[24] for chosen in ([], *([word] for word in words))]
    assert len({round(each["perplexity"], 3) for each in found}) == 4
    tokens = found[1]
    assert tokens["perplexity"] == pytest.approx(math.exp(tokens["nll_sum"] / tokens["n_tokens"]))
    # What models are compared by, and what a byte costs, are of predictions whatever perplexity is of.
    assert found[0]["by_document"] == tokens["by_document"] and "windows_by_document" not in tokens
    assert found[0]["bits_per_byte"] == tokens["bits_per_byte"]
