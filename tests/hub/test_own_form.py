"""Exports in our own forms: they generate what we do, padded, batched and cached; those of one dot product without
coca_train."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint

import pytest
import torch

from coca_train.attention import ATTENTION_PATTERNS
from coca_train.config.schema import LayersConfig, LayerTypeConfig
from coca_train.hub import exporting, forms, importing, parity
from coca_train.hub.export_files.modeling_coca import CACHE
from coca_train.hub.options import VerifyConfig
from coca_train.hub.weights import open_source
from coca_train.models.continuations import continuations
from coca_train.models.generation import generate
from coca_train.positions import ROPE_SCALINGS, SCHEMES
from coca_train.runtime.errors import UserError
from coca_train.testing import parts
from tests.hub import models
from tests.positions import support

N_NEW, LENGTHS = 14, (5, 17, 11)
LENGTH = max(LENGTHS) + N_NEW  # beyond the 24 tokens the models are trained for
RULES = {"window": 7, "group": 3, "dilation": 2, "length": 10, "n_sink": 2, "n_global": 2, "max_distance": 9}
STRICT = support.coca(variant="strict")
NOPE_FOURTH = LayersConfig(
    pattern=["default", "default", "default", "nope"],
    types={"nope": LayerTypeConfig(position={"scheme": "nope"}, logit_scale={"name": "log", "length": 8})},
)


def attention_pattern(name):
    fields = ATTENTION_PATTERNS.module(name).Settings.__pydantic_fields__
    return {"name": name} | {key: value for key, value in RULES.items() if key in fields}


# Whatever the registries have: schemes as they are shipped, frequencies on CoCA and RoPE, attention patterns.
CHOICES = {
    **{name: {"position": section} for name, section in parts.shipped()},
    **{f"coca {name}": {"position": support.coca(support.scaling(name))} for name in ROPE_SCALINGS.names()},
    **{f"rope {name}": {"position": support.rope(support.scaling(name, "code"))} for name in ("yarn", "dynamic_ntk")},
    **{
        f"strict {name}": {"position": STRICT, "attention_pattern": attention_pattern(name)}
        for name in ATTENTION_PATTERNS.names()
        if name != "bidirectional"  # which is refused: tests/training/test_encoder.py
    },
    "full mean": {"position": support.coca(t_width="full_mean")},
    "part of the head": {"position": support.rope(support.scaling("yarn", "code"), 0.5)},
    "dape fire": {"position": {"scheme": "dape", "bias": "fire", "mlp_width": 8}},
    "fox window": {"position": {"scheme": "fox"}, "attention_pattern": attention_pattern("sliding_window")},
    "nope every fourth": {"position": support.rope(), "layers": NOPE_FOURTH, "n_layers": 5, "qk_norm": "head"},
    "neox": {"position": support.coca(), "norm": "layernorm", "activation": "gelu", "residual": "parallel",
             "bias": ["qkv", "out", "mlp", "norm"], "n_kv_heads": None},
    "tied": {"position": support.coca(), "activation": "gelu_tanh", "tie_embeddings": True, "head_dim": 8},
}  # fmt: skip


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, models.VOCAB, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.fixture
def exported():
    """(our model, the class of transformers that an export has) with the same random weights."""

    def make(position, attention_pattern=None, layers=models.UNIFORM, attention="sdpa", **model):
        return models.both(models.random_source(position, attention_pattern, layers, **model), attention)

    return make


def padded(prompts):
    """Left-padded with a token that means something elsewhere."""
    rows = [[3] * (max(LENGTHS) - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (max(LENGTHS) - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


def new_tokens(model, inputs, **options):
    """Of `generate`, greedy unless told otherwise."""
    fixed = {"max_new_tokens": N_NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "length": LENGTH}
    return model.generate(**inputs, **fixed | options)[:, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("choice", CHOICES)
def test_generates_what_we_do(choice, exported, prompts):
    """Token by token, prompts of three lengths in one batch, with a cache."""
    ours, theirs = exported(**CHOICES[choice])
    expected = continuations(ours, prompts, N_NEW, length=LENGTH, micro_batch_tokens=1)
    texts = new_tokens(theirs, padded(prompts))
    assert texts == [expected[row] for row in range(len(prompts))]
    assert len({token for row in texts for token in row}) > 1


@pytest.mark.parametrize("choice", ["coca", "fox", "cope", "strict sinks", "nope every fourth"])
def test_beams_and_no_cache(choice, exported, prompts):
    """Beam search takes rows of the cache along; without a cache there is nothing to take along."""
    _, theirs = exported(**CHOICES[choice])
    for beams in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        cached, recomputed = (new_tokens(theirs, padded(prompts), use_cache=use, **beams) for use in (True, False))
        assert cached == recomputed
    assert len({tuple(row) for row in cached}) == 2 * len(prompts)


def test_frequencies_follow_the_longest_row_unless_told(exported, prompts):
    ours, theirs = exported(**CHOICES["coca dynamic_ntk"])
    one = {"input_ids": torch.tensor([prompts[1]])}
    stepwise = generate(ours, prompts[1], N_NEW, dynamic_length="step")
    assert new_tokens(theirs, one, length=None) == [stepwise]
    assert new_tokens(theirs, one) == [generate(ours, prompts[1], N_NEW)] != [stepwise]


@pytest.mark.parametrize(("choice", "width"), [("coca", 12), ("coca dynamic_ntk", 6)])
def test_what_a_cache_holds(choice, width, exported, prompts):
    """k'; where frequencies follow the length t, at half width."""
    _, theirs = exported(**CHOICES[choice])
    past = theirs(input_ids=torch.tensor([prompts[0]]))[CACHE]
    assert past.layers[0].keys.shape == (1, 2, LENGTHS[0], width)
    assert past.layers[0].values.shape == (1, 2, LENGTHS[0], 12)


