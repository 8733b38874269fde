"""A scheme in a whole model: causal, cached, certified, trained."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Adam

from coca_train import positions
from coca_train.attention import visibilities
from coca_train.models.certificate import certify
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.testing import parts
from coca_train.testing.contract import Contract
from coca_train.testing.definition import CAUSAL
from coca_train.testing.parts import MODEL, VOCAB

N_TEXT = 33  # one more than the model's window [tokens]


class InAModel(Contract):
    """What a run, a cache and a plan ask of it, on two small layers from the declared start."""

    angles: ClassVar[bool]

    @torch.no_grad()
    def test_a_model_is_causal_and_its_documents_are_strangers(self, settings: Any) -> None:
        """A token changes nothing before it; a packed document gives what it gives alone."""
        model, tokens = _model(settings), _text(settings)
        n_tokens, other = tokens.shape[1], tokens.clone()
        at, split = n_tokens * 2 // 3, n_tokens // 3
        other[:, at] = (other[:, at] + 1) % VOCAB
        before, after = (model.hidden(each, length=N_TEXT) for each in (tokens, other))
        assert torch.equal(before[:, :at], after[:, :at])
        assert not torch.allclose(before[:, at + 1 :], after[:, at + 1 :], atol=1e-6)
        pos, doc = parts.packed([split, n_tokens - split])
        packed = model.hidden(tokens, pos_BT=pos, doc_BT=doc, length=N_TEXT)
        torch.testing.assert_close(packed[:, split:], model.hidden(tokens[:, split:], length=N_TEXT))
        other = torch.cat(((tokens[:, :split] + 7) % VOCAB, tokens[:, split:]), 1)
        changed = model.hidden(other, pos_BT=pos, doc_BT=doc, length=N_TEXT)
        assert torch.equal(packed[:, split:], changed[:, split:])

    @torch.no_grad()
    def test_a_cache_is_the_whole_computation_also_forked(self, settings: Any) -> None:
        """Prompt, several tokens, one at a time; then a fork of it that goes on with other tokens."""
        model, tokens = _model(settings), _text(settings)
        n_tokens, first = tokens.shape[1], tokens[:1]
        cache = model.new_cache(n_tokens)
        pieces = [model.hidden(first[:, a:b], cache=cache, length=N_TEXT) for a, b in ((0, 9), (9, 12))]
        fork = cache.fork(2, n_tokens)
        pieces += [model.hidden(first[:, i : i + 1], cache=cache, length=N_TEXT) for i in range(12, n_tokens)]
        # xpos centres its float32 powers on the tokens in hand: other roundings at every length
        rtol, atol = (1e-3, 1e-5) if self.angles else (1e-7, 1e-9)
        torch.testing.assert_close(torch.cat(pieces, 1), model.hidden(first, length=N_TEXT), rtol=rtol, atol=atol)
        others = torch.cat((first[:, :12].expand(2, -1), tokens[:, 12:16]), 1)
        ways = [model.hidden(others[:, i : i + 1], cache=fork, length=N_TEXT) for i in range(12, 16)]
        torch.testing.assert_close(
            torch.cat(ways, 1), model.hidden(others, length=N_TEXT)[:, 12:], rtol=rtol, atol=atol
        )

    def test_a_model_is_certified_and_outlined(self, settings: Any) -> None:
        """What every run asks before its first step, on the CPU; and what plans ask: a pass on the meta device."""
        for dtype in (torch.float32, torch.bfloat16):
            certify(_model(settings).to(dtype), torch.device("cpu"), dtype)
        with torch.device("meta"):
            outline = Transformer(
                MODEL, positions.settings(settings), visibilities.settings(CAUSAL), vocab_size=VOCAB, max_seq_len=32
            )
        assert all(p.is_meta for p in outline.parameters())

    def test_a_model_trains_every_parameter(self, settings: Any) -> None:
        """Two steps from the declared start move all the scheme's parameters."""
        model = _model(settings).float().train()
        start = {n: p.detach().clone() for n, p in model.named_parameters() if "position" in n}
        optimizer, tokens = Adam(model.parameters(), lr=1e-3), _text(settings)
        for _ in range(2):
            optimizer.zero_grad()
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            optimizer.step()
        still = [name for name, p in model.named_parameters() if name in start and torch.equal(p, start[name])]
        assert not still


def _model(settings: Any) -> Transformer:
    """Two layers from the declared start, float64."""
    typed = positions.settings(settings)
    model = Transformer(MODEL, typed, visibilities.settings(CAUSAL), vocab_size=VOCAB, max_seq_len=32)
    init_weights(model, MODEL, seed=3)
    return model.double().eval()


def _text(settings: Any) -> Tensor:
    """Two rows of tokens, as many as there are positions for."""
    n_tokens = min(N_TEXT, parts.build(settings).max_positions or N_TEXT)
    return torch.randint(0, VOCAB, (2, n_tokens), generator=torch.Generator().manual_seed(5))
