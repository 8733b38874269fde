"""What the harness's long tasks need of us: the model's own tokenizer, and no code of a folder."""

import json

import pytest

from coca_train.evaluation.measures.harness_text import OwnText
from tests.evaluation.copying import copying
from tests.evaluation.harnessed import random_subject, settings, setup_of

pytest.importorskip("lm_eval")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


@pytest.fixture
def suite():
    from coca_train.evaluation.suites import harness

    return harness


def test_tasks_that_count_tokens_count_the_models_own(tmp_path):
    from lm_eval.tasks.ruler.common_utils import get_tokenizer, resolve_tokenizer_name

    from coca_train.evaluation.measures.harness import own_tokenizer, tokenizer_name

    tokenizer = random_subject(tmp_path).tokenizer
    text = OwnText(tokenizer)
    with own_tokenizer(text):
        counted = get_tokenizer(resolve_tokenizer_name({"tokenizer": tokenizer_name(text)}))
    assert counted("Where is Mary?").input_ids == tokenizer.encode("Where is Mary?")


TASK = """
task: own_counted
dataset_path: {data_set}
test_split: test
custom_dataset: !function counted.data
output_type: generate_until
doc_to_text: '{{{{input}}}}'
doc_to_target: '{{{{output}}}}'
generation_kwargs: {{until: ['.'], max_gen_toks: 4}}
"""
COUNTED = """
from transformers import AutoTokenizer

def data(**options):
    AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=True)
    return {{"test": []}}
"""


def test_a_task_runs_no_code_of_a_tokenizers_folder(suite, tmp_path, monkeypatch):
    """Though it asks for it, as RULER's and BABILong's do."""
    import transformers

    canary, folder = tmp_path / "canary", tmp_path / "evil"
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder.mkdir()
    (folder / "tokenization_evil.py").write_text(f"open({str(canary)!r}, 'w')")
    named = {"auto_map": {"AutoTokenizer": ["tokenization_evil.T", None]}, "tokenizer_class": "T"}
    for name in ("tokenizer_config.json", "config.json"):
        (folder / name).write_text(json.dumps(named))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "counted.yaml").write_text(TASK.format(data_set="json"))
    (tasks / "counted.py").write_text(COUNTED.format(folder=str(folder)))
    material = suite.Evaluator(settings(suite, "own_counted", include_path=str(tasks))).prepare(copying(1), setup_of())
    assert str(folder) in material.problems["own_counted"]
    assert not canary.exists()


def test_a_question_without_an_answer_is_none(suite, tmp_path):
    """RULER's common words, where a prompt has no room for a word: its score would be a division by zero."""
    (tmp_path / "empty.jsonl").write_text(json.dumps({"input": "Which words?", "outputs": []}))
    (tmp_path / "own_empty.yaml").write_text(
        f"task: own_empty\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/empty.jsonl}}}}\n"
        "test_split: test\noutput_type: generate_until\ndoc_to_text: '{{input}}'\ndoc_to_target: '{{outputs}}'\n"
    )
    material = suite.Evaluator(settings(suite, "own_empty", include_path=str(tmp_path))).prepare(copying(1), setup_of())
    assert "own_empty" in material.problems["own_empty"]


def test_lengths_without_prompts_are_no_figures_of_ruler(suite):
    """Its metrics are named by length, and -1 where there is none."""
    values = {"4096,none": -1, "8192,none": 0.5, "8192_stderr,none": "N/A"}
    results = {
        "results": {"ruler_vt": values}, "higher_is_better": {"ruler_vt": {"4096": True, "8192": True}},
        "versions": {"ruler_vt": 1}, "n-shot": {"ruler_vt": 0},
        "n-samples": {"ruler_vt": {"original": 2, "effective": 2}},
    }  # fmt: skip
    main = suite.summary(results, ["ruler_vt"], "ruler_vt")["main"]
    assert (main["metric"], main["value"], main["stderr"]) == ("8192", 0.5, None)
