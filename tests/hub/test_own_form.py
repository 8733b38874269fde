"""Exports with our modelling files: every scheme loads in transformers by its auto classes and computes the same."""

import json
import os
import subprocess
import sys

import pytest
import torch

from coca_train.hub import own, parity, run_directory
from coca_train.hub.options import VERIFY, given
from coca_train.hub.weights import open_source
from coca_train.positions import scheme_names
from coca_train.runtime.errors import UserError
from tests.hub import models

RAMP = {"theta": 500.0, "original_seq_len": 16, "beta_fast": 8.0, "beta_slow": 1.0}
DYNAMIC = {"name": "dynamic_ntk", "theta": 500.0, "alpha": 2.0, "original_seq_len": 24}
SHORTER = {"name": "dynamic_linear", "theta": 500.0, "original_seq_len": 24}
PLAIN = {"name": "plain", "theta": 500.0}
LONGROPE = {"name": "longrope", "theta": 500.0, "factor": 4.0, "original_seq_len": 24}
LONGROPE |= {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": None, "temperature": None}
SCHEMES = {
    "rope": {"rotary_pct": 0.5, "frequencies": PLAIN},
    "coca": {"variant": "slack", "t_width": "half", "rotary_pct": 1.0, "frequencies": PLAIN},
    "xpos": {"gamma": 0.4, "scale_base": 64.0, "rotary_pct": 1.0, "frequencies": PLAIN},
    "alibi": {"fold": "auto"},
    "kerple_log": {},
    "kerple_power": {},
    "t5": {"n_buckets": 8, "max_distance": 20},
    "sandwich": {"d_bar": 16},
    "shaw": {"max_distance": 5},
    "transformer_xl": {"memory_len": 0},
    "disentangled": {"max_distance": 6},
    "tupe": {"max_len": 96, "n_buckets": 8, "max_distance": 20},
    "learned": {"max_len": 96},
    "sinusoidal": {"theta": 100.0, "scale": 0.3},
    "nope": {},
    "fox": {},
    "fire": {"mlp_width": 8, "threshold": 20.0},
    "dape": {"bias": "kerple_log", "mlp_width": 8},
    "cope": {"n_positions": 12},
}
COCA = SCHEMES["coca"]
CODE, PAPER = ({"name": "yarn", **RAMP, "factor": 4.0, "convention": convention} for convention in ("code", "paper"))
VARIANTS = {
    **{name: {"scheme": name, **section} for name, section in SCHEMES.items()},
    "dape alibi": {"scheme": "dape", **SCHEMES["dape"], "bias": "alibi"},
    "dape fire": {"scheme": "dape", **SCHEMES["dape"], "bias": "fire"},
    "rope p": {"scheme": "rope", "rotary_pct": 1.0, "frequencies": {"name": "partial", "theta": 500.0, "share": 0.5}},
    "rope longrope": {"scheme": "rope", "rotary_pct": 1.0, "frequencies": LONGROPE},
    "coca strict": {"scheme": "coca", **COCA, "variant": "strict"},
    "coca full": {"scheme": "coca", **COCA, "t_width": "full_mean"},
    "coca dynamic ntk": {"scheme": "coca", **COCA, "frequencies": DYNAMIC},
    "coca dynamic yarn": {
        "scheme": "coca",
        **COCA,
        "frequencies": {"name": "dynamic_yarn", **RAMP, "convention": "code"},
    },
    "coca yarn": {"scheme": "coca", **COCA, "frequencies": PAPER},
    "rope dynamic linear": {"scheme": "rope", "rotary_pct": 1.0, "frequencies": SHORTER},
    "rope part yarn": {"scheme": "rope", "rotary_pct": 0.5, "frequencies": CODE},
}


@pytest.fixture
def run_of(tmp_path):
    """A run directory with random weights."""

    def make(source, name="run"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        made = run_directory.configuration(name, str(tmp_path / "runs"), source, None)
        run_directory.write(folder, made, source, None, {})
        return folder

    return make


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_modelling_file_computes_what_the_run_does(variant, run_of, send):
    """The dense second writing against our kernels, at 1x and 4x; parity.json holds the figures."""
    source = models.random_source(VARIANTS[variant])
    out = send(run_of(source), form="own")
    found = json.loads((out / "parity.json").read_text())
    assert [probe["length"] for probe in found["probes"]] == [models.LENGTH, 4 * models.LENGTH]
    assert all(probe["relative"] <= 1e-5 < 1 < probe["max_abs_logit"] for probe in found["probes"])
    scheme = source.architecture.position.scheme
    assert json.loads((out / "config.json").read_text())["model_type"] == f"coca_train_{scheme}"
    with open_source(out) as again:
        assert again.architecture == source.architecture
        assert all(torch.equal(again.read(name), source.read(name)) for name in source.names)


def test_every_scheme_is_tried():
    assert set(SCHEMES) == set(scheme_names())


@pytest.mark.parametrize(
    "model",
    [
        {"norm": "layernorm", "activation": "gelu", "residual": "parallel", "bias": True, "n_kv_heads": None},
        {"activation": "gelu_tanh", "tie_embeddings": True, "head_dim": 8},
    ],
)
def test_every_shape_of_model(model, run_of, send):
    source = models.random_source({"scheme": "coca", **COCA}, **model)
    out = send(run_of(source))
    assert json.loads((out / "parity.json").read_text())["passed"]


def test_windows_are_exported_and_other_visibilities_refused(run_of, send):
    window = {"name": "sliding_window", "window": 7}
    send(run_of(models.random_source({"scheme": "coca", **COCA}, window), "window"))
    sinks = {"name": "sinks", "n_sink": 2, "window": 7}
    source = models.random_source(VARIANTS["coca strict"], sinks)
    with pytest.raises(UserError, match=r"E-IOP-15.*visibility sinks"):
        send(run_of(source, "sinks"), "sinks-out")


@pytest.mark.parametrize("form", ["native", "llama", "gpt_neox"])
def test_coca_is_never_a_native_model(form, run_of, send):
    with pytest.raises(UserError, match=r"E-IOP-15.*scheme coca"):
        send(run_of(models.random_source({"scheme": "coca", **COCA})), form=form)


SCRIPT = """
import sys, torch, transformers
transformers.logging.set_verbosity_error()
folder = sys.argv[1]
try:
    transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    print("LOADED WITHOUT CODE")
except ValueError:
    pass
model, info = transformers.AutoModelForCausalLM.from_pretrained(
    folder, trust_remote_code=True, dtype=torch.float32, output_loading_info=True
)
assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
ids = torch.randint(101, (1, 60), generator=torch.Generator().manual_seed(3))
with torch.no_grad():
    torch.save({"logits": model.eval()(ids).logits[0], "loss": model(ids, labels=ids).loss}, sys.argv[2])
greedy = model.generate(ids[:, :5], max_new_tokens=6, do_sample=False, pad_token_id=0)[0, 5:].tolist()
print(type(model).__name__, model.config.model_type, greedy)
"""


def test_by_the_auto_classes_in_a_clean_process(run_of, send, tmp_path):
    """As a stranger would use it: no coca_train, its own module cache, trust_remote_code."""
    source = models.random_source({"scheme": "coca", **COCA}, tie_embeddings=True)
    out = send(run_of(source))
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-P", tmp_path / "script.py", out, tmp_path / "logits.pt"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = done.stdout.split(maxsplit=2)
    assert words[:2] == ["CocaTrainForCausalLM", "coca_train_coca"]
    got = torch.load(tmp_path / "logits.pt", weights_only=True)

    ids = torch.randint(models.VOCAB, (1, 60), generator=torch.Generator().manual_seed(3))
    probe = parity.Probe("", ids, torch.arange(60)[None], 60)
    (expected,) = parity.our_logits(source.architecture, source.read)([probe])
    assert models.same(got["logits"], expected)
    nll = torch.nn.functional.cross_entropy(expected[:-1], ids[0, 1:])
    assert got["loss"].item() == pytest.approx(nll.item(), rel=1e-4)
    text = ids[0, :5].tolist()
    for _ in range(6):  # our greedy choice, one full pass for each token
        here = parity.Probe("", torch.tensor([text]), torch.arange(len(text))[None], len(text))
        text.append(int(parity.our_logits(source.architecture, source.read)([here])[0][-1].argmax()))
    assert json.loads(words[2]) == text[5:]


def test_modelling_files_that_were_changed_are_not_run(run_of, send, tmp_path):
    from coca_train.hub import verifying

    run = run_of(models.random_source({"scheme": "coca", **COCA}))
    out = send(run)
    options = given(VERIFY, run=str(run), against=str(out))
    verifying.run(options)
    trap = f"import os\nos.mkdir({str(tmp_path / 'trapped')!r})\n"
    for name in ("position.py", "another.py"):
        path = out / name
        before = path.read_text() if path.exists() else None
        path.write_text(trap + (before or ""))
        with pytest.raises(UserError, match="E-IOP-16"):
            verifying.run(options)
        path.unlink() if before is None else path.write_text(before)
    assert not (tmp_path / "trapped").exists()
    verifying.run(options)


def test_every_scheme_has_its_file():
    assert {path.stem.removeprefix("position_") for path in own.CODE.glob("position_*.py")} - {"base"} == set(
        scheme_names()
    )
    assert all('"coca_train_' in own.code(name)["configuration_coca_train.py"] for name in scheme_names())


def test_learned_frequencies_are_refused(run_of, send):
    clex = {"name": "clex", "theta": 500.0, "original_seq_len": 24, "max_factor": 4, "param_factor": 1, "ode_step": 0.5}
    section = {"scheme": "coca", **COCA, "frequencies": clex}
    with pytest.raises(UserError, match=r"E-IOP-15.*clex"):
        send(run_of(models.random_source(section)))
