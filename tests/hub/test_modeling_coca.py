"""Both classes of our own exports as users of transformers meet them, beside what they generate (test_own_form.py)."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import accelerate
import peft
import pytest
import torch
import transformers
from torch.nn import functional as F

from coca_train import positions
from coca_train.config.schema import LayersConfig, LayerTypeConfig
from coca_train.hub import forms, small_copy, transformers_side
from coca_train.hub.export_files import configuration_coca
from coca_train.hub.export_files.modeling_coca import CACHE, CocaConfig, CocaForCausalLM, CocaModel
from coca_train.hub.installed import CocaTrainForCausalLM
from coca_train.hub.weights import locate
from tests.cases import slow_unless
from tests.hub import models
from tests.positions import support

WINDOWS = LayersConfig(
    pattern=["default", "wide", "narrow"],
    types={
        "wide": LayerTypeConfig(attention_pattern={"name": "sliding_window", "window": 9}),
        "narrow": LayerTypeConfig(
            position={"scheme": "nope"},
            attention_pattern={"name": "sliding_window", "window": 4},
            logit_scale={"name": "steps", "length": 8, "beta": 0.5},
        ),
    },
)
CHOICES = {
    "coca": {"position": support.coca()},
    "dynamic": {"position": support.coca(support.scaling("dynamic_ntk"))},
    "windows": {"position": support.coca(support.scaling("dynamic_yarn"), variant="strict"), "layers": WINDOWS,
                "n_layers": 4, "qk_norm": "head"},
    "alibi": {"position": {"scheme": "alibi", "fold": "auto"}, "layers": WINDOWS, "n_layers": 3},
    "neox": {"position": support.rope(support.scaling("yarn", "paper")), "norm": "layernorm", "activation": "gelu",
             "residual": "parallel", "bias": ["qkv", "out", "mlp", "norm"], "n_kv_heads": None},
    "mixed": {"position": support.coca(t_width="full_mean"), "norm_weight": "one_plus", "norm_placement": "both",
              "embedding_norm": True, "qk_norm": "full", "activation": "geglu_tanh", "bias": ["out", "head"],
              "attention_multiplier": 0.4, "score_cap": 2.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.6,
              "logits_multiplier": 1.5, "logits_cap": 4.0},
    "fox": {"position": {"scheme": "fox"}},
    "t5": {"position": {"scheme": "t5", "n_buckets": 8, "max_distance": 20}},
    "cope": {"position": {"scheme": "cope", "n_positions": 12}},
    "sinks": {"position": support.rope(), "learned_sink": True, "score_scale": "head",
              "logit_scale": {"name": "ssmax", "length": 8, "beta": 0.1}},
}  # fmt: skip
FILES = ("coca", "dynamic", "windows", "alibi", "neox", "mixed")  # of model_type coca; the others need coca_train
# Every option of `model` that changes what is computed, and each of its values but the default.
OPTIONS: dict[str, dict[str, Any]] = {
    **{f"bias {part}": {"bias": [part]} for part in ("qkv", "out", "mlp", "head")},
    "bias norm": {"norm": "layernorm", "bias": ["norm"]},
    "norm": {"norm": "layernorm"},
    "norm_eps": {"norm_eps": 0.1},
    **{f"norm_weight {word}": {"norm_weight": word} for word in ("one_plus", "none")},
    "norm_weight none layernorm": {"norm_weight": "none", "norm": "layernorm"},
    **{f"norm_placement {word}": {"norm_placement": word} for word in ("post", "both")},
    "embedding_norm": {"embedding_norm": True},
    **{f"qk_norm {word}": {"qk_norm": word} for word in ("head", "full")},
    "qk_norm one_plus": {"qk_norm": "full", "norm_weight": "one_plus"},
    "qk_norm layernorm": {"qk_norm": "head", "norm": "layernorm"},
    **{f"residual {word}": {"residual": word} for word in ("parallel", "parallel_one_norm")},
    "residual one norm and outputs": {"residual": "parallel_one_norm", "norm_placement": "both"},
    **{word: {"activation": word} for word in ("gelu", "gelu_tanh", "relu", "relu2", "geglu", "geglu_tanh")},
    "attention_multiplier": {"attention_multiplier": 0.7},
    "attention_multiplier alibi": {"attention_multiplier": 0.7, "position": support.alibi()},
    "score_cap": {"score_cap": 0.5},
    "score_cap that grows": {"score_cap": 0.5, "logit_scale": {"name": "log", "length": 8, "beta": 0.1}},
    "embedding_multiplier": {"embedding_multiplier": 0.3},
    "residual_multiplier": {"residual_multiplier": 0.3},
    "logits_multiplier": {"logits_multiplier": 0.3},
    "logits_cap": {"logits_cap": 1.5},
    "clip_qkv": {"clip_qkv": 0.1},
    "part of a head": {"position": support.rope(rotary_pct=0.5)},
    "part of a head coca": {"position": support.coca(support.scaling("yarn"), rotary_pct=0.5)},
    "part of a head full": {"position": support.coca(support.scaling("yarn"), "strict", "full_mean", 0.5)},
    "part of a head turned": {
        "position": support.coca(support.scaling("yarn"), rotary_pct=0.5) | {"temperature_on": "rotated"}
    },
}


@pytest.fixture(scope="module")
def pairs():
    """pairs(choice, attention="sdpa"): our model and the class of its export, with the same random weights."""
    made = {}

    def pair(choice, attention="sdpa"):
        if (choice, attention) not in made:
            made[choice, attention] = models.both(models.random_source(**CHOICES[choice]), attention)
        return made[choice, attention]

    return pair


def some_ids(*shape, seed=3):
    return torch.randint(3, models.VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def same(a, b):
    return torch.allclose(a, b, atol=1e-5 * max(1.0, b.abs().max().item()), rtol=0)


def test_what_the_files_compute_is_declared_once_more_without_transformers():
    for name in ("SCHEMES", "ATTENTION_PATTERNS", "LOGIT_SCALES", "ROPE_SCALINGS"):
        assert getattr(forms, name) == getattr(configuration_coca, name)


@pytest.mark.parametrize("choice", CHOICES)
def test_which_class_it_is(choice, pairs):
    assert isinstance(pairs(choice)[1], CocaForCausalLM if choice in FILES else CocaTrainForCausalLM)


@torch.no_grad()
@pytest.mark.parametrize("choice", CHOICES)
def test_a_cache_under_either_name_changes_nothing(choice, pairs):
    """Chunk by chunk, over more than two windows."""
    ours, theirs = pairs(choice)
    ids, past = some_ids(2, 60), None
    length = {"length": 60} if choice in ("dynamic", "windows") else {}
    whole = theirs(ids, use_cache=False, **length).logits
    assert same(whole, ours(ids, length=60))
    for name in ("past_key_values", "cache"):
        parts, past = [], transformers.DynamicCache(config=theirs.config) if choice in FILES else None
        for chunk in ids.split([7, 1, 1, 20, 30, 1], 1):
            out = theirs(chunk, **{name: past}, use_cache=True, **length)
            parts.append(out.logits)
            past = out[CACHE]
        assert same(torch.cat(parts, 1), whole)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", slow_unless(["mixed"], ["mixed", *OPTIONS]))
def test_every_option_is_computed(name):
    """Of whole texts, with a cache, with padding, packed, and in the gradients."""
    ours, theirs = models.both(models.random_source(**{"position": support.coca(), **(CHOICES | OPTIONS)[name]}))
    ids = some_ids(2, 30)
    pos_BT, doc_BT = (torch.arange(30) % 18)[None], (torch.arange(30) // 18)[None]
    with torch.no_grad():
        whole = ours(ids)
        assert same(theirs(ids, use_cache=False).logits, whole)
        first = theirs(ids[:, :25])
        then = [first.logits]
        for token in ids[:, 25:].split(1, 1):
            then.append(theirs(token, **{CACHE: first[CACHE]}).logits)
        assert same(torch.cat(then, 1), whole)
        mask = torch.cat((torch.zeros(2, 4), torch.ones(2, 30)), 1).long()
        assert same(theirs(F.pad(ids, (4, 0), value=5), attention_mask=mask).logits[:, 4:], whole)
        assert same(theirs(ids, position_ids=pos_BT).logits, ours(ids, pos_BT=pos_BT, doc_BT=doc_BT))
    expected = gradients(ours, ours(ids, F.pad(ids[:, 1:], (0, 1), value=-100)) / (2 * 29))
    got = gradients(theirs, theirs(ids, labels=ids).loss)
    places = locate(expected, forms.COCA)
    for parameter, gradient in expected.items():
        assert same(got[places[parameter].tensor], gradient), parameter


@torch.no_grad()
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_is_left_out_shows(name):
    """In the logits, or in weights that have no place."""
    options = {"position": support.coca(), **OPTIONS[name]}
    source = models.random_source(**options)
    ours, theirs = models.both(source)
    ids = some_ids(1, 20)
    key = name.split()[0]
    defaults = forms.own_config(models.random_source(support.coca()).architecture)
    names = ("hidden_act", "gated_mlp") if key == options.get("activation") else (key,)
    config = forms.own_config(source.architecture)
    if key == "part":
        config["kinds"]["default"]["position"]["rotary_pct"] = 1.0
    else:
        config |= {key: defaults[key] for key in names}
    try:
        other = transformers_side.model_of_source(source, config)
    except (AssertionError, RuntimeError):
        return
    assert same(theirs(ids).logits, ours(ids))
    assert not same(other(ids).logits, ours(ids))


@torch.no_grad()
@pytest.mark.parametrize("choice", CHOICES)
def test_positions_that_begin_elsewhere_go_on_with_a_cache(choice, pairs):
    _, theirs = pairs(choice)
    ids, pos_BT = some_ids(2, 12), torch.arange(50, 62)[None]
    length = {"length": 62}
    whole = theirs(ids, position_ids=pos_BT, use_cache=False, **length).logits
    first = theirs(ids[:, :7], position_ids=pos_BT[:, :7], use_cache=True, **length)
    then = theirs(ids[:, 7:], position_ids=pos_BT[:, 7:], **{CACHE: first[CACHE]}, use_cache=True, **length)
    assert same(torch.cat((first.logits, then.logits), 1), whole)


@torch.no_grad()
@pytest.mark.parametrize("choice", FILES)
def test_layers_may_lie_on_several_devices(choice, pairs):
    """accelerate moves what a layer is given by its `to`: here to a device without memory."""
    _, theirs = pairs(choice)
    given = {}
    hook = theirs.model.layers[1].register_forward_pre_hook(
        lambda module, args, kwargs: given.update(args=args, kwargs=kwargs), with_kwargs=True
    )
    theirs(some_ids(1, 9), attention_mask=torch.ones(1, 9))
    hook.remove()
    moved = accelerate.utils.send_to_device((given["args"], given["kwargs"]), "meta")
    tensors = [x for x in vars(moved[0][1]).values() if isinstance(x, torch.Tensor)]
    tensors += [moved[0][0], *vars(moved[0][1].positions).values()]
    assert {x.device.type for x in tensors if isinstance(x, torch.Tensor)} == {"meta"}


@torch.no_grad()
@pytest.mark.parametrize("choice", CHOICES)
def test_packed_texts_do_not_see_each_other(choice, pairs):
    """By positions that begin again, without a mask; in the default of use_cache, which is true."""
    ours, theirs = pairs(choice)
    ids, lengths = some_ids(1, 30), (11, 12, 7)
    pos_BT = torch.cat([torch.arange(n) for n in lengths])[None]
    doc_BT = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    got = theirs(ids, position_ids=pos_BT, length=12).logits
    assert same(got, ours(ids, pos_BT=pos_BT, doc_BT=doc_BT, length=12))
    alone = torch.cat([theirs(part, length=12).logits for part in ids.split(lengths, 1)], 1)
    assert same(got, alone)


@torch.no_grad()
@pytest.mark.parametrize("choice", CHOICES)
def test_padding_on_either_side_changes_nothing(choice, pairs):
    _, theirs = pairs(choice)
    ids, padding = some_ids(1, 13), torch.full((1, 4), 5)
    expected = theirs(ids, length=20).logits
    mask = torch.cat((torch.zeros_like(padding), torch.ones_like(ids)), 1)
    left = theirs(torch.cat((padding, ids), 1), attention_mask=mask, length=20).logits
    right = theirs(torch.cat((ids, padding), 1), attention_mask=mask.flip(1), length=20).logits
    assert same(left[:, 4:], expected)
    assert same(right[:, :13], expected)


@torch.no_grad()
@pytest.mark.parametrize("choice", FILES)
def test_eager_attention_is_the_same_and_hands_out_weights(choice, pairs):
    ids = some_ids(2, 19)
    fused, eager = pairs(choice)[1](ids), pairs(choice, "eager")[1](ids, output_attentions=True)
    assert same(eager.logits, fused.logits)
    assert len(eager.attentions) == pairs(choice)[1].config.num_hidden_layers
    for weights in eager.attentions:
        assert weights.shape == (2, 4, 19, 19)
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        assert not weights.triu(1).any()


@pytest.mark.parametrize(
    ("choice", "implementation"),
    [("alibi", "flash_attention_2"), ("dynamic", "paged|sdpa"), ("mixed", "flex_attention"), ("mixed", "paged|eager")],
)
def test_an_attention_that_cannot_compute_it_is_refused(choice, implementation, pairs):
    _, theirs = pairs(choice)
    before = theirs.config._attn_implementation
    theirs.config._attn_implementation = implementation
    try:
        with pytest.raises(ValueError, match="attn_implementation="):
            theirs(some_ids(1, 5))
    finally:
        theirs.config._attn_implementation = before


@torch.no_grad()
@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_asked_for_is_given(choice, pairs):
    _, theirs = pairs(choice)
    ids = some_ids(2, 9)
    out = theirs(ids, output_hidden_states=True)
    assert len(out.hidden_states) == theirs.config.num_hidden_layers + 1
    if choice != "mixed":  # which scales and normalises embeddings, and caps logits
        assert torch.equal(out.hidden_states[0], theirs.get_input_embeddings()(ids))
        assert same(out.hidden_states[-1] @ theirs.get_output_embeddings().weight.T, out.logits)
    assert theirs(ids).hidden_states is None
    assert torch.equal(theirs(ids, return_dict=False)[0], out.logits)
    assert same(theirs(inputs_embeds=theirs.get_input_embeddings()(ids)).logits, out.logits)
    assert same(theirs(ids, logits_to_keep=2).logits, out.logits[:, -2:])
    assert same(theirs(ids, logits_to_keep=torch.tensor([0, 3])).logits, out.logits[:, [0, 3]])
    assert theirs(ids, use_cache=False).get(CACHE) is None is not theirs(ids)[CACHE]


@pytest.mark.parametrize("choice", ["coca", "fox"])
def test_a_cache_is_never_dropped_in_silence(choice):
    _, theirs = models.both(models.random_source(**CHOICES[choice]))
    ids = some_ids(1, 5)
    held = theirs(ids, use_cache=True)[CACHE]
    theirs.gradient_checkpointing_enable()
    theirs.train()
    with pytest.raises(ValueError, match="checkpointing"):
        theirs(ids, **{CACHE: held})
    theirs(ids, **{CACHE: transformers.DynamicCache()}).logits.sum().backward()  # nothing is lost
    with pytest.raises(TypeError, match="tuple"):
        theirs(ids, past_key_values=((ids, ids),))


def test_a_mask_is_of_the_cached_tokens_too(pairs):
    _, theirs = pairs("coca")
    ids = some_ids(1, 5)
    held = theirs(ids, use_cache=True)[CACHE]
    with pytest.raises(ValueError, match="1 tokens, and there are 5"):
        theirs(ids[:, :1], attention_mask=torch.ones(1, 1, dtype=torch.long), **{CACHE: held})


@pytest.mark.parametrize("choice", ["coca", "fox"])
def test_what_nobody_knows_is_refused(choice, pairs):
    _, theirs = pairs(choice)
    with pytest.raises(TypeError, match="token_type_ids"):
        theirs(some_ids(1, 4), token_type_ids=None)
    with pytest.raises(ValueError, match="inputs_embeds"):
        theirs()
    with pytest.raises(ValueError, match="not used by the model"):
        theirs.generate(some_ids(1, 4), max_new_tokens=1, pad_token_id=0, lenght=7)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_loss_is_their_mean_or_the_share_of_a_batch(choice, pairs):
    """With num_items_in_batch, as Trainer gives it, the losses of two halves add up to that of the whole."""
    ours, theirs = pairs(choice)
    ids = some_ids(4, 12)
    labels = ids.masked_fill(ids % 5 == 0, -100)
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)
    expected = ours(ids, targets) / (targets != -100).sum()
    assert theirs(ids, labels=labels).loss.item() == pytest.approx(expected.item(), rel=1e-5)
    n_items = (targets != -100).sum()
    halves = [theirs(ids[i : i + 2], labels=labels[i : i + 2], num_items_in_batch=n_items).loss for i in (0, 2)]
    assert torch.stack(halves).sum().item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("choice", CHOICES)
def test_gradient_checkpointing_changes_no_gradient(choice):
    _, theirs = models.both(models.random_source(**CHOICES[choice]))  # its own: hooks of transformers stay in it
    ids, gradients = some_ids(2, 12), []
    for reentrant in (None, False, True):
        theirs.train()
        theirs.zero_grad()
        if reentrant is not None:
            theirs.gradient_checkpointing_enable({"use_reentrant": reentrant})
            theirs.enable_input_require_grads()
        theirs(ids, labels=ids).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in theirs.named_parameters() if p.grad is not None})
    first, *others = gradients
    for other in others:
        assert first.keys() == other.keys()
        assert all(torch.allclose(first[name], other[name], atol=1e-6) for name in first)


@torch.no_grad()
@pytest.mark.parametrize("choice", CHOICES)
def test_a_model_of_a_configuration_alone_has_weights(choice, pairs):
    """Norms that multiply by one, biases of zero, all else as a run begins: no memory that was left there."""
    _, theirs = pairs(choice)
    torch.manual_seed(0)
    fresh = type(theirs)._from_config(theirs.config)
    for name, parameter in fresh.named_parameters():
        assert parameter.isfinite().all(), name
        assert parameter.abs().max() <= 12, name
        if "proj" in name and parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.2), name
        if "norm" in name and name.endswith("weight"):
            assert (parameter == (choice != "mixed")).all(), name  # whose norms multiply by 1 + w
    assert fresh(some_ids(1, 8)).logits.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("choice", ["coca", "fox"])
def test_labels_that_are_shifted_already_are_the_ones_of_the_loss(choice, pairs):
    """As Trainer gives them where a text is cut into shards."""
    _, theirs = pairs(choice)
    ids = some_ids(2, 12)
    shifted = F.pad(ids[:, 1:], (0, 1), value=-100)
    losses = [theirs(ids, labels=ids, shift_labels=given).loss for given in (None, shifted, shifted.flip(0))]
    assert losses[0] == losses[1] != losses[2]


@torch.no_grad()
@pytest.mark.parametrize("choice", ["coca", "fox"])
def test_more_rows_change_no_logit(choice):
    _, theirs = models.both(models.random_source(**CHOICES[choice]))
    before = theirs(some_ids(1, 8)).logits
    theirs.resize_token_embeddings(models.VOCAB + 11, mean_resizing=False)
    after = theirs(some_ids(1, 8)).logits
    assert after.shape[-1] == theirs.config.vocab_size == models.VOCAB + 11
    assert same(after[..., : models.VOCAB], before)


def generated(model, inputs, **options):
    fixed = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "length": 30}
    return model.generate(**inputs, **fixed | options).tolist()


def padded():
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, :5] = 0
    return {"input_ids": some_ids(2, 12), "attention_mask": mask}


@pytest.mark.parametrize("choice", FILES)
@pytest.mark.parametrize("implementation", ["static", "offloaded"])
def test_other_caches_generate_the_same(choice, implementation, pairs):
    _, theirs = pairs(choice)
    if implementation == "offloaded" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    got = generated(theirs, padded(), cache_implementation=implementation, disable_compile=True)
    assert got == generated(theirs, padded())


@torch.no_grad()
def test_keys_that_are_zero_are_counted_in_a_cache_of_fixed_size():
    """transformers 5.3 took them for room that is free."""
    _, theirs = models.both(models.random_source(**CHOICES["coca"]))
    theirs.model.layers[0].self_attn.k_proj.weight.zero_()
    got = generated(theirs, padded(), cache_implementation="static", disable_compile=True)
    assert got == generated(theirs, padded())


@pytest.mark.parametrize("choice", ["fox"])
def test_a_cache_of_fixed_size_is_refused_in_words(choice, pairs):
    with pytest.raises(ValueError, match="StaticLayer"):
        generated(pairs(choice)[1], padded(), cache_implementation="static")


@pytest.mark.parametrize("choice", CHOICES)
def test_sampling_and_assistance(choice, pairs):
    _, theirs = pairs(choice)
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(7)
        drawn.append(generated(theirs, padded(), do_sample=True, use_cache=use_cache))
    assert drawn[0] == drawn[1]
    one = {"input_ids": some_ids(1, 12)}
    _, assistant = pairs("coca")
    assert generated(theirs, one, assistant_model=assistant) == generated(theirs, one)  # refused ones leave the cache


@torch.no_grad()
@pytest.mark.parametrize("choice", slow_unless(["windows"], FILES))
def test_it_compiles_as_one_graph(choice, pairs):
    """As `generate` compiles it for a cache of fixed size; the slow test lets Inductor do so."""
    _, theirs = pairs(choice)
    torch._dynamo.reset()
    compiled = torch.compile(theirs.forward, backend="eager", fullgraph=True)
    ids, mask = some_ids(2, 9), torch.ones(2, 9, dtype=torch.long)
    pos_BT = torch.arange(9)[None]
    asked = {"attention_mask": mask, "position_ids": pos_BT, "use_cache": False, "length": 30}
    assert same(compiled(ids, **asked).logits, theirs(ids, **asked).logits)


@pytest.mark.slow
@pytest.mark.parametrize("choice", FILES)
def test_generate_compiles_it(choice, pairs):
    _, theirs = pairs(choice)
    on_a_cpu: Any = transformers.CompileConfig(fullgraph=True, mode="default")
    on_a_cpu._compile_all_devices = True
    theirs.generation_config.compile_config = on_a_cpu
    got = generated(theirs, padded(), cache_implementation="static")
    theirs.generation_config.compile_config = None
    assert got == generated(theirs, padded())


@pytest.mark.parametrize("choice", ["coca", "fox"])
def test_adapters_of_peft_train(choice):
    _, theirs = models.both(models.random_source(**CHOICES[choice]))
    targets = ["q_proj", "k_proj"] if choice in FILES else ["attention.q", "attention.k"]
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"))
    ids = some_ids(2, 12)
    adapted(ids, labels=ids).loss.backward()
    trained = [name for name, p in adapted.named_parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert len(trained) == 4  # B alone at the start, of two targets in two layers
    generated(adapted, {"input_ids": ids})


def trained(model, n_parts, folder):
    """(losses, first gradient norm) of two steps of batches of 8, in so many parts."""
    data: Any = [{"input_ids": row, "labels": row} for row in some_ids(16, 12)]
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=8 // n_parts, gradient_accumulation_steps=n_parts, max_steps=2,
        learning_rate=1e-3, optim="sgd", lr_scheduler_type="constant", report_to=[], use_cpu=True, save_strategy="no",
        logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [entry["loss"] for entry in logged], logged[0]["grad_norm"]


@pytest.mark.parametrize("choice", slow_unless(["coca"], ["coca", "fox"]))
def test_trainer_accumulates_as_with_its_own_llama(choice, tmp_path):
    """At once and in four parts: the same losses, and gradients as LLaMA's (which transformers 5.3 divided twice)."""

    def llama():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**models.SHARED))

    ratios = []
    for make in (lambda: models.both(models.random_source(**CHOICES[choice]))[1], llama):
        (at_once, norm), (in_parts, other) = (trained(make(), n, tmp_path / str(n)) for n in (1, 4))
        assert in_parts == pytest.approx(at_once, rel=1e-3)  # logged with four decimals
        ratios.append(norm / other)
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-3)


