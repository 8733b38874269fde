"""Which form an export takes, what is said of it before a run, and who is known to compute something else from it."""

import json

import pytest

from coca_train.commands import main
from coca_train.hub import card, forms
from coca_train.hub.config_json import read_architecture
from coca_train.hub.families import FAMILIES
from coca_train.positions.hugging_face import NotTheSame
from coca_train.runtime.errors import UserError
from coca_train.settings import load
from coca_train.stages import resolve
from tests.hub import models, rope_cases
from tests.positions import support

LLAMA = ["model=llama_tiny", "position=rope"]
WIDE = {"d_model": 256}  # heads as wide as the lists of longrope


def of_words(*words):
    return forms.describe_run(resolve(load([*LLAMA, *words], launch=False).config), 1000)


@pytest.mark.parametrize("name", rope_cases.SCALINGS)
def test_what_decodes_as_it_reads_is_native(name):
    """Beyond the original length the others turn cached keys by another length's angles."""
    architecture = models.random_source(support.rope(rope_cases.SCALINGS[name]), **WIDE).architecture
    decodes_otherwise = name in ("dynamic", "longrope")
    assert (forms.choose(architecture, "auto")["model_type"] in FAMILIES) == (not decodes_otherwise)
    native = forms.choose(architecture, "native")
    assert native["model_type"] == forms.choose(architecture, "llama")["model_type"] == "llama"
    assert forms.config_to_compare(architecture) == native
    said = forms.caveats(architecture, "llama")
    assert any(f"beyond {rope_cases.L} tokens" in line and "form=own" in line for line in said) == decodes_otherwise
    assert forms.caveats(architecture, forms.COCA) == []


@pytest.mark.parametrize(
    ("name", "family", "phrases"),
    [
        ("plain", "llama", []),
        ("plain", "mistral", []),
        ("linear", "llama", []),
        ("linear", "mistral", ["before 4.48"]),
        ("yarn", "llama", ["before 4.51"]),
        ("by-parts", "llama", []),
        ("by-parts-indices", "llama", ["before 4.51", "vllm#48351"]),
        ("dynamic", "llama", ["beyond 256 tokens", "vllm#3488"]),
        ("longrope", "llama", ["beyond 256 tokens", "vllm#27431", "longrope"]),
        ("longrope", "phi3", ["beyond 256 tokens", "vllm#27431"]),
        ("longrope-one-list", "llama", ["longrope"]),
        ("partial", "llama", ["before 5.5", "proportional"]),
    ],
)
def test_who_computes_something_else_is_named(name, family, phrases):
    architecture = models.random_source(support.rope(rope_cases.SCALINGS[name]), **WIDE).architecture
    lines = forms.caveats(architecture, family)
    assert len(lines) == len(phrases)
    assert all(phrase in line for phrase, line in zip(phrases, lines, strict=True))


@pytest.mark.parametrize(
    ("name", "share", "chosen"),
    [("plain", 1.0, "phi3"), ("linear", 1.0, "llama"), ("yarn", 1.0, "llama"), ("linear", 0.5, "glm")],
)
def test_frequencies_that_the_preferred_class_refuses_go_to_another(name, share, chosen):
    position = support.rope(rope_cases.SCALINGS[name]) | {"rotary_pct": share}
    architecture = models.random_source(position, **WIDE).architecture
    assert forms.choose(architecture, "auto", "phi3")["model_type"] == chosen
    assert forms.config_to_compare(architecture, "phi3")["model_type"] == chosen
    if chosen != "phi3":
        with pytest.raises(UserError, match="E-IOP-15") as raised:
            forms.choose(architecture, "phi3")
        assert f"rope_type {name}" in str(raised.value)


@pytest.mark.parametrize(
    ("family", "option", "ours", "theirs"),
    [
        ("granite", "logits_multiplier", 0.125, 8.0),
        ("granite", "logits_multiplier", 0.7, 1 / 0.7),
        ("gemma2", "attention_multiplier", 1 / 12, 144),
    ],
)
def test_a_number_has_the_type_of_its_class(family, option, ours, theirs):
    """5.4's refuse an int for a float, and a float for an int."""
    (field,) = (field for field in FAMILIES[family].fields if field.ours == option)
    architecture = models.random_source(support.rope(rope_cases.SCALINGS["plain"]), **{option: ours}).architecture
    written = field.write(architecture.complete)
    assert written == pytest.approx(theirs, rel=1e-15) and type(written) is type(theirs)


def test_a_multiplier_that_no_whole_number_gives():
    (field,) = (field for field in FAMILIES["gemma2"].fields if field.ours == "attention_multiplier")
    architecture = models.random_source(support.rope(rope_cases.SCALINGS["plain"]), attention_multiplier=0.3)
    with pytest.raises(NotTheSame, match="query_pre_attn_scalar"):
        field.write(architecture.architecture.complete)


