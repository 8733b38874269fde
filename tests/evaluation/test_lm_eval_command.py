"""A Hugging Face folder under `lm_eval --model hf`, the command that is installed, and under `+eval=harness`: equal.

One process of lm_eval asks all folders, since its start takes longer than its answers.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.data.vocabularies import GPT2_END, byte_level, llama2, sentencepiece_model
from tests.evaluation.conftest import sentences
from tests.hub import models

pytest.importorskip("lm_eval")
NEAR = 1e-6
# Losses of a few nats: a perplexity of e^70 has no six digits in float32.
SMALL = {"max_position_embeddings": 40, "initializer_range": 0.07}
# Without the index of its own tasks, which takes longer than all answers.
COMMANDS = """
import functools, json, sys
import lm_eval.tasks
from lm_eval.__main__ import cli_evaluate
lm_eval.tasks.TaskManager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
for words in json.loads(sys.argv[1]):
    sys.argv = ["lm_eval", *words]
    cli_evaluate()
"""
TASKS = {
    "gate_choices": """
output_type: multiple_choice
doc_to_text: "{{said}}:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "gate_ends": """
output_type: loglikelihood
doc_to_text: "{{said}} "
doc_to_target: "{{next}}"
metric_list: [{metric: perplexity}, {metric: acc}]
""",
    "gate_pages": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{page}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "gate_answers": """
output_type: generate_until
doc_to_text: "{{said}}"
doc_to_target: "{{next}}"
generation_kwargs: {until: ["\\n", "the"], max_gen_toks: 9}
metric_list: [{metric: chrf}, {metric: exact_match}]
""",
}
SHOTS = {"gate_choices": (0, 2), "gate_ends": (2,), "gate_pages": (0,), "gate_answers": (0, 1)}


def tasks(folder: Path) -> list[str]:
    """Task files of every kind of request, asked alone and after examples, with their data. The names of the tasks."""
    draw, records = random.Random(5), {}
    for split, n in (("train", 30), ("test", 12)):
        records[split] = [
            {
                "said": sentences(draw.randrange(1000), 5), "next": sentences(draw.randrange(1000), 1),
                "choices": [sentences(draw.randrange(1000), 1 + k) for k in range(3)], "right": draw.randrange(3),
                "page": sentences(draw.randrange(1000), 3 * index),
            }
            for index in range(n)
        ]  # fmt: skip
    records["test"][3]["page"] = "<s> " + records["test"][3]["page"]  # begins with the token's own text
    records["test"][4]["said"] = records["train"][4]["said"] = f"{GPT2_END} a mat"
    for split, each in records.items():
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in each))
    files = f"dataset_kwargs: {{data_files: {{train: {folder}/train.jsonl, test: {folder}/test.jsonl}}}}"
    names = []
    for kind, words in TASKS.items():
        for shots in SHOTS[kind]:
            names.append(f"{kind}_{shots}")
            (folder / f"{names[-1]}.yaml").write_text(
                f"task: {names[-1]}\ndataset_path: json\n{files}\ntraining_split: train\ntest_split: test\n"
                f"num_fewshot: {shots}\n{words}"
            )
    return names


def says(folder: Path, **words: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(words))


def of_llama(folder: Path, add_bos_token: bool | None) -> None:
    """With a SentencePiece model. add_bos_token: None leaves it out."""
    models.write(folder, "llama_gqa", vocab_size=512, **SMALL)
    sentencepiece_model(folder / "tokenizer.model")
    added = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    says(folder, tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", legacy=False, **added)


def of_llama_json(folder: Path, begins: bool) -> None:
    """With a tokenizer.json, which puts <s> in front, or not."""
    models.write(folder, "llama", vocab_size=512, **SMALL)
    tokenizer, begin = llama2(), "<s> " if begins else ""
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{begin}$A", pair=f"{begin}$A $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    says(folder, tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>")


def of_neox(folder: Path, add_bos_token: bool | None) -> None:
    models.write(folder, "gpt_neox", vocab_size=512, bos_token_id=0, eos_token_id=0, **SMALL)
    byte_level().save(str(folder / "tokenizer.json"))
    added = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    says(folder, tokenizer_class="GPTNeoXTokenizer", bos_token=GPT2_END, eos_token=GPT2_END, **added)


def ends_at_two(folder: Path) -> None:
    """Generations end at any of many tokens, as generation_config.json says."""
    of_llama(folder, True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, *range(60, 300)]}))


FOLDERS = {
    "llama": lambda folder: of_llama(folder, True),
    "neox": lambda folder: of_neox(folder, None),
    "llama_none": lambda folder: of_llama(folder, None),
    "llama_false": lambda folder: of_llama(folder, False),
    "json": lambda folder: of_llama_json(folder, True),
    "json_none": lambda folder: of_llama_json(folder, False),
    "neox_true": lambda folder: of_neox(folder, True),
    "neox_false": lambda folder: of_neox(folder, False),
    "ends": ends_at_two,
}
QUICK = ["llama", "neox"]
ASKED = {"": "", ",add_bos_token=True": "bos", ",add_bos_token=False": "none"}


def theirs(asked: dict[str, str], names: list[str], where: Path) -> dict[str, dict[str, Any]]:
    """The results of `lm_eval --model hf`, by name. asked: what follows --model_args, by name."""
    shared = ["--model", "hf", "--include_path", str(where), "--tasks", ",".join(names), "--device", "cpu"]
    words = [
        [*shared, "--model_args", args, "--output_path", str(where / "out" / name)] for name, args in asked.items()
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(where / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(words)], cwd=where, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (files,) = zip(*(list((where / "out" / name).rglob("results_*.json")) for name in asked), strict=True)
    return {name: json.loads(file.read_text())["results"] for name, file in zip(asked, files, strict=True)}


def compare(ours: list[dict[str, Any]], theirs: dict[str, Any]) -> None:
    """Each metric of each task."""
    compared = 0
    for cell in ours:
        assert cell["status"] == "done", cell["reason"]
        for name, metric in cell["result"]["metrics"][cell["point"]].items():
            expected = theirs[cell["point"]][f"{name},none"]
            assert metric["value"] == pytest.approx(expected, rel=NEAR, abs=NEAR), (cell["point"], name)
            compared += 1
    assert compared == 13


def check(folders: list[str], begins: list[str], tmp_path: Path, evaluated: Any) -> None:
    for name in folders:
        FOLDERS[name](tmp_path / name)
    names, asked = tasks(tmp_path), {}
    for name in folders:
        for args in begins:
            asked[f"{name}{args}"] = f"pretrained={tmp_path / name},dtype=float32{args}"
    found = theirs(asked, names, tmp_path)
    words = [f"eval.tasks=[{','.join(names)}]", f"eval.include_path={tmp_path}"]
    for name in folders:
        for args in begins:
            chosen = [f"text.begin={ASKED[args]}"] if args else []
            record, _ = evaluated("harness", f"checkpoint={tmp_path / name}", *words, *chosen)
            compare(record["cells"], found[f"{name}{args}"])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_a_folder_gives_what_lm_eval_gives(tmp_path, evaluated):
    check(QUICK, [""], tmp_path, evaluated)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_tokenizer_gives_what_lm_eval_gives(tmp_path, evaluated):
    check(list(FOLDERS), list(ASKED), tmp_path, evaluated)