@pytest.mark.parametrize(("choice", "cap"), [("coca", None), ("mixed", 2.0)])
def test_flash_attention_is_given_positions_and_caps(choice, cap, pairs, monkeypatch):
    """transformers knows packed texts by their positions, where there is no mask."""
    given = []
    _, theirs = pairs(choice)

    def attention(module, q, k, v, mask, **kwargs):
        given.append((kwargs["position_ids"], kwargs["scaling"], kwargs["softcap"]))
        return q.transpose(1, 2), None

    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS._global_mapping
    monkeypatch.setitem(functions, "flash_attention_2", attention)
    monkeypatch.setattr(theirs.config, "_attn_implementation", "flash_attention_2")
    pos_BT = torch.tensor([[0, 1, 2, 0, 1]])
    theirs(some_ids(1, 5), position_ids=pos_BT)
    assert given[0][0] is pos_BT and len(given) == 2
    assert given[0][1:] == (0.4 if cap else 12**-0.5, cap)


def test_batches_of_a_paged_cache_are_refused_in_words(pairs):
    with pytest.raises(NotImplementedError, match="padded batch"):
        pairs("coca")[1].generate_batch([[1, 2]])


@pytest.mark.parametrize(
    ("probe", "forgotten"),
    [
        ("small copy, cached", [CACHE]),
        # Its positions alone would do: they jump, so that padding is texts of its own.
        ("small copy, padded", ["attention_mask", "position_ids"]),
        ("small copy, packed", ["position_ids"]),
    ],
)
@pytest.mark.parametrize("choice", ["coca", "fox"])
def test_an_export_whose_class_forgets_an_argument_is_not_published(choice, probe, forgotten, monkeypatch):
    """The three ways in which exports were wrong while their parity on whole texts passed."""
    source = models.random_source(**CHOICES[choice])
    cls = CocaForCausalLM if choice == "coca" else CocaTrainForCausalLM
    whole = cls.forward
    monkeypatch.setattr(
        cls, "forward", lambda self, *args, **given: whole(self, *args, **given | dict.fromkeys(forgotten))
    )
    results = small_copy.check_decoding(source, "coca" if choice == "coca" else "coca_train")
    assert probe in {result.probe for result in results if not result.passed}


