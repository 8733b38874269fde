"""CLEX under the schemes that rotate, in the model, and against other frequencies."""

import math

import pytest
import torch

from coca_train import positions
from coca_train.evaluation.variants import after_training, variants
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.settings import load
from coca_train.testing import parts
from coca_train.testing.problem import attend
from coca_train.testing.problem import problem as problem_of
from tests.positions import learned_frequencies as learned
from tests.positions import support, test_coca, test_rope, test_xpos

LENGTH = parts.TRAINED
DEFINITIONS = {"rope": test_rope.TestContract(), "coca": test_coca.TestContract(), "xpos": test_xpos.TestContract()}
SCHEMES = {"rope": support.rope, "slack": support.coca, "strict": lambda f: support.coca(f, "strict")}
XPOS = {"scheme": "xpos", "gamma": 0.4, "scale_base": 64.0, "rotary_pct": 0.5}
IN_EVAL = SCHEMES | {"rope in part": lambda f: support.rope(f, 0.5), "xpos": lambda f: XPOS | {"rope_scaling": f}}


def problem(settings, training, seed=5):
    """A scheme with learned frequencies, its q, k, v, and positions the reference may use in place of 0, 1, …"""
    scheme = parts.build(settings(support.scaling("clex")))
    learned.fill(scheme.rope_scaling)
    scheme.train(training)
    n_tokens = LENGTH if training else 3 * LENGTH
    q, k, v = parts.random_qkv(scheme, n_tokens)
    torch.manual_seed(seed)
    places_BT = parts.start(n_tokens)
    if training:
        places_BT = scheme.rope_scaling(n_tokens).positions_N[None].double()
        assert places_BT[0, -1] > n_tokens
    torch.manual_seed(seed)
    return scheme, (q, k, v), places_BT


