"""Parameters and shares, against published counts."""

import pytest

from coca_train.planning.as_text import share
from coca_train.runtime.errors import UserError
from tests.planning.conftest import LLAMA_7B, QKV, TINY, K, outlined

# Sizes of released checkpoints (their tensors' elements added up).
PUBLISHED = {
    "LLaMA-7B": ((), 6_738_415_616),
    "LLaMA-13B": (("model.n_layers=40", "model.d_model=5120", "model.n_heads=40", "model.d_ff=13824"), 13_015_864_320),
    "LLaMA-65B": (("model.n_layers=80", "model.d_model=8192", "model.n_heads=64", "model.d_ff=22016"), 65_285_660_672),
    "Mistral-7B": (("model.n_kv_heads=8", "model.d_ff=14336"), 7_241_732_096),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    changes, n = PUBLISHED[name]
    outline = outlined(*LLAMA_7B, *changes)
    assert outline.n_parameters == outline.n_trained == n
    assert share(outline) == "100 %"


@pytest.mark.parametrize("position", ["rope", "alibi", "coca", "coca_strict"])
def test_the_papers_350m_class_is_508_9m(position: str) -> None:
    """24 x 12 x 1024² and biases and norms, 2 x 100 864 x 1024; whatever the scheme."""
    assert outlined("model=neox_350m", f"position={position}").n_parameters == 508_880_896


@pytest.mark.parametrize(("patterns", "n", "percent"), [(K, 536_870_912, "8.0 %"), (QKV, 1_610_612_736, "23.9 %")])
def test_shares_of_the_coca_papers_stages(patterns: tuple[str, ...], n: int, percent: str) -> None:
    """32 x 4096 x 4096 for T, three times that with Q and V, of LLaMA-7B; T as wide as K is the official layout."""
    outline = outlined(*LLAMA_7B[:2], "position=coca", trainable=patterns)
    assert (outline.n_trained, outline.n_parameters, share(outline)) == (n, 6_738_415_616, percent)


def test_shares_with_t_at_half_width() -> None:
    """T holds one number a pair: half the rows, 4.1 %; and 20.7 %, which the paper gives as 21 %."""
    total = 6_738_415_616 - 32 * 4096 * 2048
    for patterns, n, percent in ((K, 32 * 4096 * 2048, "4.1 %"), (QKV, 5 * 32 * 4096 * 2048, "20.7 %")):
        outline = outlined(*LLAMA_7B[:2], "position=coca", "position.t_width=half", trainable=patterns)
        assert (outline.n_trained, outline.n_parameters, share(outline)) == (n, total, percent)


def test_nothing_is_allocated_and_frozen_is_frozen() -> None:
    outline = outlined(*TINY, "engine.dtype=bf16", trainable=("head.weight", "*.mlp_norm.weight"))
    parameters = dict(outline.model.named_parameters())
    assert all(p.is_meta and p.dtype == outline.dtype for p in parameters.values())
    assert {name for name, p in parameters.items() if p.requires_grad} == set(outline.trained)
    assert outline.n_trained == 320 * 256 + 6 * 256


def test_nearly_all_is_not_all() -> None:
    assert share(outlined(*TINY, trainable=("embed.*", "head.*", "blocks.*"))) == "100.0 %"
    assert share(outlined(*TINY)) == "100 %"


def test_shared_embeddings_count_once() -> None:
    apart, tied = (outlined(*TINY, f"model.tie_embeddings={tie}") for tie in ("false", "true"))
    assert apart.n_parameters - tied.n_parameters == 320 * 256


def test_a_pattern_that_matches_nothing_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"E-STG-14 .*'blocks.*.attention.t.weight'.*nearest names: .*Fix: "):
        outlined(*TINY, trainable=("blocks.*.attention.t.weight",))


def test_without_a_vocabulary_it_says_what_to_write(tmp_path: object) -> None:
    with pytest.raises(UserError, match=r"E-PLN-01 .*no .*/no\.model; .*Fix: write model\.vocab_size=32000"):
        outlined("model=llama_tiny", f"data.tokenizer={tmp_path}/no.model")
    with pytest.raises(UserError, match=r"E-PLN-01 .*, or make it: python -m data_prep diagnostics"):
        outlined("data=diagnostics", f"data.tokenizer={tmp_path}/no.model")