def test_the_base_model_and_the_default_configuration():
    config = CocaConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=48, vocab_size=9)
    out = CocaModel(config)(some_ids(1, 5) % 9)
    assert out.last_hidden_state.shape == (1, 5, 32)
    again = CocaConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"layer_kinds": ["default"] * 3}, "3 entries"),
        ({"layer_kinds": ["default", "other"]}, "other"),
        ({"position": {"scheme": "fire"}}, "fire"),
        ({"position": {"scheme": "rope", "rope_scaling": {"name": "clex"}}}, "clex"),
        ({"position": {"scheme": "rope", "rope_scaling": {"name": "yarn", "convention": "cod"}}}, "cod"),
        ({"attention_pattern": {"name": "sinks"}}, "sinks"),
        ({"attention_pattern": {"name": "sliding_window"}}, "window"),
        ({"position": configuration_coca.OWN["position"] | {"variant": "slak"}}, "slak"),
        ({"logit_scale": {"name": "ssmax"}}, "ssmax"),
        ({"position": {"scheme": "alibi"}, "score_cap": 3.0}, "score_cap"),
        ({"bias": ["qkv", "mpl"]}, "mpl"),
        ({"norm_placement": "last"}, "last"),
        ({"norm": "layernorm", "norm_weight": "one_plus"}, "one_plus"),
    ],
)
def test_a_configuration_that_is_not_computed_is_refused(changes, word):
    of_kind = {key: value for key, value in changes.items() if key in configuration_coca.OWN}
    others = {key: value for key, value in changes.items() if key not in of_kind}
    with pytest.raises(ValueError, match=word):
        CocaConfig(num_hidden_layers=2, kinds={"default": configuration_coca.OWN | of_kind}, **others)


