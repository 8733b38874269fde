"""T from K, by hand; and CoCA's official weights against attention written as their authors wrote it."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

from coca_train.hub import conversions, parity, transformers_side
from coca_train.hub.weights import open_source
from coca_train.positions.schemes.coca import fold_full_mean
from coca_train.runtime.errors import UserError
from tests.fixes import fix_of, options_in
from tests.hub import models

K = "blocks.1.attention.k.weight"
G, D, C = 2, 12, 48  # key heads, head width, model width of llama_gqa


def converted(source, how, t_width="half", **options):
    return conversions.make_t_from_k(source, "slack", how, t_width, **options)


def test_rows_of_t_by_hand(model):
    with open_source(model()) as source:
        k = source.read(K)
        mean, first = converted(source, "mean_of_halves").read(K), converted(source, "first_half").read(K)
    assert k.shape == (G * D, C)
    assert mean.shape == first.shape == (G * D // 2, C)
    for head in range(G):
        for pair in range(D // 2):
            a, b = k[head * D + pair], k[head * D + pair + D // 2]
            torch.testing.assert_close(mean[head * D // 2 + pair], (a + b) / 2, rtol=0, atol=0)
            assert torch.equal(first[head * D // 2 + pair], a)


@pytest.mark.parametrize("how", ["mean_of_halves", "first_half"])
def test_t_of_full_width_is_the_same_function(how, model, import_run):
    """Its halves averaged are the T of half width; K itself where that is asked for."""
    with open_source(model()) as source:
        k = source.read(K)
        full = converted(source, how, t_width="full_mean")
        t, half = full.read(K), converted(source, how).read(K)
    assert full.architecture.position.t_width == "full_mean"
    assert t.shape == full.shapes[K] == (G * D, C)
    torch.testing.assert_close(fold_full_mean(t, G), half, rtol=0, atol=0)
    assert torch.equal(t, k) == (how == "mean_of_halves")
    run = import_run(model(), position="coca", t_from_k=how)  # as wide as K, unless told otherwise
    with open_source(run) as source:
        assert source.architecture.position.t_width == "full_mean"
    narrow = import_run(model(), "half", position="coca", t_from_k=how, t_width="half")
    assert models.same(our_logits(run), our_logits(narrow))


@pytest.mark.parametrize(("t_width", "words"), [("full_mean", "t_width=full_mean.*position=coca"), ("half", "t_width")])
def test_a_width_needs_a_t_of_its_kind(model, import_run, t_width, words):
    """full_mean is of a T made from K; half folds a full width."""
    with pytest.raises(UserError, match=rf"E-IOP-14.*{words}") as raised:
        import_run(model(), t_width=t_width)
    added = options_in(fix_of(raised.value))
    import_run(model(), **(added | {"t_width": t_width} if added else {}))


def test_random_is_what_a_new_run_would_begin_with(model):
    from coca_train.models.init import init_parameter

    with open_source(model()) as source:
        coca = converted(source, "random", seed=7)
        t = coca.read(K)
        assert torch.equal(t, converted(source, "random", seed=7).read(K))
        assert not torch.equal(t, converted(source, "random", seed=8).read(K))
        expected = torch.empty(G * D // 2, C)
        init_parameter(K, expected, coca.architecture.model, coca.architecture.position, 7)
        assert torch.equal(t, expected)


@pytest.mark.parametrize("how", ["mean_of_halves", "first_half", "random"])
def test_all_else_is_kept(how, model):
    with open_source(model("llama_gqa", "yarn")) as source:
        coca = converted(source, how)
        others = [name for name in source.names if ".attention.k." not in name]
        assert all(torch.equal(source.read(name), coca.read(name)) for name in others)
        assert len(source.names) - len(others) == 2
        assert coca.names == source.names
        assert coca.architecture.position.rope_scaling == source.architecture.position.rope_scaling
        assert coca.architecture.position.t_width == "half"
        assert coca.architecture.position.variant == "slack"
        assert {name: tuple(coca.read(name).shape) for name in coca.names} == coca.shapes


def test_biases_are_converted_too(tmp_path):
    folder = models.write(tmp_path / "m", "llama_gqa", attention_bias=True, mlp_bias=True)
    with open_source(folder) as source:
        name = "blocks.0.attention.k.bias"
        k, t = source.read(name), converted(source, "mean_of_halves").read(name)
    assert t.shape == (G * D // 2,)
    torch.testing.assert_close(t[D // 2 + 1], (k[D + 1] + k[D + D // 2 + 1]) / 2)


def test_precision_is_kept_and_means_are_rounded_once(tmp_path):
    folder = models.write(tmp_path / "m", "llama_gqa", dtype=torch.bfloat16)
    with open_source(folder) as source:
        k, t = source.read(K), converted(source, "mean_of_halves").read(K)
    exact = (k.double().unflatten(0, (G, 2, D // 2))).mean(1).flatten(0, 1)
    assert t.dtype == torch.bfloat16
    assert torch.equal(t, exact.to(torch.bfloat16))


def test_from_a_folder_and_from_a_run_of_ours(model, import_run):
    """The two ways give the same run; strict is the other variant."""
    direct = import_run(model(), "direct", position="coca")
    through = import_run(import_run(model(), "plain"), "through", position="coca")
    with open_source(direct) as a, open_source(through) as b:
        assert a.architecture == b.architecture
        assert all(torch.equal(a.read(name), b.read(name)) for name in a.names)
    strict = import_run(model(), "strict", position="coca_strict")
    with open_source(strict) as c:
        assert c.architecture.position.variant == "strict"
    for again in (direct, strict):
        with pytest.raises(UserError, match=r"E-IOP-14.*scheme is coca"):
            import_run(again, "twice", position="coca")


@pytest.mark.parametrize("how", ["mean_of_halves", "first_half", "random"])
def test_what_does_not_turn_keeps_its_keys(how, tmp_path, import_run):
    """GPT-NeoX turns 4 of 16 features: T has a row for each of two pairs, 12 rows stay. Both widths are one function,
    and a score of the first token aside, the plain product of what stays is unchanged."""
    folder = models.write(tmp_path / "m", "gpt_neox")
    with open_source(folder) as source:
        k = source.read(K).unflatten(0, (4, 16))
        half = converted(source, how, seed=3).read(K).unflatten(0, (4, 14))
    assert torch.equal(half[:, 2:], k[:, 4:])
    if how != "random":
        t = (k[:, :2] + k[:, 2:4]) / 2 if how == "mean_of_halves" else k[:, :2]
        torch.testing.assert_close(half[:, :2], t, rtol=0, atol=0)
        wide = import_run(folder, position="coca", t_from_k=how)
        narrow = import_run(folder, "half", position="coca", t_from_k=how, t_width="half")
        assert models.same(our_logits(wide), our_logits(narrow))
        folded = import_run(wide, "folded", t_width="half")
        assert models.same(our_logits(folded), our_logits(narrow))


def test_layers_without_positions_keep_their_keys(tmp_path, import_run):
    """SmolLM3: every fourth layer has none."""
    folder = models.write(tmp_path / "m", "smollm3")
    with open_source(folder) as source:
        t = converted(source, "mean_of_halves")
        changed = [i for i in range(5) if t.shapes[f"blocks.{i}.attention.k.weight"] != (G * D, C)]
        assert torch.equal(t.read("blocks.3.attention.k.weight"), source.read("blocks.3.attention.k.weight"))
    assert changed == [0, 1, 2, 4]
    import_run(folder, position="coca")


def test_keys_that_are_normalised_need_a_full_t(tmp_path, import_run):
    folder = tmp_path / "m"
    config = transformers.AutoConfig.for_model("qwen3", **models.SHARED, head_dim=12, num_key_value_heads=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    with pytest.raises(UserError, match=r"E-IOP-14.*qk_norm=head") as raised:
        import_run(folder, position="coca", t_width="half")
    import_run(folder, position="coca", **options_in(fix_of(raised.value)))


def contraction(query, t, query_turned, v, group):
    """softmax(Σ_d q · R t · R q) v as a contraction of three, the way the released code has it."""
    t, v = (x.repeat_interleave(group, 1) for x in (t, v))
    scores = torch.einsum("bpnd,bpsd,bpnd->bpns", query, t, query_turned) * query.shape[-1] ** -0.5
    n = scores.shape[-1]
    return scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf")).softmax(-1) @ v


def averaged(t):
    half = F.relu((t[..., : t.shape[-1] // 2] + t[..., t.shape[-1] // 2 :]) / 2)
    return torch.cat((half, half), -1)


def official_llama(self, hidden_states, position_embeddings, **_):
    q, t, v = (
        p(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        for p in (self.q_proj, self.k_proj, self.v_proj)
    )
    q_turned, t = modeling_llama.apply_rotary_pos_emb(q, averaged(t), *position_embeddings)
    out = contraction(q, t, q_turned, v, q.shape[1] // v.shape[1])
    return self.o_proj(out.transpose(1, 2).flatten(-2)), None


def official_neox(self, hidden_states, attention_mask, position_embeddings=None, **_):
    qkv = self.query_key_value(hidden_states).unflatten(-1, (-1, 3 * self.head_size)).transpose(1, 2)
    q, t, v = qkv.chunk(3, -1)
    q_turned, t = modeling_gpt_neox.apply_rotary_pos_emb(q, averaged(t), *position_embeddings)
    return self.dense(contraction(q, t, q_turned, v, 1).transpose(1, 2).flatten(-2)), None


def probe():
    ids = torch.randint(models.VOCAB, (1, 60), generator=torch.Generator().manual_seed(3))
    return parity.Probe("", ids, torch.arange(60)[None], 60)


def our_logits(path, **options):
    with open_source(path, **options) as source:
        return parity.our_logits(source.architecture, source.read)([probe()])[0]


@pytest.mark.parametrize("scaling", ["plain", "dynamic"])
def test_official_llama_weights(scaling, model, tmp_path, import_run, export_run, monkeypatch):
    """t_proj of full width; imported as it is, folded to half width, exported: the same logits."""
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", official_llama)
    expected = models.logits(model("llama_gqa", scaling), 60)
    monkeypatch.undo()
    assert not models.same(models.logits(model("llama_gqa", scaling), 60), expected)  # RoPE is something else
    folder = tmp_path / "official"
    folder.mkdir()
    tensors = load_file(model("llama_gqa", scaling) / "model.safetensors")
    save_file({name.replace("k_proj", "t_proj"): t for name, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text((model("llama_gqa", scaling) / "config.json").read_text())

    assert models.same(our_logits(folder), expected)
    run, half = import_run(folder), import_run(folder, "half", t_width="half")
    assert models.same(our_logits(run), expected)
    assert models.same(our_logits(half), expected)
    # The files of an export, run: its own parity check has the same code on both sides, these numbers have none of it.
    (exported,) = transformers_side.side_of_folder(export_run(half)).logits([probe()])
    assert models.same(exported, expected)
    with open_source(run) as wide, open_source(half) as narrow:
        assert wide.shapes[K][0] == 2 * narrow.shapes[K][0]
    with pytest.raises(UserError, match="keys=k"):
        import_run(folder, "wrong", keys="k")


def test_official_neox_weights(tmp_path, import_run, monkeypatch):
    """The same names as plain GPT-NeoX: keys=t says what they are."""
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}
    folder = models.write(tmp_path / "m", "gpt_neox", rope_parameters=rope)
    monkeypatch.setattr(modeling_gpt_neox.GPTNeoXAttention, "forward", official_neox)
    expected = models.logits(folder, 60)
    monkeypatch.undo()
    assert models.same(our_logits(folder, keys="t"), expected)
    assert models.same(our_logits(import_run(folder, keys="t")), expected)
    assert models.same(our_logits(folder), models.logits(folder, 60))


def test_t_of_half_width_is_known_by_its_shape(model, tmp_path):
    folder = tmp_path / "half"
    folder.mkdir()
    tensors = load_file(model() / "model.safetensors")
    for name in [name for name in tensors if "k_proj" in name]:
        tensors[name.replace("k_proj", "t_proj")] = tensors.pop(name)[: G * D // 2].clone()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text((model() / "config.json").read_text())
    with open_source(folder) as source:
        assert source.architecture.position.t_width == "half"
        assert source.read(K).shape == (G * D // 2, C)


def test_keys_t_on_a_partial_rotation(model):
    with pytest.raises(UserError, match="rotary_pct"):
        open_source(model("gpt_neox"), keys="t")
