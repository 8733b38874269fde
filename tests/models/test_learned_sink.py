"""A key without a value whose score each head learns: by transformers' gpt-oss, and every kernel by the definition."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from coca_train import positions
from coca_train.attention.flex import flex
from coca_train.attention.scores import Part
from coca_train.config.messages import ConfigError
from coca_train.models.score_options import HeadSink
from coca_train.positions.base import NO_TERMS, AttentionShape, ScoreMod, Terms
from coca_train.positions.schemes.fox import FORGET
from coca_train.positions.schemes.stick_breaking import BREAK_OFF_OTHERS
from coca_train.settings import load
from tests.models.conftest import LLAMA, build
from tests.models.parts import ATTENTION_PATTERNS, GROUPS, HEADS, RandomParts, documents, same

WIDTH = 16


class Case(RandomParts):
    """Random queries and keys, a bias by distance, and the sinks of a layer. own: the hook that the scheme has."""

    scale = WIDTH**-0.5

    def __init__(self, n_keys, attention_pattern="causal", own=None, doc=None, pos=None):
        super().__init__(n_keys, n_keys, attention_pattern, WIDTH, torch.float64, doc, pos)
        module = HeadSink(HEADS).double()
        module.weight = torch.nn.Parameter(self.leaf(HEADS))
        self.leaves[-1] = module.weight
        if own == "forget":
            own = ScoreMod(FORGET, keys=(self.leaf(2, n_keys, HEADS),))
        elif own == "stick":
            own = ScoreMod(BREAK_OFF_OTHERS)
        for layout in self.layouts:
            q, k = self.leaf(2, n_keys, HEADS, WIDTH), self.leaf(2, n_keys, GROUPS, WIDTH)
            terms = Terms(self.leaf(HEADS, 7)) if own is None else NO_TERMS
            self.parts.append(Part(q, k, terms, layout, module(own)))


def test_equals_transformers_gpt_oss():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    case = Case(11)
    part = case.parts[0] = case.parts[0]._replace(terms=NO_TERMS)
    q, k, v = (x.transpose(1, 2) for x in (part.q_BTHE, part.k_BSGE, case.v))
    module = SimpleNamespace(num_key_value_groups=HEADS // GROUPS, sinks=part.score_mod.parameters[0], training=False)
    mask = torch.full((11, 11), -torch.inf, dtype=torch.float64).triu(1)
    theirs, _ = eager_attention_forward(module, q, k, v, mask, case.scale)
    ours, _ = case.run("eager")
    torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("attention_pattern", ATTENTION_PATTERNS)
def test_tiles_equal_the_definition_under_every_pattern(attention_pattern):
    same(Case(23, attention_pattern))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("own", ["forget", "stick"])
@pytest.mark.parametrize("n_keys", [7, 23])
def test_around_the_hook_of_a_scheme(own, n_keys):
    """Rows and tiles; stick-breaking has a key without a value too, and both take their share."""
    same(Case(n_keys, own=own))
    same(Case(n_keys, own=own, **documents(n_keys)))


def without_gradients(part):
    """The same without gradients."""
    terms = Terms(part.terms.distance_HR.detach())
    score_mod = part.score_mod._replace(parameters=tuple(x.detach() for x in part.score_mod.parameters))
    return part._replace(q_BTHE=part.q_BTHE.detach(), k_BSGE=part.k_BSGE.detach(), terms=terms, score_mod=score_mod)


@pytest.mark.parametrize("attention_pattern", ["causal", "rerope", "sinks"])
def test_flex_equals_the_definition(attention_pattern):
    """Forward, by its log-sum-exp: torch has no backward on a CPU."""
    case = Case(23, attention_pattern)
    expected = case.run("eager")[0]
    free = [without_gradients(part) for part in case.parts]
    torch.testing.assert_close(flex(free, case.v.detach(), case.scale), expected)


@pytest.mark.parametrize("word", ["model.learned_sink=true", "model.score_scale=head"])
def test_a_folded_bias_is_refused_or_not_folded(word):
    """Its constant for each query cancels in a softmax over nothing else."""
    with pytest.raises(ConfigError, match=r"position\.fold=always"):
        load(["position=alibi", "position.fold=always", word])
    config = load(["position=alibi", word]).config
    scheme = positions.build(config.position, AttentionShape.of(config.model, 128))
    assert isinstance(scheme(torch.arange(2000)[None], torch.arange(2000)[None], 2000), Terms)


@torch.no_grad()
def test_a_model_attends_less_where_the_sink_is_high(tokens_BT):
    """At -inf nothing is taken; at +inf attention gives nothing, and a cache step is the whole computation."""
    tokens, model = tokens_BT(1, 12), build(replace(LLAMA, learned_sink=True), "rope").eval()
    plain, last = build(LLAMA, "rope").eval(), model.blocks[-1].attention
    for block in model.blocks:
        block.attention.sink.weight.fill_(-1e9)
    torch.testing.assert_close(model.hidden(tokens), plain.hidden(tokens), rtol=1e-5, atol=1e-5)
    seen = []
    last.out.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    last.sink.weight.fill_(1e9)
    model.hidden(tokens)
    assert (seen[-1] == 0).all()
    for block in model.blocks:
        block.attention.sink.weight.fill_(0.5)
    cache = model.new_cache(12)
    steps = torch.cat([model.hidden(part, cache=cache) for part in tokens.split((5, 1, 1, 5), 1)], 1)
    torch.testing.assert_close(steps, model.hidden(tokens), rtol=1e-4, atol=1e-5)
