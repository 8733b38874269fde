"""Likelihoods against a plain forward of each whole sequence: padding, batches and shared rows change nothing."""

import pytest
import torch

from coca_train.evaluation.measures import likelihood
from coca_train.evaluation.measures.likelihood import Request, batches, clip, likelihoods
from coca_train.evaluation.measures.windows import same_at
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.settings import load

WINDOW, VOCAB = 16, 40
SHAPE = ["model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.d_ff=64", "model.init_std=0.3"]


def build(*words: str) -> Transformer:
    config = load([f"train.seq_len={WINDOW}", *SHAPE, *words]).config
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=VOCAB, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=1)
    return model.eval()


def requests() -> list[Request]:
    """Questions of many lengths, half of them beyond the training window; choices of one token and of several."""
    random = torch.Generator().manual_seed(5)

    def draw(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, VOCAB, (n,), generator=random).tolist())

    batch = []
    for n_context in (1, 3, 8, 15, 23, 40):
        context = draw(n_context)
        batch += [Request(context, draw(n)) for n in (1, 1, 1, 2, 7)]
    return batch


@torch.no_grad()
def plain(model: Transformer, request: Request) -> tuple[float, bool]:
    tokens = torch.tensor([[*request.context, *request.continuation]])
    log_p = model(tokens[:, :-1]).double().log_softmax(-1)[0, len(request.context) - 1 :]
    wanted = tokens[0, len(request.context) :]
    return float(log_p[range(len(wanted)), wanted].sum()), log_p.argmax(-1).tolist() == wanted.tolist()


CASES = [
    ("position=rope",),
    ("position=coca",),
    ("position=alibi",),
    ("position=rope", "position/rope_scaling=dynamic_ntk"),
    ("position=coca", "position/rope_scaling=clex"),
    ("position=rope", "attention_pattern=sinks", "attention_pattern.window=8"),
    ("position=rope", "attention_pattern=lambda_mask"),
]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_equals_one_plain_forward_a_request(words, monkeypatch):
    model, queries = build(*words), requests()
    wanted = [plain(model, request) for request in queries]
    for shared_from, batch_tokens in ((4, 1), (4, 150), (1000, 1), (1000, 150)):
        monkeypatch.setattr(likelihood, "SHARED_FROM", shared_from)
        answers = likelihoods(model, queries, batch_tokens=batch_tokens)
        for (total, greedy), one in zip(wanted, answers, strict=True):
            assert one.total == pytest.approx(total, abs=2e-4)
            assert one.greedy == greedy


def test_the_most_probable_continuation_is_greedy():
    model, context = build(), [3, 1, 4]
    with torch.no_grad():
        for _ in range(4):
            context.append(int(model(torch.tensor([context]))[0, -1].argmax()))
    best = Request((3, 1, 4), tuple(context[3:]))
    other = Request((3, 1, 4), (*context[3:6], (context[6] + 1) % VOCAB))
    assert [answer.greedy for answer in likelihoods(model, [best, other], batch_tokens=64)] == [True, False]


@pytest.fixture
def counted(monkeypatch):
    """A model, and the shapes of the tokens it read."""
    model, shapes = build(), []
    hidden = model.hidden

    def counting(tokens_BT, **options):
        shapes.append(tuple(tokens_BT.shape))
        return hidden(tokens_BT, **options)

    monkeypatch.setattr(model, "hidden", counting)
    return model, shapes


def test_choices_of_one_token_share_a_row(counted):
    model, shapes = counted
    likelihoods(model, [Request((1, 2, 3), (n,)) for n in range(9)], batch_tokens=1000)
    assert shapes == [(1, 3)]


def test_a_long_context_is_read_once(counted):
    model, shapes = counted
    long, other = (1,) * 200, (2,) * 130
    queries = [Request(long, (n, 5, 6)) for n in range(3)] + [Request(other, (7, 8)), Request(long, (9,))]
    likelihoods(model, queries, batch_tokens=420)  # two rows of 202 tokens a batch
    # The last token of the context is read with each choice; what nobody shares goes whole.
    assert shapes == [(1, 199), (2, 3), (2, 3), (1, 131)]


def test_no_context_is_shared_where_frequencies_follow_the_length(counted, monkeypatch):
    monkeypatch.setattr(likelihood, "same_at", lambda model, one, other: False)
    model, shapes = counted
    likelihoods(model, [Request((1,) * 200, (n, 5)) for n in range(3)], batch_tokens=1000)
    assert shapes == [(3, 201)]


def test_only_equal_lengths_share_a_batch_where_frequencies_follow_the_length():
    dynamic = build("position/rope_scaling=dynamic_ntk")
    assert same_at(build(), 1, 1000)
    assert same_at(dynamic, 1, WINDOW)
    assert not same_at(dynamic, 1, WINDOW + 1)
    assert not same_at(build("position=coca", "position/rope_scaling=clex"), 1, WINDOW + 1)
    rows = [(1,) * 4, (2,) * 6, (3,) * 6, (4,) * 4, (5,) * 5]
    assert [[len(row) for row in batch] for batch in batches(rows, 18, mixed=True)] == [[6, 6, 5], [4, 4]]
    assert [[len(row) for row in batch] for batch in batches(rows, 18, mixed=False)] == [[6, 6], [5], [4, 4]]
    assert [len(batch) for batch in batches(rows, 1, mixed=True)] == [1] * 5


def test_what_is_too_long_loses_tokens_on_the_left():
    assert clip(Request((1, 2, 3), (4, 5)), 4) == Request((1, 2, 3), (4, 5))  # reads 1 2 3 4
    assert clip(Request((1, 2, 3), (4, 5)), 3) == Request((2, 3), (4, 5))
    assert clip(Request((1, 2, 3), (4, 5)), 2) == Request((3,), (4, 5))
    with pytest.raises(ValueError, match=r"2 tokens .* 1"):
        clip(Request((1, 2, 3), (4, 5)), 1)


def test_nothing_before_or_nothing_to_say_is_refused():
    for request in (Request((), (1,)), Request((1,), ())):
        with pytest.raises(ValueError, match="one token"):
            likelihoods(build(), [request], batch_tokens=8)
