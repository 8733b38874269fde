"""Mixed windows (LongRoPE2): frequencies that follow the longest document of a row."""

from dataclasses import replace

import pytest
import torch

from coca_train.config.messages import ConfigError
from coca_train.config.schema import SourceConfig
from coca_train.data.mixture import Mixture
from coca_train.data.packing import Edges
from coca_train.engine.base import summed_loss
from coca_train.models.transformer import build_model
from coca_train.settings import load

WORDS = [
    "position=rope", "position/rope_scaling=longrope", "position.rope_scaling.factor=4",
    "position.rope_scaling.original_seq_len=20", "position.rope_scaling.theta=100", "train.seq_len=32",
    "data.document_mask=true", "train.micro_batch_size=1", "model=neox_tiny", "model.n_layers=2", "model.d_model=16",
    "model.n_heads=2", "model.d_ff=32",
]  # fmt: skip
MIXED = [*WORDS, "data.length_of=document"]


def test_a_row_has_the_length_of_its_longest_document(data_config):
    """Counted from where documents begin; whatever it is read together with, and said in the fingerprint."""
    plain, mixed = (Mixture(data_config(document_mask=True, length_of=each), 16) for each in ("row", "document"))
    assert plain.samples(0, 1).length is None
    lengths = set()
    for sample in range(40):
        batch = mixed.samples(sample, 1)
        (doc,) = batch.doc_BT.tolist()
        assert batch.length == max(doc.count(each) for each in set(doc))
        assert torch.equal(batch.pos_BT, plain.samples(sample, 1).pos_BT)
        assert batch.length == mixed.samples(sample, 1).length
        lengths.add(batch.length)
    assert len(lengths) > 1
    assert plain.fingerprint()["order"] != mixed.fingerprint()["order"]


def test_padding_is_no_document(data_config, write_dataset, tmp_path):
    """A document of 10 tokens in a row of 64."""
    path = write_dataset(tmp_path / "short", [list(range(10))])
    source = SourceConfig(path=path, weight=1)
    config = data_config(document_mask=True, length_of="document", packing="documents")
    batch = Mixture(replace(config, sources={"short": source}), 64, edges=Edges(1, 2)).samples(0, 1)
    assert batch.length == 10


@pytest.mark.parametrize("attention", ["auto", "eager", "blocked"])
def test_short_documents_have_the_trained_frequencies_and_long_ones_the_others(attention, data_config):
    """Loss and gradients of a row are those of a model that has these frequencies at all lengths."""
    config = load([*MIXED, f"engine.attention={attention}"]).config
    mixture = Mixture(data_config(document_mask=True, length_of="document"), 32)
    vocab = int(mixture.samples(0, 60).tokens_BT.max()) + 1
    model, seen = build_model(config, vocab), set()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    temperature = f"position.rope_scaling.temperature={model.position.rope_scaling(1).temperature}"
    others = {}
    for long, factor in ((False, 1), (True, 4)):
        lists = [f"position.rope_scaling.{each}_factor={[float(factor)] * 4}" for each in ("short", "long")]
        words = [*WORDS, f"engine.attention={attention}", temperature, *(each.replace(" ", "") for each in lists)]
        others[long] = build_model(load(words).config, vocab)
        others[long].load_state_dict(model.state_dict())
    for sample in range(60):
        batch = mixture.samples(sample, 1)
        long = batch.length > 20
        if long in seen:
            continue
        seen.add(long)
        losses = [summed_loss(each, batch, torch.device("cpu")) for each in (model, others[long], others[not long])]
        for loss in losses:
            loss.backward()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
        assert losses[0].item() != pytest.approx(losses[2].item(), rel=1e-5)
        for ours, theirs in zip(model.parameters(), others[long].parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        for each in (model, *others.values()):
            each.zero_grad()
    assert seen == {False, True}


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["data.document_mask=false"], ["E-CFG-94", "data.document_mask=false", "Fix: write data.document_mask=true"]),
        (["train.micro_batch_size=2", "train.global_batch_size=2"], ["E-CFG-94", "train.micro_batch_size=2"]),
        (["data.placement.name=pose", "data.placement.target=64"], ["E-CFG-94", "data.placement.name=pose"]),
        (["position=rope"], ["E-CFG-94", "frequencies are the same at every length up to 32 tokens"]),
        (["position=rope", "position/rope_scaling=linear"], ["E-CFG-94", "position.scheme"]),
        (["position=alibi"], ["E-CFG-94", "frequencies are the same at every length up to 32 tokens"]),
    ],
)
def test_what_it_does_not_go_with(words, keys):
    with pytest.raises(ConfigError) as error:
        load([*words, *MIXED[5:]] if words[0].startswith("position=") else [*MIXED, *words])
    assert all(key in str(error.value) for key in keys)