def test_a_cap_of_scores_that_older_versions_ignore_is_named(tmp_path):
    models.config_of("gemma2", {"num_key_value_heads": 2, "num_hidden_layers": 4}).save_pretrained(tmp_path)
    (line,) = forms.caveats(read_architecture(tmp_path, ()), "gemma2")
    assert "before 5.21" in line and "eager" in line


@pytest.mark.parametrize(("of_windows", "older"), [(5e5, True), (50.0, False)])
def test_olmo3_is_in_the_words_of_older_versions_where_they_have_them(of_windows, older, tmp_path):
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}
    rope |= {"sliding_attention": {"rope_type": "default", "rope_theta": of_windows}}
    models.config_of("olmo3", {"num_hidden_layers": 4, "rope_parameters": rope}).save_pretrained(tmp_path)
    architecture = read_architecture(tmp_path, ())
    written = forms.choose(architecture, "olmo3")
    assert written.get("rope_theta") == (5e5 if older else None)
    assert ("rope_parameters" in written) == (not older)
    assert any("before 5 " in line for line in forms.caveats(architecture, "olmo3")) == (not older)
    models.edit_new(tmp_path, written)
    assert read_architecture(tmp_path, ()) == architecture


def test_a_factor_that_no_two_lengths_give():
    """4.51 to 4.55 divide one whole number by another; a window beyond s·L cannot be said either."""
    section = rope_cases.SCALINGS["yarn"] | {"factor": 1.33, "original_seq_len": 10}
    architecture = models.random_source(support.rope(section)).architecture
    config = forms.choose(architecture, "native")
    assert config["max_position_embeddings"] == 13 < architecture.seq_len == models.LENGTH
    said = " ".join(forms.caveats(architecture, "llama"))
    assert "1.33" in said and f" {models.LENGTH} tokens" in said


def test_a_temperature_that_others_do_not_read():
    section = rope_cases.SCALINGS["longrope-one-list"] | {"temperature": 1.5}
    architecture = models.random_source(support.rope(section), **WIDE).architecture
    line, in_llama_cpp = forms.caveats(architecture, "llama")
    assert "vLLM" in line and "attention_factor=1.5" in line and "longrope" in in_llama_cpp


