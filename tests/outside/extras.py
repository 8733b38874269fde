"""Each extra installed alone, and what it is for done once: `python -m tests.outside.extras [NAME …]`.

The wheel is installed where no checkout is, with packages of the plain index. The bare install shows every verb's help
and makes the quickstart in small; what it lacks an extra for ends in a sentence that names the extra, never in a
traceback.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from data_prep import command_line as data_prep
from tests.outside import plain
from tests.outside.packages import VERBS
from tests.outside.readme import TRAINING

HELD_ELSEWHERE = {"dev": "the parts python-3.11 to python-3.14 install it, and run make test with it"}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

# What the commands read: code that an environment runs with packages of the extra itself.
NOTES = """
import json, random
draw = random.Random(1)
words = ["".join(draw.choices("aeioulnrstdmpk", k=draw.randint(2, 9))) for _ in range(2000)]
lines = [" ".join(draw.choices(words, k=50)).capitalize() + "." for _ in range(320)]
texts = ["\\n".join(lines[at : at + 4]) for at in range(0, 320, 4)]
open("notes.jsonl", "w").write("".join(json.dumps({"text": text}) + "\\n" for text in texts))
"""
PACKED = """
import json, os, pyarrow, pyarrow.parquet, zstandard
lines = open("notes.jsonl", "rb").read()
open("packed.jsonl.zst", "wb").write(zstandard.ZstdCompressor().compress(lines))
table = pyarrow.table({"text": [json.loads(line)["text"] for line in lines.splitlines()]})
os.mkdir("set")
pyarrow.parquet.write_table(table, "table.parquet")
pyarrow.parquet.write_table(table, "set/train.parquet")
"""
VOCABULARY = """
import json
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer, bytes = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel
tokenizer.pre_tokenizer = bytes()
trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["</s>"], initial_alphabet=bytes.alphabet())
tokenizer.train_from_iterator([json.loads(line)["text"] for line in open("notes.jsonl")], trainer)
tokenizer.save("tokenizer.json")
"""
TASK = """
import json, os
question = {"town": "Paris", "lands": ["France", "Peru"], "right": 0}
open("towns.jsonl", "w").write(4 * (json.dumps(question) + "\\n"))
os.mkdir("tasks")
open("tasks/towns.yaml", "w").write('''
task: towns
dataset_path: json
dataset_kwargs: {data_files: {test: towns.jsonl}}
output_type: multiple_choice
test_split: test
doc_to_text: "The town {{town}} lies in"
doc_to_choice: "{{lands}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc}]
''')
"""
LOADED = """
import transformers
for type_, changes in (("its own code", {"trust_remote_code": True}), ("coca_train's", {})):
    if not changes:
        import coca_train.transformers
    model = transformers.AutoModelForCausalLM.from_pretrained("own", **changes)
    tokenizer = transformers.AutoTokenizer.from_pretrained("own", **changes)
    tokenizer.pad_token = tokenizer.eos_token
    texts = tokenizer(["Once", "Once upon a time"], return_tensors="pt", padding=True, padding_side="left")
    assert model.generate(**texts, max_new_tokens=4).shape[1] == texts["input_ids"].shape[1] + 4, type_
    assert type(model).__name__ == "CocaForCausalLM"
"""
KERNEL = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from coca_train.models import fused_loss
constants = {"IGNORE": -100, "BLOCK": fused_loss.BLOCK}
signature = {"logits": "*bf16", "targets": "*i64", "nll": "*fp32", "n_words": "i32"}
signature |= dict.fromkeys(constants, "constexpr")
source = ASTSource(fn=fused_loss.kernel(), signature=signature, constexprs=constants)
target = GPUTarget("cuda", 90, 32)
assert triton.compile(source, target=target, options={"num_warps": fused_loss.N_WARPS}).asm["cubin"]
"""
BROWSER = """
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    print(playwright.chromium.executable_path)
"""

TRAIN = f"coca-train {TRAINING} run.name="
NOTES_ALONE, MINE = "corpus.sources.text.files=[notes.jsonl]", "tokenizer.path=mine.model"
GOOD = "corpus.sources.text.filter.quality=[c4_paragraph]"


def prepare(verb: str, name: str, *words: str) -> str:
    """A verb of data_prep for a corpus of this name."""
    return " ".join([f"python -m data_prep {verb} corpus.name={name} corpus.dir={name}", *words])


@dataclass(frozen=True)
class Step:
    """A command, or code, which begins with a line break. needs: the code of the error that the bare install ends a
    command with, where it is what the extra is for."""

    does: str
    needs: str = ""


