"""Exports with our own modelling files: they generate what we do, padded, batched and cached, without coca_train."""

import json
import os
import re
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from importlib.metadata import EntryPoint

import pytest
import torch
from safetensors.torch import load_file, save_file

from coca_train.config.schema import KindConfig, LayersConfig
from coca_train.extending import parts
from coca_train.hub import own, parity, run_directory
from coca_train.hub.options import VERIFY, given
from coca_train.hub.remote.modeling_coca_train import CocaTrainConfig, CocaTrainForCausalLM
from coca_train.hub.weights import open_source
from coca_train.models.continuations import continuations
from coca_train.models.generation import generate
from coca_train.positions import FREQUENCIES, SCHEMES, VISIBILITIES
from coca_train.runtime.errors import UserError
from tests.hub import models
from tests.positions import support

N_NEW, LENGTHS = 14, (5, 17, 11)
LENGTH = max(LENGTHS) + N_NEW  # beyond the 24 tokens the models are trained for
RULES = {"window": 7, "length": 10, "n_sink": 2, "n_global": 2, "max_distance": 9}
STRICT = support.coca(variant="strict")
NOPE_FOURTH = LayersConfig(
    pattern=["own", "own", "own", "nope"],
    kinds={"nope": KindConfig(position={"scheme": "nope"}, logit_scale={"name": "log", "length": 8})},
)


def visibility(name):
    fields = VISIBILITIES.module(name).Settings.__pydantic_fields__
    return {"name": name} | {key: value for key, value in RULES.items() if key in fields}


# Whatever the registries have: schemes as they are shipped, frequencies on CoCA and RoPE, visibilities.
CHOICES = {
    **{name: {"position": section} for name, section in parts.shipped()},
    **{f"coca {name}": {"position": support.coca(support.scaling(name))} for name in FREQUENCIES.names()},
    **{f"rope {name}": {"position": support.rope(support.scaling(name, "code"))} for name in ("yarn", "dynamic_ntk")},
    **{f"strict {name}": {"position": STRICT, "visibility": visibility(name)} for name in VISIBILITIES.names()},
    "full mean": {"position": support.coca(t_width="full_mean")},
    "part of the head": {"position": support.rope(support.scaling("yarn", "code"), 0.5)},
    "dape fire": {"position": {"scheme": "dape", "bias": "fire", "mlp_width": 8}},
    "fox window": {"position": {"scheme": "fox"}, "visibility": visibility("sliding_window")},
    "nope every fourth": {"position": support.rope(), "layers": NOPE_FOURTH, "n_layers": 5, "qk_norm": "head"},
    "neox": {"position": support.coca(), "norm": "layernorm", "activation": "gelu", "residual": "parallel",
             "bias": True, "n_kv_heads": None},
    "tied": {"position": support.coca(), "activation": "gelu_tanh", "tie_embeddings": True, "head_dim": 8},
}  # fmt: skip


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, models.VOCAB, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.fixture
def exported(tmp_path):
    """(our model, the class of transformers from the files of an export) with the same random weights."""
    opened = ExitStack()

    def make(position, visibility=None, layers=models.UNIFORM, **model):
        source = models.random_source(position, visibility, layers, **model)
        for name, text in own.code(source.architecture).items():
            assert not re.search(r"^\s*(from|import) (coca_train|pydantic|others)", text, re.MULTILINE), name
            (tmp_path / name).write_text(text)
        model_class, config = opened.enter_context(own.classes(source.architecture))
        ours, theirs = source.architecture.build().eval(), model_class(config(**own.config(source.architecture))).eval()
        for each in (ours, theirs.model):
            each.load_state_dict({name: source.read(name) for name in source.names}, strict=False)
        return ours, theirs

    with opened:
        yield make


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


@torch.no_grad()
def test_padding_on_either_side_changes_nothing(exported, prompts):
    ours, theirs = exported(**CHOICES["coca"])
    right = [prompt + [3] * (max(LENGTHS) - len(prompt)) for prompt in prompts]
    mask = padded(prompts)["attention_mask"]
    left_BTV = theirs(**padded(prompts)).logits
    right_BTV = theirs(input_ids=torch.tensor(right), attention_mask=mask.flip(1)).logits
    for row, prompt in enumerate(prompts):
        expected_TV = ours(torch.tensor([prompt]))[0]
        assert models.same(left_BTV[row, -len(prompt) :], expected_TV)
        assert models.same(right_BTV[row, : len(prompt)], expected_TV)