def exact_frequencies(scheme, factor):
    """θ as a function of the weights in float64, by many small steps of the equation for z."""
    module, dim = scheme.rope_scaling, scheme.rotary_dim
    j = torch.arange(dim // 2, dtype=torch.float64)
    n_steps, z = 500, -2 * j / dim * math.log(module.settings.theta)
    width = (factor - 1) / n_steps

    def rate(t, z):
        log_ntk = -2 * j / dim * math.log(module.settings.theta * (2 * t - 1) ** (dim / (dim - 2)))
        hidden = torch.nn.functional.silu((z + log_ntk) @ module.up)
        return hidden @ learned.w_down(module) - 4 * j / (dim - 2) / (2 * t - 1)

    for step in range(n_steps):  # the midpoint rule
        t = 1 + step * width
        z = z + width * rate(t + width / 2, z + width / 2 * rate(t, z))
    return z.exp()


@pytest.mark.parametrize(
    ("name", "training"), [(n, False) for n in IN_EVAL] + [(n, True) for n in SCHEMES], ids=lambda x: str(x)
)
def test_scheme_and_all_gradients_equal_their_definition(name, training):
    """Output, and its gradients in q, k, v, W_up and W_down, against the dense definition in float64."""
    settings = IN_EVAL[name]
    scheme, (q, k, v), places_BT = problem(settings, training)
    weights = [scheme.rope_scaling.up, scheme.rope_scaling.down]
    pos, n_tokens = parts.start(q.shape[1]), q.shape[1]
    out = parts.dense_attention(scheme, q, k, v, pos, pos, n_tokens)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mine = [out, *torch.autograd.grad(out, (q, k, v, *weights), weight)]

    factor = round((places_BT[0, -1].item() + 1) / LENGTH)
    theta = exact_frequencies(scheme, factor)
    given = settings(support.scaling("clex"))
    turns = lambda width: (list(theta), 1.0)  # noqa: E731
    scores = DEFINITIONS[given["scheme"]].score(problem_of(given, q, k, places_BT, places_BT, n_tokens, turns=turns))
    exact = attend(scores, v, torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril())
    exact = [exact, *torch.autograd.grad(exact, (q, k, v, *weights), weight)]
    assert factor > 1
    for a, b in zip(mine, exact, strict=True):
        assert b.abs().max() > 1e-3
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


@pytest.mark.parametrize("broadcast", [False, True], ids=["rows", "one row"])
@pytest.mark.parametrize("variant", ["slack", "strict"])
def test_coca_gradients_reach_the_tables(variant, broadcast, monkeypatch):
    """The hand-written backward passes in q, cos and sin, through several pieces of time."""
    monkeypatch.setattr("coca_train.positions.rotary.PIECE", 2**5)
    scheme = parts.build(support.coca(variant=variant), 2, 1, 4)
    q, _, _ = parts.random_qkv(scheme, 5)
    cos, sin = (torch.randn(1 if broadcast else 2, 5, 1, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def query(q, cos, sin):
        return scheme._query[0].apply(q, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))

    assert torch.autograd.gradcheck(query, (q, cos, sin))


@pytest.mark.parametrize("settings", SCHEMES.values(), ids=SCHEMES)
def test_one_draw_serves_queries_and_keys(settings):
    """In training, relative schemes see no common shift of the drawn places, and rows that restart share them."""
    scheme, (q, k, _), _ = problem(settings, training=True)
    pos = parts.start(LENGTH)
    rows = torch.cat((pos, torch.cat((pos[:, :5], pos[:, : LENGTH - 5]), 1)))
    torch.manual_seed(5)
    whole = parts.dense_scores(scheme, q, k, pos, pos, LENGTH)
    torch.manual_seed(5)
    packed = parts.dense_scores(scheme, q, k, rows, rows, LENGTH)
    torch.manual_seed(5)
    again = parts.dense_scores(scheme, q[1:, 5:], k[1:, 5:], pos[:, : LENGTH - 5], pos[:, : LENGTH - 5], LENGTH)
    assert torch.allclose(packed[0], whole[0], rtol=0, atol=1e-12)
    assert torch.allclose(packed[1, :, 5:, 5:], again[0], rtol=0, atol=1e-12)


def test_it_goes_with_no_other_frequencies_on_the_same_weights():
    """Its parameters exist only where it was trained, and where it was trained the others were not."""
    tried = "eval.extrapolation.rope_scalings=[plain,clex,yarn]"
    trained_plain, trained_clex = (
        load(["position=rope", *more, tried]).config for more in ([], ["position/rope_scaling=clex"])
    )
    from_plain = variants(trained_plain, after_training(trained_plain))
    assert {name: bool(v.problem) for name, v in from_plain.items()} == {"plain": False, "clex": True, "yarn": False}
    from_clex = variants(trained_clex, after_training(trained_clex))
    assert {name: bool(v.problem) for name, v in from_clex.items()} == {"clex": False, "plain": True, "yarn": True}
    assert "clex has parameters of its own" in from_clex["yarn"].problem


def test_parameters_have_names_that_say_where_they_are():
    settings = positions.settings(support.rope(support.scaling("clex")))
    assert set(positions.initials(settings)) == {"up", "down"}
    scheme = parts.build(support.rope(support.scaling("clex")))
    assert [name for name, _ in scheme.named_parameters()] == ["rope_scaling.up", "rope_scaling.down"]


def test_a_model_trains_its_dynamics_and_reads_short_text_as_plain_rope():
    """One step on one window reaches the parameters; up to that window the logits are those of plain RoPE."""
    sizes = ["model=neox_tiny", "model.n_layers=1", "model.d_model=32", "model.n_heads=2", "train.seq_len=16"]
    model, plain = (
        _model(load(["position=coca", f"position/rope_scaling={name}", *sizes]).config) for name in ("clex", "plain")
    )
    own = model.position.get_submodule("rope_scaling")
    assert not own.down.any() and own.up.any()
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)  # draws t > 1
    model.train()(tokens, tokens).backward()
    assert own.down.grad.any() and not own.up.grad.any()  # through W_down = 0 nothing flows on, yet
    own.down.data -= own.down.grad
    assert torch.equal(model.eval()(tokens), plain(tokens))
    text = tokens.repeat(1, 2)
    assert (model(text) - plain(text)).abs().max() > 1e-5
    assert torch.equal(model(text)[:, :16], model(text[:, :16], length=32))


def _model(config):
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=64, max_seq_len=16)
    init_weights(model, config.model, seed=1)
    return model.eval()
