"""Exports as GGUF files: `python -m tests.outside gguf path=<checkout of llama.cpp>`.

llama.cpp's converter makes a float32 file of a small export of each family, and transformers reads it back where it
knows the architecture; logits must be the run's. The hash by which the converter knows a byte-level tokenizer is of its
ids, so one that is not published is refused; the trial then says which pre-tokenizer it has, as an export's model card
tells people to.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.outside import plain

GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
WIDE = GROUPED | {"head_dim": 16}
# Model type, the style of its tokenizer, and what its small model has besides.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama3", GROUPED),
    "mistral": ("mistral", "sentencepiece", GROUPED | {"sliding_window": None}),
    "mistral with a window": ("mistral", "sentencepiece", GROUPED | {"sliding_window": 20}),
    "qwen2": ("qwen2", "qwen2", GROUPED),
    "qwen3": ("qwen3", "qwen2", GROUPED | {"head_dim": 128}),  # transformers' reader takes its default for granted
    "gemma": ("gemma", "sentencepiece", WIDE),
    "gemma2": ("gemma2", "sentencepiece", WIDE),
    "phi3": ("phi3", "sentencepiece", GROUPED | {"sliding_window": None}),
    "smollm3": ("smollm3", "llama3", GROUPED | {"num_hidden_layers": 4}),
    "starcoder2": ("starcoder2", "starcoder2", GROUPED),
    "stablelm": ("stablelm", "gpt2", GROUPED | {"hidden_size": 64}),
    "olmo2": ("olmo2", "llama3", GROUPED),
    "granite": ("granite", "starcoder2", GROUPED | {"logits_scaling": 0.7}),
    "glm4": ("glm4", "glm4", WIDE),
}
DIFFERS = {"mistral with a window": "llama.cpp has no windows in this class"}
PRE = {"llama3": "llama-bpe", "qwen2": "qwen2", "starcoder2": "starcoder", "gpt2": "gpt-2", "glm4": "glm4"}
# transformers 5.23 reads no rope.freq_base of StarCoder2 and StableLM; why Gemma 2 differs is not known.
READ_BACK = {"llama", "mistral", "phi3", "qwen2", "qwen3"}
VOCAB = 1024
SAME = 1e-5  # of the largest logit
CONVERT = """
import runpy, sys
checkout, pre, *words = sys.argv[1:]
sys.path.insert(0, checkout)
sys.path.insert(1, checkout + "/gguf-py")
from conversion.base import TextModel
if pre:
    TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
sys.argv = ["convert_hf_to_gguf.py", *words]
runpy.run_path(checkout + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def converted(checkout: Path, folder: Path, pre: str = "") -> str:
    """Make model.gguf in an export's folder; return the last lines of an error, "" where there was none."""
    words = [str(folder), "--outtype", "f32", "--outfile", str(folder / "model.gguf")]
    command = [sys.executable, "-c", CONVERT, str(checkout), pre, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else "\n".join(done.stderr.splitlines()[-3:])


def exported(into: Path, case: str) -> tuple[Path, Path]:
    """A run of a small random model with a tokenizer in its style, and its export."""
    from coca_train.hub.exporting import export_run
    from coca_train.hub.importing import import_weights
    from coca_train.hub.options import ExportConfig, ImportConfig
    from tests.data.vocabularies import sentencepiece_model
    from tests.hub import models, tokenizer_styles

    family, style, own = CASES[case]
    folder = models.write_family(into / case, family, {"vocab_size": VOCAB} | own)
    if style == "sentencepiece":
        sentencepiece_model(folder / "tokenizer.model")
    else:
        tokenizer_styles.write(folder, style)
        (folder / "generation_config.json").unlink(missing_ok=True)
        models.edit(folder, bos_token_id=..., eos_token_id=..., pad_token_id=None)
    run = import_weights(ImportConfig(source=str(folder), name="run", root=str(into / "runs" / case)))
    return run, export_run(ExportConfig(run=str(run), to=str(into / f"{case}-out")))


def differs(run: Path, folder: Path) -> float:
    """By how much the logits of model.gguf, read by transformers, differ, relative to the largest."""
    import torch
    import transformers

    from coca_train.checkpoint.opening import load_run

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
    tokens_BT = torch.randint(VOCAB, (1, 48), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found, wanted = theirs.eval()(tokens_BT).logits, load_run(run, "cpu").model(tokens_BT)
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def trial(checkout: Path, case: str, into: Path) -> str:
    """`same`, or what is known or wrong, of one case."""
    run, folder = exported(into, case)
    family, style, _ = CASES[case]
    if style in PRE and "pre-tokenizer was not recognized" not in (problem := converted(checkout, folder)):
        return f"WRONG: {problem or 'the converter knows a tokenizer that nobody published'}"
    if problem := converted(checkout, folder, PRE.get(style, "")):
        return f"WRONG: {problem}"
    if family not in READ_BACK:
        return "converted; not read back"
    try:
        apart = differs(run, folder)
    except (RuntimeError, ValueError) as error:
        return f"WRONG: transformers: {error}"
    if apart > SAME and case in DIFFERS:
        return f"known to differ: {DIFFERS[case]}"
    return f"same, to {apart:.1e}" if apart <= SAME else f"WRONG: logits differ by {apart:.1e} of the largest"


def main(words: list[str]) -> int:
    path = next((word.partition("=")[2] for word in words if word.startswith("path=")), "")
    checkout = Path(path).resolve()
    if not path or not (checkout / "convert_hf_to_gguf.py").is_file():
        print(f"path={path}: no checkout of llama.cpp (path=<folder with convert_hf_to_gguf.py>)")
        return plain.NOT_HERE
    packages = plain.FOLDER / "gguf"
    if not packages.is_dir():
        install = ["pip", "install", "--quiet", "--target", str(packages), "--no-deps", str(checkout / "gguf-py")]
        subprocess.run([str(plain.UV), *install, "-p", sys.executable], env=plain.variables(), check=True)
    if str(packages) not in sys.path:  # transformers asks for the version of an installed package
        command = [sys.executable, "-m", "tests.outside.gguf", *words]
        paths = os.pathsep.join([str(packages), str(plain.ROOT), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(command, cwd=plain.ROOT, env=os.environ | {"PYTHONPATH": paths}, check=False).returncode
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            found = trial(checkout, case, Path(folder))
            wrong += found.startswith("WRONG")
            print(f"{case:22s} {found}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
