"""The harness's own long tasks with their data in a folder: read by its real code, and by ours for the figures."""

import json
import re
import zipfile
from pathlib import Path

import pytest

from coca_train.evaluation.measures.harness_text import OwnText
from tests.evaluation.copying import copying, successor
from tests.evaluation.harnessed import cells, log_p, random_subject, settings, setup_of

lm_eval = pytest.importorskip("lm_eval")
FILLER = "The grass is green. The sky is blue. The sun is yellow. "
KEYS = (31415, 27182, 16180)


def family(name: str) -> str:
    """The folder of its task files: the index of all of them takes long."""
    return str(Path(lm_eval.__file__).parent / "tasks" / name)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


@pytest.fixture
def suite():
    from coca_train.evaluation.suites import harness

    return harness


def write(path: Path, records: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def passkeys(folder: Path) -> None:
    """InfiniteBench's, in miniature: keys near the beginning, in the middle, at the end."""
    records = [
        {
            "id": index, "input": "What is the pass key? The pass key is", "answer": [str(key)], "options": [],
            "context": FILLER * n + f"The pass key is {key}. Remember it. " + FILLER * (5 - n),
        }
        for index, (key, n) in enumerate(zip(KEYS, (0, 3, 5), strict=True))
    ]  # fmt: skip
    write(folder / "xinrongzhang2022/InfiniteBench/passkey.jsonl", records)


def infinite(suite, folder, **changes):
    wanted = {"data": str(folder), "include_path": family("infinitebench"), "window": "whole"} | changes
    return settings(suite, "infinitebench_passkey", **wanted)


@pytest.mark.parametrize(("window", "found"), [("whole", 3), (200, 2), ("training", 0)])
def test_infinitebench_from_a_folder(suite, tmp_path, monkeypatch, window, found):
    """Keys that a copier finds, by copying letter by letter; how much of each prompt it reads is as asked."""
    passkeys(tmp_path)
    by_point, material = cells(suite, infinite(suite, tmp_path, window=window), copying(10_000), monkeypatch)
    hits, size = [], {"whole": 10_000, "training": 64}.get(window, window)
    for request, key in zip(material.tasks["infinitebench_passkey"].requests, KEYS, strict=True):
        text = list(request.args[0].encode())[-(size - 6) :]
        n = len(text)
        for _ in range(6):
            text.append(successor(text, 10_000))
        number = re.search("[0-9]+", bytes(text[n:]).decode())
        hits.append(number is not None and number[0] == str(key))
    assert sum(hits) == found
    known = by_point["infinitebench_passkey"]
    assert known["main"]["value"] == pytest.approx(found / 3)
    assert known["n_clipped"] == (0 if window == "whole" else 3)


def test_longbench2_from_a_folder(suite, tmp_path, monkeypatch):
    """Choices of questions about long texts, against sums over plain forwards; data as a clone of the hub has it."""
    docs = [
        {"context": f"{FILLER * 2}{word} is first.", "question": f"Who is first? {word}", "answer": index % 4,
         "choices": ["Ann", "Bob", "Cid", "Dan"]}
        for index, word in enumerate(("Ann", "Bob", "Cid", "Dan", "Eve"))
    ]  # fmt: skip
    clone = tmp_path / "hub" / "recursal" / "longbench-v2"
    write(clone / "data" / "many.jsonl", docs)
    files = "configs:\n- config_name: manyshot_learning\n  data_files:\n  - split: train\n    path: data/many.jsonl\n"
    (clone / "README.md").write_text(f"---\n{files}---\n")
    subject = random_subject(tmp_path)
    wanted = settings(
        suite, "longbench2_many_shot", data=str(tmp_path / "hub"), include_path=family("longbench2"), window="whole"
    )
    by_point, _ = cells(suite, wanted, subject, monkeypatch)
    hits = []
    for doc in docs:
        choices = "".join(f"({letter}) {name}\n" for letter, name in zip("ABCD", doc["choices"], strict=True))
        prompt = (
            "Please read the following text and answer the question below.\n\n<text>\n"
            f"{doc['context']}\n</text>\n\nWhat is the correct answer to this question: {doc['question']}\n"
            f"Choices:\n{choices}\nAnswer:"
        )
        n = len(subject.tokenizer.encode(prompt))
        assert n > subject.training_window
        wholes = [subject.tokenizer.encode(f"{prompt} {letter}") for letter in "ABCD"]
        totals = [log_p(subject, whole, len(whole) - n) for whole in wholes]
        hits.append(totals.index(max(totals)) == doc["answer"])
    assert by_point["longbench2_many_shot"]["main"]["value"] == pytest.approx(sum(hits) / 5)
    assert by_point["longbench2_many_shot"]["n_clipped"] == 0


def test_babilong_at_the_length_that_is_asked(suite, tmp_path, monkeypatch):
    """The configuration `4k` of its data set, chosen by what the task is told."""
    for length, place in (("0k", "garden"), ("4k", "office")):
        doc = {"input": f"Mary went to the {place}. {FILLER}", "question": "Where is Mary?", "target": place}
        write(tmp_path / f"RMT-team/babilong-1k-samples/{length}/qa1.jsonl", [doc])
    wanted = {"data": str(tmp_path), "include_path": family("babilong"), "window": "whole"}
    for told, place in (({}, "garden"), ({"max_seq_lengths": "4k"}, "office")):
        suited = settings(suite, "babilong_qa1", metadata=told, **wanted)
        by_point, material = cells(suite, suited, copying(10_000), monkeypatch)
        (request,) = material.tasks["babilong_qa1"].requests
        assert f"Mary went to the {place}." in request.args[0] and "Charlie" in request.args[0]  # and the examples
        text = list(request.args[0].encode())
        for _ in range(16):
            text.append(successor(text, 10_000))
        answer = bytes(text).decode()[len(request.args[0]) :]
        assert by_point["babilong_qa1"]["main"]["value"] == float(place in answer)


METRIC = """
import datasets
import evaluate


class Scrolls(evaluate.Metric):
    def _info(self):
        texts = datasets.Features({"predictions": datasets.Value("string"), "references": datasets.Value("string")})
        return evaluate.MetricInfo(description="", citation="", features=texts)
"""


def test_scrolls_from_a_folder(suite, tmp_path, monkeypatch):
    """Zipped files and a metric, as in its repository; choices against sums over plain forwards."""
    import evaluate

    for name in ("HF_MODULES_CACHE", "HF_EVALUATE_CACHE", "HF_METRICS_CACHE"):
        monkeypatch.setattr(evaluate.config, name, str(tmp_path / "evaluate"))
    hub, choices = tmp_path / "hub", ["Not mentioned", "Entailment", "Contradiction"]
    words = zip(("so", "not so", "open", "over"), [*choices, choices[1]], strict=True)
    docs = [
        {"id": str(index), "pid": f"{index}_0", "input": f"Is it {word}?\n\n{FILLER}It is {word}.", "output": right}
        for index, (word, right) in enumerate(words)
    ]
    for split in ("train", "validation"):
        write(hub / f"tau/scrolls/contract_nli/{split}.jsonl", docs)
    with zipfile.ZipFile(hub / "tau/scrolls/contract_nli.zip", "w") as archive:
        for split in ("train", "validation"):
            archive.write(hub / f"tau/scrolls/contract_nli/{split}.jsonl", f"contract_nli/{split}.jsonl")
    (hub / "tau/scrolls/metrics").mkdir()
    (hub / "tau/scrolls/metrics/scrolls.py").write_text(METRIC)
    subject = random_subject(tmp_path)
    wanted = settings(suite, "scrolls_contractnli", data=str(hub), include_path=family("scrolls"), window="whole")
    by_point, _ = cells(suite, wanted, subject, monkeypatch)
    hits = []
    for doc in docs:
        question, text = doc["input"].split("\n\n")
        prompt = f"{text}\n\nHypothesis: {question}\nConclusion:"
        n = len(subject.tokenizer.encode(prompt))
        wholes = [subject.tokenizer.encode(f"{prompt} {choice}") for choice in choices]
        totals = [log_p(subject, whole, len(whole) - n) for whole in wholes]
        hits.append(choices[totals.index(max(totals))] == doc["output"])
    main = by_point["scrolls_contractnli"]["main"]
    assert (main["metric"], main["value"]) == ("acc", pytest.approx(sum(hits) / 4))


def test_nothing_is_looked_for_elsewhere(suite, tmp_path):
    material = suite.Evaluator(infinite(suite, tmp_path)).prepare(copying(1), setup_of())
    problem = material.problems["infinitebench_passkey"]
    assert "FileNotFoundError" in problem and str(tmp_path / "xinrongzhang2022/InfiniteBench") in problem


def test_where_things_lie_in_a_folder(tmp_path):
    import datasets
    import huggingface_hub
    import requests

    from coca_train.evaluation.measures.harness_sources import files_by_split, sources

    write(tmp_path / "rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json", [{"data": []}])
    write(tmp_path / "tau/scrolls/qasper/train.jsonl", [{"id": "a", "output": "b"}])
    write(tmp_path / "tau/scrolls/metrics/scrolls.py", [])
    with zipfile.ZipFile(tmp_path / "tau/scrolls/qasper.zip", "w") as archive:
        archive.write(tmp_path / "tau/scrolls/qasper/train.jsonl", "qasper/train.jsonl")
    kept = datasets.load.load_dataset_builder, huggingface_hub.hf_hub_download, requests.get
    with sources(tmp_path, OwnText(copying(1).tokenizer)):
        squad = "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json"
        assert requests.get(squad, timeout=1).json() == {"data": []}
        copy = huggingface_hub.hf_hub_download(
            repo_id="tau/scrolls", repo_type="dataset", filename="metrics/scrolls.py", revision="refs/pr/5"
        )
        assert Path(copy).is_file() and tmp_path not in Path(copy).parents
        hub = "zip://qasper/train.jsonl::https://huggingface.co/datasets/tau/scrolls/resolve/main/qasper.zip"
        read = datasets.load_dataset("json", data_files={"train": hub})
        assert read["train"].to_list() == [{"id": "a", "output": "b"}]
        for address in ("https://example.org/other", hub):
            with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path))):
                requests.get(address.replace("qasper", "nothing"))
    assert kept == (datasets.load.load_dataset_builder, huggingface_hub.hf_hub_download, requests.get)
    (tmp_path / "both").mkdir()
    with pytest.raises(FileNotFoundError, match=r"both .*\.parquet"):
        files_by_split(tmp_path / "both", None)
    for name in ("test.jsonl", "train.parquet"):
        (tmp_path / "both" / name).touch()
    with pytest.raises(FileNotFoundError, match=r"both .*kinds"):
        files_by_split(tmp_path / "both", None)