def test_the_cache_holds_t_at_half_width(exported, prompts):
    _, theirs = exported(**CHOICES["coca"])
    past = theirs(input_ids=torch.tensor([prompts[0]])).past_key_values
    assert past.layers[0].keys.shape == (1, 2, LENGTHS[0], 6)
    assert past.layers[0].values.shape == (1, 2, LENGTHS[0], 12)
    with pytest.raises(ValueError, match="StaticLayer"):
        new_tokens(theirs, padded(prompts), cache_implementation="static")


@torch.no_grad()
def test_the_class_is_a_module_of_the_package(exported, prompts):
    """What is shipped is what is here."""
    _, theirs = exported(**CHOICES["fox"])
    architecture = models.random_source(**CHOICES["fox"]).architecture
    here = CocaTrainForCausalLM(CocaTrainConfig(**own.config(architecture))).eval()
    here.load_state_dict(theirs.state_dict())
    assert torch.equal(here(**padded(prompts)).logits, theirs(**padded(prompts)).logits)


@pytest.fixture
def run_of(tmp_path):
    """A run directory with random weights."""

    def make(source, name="run"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        configured = run_directory.configuration(name, str(tmp_path / "runs"), source, None)
        run_directory.write(folder, configured, source, None, {})
        return folder

    return make


@pytest.mark.parametrize("choice", ["coca", "coca clex", "tupe", "strict lambda_mask", "nope every fourth", "tied"])
def test_export_and_back(choice, run_of, send):
    source = models.random_source(**CHOICES[choice])
    out = send(run_of(source), form="own")
    figures = json.loads((out / "parity.json").read_text())
    assert figures["passed"]
    assert all(probe["relative"] <= 1e-5 < 1 < probe["max_abs_logit"] for probe in figures["probes"])
    with open_source(out) as again:
        assert again.architecture == source.architecture
        assert all(torch.equal(again.read(name), source.read(name)) for name in source.names)


def test_an_export_of_an_earlier_version_is_read(run_of, send):
    """Its tensors have our names without a prefix, and its config.json no layers in full."""
    source = models.random_source(support.coca())
    out = send(run_of(source))
    weights = load_file(out / "model.safetensors")
    save_file({name.removeprefix("model."): tensor for name, tensor in weights.items()}, out / "model.safetensors")
    models.edit(out, model_type="coca_train_coca", layer_kinds=..., kinds=...)
    with open_source(out) as earlier:
        assert earlier.architecture == source.architecture
        assert all(torch.equal(earlier.read(name), source.read(name)) for name in source.names)


@pytest.mark.parametrize("form", ["native", "llama", "gpt_neox"])
def test_coca_is_never_a_native_model(form, run_of, send):
    with pytest.raises(UserError, match=r"E-IOP-15.*scheme coca"):
        send(run_of(models.random_source(support.coca())), form=form)


SCRIPT = """
import json, sys, torch, transformers
sys.modules["coca_train"] = sys.modules["pydantic"] = None  # neither can be imported
try:
    import coca_train
    print("COCA_TRAIN IS THERE")
except ImportError:
    pass
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
inputs = json.loads(sys.argv[3])
with torch.no_grad():
    torch.save({"logits": model.eval()(ids).logits[0], "loss": model(ids, labels=ids).loss}, sys.argv[2])
greedy = model.generate(**{k: torch.tensor(v) for k, v in inputs.items()}, max_new_tokens=14, pad_token_id=0,
                        length=31)
print(type(model).__name__, model.config.model_type, greedy[:, len(inputs["input_ids"][0]):].tolist())
"""


def test_by_the_auto_classes_in_a_clean_process(run_of, send, tmp_path, prompts):
    """As a stranger would use it: no coca_train, its own module cache, trust_remote_code."""
    source = models.random_source(support.coca(), tie_embeddings=True)
    out = send(run_of(source))
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    inputs = json.dumps({key: value.tolist() for key, value in padded(prompts).items()})
    done = subprocess.run(
        [sys.executable, "-P", tmp_path / "script.py", out, tmp_path / "logits.pt", inputs],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = done.stdout.split(maxsplit=2)
    assert words[:2] == ["CocaTrainForCausalLM", "coca_train"]
    got = torch.load(tmp_path / "logits.pt", weights_only=True)

    ids = torch.randint(models.VOCAB, (1, 60), generator=torch.Generator().manual_seed(3))
    (expected,) = parity.our_logits(source.architecture, source.read)(
        [parity.Probe("", ids, torch.arange(60)[None], 60)]
    )
    assert models.same(got["logits"], expected)
    nll = torch.nn.functional.cross_entropy(expected[:-1], ids[0, 1:])
    assert got["loss"].item() == pytest.approx(nll.item(), rel=1e-4)
    ours = source.architecture.build().eval()
    ours.load_state_dict({name: source.read(name) for name in source.names}, strict=False)
    ours.tie()
    expected = continuations(ours, prompts, N_NEW, length=LENGTH, micro_batch_tokens=1)
    assert json.loads(words[2]) == [expected[row] for row in range(len(prompts))]


def test_modelling_files_that_were_changed_are_not_run(run_of, send, tmp_path):
    from coca_train.hub import verifying

    run = run_of(models.random_source(support.coca()))
    out = send(run)
    options = given(VERIFY, run=str(run), against=str(out))
    verifying.run(options)
    trap = f"import os\nos.mkdir({str(tmp_path / 'trapped')!r})\n"
    for name in ("positions_schemes_coca.py", "another.py"):
        path = out / name
        before = path.read_text() if path.exists() else None
        path.write_text(trap + (before or ""))
        with pytest.raises(UserError, match="E-IOP-16"):
            verifying.run(options)
        path.unlink() if before is None else path.write_text(before)
    assert not (tmp_path / "trapped").exists()
    verifying.run(options)


PLUGIN = '''
"""Scores that fall with the root of the distance, as another package has it."""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.base import Position, Terms, n_distances

from . import curves


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    scheme: Literal["rooted"]
    slope: float = Field(gt=0, description="of the root")


class Scheme(Position):
    def forward(self, pos_BT, pos_BS, length):
        r_R = torch.arange(n_distances(pos_BT, pos_BS), dtype=torch.float32)
        return Terms(distance_HR=-self.settings.slope * curves.{curve}(r_R).expand(self.shape.n_heads, -1))

    def terms(self, tables):
        return tables
'''
CURVES = "import numpy as np\n\n\ndef root(x):\n    return x.sqrt()\n\n\ndef by_numpy(x):\n    return np.sqrt(x)\n"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A scheme of another package, registered as its entry point would."""

    def make(package, curve):
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "rooted.py").write_text(textwrap.dedent(PLUGIN).replace("{curve}", curve))
        (folder / "curves.py").write_text(CURVES)
        monkeypatch.syspath_prepend(str(tmp_path))
        point = EntryPoint("rooted", f"{package}.rooted", "coca_train.schemes")
        monkeypatch.setitem(SCHEMES._plugins, "rooted", point)
        return {"scheme": "rooted", "slope": 0.5}

    return make


def test_a_scheme_of_another_package_is_exported_from_its_own_source(plugin, exported, prompts, tmp_path):
    ours, theirs = exported(plugin("others", "root"))
    expected = continuations(ours, prompts, N_NEW, length=LENGTH, micro_batch_tokens=1)
    assert new_tokens(theirs, padded(prompts)) == [expected[row] for row in range(len(prompts))]
    assert "pydantic" not in (tmp_path / "others_rooted.py").read_text()
    assert "numpy" not in (tmp_path / "others_curves.py").read_text()  # what is not needed stays behind


def test_what_an_export_cannot_count_on_is_refused(plugin, run_of, send):
    source = models.random_source(plugin("elsewhere", "by_numpy"))
    with pytest.raises(UserError, match=r"E-IOP-15.*elsewhere.curves needs the package numpy"):
        send(run_of(source))


def test_a_section_is_read_only():
    config = CocaTrainConfig(**own.config(models.random_source(support.coca()).architecture))
    settings = CocaTrainForCausalLM(config).model.position.settings
    assert isinstance(settings.frequencies.theta, float)
    with pytest.raises(AttributeError, match="theta"):
        settings.frequencies.theta = 1.0
