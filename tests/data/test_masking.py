"""`data.objective.name=masked_token`: which tokens are chosen, what is shown of them, and that nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coca_train.config.messages import ConfigError
from coca_train.config.schema import AnswersConfig, CurriculumConfig, ObjectiveConfig, PlacementConfig, SourceConfig
from coca_train.data.batch import digest_of
from coca_train.data.held_out import HeldOut, Validation
from coca_train.data.loader import Loader
from coca_train.data.masking import Masking, find_mask
from coca_train.data.mixture import Mixture, fingerprint_diff
from coca_train.data.packing import Edges
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import IGNORE
from coca_train.runtime.errors import DataError
from coca_train.settings import load
from data_prep.verbs.diagnostics import write_tokenizer
from tests.data.vocabularies import byte_level, llama2, saved, sentencepiece_model

UNK, BOS, EOD = 0, 1, 2
EDGES = Edges(BOS, EOD)
MASKED = ObjectiveConfig(name="masked_token")
T = 64


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return sentencepiece_model(tmp_path_factory.mktemp("vocabulary") / "tokenizer.model")


@pytest.fixture
def config(data_config, model_file, write_dataset, tmp_path):
    """One source of 400 documents of 10 to 90 ordinary tokens, each ended."""
    rng, n_tokens = np.random.default_rng(0), Tokenizer(model_file).vocab_size
    documents = [np.append(rng.integers(3, n_tokens, rng.integers(10, 90)), EOD) for _ in range(400)]
    path, held_out = (write_dataset(tmp_path / name, documents) for name in ("words", "held_out"))
    source = SourceConfig(path=path, valid_path=held_out, weight=1)
    return replace(data_config(), tokenizer=str(model_file), sources={"words": source}, objective=MASKED)


def both(config, n: int = 200, seq_len: int = T):
    """The same samples, as they are and masked: text (with the token after the last), masked batch."""
    plain = replace(config, objective=ObjectiveConfig())
    text, masked = (Mixture(each, seq_len, edges=EDGES).samples(0, n) for each in (plain, config))
    return text, masked


def within(count: int, of: int, share: float) -> bool:
    """Whether a count is within five standard deviations of a binomial one."""
    return abs(count - of * share) <= 5 * (of * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(
    "objective",
    [MASKED, replace(MASKED, share=0.4, masked=0.5, random=0.3), replace(MASKED, share=1.0, masked=0.0, random=1.0)],
)
def test_shares_are_those_of_the_options(config, objective):
    text, masked = both(replace(config, objective=objective))
    ordinary, chosen = text.tokens_BT != EOD, masked.targets_BT != IGNORE
    n = int(chosen.sum())
    assert within(n, int(ordinary.sum()), objective.share)
    is_mask, kept = masked.tokens_BT == UNK, masked.tokens_BT == text.tokens_BT
    assert within(int((is_mask & chosen).sum()), n, objective.masked)
    # A random token is the one that it stands for once in as many as there are.
    n_ordinary = Tokenizer(config.tokenizer).vocab_size - 3
    same = 1 - objective.masked - objective.random + objective.random / n_ordinary
    assert within(int((kept & chosen).sum()), n, same)


def test_targets_are_the_tokens_themselves_and_the_rest_stays(config):
    text, masked = both(config)
    chosen = masked.targets_BT != IGNORE
    assert torch.equal(masked.targets_BT[chosen], text.tokens_BT[chosen])
    assert torch.equal(masked.tokens_BT[~chosen], text.tokens_BT[~chosen])
    assert torch.equal(masked.pos_BT, text.pos_BT)
    assert chosen[:, 0].any() and chosen[:, -1].any()
    assert chosen.any(1).all()


@pytest.mark.parametrize("packing", ["windows", "segments", "documents"])
def test_no_special_token_is_chosen_or_drawn(config, packing):
    config = replace(config, packing=packing, document_mask=True, objective=replace(MASKED, share=1.0))
    text, masked = both(config, 60)
    special = (text.tokens_BT == BOS) | (text.tokens_BT == EOD)
    assert special.any()
    assert torch.equal(masked.targets_BT == IGNORE, special)
    assert torch.equal(masked.tokens_BT[special], text.tokens_BT[special])
    assert not ((masked.tokens_BT[~special] == BOS) | (masked.tokens_BT[~special] == EOD)).any()
    assert torch.equal(masked.doc_BT, text.doc_BT)


def test_random_tokens_are_all_the_ordinary_ones(config):
    objective = replace(MASKED, share=1.0, masked=0.0, random=1.0)
    _, masked = both(replace(config, objective=objective), 300)
    drawn = set(masked.tokens_BT[masked.targets_BT != IGNORE].tolist())
    assert drawn == set(range(3, Tokenizer(config.tokenizer).vocab_size))


def test_a_row_with_an_ordinary_token_has_a_target(config):
    config = replace(config, objective=replace(MASKED, share=1e-9))
    _, masked = both(config)
    assert ((masked.targets_BT != IGNORE).sum(1) == 1).all()
    assert len(set((masked.targets_BT != IGNORE).int().argmax(1).tolist())) > 20


def test_a_row_without_an_ordinary_token_has_none(config):
    masking = Masking(config)
    text, _ = both(config, 1)
    nothing = masking(replace(text, tokens_BT=torch.full_like(text.tokens_BT, EOD)), ["0"])
    assert nothing.n_targets == 0 and (nothing.tokens_BT == EOD).all()


def test_a_draw_follows_from_seed_source_epoch_and_window_alone(config):
    _, masked = both(config, 8)
    assert digest_of(masked) == digest_of(both(config, 8)[1])
    mixture = Mixture(config, T)
    (place,) = mixture.places(5, 1)
    one = mixture.batch([place])
    assert torch.equal(one.tokens_BT[0], masked.tokens_BT[5])
    assert torch.equal(one.targets_BT[0], masked.targets_BT[5])
    for other in (
        Mixture(config, T).batch([place._replace(epoch=place.epoch + 1)]),
        Mixture(replace(config, seed=2), T).batch([place]),
        Mixture(replace(config, sources={"other": config.sources["words"]}), T).batch([place]),
    ):
        assert not torch.equal(other.targets_BT, one.targets_BT)


def test_a_draw_is_the_same_in_every_release(config):
    """So that a run goes on with the same bits after an update, of numpy too."""
    text, _ = both(config, 1)
    ids = replace(text, tokens_BT=torch.arange(100, 100 + T)[None])
    masked = Masking(config)(ids, ["1 words 0 0"])
    chosen = (masked.targets_BT[0] != IGNORE).nonzero().flatten().tolist()
    shown = {at: int(masked.tokens_BT[0, at]) for at in chosen}
    assert shown == {10: UNK, 16: UNK, 33: UNK, 35: 135, 43: UNK, 45: UNK, 47: 147, 54: UNK, 57: UNK, 60: UNK}


@pytest.mark.parametrize(("world_size", "micro"), [(1, 8), (2, 2), (4, 1)])
def test_any_number_of_ranks_sees_the_same_rows(config, world_size, micro):
    whole = Mixture(config, T).samples(16, 8)
    parts = [
        batch
        for rank in range(world_size)
        for batch in Loader(Mixture(config, T), 8, micro, rank, world_size, 0, 0).step(2)
    ]
    assert torch.equal(torch.cat([part.tokens_BT for part in parts]), whole.tokens_BT)
    assert torch.equal(torch.cat([part.targets_BT for part in parts]), whole.targets_BT)


def test_streams_placement_and_curriculum_work_with_it(config):
    """Each does to a masked batch what it does to a text."""
    stream = replace(config, order="stream")
    batches = [
        Mixture(each, T, global_batch_size=4).samples(4, 4)
        for each in (stream, replace(stream, objective=ObjectiveConfig()))
    ]
    assert torch.equal(batches[0].continues_B, batches[1].continues_B)
    placed = replace(config, placement=PlacementConfig(name="longrecipe", target=4 * T))
    text, masked = both(placed, 4)
    assert torch.equal(text.pos_BT, masked.pos_BT) and masked.length == 4 * T
    of_documents = replace(config, document_mask=True, packing="documents", length_of="document")
    text, masked = both(of_documents, 4)
    assert text.length == masked.length
    grown = replace(config, curriculum=CurriculumConfig(begin=8, steps=4))
    (cut,) = Loader(Mixture(grown, T), 4, 4, 0, 1, 0, 0).step(0)
    assert torch.equal(cut.targets_BT, Mixture(config, T).samples(0, 4).targets_BT)
    assert int(cut.doc_BT.max()) == T // 8 - 1


def test_held_out_text_is_masked_alike_at_every_validation(config):
    validation = Validation(HeldOut(config), T, 40 * T, 4)
    first, again = (list(validation.batches()["words"]) for _ in range(2))
    of_other_seed = Validation(HeldOut(replace(config, seed=9)), T, 40 * T, 1).batches()["words"]
    assert sum(digest_of(batch) for batch in first) == sum(digest_of(batch) for batch in again)
    assert sum(digest_of(batch) for batch in first) == sum(digest_of(batch) for batch in of_other_seed)
    text = list(Validation(HeldOut(replace(config, objective=ObjectiveConfig())), T, 40 * T, 4).batches()["words"])
    for masked, plain in zip(first, text, strict=True):
        chosen = masked.targets_BT != IGNORE
        assert torch.equal(masked.targets_BT[chosen], plain.tokens_BT[chosen])
    n_tokens = sum(batch.tokens_BT.numel() for batch in first)
    assert 0.1 * n_tokens < sum(batch.n_targets for batch in first) < 0.2 * n_tokens


def test_padding_of_a_validation_has_no_target(config):
    ranks = [list(Validation(HeldOut(config), T, 3 * T, 2, None, rank, 2).batches()["words"]) for rank in range(2)]
    rows = torch.cat([batch.targets_BT for batches in ranks for batch in batches])
    assert ((rows != IGNORE).any(1)).tolist() == [True, True, True, False]


def test_the_objective_is_part_of_the_data(config):
    plain, masked, other = (
        Mixture(replace(config, objective=objective), T).fingerprint()
        for objective in (ObjectiveConfig(), MASKED, replace(MASKED, share=0.3))
    )
    assert "objective" not in plain["order"]
    assert "order.objective.mask" in fingerprint_diff(plain, masked)
    assert fingerprint_diff(masked, other) == "order.objective.share 0.15 -> 0.3"


@pytest.fixture
def of_diagnostics(config, write_dataset, tmp_path):
    """Documents of 23 tokens in which three answers of a word and a mark are to be learned."""
    path = tmp_path / "diagnostics.model"
    write_tokenizer(path)
    symbols = "recall din kon ban lun don lin | ban = lun ; din = kon ; don = lin ;"
    ids = np.array([*Tokenizer(path).encode(symbols), EOD])
    data = write_dataset(tmp_path / "one", [ids] * 4)
    return replace(
        config, tokenizer=str(path), answers=AnswersConfig(begin="=", end=";"), packing="documents",
        document_mask=True, sources={"one": SourceConfig(path=data, valid_path=data, weight=1)},
        objective=replace(MASKED, share=1.0, mask="<unk>"),
    )  # fmt: skip


def test_answers_alone_are_chosen(of_diagnostics):
    tokenizer, batch = Tokenizer(of_diagnostics.tokenizer), Mixture(of_diagnostics, 50, edges=EDGES).samples(0, 1)
    chosen = batch.targets_BT[batch.targets_BT != IGNORE].tolist()
    assert tokenizer.decode(chosen) == "lun ; kon ; lin ; lun ; kon ; lin ;"
    for batch in Validation(HeldOut(of_diagnostics), 24, 72, 1).batches()["one"]:
        assert tokenizer.decode(batch.targets_BT[batch.targets_BT != IGNORE].tolist()) == "lun ; kon ; lin ;"


def test_which_piece_is_the_mask(model_file, of_diagnostics, tmp_path):
    assert find_mask(Tokenizer(model_file), None) == UNK
    with_mask = sentencepiece_model(tmp_path / "with.model", user_defined_symbols=["\n", "\t", "[MASK]"])
    tokenizer = Tokenizer(with_mask)
    assert find_mask(tokenizer, None) == tokenizer.id_of("[MASK]") == 5
    assert find_mask(tokenizer, "<unk>") == UNK
    with pytest.raises(DataError, match=r"E-MIX-07 data.objective.mask='<hidden>'.*Fix"):
        find_mask(tokenizer, "<hidden>")


def test_the_unknown_piece_of_a_tokenizer_json(tmp_path):
    """Taken where characters become bytes; a byte-level vocabulary has none, and has to have a mask."""
    path = tmp_path / "tokenizer.json"
    assert find_mask(Tokenizer(saved(llama2(), path)), None) == UNK
    in_bytes = byte_level()
    in_bytes.add_special_tokens(["</s>"])
    with pytest.raises(DataError, match="E-MIX-07"):
        find_mask(Tokenizer(saved(in_bytes, path)), None)
    in_bytes.add_special_tokens(["<mask>"])
    assert find_mask(Tokenizer(saved(in_bytes, path)), None) == in_bytes.token_to_id("<mask>")


def test_a_mask_that_a_text_may_have_is_only_taken_when_it_is_named(of_diagnostics):
    """The words of the tasks have no bytes, so an unknown word is the unknown piece."""
    tokenizer = Tokenizer(of_diagnostics.tokenizer)
    with pytest.raises(DataError, match="E-MIX-07") as raised:
        find_mask(tokenizer, None)
    piece = str(raised.value).partition("data.objective.mask='")[2].partition("'")[0]
    assert find_mask(tokenizer, piece) == UNK


@pytest.mark.parametrize("words", [["data.objective.share=0.3"], ["data.objective.mask='<mask>'"]])
def test_options_of_another_objective_are_refused(words):
    with pytest.raises(ConfigError, match=r"E-CFG-97"):
        load(words, launch=False)


def test_more_than_all_cannot_be_shown_as_something_else():
    words = ["attention_pattern=bidirectional", "data.objective.name=masked_token", "data.objective.masked=0.7"]
    assert load([*words, "data.objective.random=0.3"], launch=False)
    with pytest.raises(ConfigError, match=r"E-CFG-97"):
        load([*words, "data.objective.random=0.4"], launch=False)