OTHER_LAYERS = {"layer_types": ["full_attention", "sliding_attention"] * 2, "num_hidden_layers": 4}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
ONE_THETA, TWO_THETAS = (
    {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": theta},
        }
    }
    for theta in (5e5, 1e4)
)
IN_LLAMA_CPP = [
    ("llama", {}, ""),
    ("mistral", {"sliding_window": None}, ""),
    ("mistral", {"sliding_window": 7}, "beyond 7 tokens"),
    ("phi3", {"sliding_window": 7}, "beyond 7 tokens"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}, "beyond 7 tokens"),
    ("smollm3", {"num_hidden_layers": 8}, ""),
    ("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}, "RoPE"),
    ("smollm3", {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 7}, "beyond 7 tokens"),
    ("gemma2", {"num_hidden_layers": 4}, ""),
    ("gemma2", OTHER_LAYERS | {"layer_types": OTHER_LAYERS["layer_types"][::-1]}, ""),
    ("gemma2", OTHER_LAYERS, "window"),
    ("cohere2", {"num_hidden_layers": 8}, ""),
    ("cohere2", OTHER_LAYERS, "RoPE"),
    ("cohere2", {"num_hidden_layers": 8, "rope_parameters": LINEAR}, "linear"),
    ("llama", {"rope_parameters": models.SCALINGS["llama3"]}, ""),
    ("qwen2", {"rope_parameters": models.SCALINGS["llama3"]}, "llama3"),
    ("qwen2", {"rope_parameters": LINEAR}, ""),
    ("llama", {"rope_parameters": models.SCALINGS["proportional"]}, "proportional"),
    ("gemma2", {"num_hidden_layers": 4, "rope_parameters": LINEAR}, "linear"),
    ("gemma2", {"num_hidden_layers": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, "10,000"),
    ("gemma2", {"num_hidden_layers": 4, "query_pre_attn_scalar": 16}, "√256"),
    ("gemma2", {"num_hidden_layers": 46, "query_pre_attn_scalar": 12}, ""),
    ("gemma3_text", {"num_hidden_layers": 8}, ""),
    ("gemma3_text", {"num_hidden_layers": 4}, ""),
    ("gemma3_text", OTHER_LAYERS, "window"),
    ("olmo3", OTHER_LAYERS | ONE_THETA, ""),
    ("olmo3", OTHER_LAYERS | TWO_THETAS, "rope_theta"),
    ("exaone4", {"num_hidden_layers": 8}, "rotates"),
    ("exaone4", {"num_hidden_layers": 64}, ""),
    ("exaone4", {"layer_types": ["full_attention"] * 2, "sliding_window": None}, ""),
]


@pytest.mark.parametrize(("family", "values", "phrase"), IN_LLAMA_CPP)
def test_layers_that_llama_cpp_gives_a_family_otherwise_are_named(family, values, phrase, tmp_path):
    models.config_of(family, {"num_key_value_heads": 2} | values).save_pretrained(tmp_path)
    architecture = read_architecture(tmp_path, ())
    lines = [line for line in forms.caveats(architecture, family) if line.startswith("llama.cpp ")]
    assert len(lines) == bool(phrase) and all(phrase in line for line in lines)


@pytest.mark.parametrize(
    ("family", "values", "key", "value"),
    [
        ("gpt2", {"n_positions": 32}, "n_ctx", 32),
        ("cohere2", {"num_key_value_heads": 2}, "rotary_pct", 1.0),
        ("falcon", {}, "num_kv_heads", 1),
    ],
)
def test_keys_that_only_the_converter_of_llama_cpp_reads(family, values, key, value, tmp_path):
    models.config_of(family, values).save_pretrained(tmp_path)
    assert forms.native_config(read_architecture(tmp_path, ()), family)[key] == value


def test_before_a_run_its_export_is_named():
    assert of_words().startswith("LlamaForCausalLM (llama)")
    assert "export form=native" in of_words("position/rope_scaling=dynamic_ntk")
    assert "position scheme coca" in of_words("position=coca")
    assert of_words("model.qk_norm=head").startswith("Qwen3ForCausalLM (qwen3)")
    assert of_words("layers=gemma3").startswith("CocaForCausalLM (coca)")
    assert of_words("model.score_cap=3.0", "position=alibi").startswith("CocaTrainForCausalLM (coca_train)")
    dynamic = of_words("position/rope_scaling=dynamic_ntk", "model.logits_cap=3.0")
    assert "model.logits_cap=3.0" in dynamic and "native" not in dynamic.split(";")[1:]
    five = ["model.qk_norm=full", "model.norm_placement=both", "model.embedding_norm=true", "model.activation=relu"]
    assert "trained with" not in of_words(*five)


@pytest.mark.parametrize(
    ("typed", "nearest", "options"),
    [
        (["model.qk_norm=head", "model.bias=[out]"], "qwen3", ["model.bias=[]"]),
        (["model.bias=[mlp,head]"], "llama", ["model.bias=[mlp]"]),
        (["model.logits_cap=3.0", "model.embedding_norm=true"], "llama",
         ["model.logits_cap=null", "model.embedding_norm=false"]),
        (["position/rope_scaling=yarn", "model.score_cap=9.0"], "llama",
         ["position.rope_scaling.convention=code", "model.score_cap=null"]),
        (["position.rotary_pct=0.5", "model.qk_norm=head"], "phi3", ["model.qk_norm=none"]),
    ],
)  # fmt: skip
def test_the_nearest_class_and_the_options_that_make_it_native(typed, nearest, options):
    """Typed as printed, they do."""
    said = of_words(*typed)
    assert said.startswith("CocaForCausalLM (coca)")
    assert f"({nearest})" in said or "position" in options[0]
    advice = said.rpartition("trained with ")[2].removesuffix(" it is native").split()
    assert sorted(advice) == sorted(options)
    assert f"({nearest})" in of_words(*typed, *advice)


@pytest.mark.parametrize("rope_scaling", ["yarn", "ntk_by_parts"])
def test_the_word_that_makes_it_native_does(rope_scaling):
    words = [f"position/rope_scaling={rope_scaling}"]
    words += ["position.rope_scaling.convention=authors"] * (rope_scaling == "ntk_by_parts")
    said = of_words(*words)
    assert said.startswith("CocaForCausalLM (coca)")
    (word,) = [word for word in said.split() if "=" in word]
    assert of_words(*words, word) == of_words()


def test_the_word_of_a_stage_is_the_stages():
    """A stage that has frequencies of its own; typed as printed, its result is native."""
    words = ["+experiment=yarn_llama2_7b_128k", "stages.to_128k.position.rope_scaling.convention=paper"]
    said = forms.describe_run(resolve(load(words, launch=False).config), 1000)
    (word,) = [word for word in said.split() if "=" in word]
    assert word.startswith("stages.to_128k.position")
    assert "LlamaForCausalLM" in forms.describe_run(resolve(load([*words, word], launch=False).config), 1000)


def test_plan_says_it(capsys):
    assert main(["plan", *LLAMA, "position/rope_scaling=yarn", "model.vocab_size=512", "gpus=1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "export: CocaForCausalLM (coca), " in printed
    assert " position.rope_scaling.convention=code " in printed


def test_an_export_says_it_before_it_reads_weights_and_its_card_after(model, import_run, export_run, capsys):
    run = import_run(model("llama_gqa", "dynamic"))
    capsys.readouterr()
    out = export_run(run, form="llama")
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.startswith("export ") and "LlamaForCausalLM" in line]
    (warned,) = [i for i, line in enumerate(lines) if f"WARNING: beyond {models.LENGTH} tokens" in line]
    assert first < warned < next(i for i, line in enumerate(lines) if "parity" in line)
    assert f"- beyond {models.LENGTH} tokens" in (out / "README.md").read_text()
    own = export_run(run, "own")
    assert json.loads((own / "config.json").read_text())["model_type"] not in FAMILIES
    assert card.DIFFERS not in (own / "README.md").read_text()
