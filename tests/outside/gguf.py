"""Exports in llama.cpp: `python -m tests.outside gguf path=<source distribution of llama-cpp-python, unpacked>`.

llama.cpp's converter makes a float32 file of a small export of each family, and llama.cpp computes logits from it. They
are the run's to SAME, or the model card says that llama.cpp computes something else: each of the two without the other
is wrong. llama.cpp has GELU in a table of float16, which costs up to 6e-4; where there is none, logits agree to 5e-6.

The first call compiles llama.cpp, which took 8 minutes on two cores. The hash by which the converter knows a byte-level
tokenizer is of its ids, so one that is not published is refused; the trial then says which pre-tokenizer it has, as an
export's model card tells people to.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.outside import plain

GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
WIDE = GROUPED | {"head_dim": 16}
GEMMA = WIDE | {"query_pre_attn_scalar": 16, "sliding_window": 20}
DEFAULT_THETA = {"rope_theta": 10000.0}  # llama.cpp's own; models.write_family has 500
LAYERED = {"num_hidden_layers": 5, "sliding_window": 20}
ORIGINAL = {"original_max_position_embeddings": 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | ORIGINAL
YARN = {"rope_type": "yarn", "factor": 3.0} | ORIGINAL
FULL = {"layer_types": ["full_attention"] * 2, "sliding_window": None}
# Model type, the style of its tokenizer, and what its small model has besides.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama3", GROUPED),
    "llama, llama3": ("llama", "llama3", GROUPED | {"rope_parameters": LLAMA3}),
    "llama, YaRN": ("llama", "llama3", GROUPED | {"rope_parameters": YARN}),
    "llama, a temperature": ("llama", "llama3", GROUPED | {"rope_parameters": YARN | {"attention_factor": 1.5}}),
    "mistral": ("mistral", "sentencepiece", GROUPED | {"sliding_window": None}),
    "mistral, a window": ("mistral", "sentencepiece", GROUPED | {"sliding_window": 20}),
    "qwen2": ("qwen2", "qwen2", GROUPED),
    "qwen2, llama3": ("qwen2", "qwen2", GROUPED | {"rope_parameters": LLAMA3}),
    "qwen3": ("qwen3", "qwen2", WIDE),
    "gemma": ("gemma", "sentencepiece", WIDE | DEFAULT_THETA),
    "gemma, another theta": ("gemma", "sentencepiece", WIDE),
    "gemma2": ("gemma2", "sentencepiece", GEMMA | DEFAULT_THETA),
    "gemma2, another theta": ("gemma2", "sentencepiece", GEMMA),
    "gemma2, another scale": ("gemma2", "sentencepiece", GEMMA | DEFAULT_THETA | {"query_pre_attn_scalar": 32}),
    "gemma3_text": ("gemma3_text", "sentencepiece", GEMMA | {"num_hidden_layers": 7}),
    "phi3": ("phi3", "sentencepiece", GROUPED | {"sliding_window": None}),
    "smollm3": ("smollm3", "llama3", GROUPED | {"num_hidden_layers": 4}),
    "starcoder2": ("starcoder2", "starcoder2", GROUPED),
    "stablelm": ("stablelm", "gpt2", GROUPED | {"hidden_size": 64} | DEFAULT_THETA),
    "olmo2": ("olmo2", "llama3", GROUPED),
    "olmo3": ("olmo3", "llama3", GROUPED | LAYERED | DEFAULT_THETA),
    "olmo3, two thetas": ("olmo3", "llama3", GROUPED | LAYERED),
    "exaone4": ("exaone4", "llama3", GROUPED | FULL),
    "exaone4, windows": ("exaone4", "llama3", GROUPED | LAYERED),
    "granite": ("granite", "starcoder2", GROUPED | {"logits_scaling": 0.7}),
    "glm4": ("glm4", "glm4", WIDE),
    "cohere2": ("cohere2", "cohere", GROUPED | LAYERED | {"logit_scale": 0.9}),
    "gpt2": ("gpt2", "gpt2", {"n_positions": 96}),
    "bloom": ("bloom", "bloom", {"seq_length": 24}),
    "falcon": ("falcon", "falcon", DEFAULT_THETA),
    "falcon_40b": ("falcon", "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2} | DEFAULT_THETA),
}
PRE = {
    "llama3": "llama-bpe", "qwen2": "qwen2", "starcoder2": "starcoder", "gpt2": "gpt-2", "glm4": "glm4",
    "cohere": "command-r", "bloom": "bloom", "falcon": "falcon",
}  # fmt: skip
VOCAB, LENGTH = 1024, 48  # [tokens], beyond every window and trained length
SAME = 1e-3  # of the largest logit
NOT_BUILT = [f"-DLLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER")]
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
    folder = models.write_family(into / "source", family, {"vocab_size": VOCAB} | own)
    if theta := {key: value for key, value in own.items() if key == "rope_theta"}:
        rope = json.loads((folder / "config.json").read_text(encoding="utf-8"))["rope_parameters"]
        parts = {name: part | theta for name, part in rope.items() if isinstance(part, dict)}
        models.edit(folder, rope_theta=..., rope_parameters=parts or rope | theta)
    if style == "sentencepiece":
        sentencepiece_model(folder / "tokenizer.model")
    else:
        tokenizer_styles.write(folder, style)
        (folder / "generation_config.json").unlink(missing_ok=True)
        models.edit(folder, bos_token_id=..., eos_token_id=..., pad_token_id=None)
    run = import_weights(ImportConfig(source=str(folder), name="run", root=str(into), parity_tokens=LENGTH))
    # llama.cpp takes a model with phi3 in its name, which is the folder's, for one with Phi 3's special tokens.
    return run, export_run(ExportConfig(run=str(run), to=str(into / "export"), parity_tokens=LENGTH))


def differs(run: Path, folder: Path) -> float:
    """By how much llama.cpp's logits of model.gguf differ, relative to the largest."""
    import torch
    from llama_cpp import Llama

    from coca_train.checkpoint.opening import load_run

    in_float32 = {"type_k": 0, "type_v": 0}  # the cache, which is in float16 else
    theirs = Llama(str(folder / "model.gguf"), n_ctx=64, logits_all=True, verbose=False, **in_float32)
    n_rows = theirs.n_vocab()
    tokens_BT = torch.randint(n_rows, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    theirs.eval(tokens_BT[0].tolist())
    found_TV = torch.from_numpy(theirs.scores[:LENGTH].copy())
    with torch.no_grad():
        wanted_TV = load_run(run, "cpu").model(tokens_BT)[0, :, :n_rows]
    return ((found_TV - wanted_TV).abs().max() / wanted_TV.abs().max()).item()


def trial(checkout: Path, case: str, into: Path) -> str:
    """`same`, or what is known or wrong, of one case."""
    run, folder = exported(into, case)
    style = CASES[case][1]
    if style in PRE and "pre-tokenizer was not recognized" not in (problem := converted(checkout, folder)):
        return f"WRONG: {problem or 'the converter knows a tokenizer that nobody published'}"
    if problem := converted(checkout, folder, PRE.get(style, "")):
        return f"WRONG: {problem}"
    try:
        apart = differs(run, folder)
    except (RuntimeError, ValueError) as error:
        return f"WRONG: llama.cpp: {error}"
    card = (folder / "README.md").read_text(encoding="utf-8")
    lines = [line for line in card.splitlines() if line.startswith("- ") and "llama.cpp" in line]
    if (apart > SAME) != bool(lines):
        return f"WRONG: logits differ by {apart:.1e} of the largest, and the model card says {lines}"
    return f"differs by {apart:.1e}: {lines[0]}" if lines else f"same, to {apart:.1e}"


def main(words: list[str]) -> int:
    path = next((word.partition("=")[2] for word in words if word.startswith("path=")), "")
    source = Path(path).resolve()
    checkout = source / "vendor" / "llama.cpp"
    if not path or not (checkout / "convert_hf_to_gguf.py").is_file() or not shutil.which("cmake"):
        print(f"path={path}: no llama-cpp-python (path=<its source distribution, unpacked>), or no cmake")
        return plain.NOT_HERE
    packages, build = plain.FOLDER / "gguf", plain.FOLDER / "llama.cpp"
    for command in (
        [str(plain.UV), "pip", "install", "--quiet", "--target", str(packages), "diskcache", "-p", sys.executable],
        ["cmake", "-S", str(checkout), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", *NOT_BUILT],
        ["cmake", "--build", str(build), "--target", "llama", "--parallel", str(os.cpu_count())],
    ):
        subprocess.run(command, env=plain.variables(), check=True)
    sys.path += [str(source), str(packages)]
    os.environ["LLAMA_CPP_LIB_PATH"] = str(build / "bin")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            found = trial(checkout, case, Path(folder) / str(len(os.listdir(folder))))
            wrong += found.startswith("WRONG")
            print(f"{case:22s} {found}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