@pytest.fixture
def run_of(tmp_path):
    """A run directory with random weights."""

    def make(source, name="run"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        configured = importing.run_config(name, str(tmp_path / "runs"), source, None)
        importing.fill_run(folder, configured, source, None, {})
        return folder

    return make


@pytest.mark.parametrize(
    "choice", ["coca", "coca clex", "tupe", "fire", "strict lambda_mask", "nope every fourth", "tied"]
)
def test_export_and_back(choice, run_of, export_run):
    source = models.random_source(**CHOICES[choice])
    run = run_of(source)
    out = export_run(run, form="own")
    exporting.verify_export(VerifyConfig(run=str(run), against=str(out)))
    figures = json.loads((out / "parity.json").read_text())
    assert figures["passed"]
    assert all(probe["relative"] <= 1e-5 < 1 < probe["max_abs_logit"] for probe in figures["probes"])
    with open_source(out) as again:
        assert again.architecture == source.architecture
        assert all(torch.equal(again.read(name), source.read(name)) for name in source.names)


@pytest.mark.parametrize("form", ["native", "llama", "gpt_neox"])
def test_coca_is_never_a_native_model(form, run_of, export_run):
    with pytest.raises(UserError, match=r"E-IOP-15.*scheme coca"):
        export_run(run_of(models.random_source(support.coca())), form=form)


SCRIPT = """
import json, sys, torch, transformers
if sys.argv[4] == "without":
    sys.modules["coca_train"] = sys.modules["pydantic"] = None  # neither can be imported
else:
    import coca_train.transformers
transformers.logging.set_verbosity_error()
folder, trusted = sys.argv[1], sys.argv[4] == "without"
if trusted:
    try:
        transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
        print("LOADED WITHOUT CODE")
    except ValueError:
        pass
model, info = transformers.AutoModelForCausalLM.from_pretrained(
    folder, trust_remote_code=trusted, dtype=torch.float32, output_loading_info=True
)
assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
ids = torch.randint(101, (1, 60), generator=torch.Generator().manual_seed(3))
inputs = json.loads(sys.argv[3])
with torch.no_grad():
    torch.save({"logits": model.eval()(ids).logits[0], "loss": model(ids, labels=ids).loss}, sys.argv[2])
greedy = model.generate(**{k: torch.tensor(v) for k, v in inputs.items()}, max_new_tokens=14, pad_token_id=0,
                        length=31)
print(type(model).__name__, model.config.model_type, greedy[:, len(inputs["input_ids"][0]):].tolist())
sys.modules.pop("pydantic")  # which DeepSpeed, asked for by transformers when it saves, cannot do without
model.save_pretrained(sys.argv[5])
"""


@pytest.mark.parametrize(
    ("choice", "package", "names"),
    [
        ("coca", "without", ["CocaForCausalLM", "coca"]),
        pytest.param("coca", "with", ["CocaForCausalLM", "coca"], marks=pytest.mark.slow),
        ("fox", "with", ["CocaTrainForCausalLM", "coca_train"]),
    ],
)
def test_by_the_auto_classes_in_a_clean_process(choice, package, names, run_of, export_run, tmp_path, prompts):
    """As a stranger would use it: no coca_train, its own module cache, trust_remote_code; or with coca_train, and none
    of the folder's code. What it saves is read here again."""
    source = models.random_source(**CHOICES[choice], tie_embeddings=True)
    out = export_run(run_of(source))
    assert sorted(path.name for path in out.glob("*.py")) == sorted(forms.export_code(names[1]))
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if package == "without":
        environment.pop("PYTHONPATH", None)
    inputs = json.dumps({key: value.tolist() for key, value in padded(prompts).items()})
    done = subprocess.run(
        [sys.executable, "-P", "script.py", out, "logits.pt", inputs, package, "saved"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()[0].split(maxsplit=2)
    assert words[:2] == names
    got = torch.load(tmp_path / "logits.pt", weights_only=True)

    ids = torch.randint(models.VOCAB, (1, 60), generator=torch.Generator().manual_seed(3))
    (expected,) = parity.our_logits(source.architecture, source.read)(
        [parity.Probe("", ids, torch.arange(60)[None], 60)]
    )
    assert models.same(got["logits"], expected)
    nll = torch.nn.functional.cross_entropy(expected[:-1], ids[0, 1:])
    assert got["loss"].item() == pytest.approx(nll.item(), rel=1e-4)
    ours, _ = models.both(source)
    expected = continuations(ours, prompts, N_NEW, length=LENGTH, micro_batch_tokens=1)
    assert json.loads(words[2]) == [expected[row] for row in range(len(prompts))]
    with open_source(tmp_path / "saved") as again:
        assert again.architecture == source.architecture
        assert all(torch.equal(again.read(name), source.read(name)) for name in source.names)


PLUGIN = '''
"""Scores that fall with the root of the distance, as another package has it."""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.base import Position, Terms
from coca_train.positions.token_positions import n_distances


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    scheme: Literal["rooted"]
    slope: float = Field(gt=0, description="of the root")


class Scheme(Position):
    def forward(self, queries, keys, length):
        r_R = torch.arange(n_distances(queries, keys), dtype=torch.float32)
        return Terms(distance_HR=-self.settings.slope * r_R.sqrt().expand(self.shape.n_heads, -1))

    def terms(self, tables):
        return tables
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A scheme of another package, registered as its entry point would."""

    folder = tmp_path / "others"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "rooted.py").write_text(textwrap.dedent(PLUGIN))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(SCHEMES._points, "rooted", EntryPoint("rooted", "others.rooted", "coca_train.schemes"))
    return {"scheme": "rooted", "slope": 0.5}


def test_a_scheme_of_another_package_is_exported_like_those_here(plugin, exported, prompts, run_of, export_run):
    ours, theirs = exported(plugin)
    expected = continuations(ours, prompts, N_NEW, length=LENGTH, micro_batch_tokens=1)
    assert new_tokens(theirs, padded(prompts)) == [expected[row] for row in range(len(prompts))]
    out = export_run(run_of(models.random_source(plugin)))
    assert json.loads((out / "config.json").read_text())["model_type"] == "coca_train"