def test_tasks_that_count_tokens_count_the_models_own(tmp_path):
    from lm_eval.tasks.ruler.common_utils import get_tokenizer, resolve_tokenizer_name

    from coca_train.evaluation.measures.harness_sources import sources, tokenizer_name

    tokenizer = random_subject(tmp_path).tokenizer
    text = OwnText(tokenizer)
    with sources(None, text):
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


def test_a_data_set_is_read_without_its_script(suite, tmp_path):
    """In the folder that stands for the hub: with a README.md or without."""
    canary, hub, tasks = tmp_path / "canary", tmp_path / "hub", tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "counted.yaml").write_text(TASK.format(data_set="org/set").replace("custom_dataset: !function", "#"))
    write(hub / "org/set/test.jsonl", [{"input": "a", "output": "b"}])
    (hub / "org/set/set.py").write_text(f"open({str(canary)!r}, 'w')")
    wanted = settings(suite, "own_counted", include_path=str(tasks), data=str(hub))
    assert not suite.Evaluator(wanted).prepare(copying(1), setup_of()).problems["own_counted"]
    (hub / "org/set/README.md").write_text("---\n---\n")
    assert "set.py" in suite.Evaluator(wanted).prepare(copying(1), setup_of()).problems["own_counted"]
    assert not canary.exists()


def test_a_question_without_an_answer_is_none(suite, tmp_path):
    """RULER's common words, where a prompt has no room for a word: its score would be a division by zero."""
    write(tmp_path / "empty.jsonl", [{"input": "Which words?", "outputs": []}])
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