BARE = [
    f"{TRAIN}small",
    "coca-train generate run=runs/small prompt=Once max_new_tokens=4",
    f"{TRAIN}rope position=rope",
    NOTES,
    prepare("tokenizer", "mine", NOTES_ALONE, MINE, "tokenizer.vocab_size=600"),
]
EXTRAS = {
    "tensorboard": [Step(f"{TRAIN}tensorboard tracking.tensorboard=true", "E-CFG-37")],
    "wandb": [Step(f"{TRAIN}wandb tracking.wandb=offline", "E-CFG-37")],
    "data": [
        Step(PACKED),
        Step(prepare("tokenize", "table", "corpus.sources.text.files=[table.parquet]", MINE), "E-RAW-25"),
        Step(prepare("tokenize", "packed", "corpus.sources.text.files=[packed.jsonl.zst]", MINE), "E-RAW-25"),
        Step(prepare("tokenize", "hub", "corpus.sources.text.kind=hub corpus.sources.text.hub=set", MINE), "E-RAW-25"),
    ],
    "interop": [
        Step("coca-train export run=runs/rope to=out parity_tokens=64", "E-IOP-17"),
        Step("coca-train import source=out name=back parity_tokens=64", "E-IOP-17"),
        Step("coca-train verify run=runs/rope against=out parity_tokens=64", "E-IOP-17"),
        Step("coca-train export run=runs/small to=own parity_tokens=64", "E-IOP-17"),
        Step(LOADED),
    ],
    "lora": [
        Step(f"{TRAIN}lora 'stages={{b: {{max_steps: 4, trainable: [\"blocks.*\"], lora: {{rank: 2}}}}}}'", "E-STG-18")
    ],
    "hf": [
        Step(VOCABULARY),
        Step(prepare("tokenize", "of_json", NOTES_ALONE, "tokenizer.path=tokenizer.json"), "E-TKN-04"),
    ],
    "quality": [
        Step(prepare("tokenize", "good", NOTES_ALONE, MINE, GOOD), "E-RAW-25"),
    ],
    "bench": [Step("python -m benchmarks.run --device cpu --dtypes fp32 --only decoding --positions alibi --rounds 1")],
    "browser": [Step(BROWSER)],
    "kernels": [Step(KERNEL)],
    "harness": [
        Step(TASK),
        Step(
            "coca-train evaluate checkpoint=runs/rope +eval=harness eval.tasks=[towns] eval.include_path=tasks "
            "eval.window=whole",
            "E-EVAL-30",
        ),
    ],
}


def extras() -> list[str]:
    """Of pyproject.toml, but for those that are held elsewhere."""
    text = (plain.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = tomllib.loads(text)["project"]["optional-dependencies"].keys() - HELD_ELSEWHERE.keys()
    assert named == EXTRAS.keys(), f"pyproject.toml has {sorted(named)}, this file {sorted(EXTRAS)}"
    return list(EXTRAS)


def environment(wheel: Path, extra: str = "") -> Path:
    """The Python of a new environment with the wheel and one extra."""
    name = f"extra-{extra or 'none'}"
    (plain.FOLDER / name / "ready").unlink(missing_ok=True)  # what was installed is another state's
    return plain.environment(name, [f"{wheel}[{extra}]" if extra else str(wheel)], plain.ROOT / "constraints.txt")


def ended_otherwise(python: Path, folder: Path, does: str, error: str = "") -> str:
    """What a step printed that did not end well, or, where a pattern is given, in this error; "": it did."""
    words = ["python", "-c", does] if does.startswith("\n") else shlex.split(does)
    done = subprocess.run(
        [str(python.parent / words[0]), *words[1:]], cwd=folder, env=os.environ | ENVIRONMENT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    as_it_should = done.returncode and re.search(error, done.stderr) if error else not done.returncode
    if as_it_should and "Traceback" not in done.stderr:
        return ""
    return f"  EXIT CODE {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"


def promised(extra: str, code: str) -> str:
    """The pattern of an error whose fix installs what this extra has."""
    text = (plain.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = [Requirement(each).name for each in tomllib.loads(text)["project"]["optional-dependencies"][extra]]
    return rf"{code} .*Fix: pip install '?(coca-train\[{extra}\]|({'|'.join(packages)})\b)"


def main(words: list[str]) -> int:
    if unknown := set(words) - set(extras()):
        print(f"{', '.join(sorted(unknown))}: no such extra; there are {', '.join(EXTRAS)}")
        return 2
    failed, asked = [], words or list(EXTRAS)
    with tempfile.TemporaryDirectory() as dist, tempfile.TemporaryDirectory() as folder:
        build = [plain.UV, "build", "--quiet", "--wheel", "-o", dist, plain.ROOT]
        subprocess.run(build, env=plain.variables(), check=True)
        (wheel,) = Path(dist).glob("*.whl")
        shutil.copytree(plain.ROOT / "benchmarks", Path(folder, "benchmarks"))  # of the checkout alone

        def step(where: str, python: Path, does: str, error: str = "") -> None:
            name = f"{where}: {'code' if does.startswith(chr(10)) else does}{f', {error}' * bool(error)}"
            print(name, flush=True)
            if printed := ended_otherwise(python, Path(folder), does, error):
                failed.append(name)
                print(printed, flush=True)

        bare = environment(wheel)
        verbs = subprocess.run([bare, "-c", VERBS], capture_output=True, text=True, check=True).stdout.split()
        helps = [f"coca-train {verb} --help" for verb in verbs]
        helps += [f"python -m data_prep {verb} --help" for verb in ("", *data_prep.VERBS)]
        for does in (*helps, *BARE):
            step("bare", bare, does)
        for extra in asked:
            python = environment(wheel, extra)
            for one in EXTRAS[extra]:
                if one.needs:
                    step("bare", bare, one.does, promised(extra, one.needs))
                step(f"[{extra}]", python, one.does)
    print("\n".join(["FAILED:", *failed]) if failed else "Every extra, alone, does what it is for.")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
