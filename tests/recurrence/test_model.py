"""What a Transformer-XL computes with a memory: the same text read at once is the definition."""

from typing import Any

import pytest
import torch
from torch import Tensor

from coca_train.models.init import init_parameter
from coca_train.models.memory import Memory
from coca_train.models.transformer import Transformer, build_model
from coca_train.settings import load
from tests.recurrence.scenarios import TINY, VOCAB

B, T, LAYERS, C = 3, 6, 2, 16


def build(memory_len: int, *settings: str) -> Transformer:
    """Float64, every parameter random, so that positions and memory matter."""
    config = load([*TINY, "position=transformer_xl", f"position.memory_len={memory_len}", *settings]).config
    model = build_model(config, VOCAB)
    for name, parameter in model.named_parameters():
        init_parameter(name, parameter.data, config.model, config.position, 3)
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)).double()
    return model


def empty(memory_len: int) -> Memory:
    """No past: the values say so, and are nothing a model could use."""
    hidden = [torch.full((B, memory_len, C), 1e3, dtype=torch.float64) for _ in range(LAYERS)]
    return Memory(hidden, torch.zeros(B, dtype=torch.int64))


def after(memory: Memory, n_tokens: int) -> Memory:
    return Memory(memory.new, (memory.length_B + n_tokens).clamp(max=memory.memory_len))


def read(model: Transformer, tokens_BT: Tensor, memory_len: int, n_segments: int) -> list[Tensor]:
    """The logits of each segment, every one with what is left of those before."""
    logits, memory = [], empty(memory_len)
    for part_BT in tokens_BT.chunk(n_segments, dim=1):
        logits.append(model(part_BT, pos_BT=torch.arange(part_BT.shape[1])[None], memory=memory))
        memory = after(memory, part_BT.shape[1])
    return logits


def some_tokens(n_tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (B, n_tokens), generator=torch.Generator().manual_seed(seed))


KERNELS = ["engine.attention=eager", "engine.attention=blocked"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("length", "n_segments", "memory_len"), [(6, 2, 6), (6, 3, 12), (6, 4, 30), (3, 5, 12)])
def test_a_memory_of_all_the_past_is_the_text_read_at_once(
    kernel: str, length: int, n_segments: int, memory_len: int
) -> None:
    """Also the positions: a key of the memory is as far away as in the text."""
    model, tokens_BT = build(memory_len, kernel), some_tokens(length * n_segments)
    whole = model(tokens_BT)
    assert torch.allclose(torch.cat(read(model, tokens_BT, memory_len, n_segments), dim=1), whole, rtol=1e-5, atol=1e-5)
    alone = model(tokens_BT[:, -length:])
    assert (alone - whole[:, -length:]).abs().max() > 1e-2


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_layer_sees_the_memory_and_no_further(kernel: str) -> None:
    """One layer, M = T: every segment is the last T of a window of 2 T."""
    model = build(T, kernel, "model.n_layers=1")
    tokens_BT = some_tokens(4 * T)
    hidden = [torch.full((B, T, C), 1e3, dtype=torch.float64)]
    memory, zero = Memory(hidden, torch.zeros(B, dtype=torch.int64)), torch.arange(T)[None]
    for segment in range(4):
        part_BT = tokens_BT[:, segment * T : (segment + 1) * T]
        logits = model(part_BT, pos_BT=zero, memory=memory)
        window_BT = tokens_BT[:, max(0, segment - 1) * T : (segment + 1) * T]
        assert torch.allclose(logits, model(window_BT)[:, -T:], rtol=1e-5, atol=1e-5)
        memory = after(memory, T)


def test_rows_without_a_past_are_as_if_alone() -> None:
    model, tokens_BT = build(T), some_tokens(T)
    memory = Memory([torch.randn(B, T, C, dtype=torch.float64) for _ in range(LAYERS)], torch.tensor([T, 0, 2]))
    logits, alone = model(tokens_BT, memory=memory), model(tokens_BT)
    assert torch.allclose(logits[1], alone[1], rtol=1e-6, atol=1e-6)
    assert all((logits[row] - alone[row]).abs().max() > 1e-2 for row in (0, 2))
    other = Memory([x.clone() for x in memory.hidden], memory.length_B)
    for x_BMC in other.hidden:
        x_BMC[2, :-2] = 7.0  # positions that are not there
    assert torch.equal(model(tokens_BT, memory=other), logits)


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_no_gradient_reaches_the_segment_before(checkpointing: str) -> None:
    """The gradient with a carried memory is that with the same numbers as constants."""
    model = build(T, f"engine.activation_checkpointing={checkpointing}").train()
    first_BT, second_BT, targets_BT = some_tokens(T), some_tokens(T, 1), some_tokens(T, 2)
    memory = empty(T)
    model(first_BT, targets_BT, memory=memory)
    assert len(memory.new) == LAYERS
    carried = after(memory, T)
    constant = Memory([x.detach().clone() for x in carried.hidden], carried.length_B)

    def gradients(past: Memory) -> list[Tensor]:
        model.zero_grad()
        model(second_BT, targets_BT, memory=past).backward()
        assert len(past.new) == LAYERS  # also after the backward pass has computed the blocks again
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    assert all(torch.equal(a, b) for a, b in zip(gradients(carried), gradients(constant), strict=True))
    unused = set(first_BT.flatten().tolist()) - set(second_BT.flatten().tolist())
    embed = model.get_submodule("embed").weight
    assert isinstance(embed, torch.nn.Parameter) and embed.grad is not None
    assert unused and not embed.grad[sorted(unused)].any()


def test_keys_and_values_of_the_memory_are_trained() -> None:
    """A segment of one token: without a memory it has one key, whose weight is 1 whatever W_K is."""
    model = build(T)
    token_BT, target_BT = some_tokens(1), some_tokens(1, 1)
    keys = model.first_attention.k.weight

    def gradient(memory: Any) -> Tensor:
        model.zero_grad()
        model(token_BT, target_BT, memory=memory).backward()
        assert keys.grad is not None
        return keys.grad.abs().max()

    past = Memory([torch.randn(B, T, C, dtype=torch.float64) for _ in range(LAYERS)], torch.full((B,), T))
    assert gradient(None) < 1e-12
    assert gradient(past) > 1e-4