def test_a_version_that_loads_it_wrongly_is_refused(monkeypatch):
    """As an import of the file does it, beside transformers 5.3."""
    source = Path(configuration_coca.__file__).read_text(encoding="utf-8")
    monkeypatch.setattr(transformers, "__version__", "5.3.0")
    with pytest.raises(ImportError, match=r"5\.4"):
        exec(compile(source, "configuration_coca.py", "exec"), {"__name__": "configuration_coca"})


@torch.no_grad()
def test_a_mask_of_four_dimensions_is_taken_as_it_is_where_places_are_known(pairs):
    ids = some_ids(1, 9)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    _, plain_alibi = models.both(models.random_source({"scheme": "alibi", "fold": "auto"}))
    for theirs in (pairs("coca")[1], pairs("coca", "eager")[1], plain_alibi):
        assert same(theirs(ids, attention_mask=mask).logits, theirs(ids).logits)
    _, dynamic = pairs("dynamic")
    held = dynamic(ids, use_cache=True)[CACHE]
    with pytest.raises(ValueError, match="four dimensions"):
        dynamic(ids[:, :1], attention_mask=torch.ones(1, 1, 1, 10, dtype=torch.bool), **{CACHE: held})


@pytest.mark.parametrize(("position", "changes"), [(support.alibi(), {"score_cap": 3.0})])
def test_what_the_files_refuse_needs_coca_train(position, changes):
    plain = models.random_source(support.coca(), **changes).architecture
    architecture = replace(plain, position=positions.settings(position))
    assert forms.own_config(architecture)["model_type"] == "coca_train"


def test_an_option_without_a_key_needs_coca_train(monkeypatch):
    """One that is new to `model` is never dropped; those that are known are all tried here, or change no forward."""
    architecture = models.random_source(support.coca(), logits_cap=3.0).architecture
    assert forms.own_config(architecture)["model_type"] == "coca"
    monkeypatch.setattr(forms, "EXPORTED_OPTIONS", set(forms.EXPORTED_OPTIONS) - {"logits_cap"})
    assert forms.own_config(architecture)["model_type"] == "coca_train"
    sizes = {"n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size"}
    tried = {option for options in (*OPTIONS.values(), *CHOICES.values()) for option in options}
    assert asdict(architecture.model).keys() - tried - sizes == {
        "tie_embeddings", "dropout", "init_std", "init_depth_scaled",
    }  # fmt: skip
