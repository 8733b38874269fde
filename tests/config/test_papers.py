"""What the shipped choices take from the papers, number by number as it is printed there (docs/fidelity.md)."""

from dataclasses import replace

import pytest

from coca_train.config.sizes import micro_batch_size
from coca_train.data.corpus_config import load as load_corpus
from coca_train.evaluation.configuration import load as load_evaluation
from coca_train.evaluation.suites.passkey import cases
from coca_train.settings import load
from coca_train.stages import resolve

CONTEXT = ["512", "1024", "2048", "4096", "8192", "16384", "32768"]  # as they are written
ALPHAS = {f"dynamic_ntk@alpha:{alpha}" for alpha in (2, 4, 8)}


def evaluation(name: str):
    return load_evaluation([f"+eval={name}", "checkpoint=none"])[0]


def recipe(name: str):
    return load([f"+experiment={name}"], launch=False).config


def test_perplexity_of_coca():
    """CoCA 5.1, tables 1 and 3: 100 books of at least 32 768 tokens, cut there; stride 512; NTK by 2, 4 and 8."""
    config = evaluation("perplexity_coca")
    assert (config.eval.suite, config.eval.stride, config.eval.document_tokens) == ("perplexity", 512, "longest")
    assert (config.eval.min_document_tokens, config.text.max_documents) == (32_768, 100)
    assert (config.text.corpus, config.text.sources) == ("pg19_64k", ["books_test"])
    assert config.grid.lengths == CONTEXT
    assert set(config.grid.rope_scalings) == {"trained", *ALPHAS}


def test_passkeys_of_coca():
    """CoCA B.1: 100 cases a length, 64 new tokens, 512 to 32k; figure 6: NTK by 2, 4 and 8."""
    config = evaluation("passkey_coca")
    assert (config.eval.suite, config.eval.n_cases, config.eval.max_new_tokens) == ("passkey", 100, 64)
    assert config.grid.lengths == CONTEXT
    assert set(config.grid.rope_scalings) == {"trained", *ALPHAS}


def test_keys_of_coca():
    """CoCA B.1: any number of 10,000 to 99,999."""
    drawn = cases(lambda text: [ord(letter) for letter in text], 300, 4000, places="uniform", n_depths=1, seed=0)
    keys = sorted(case.key for case in drawn)
    assert 10_000 <= keys[0] < 10_200 and 99_800 < keys[-1] <= 99_999
    assert sum(keys) / len(keys) == pytest.approx(54_999.5, rel=0.02)


def test_texts_of_yarn():
    """YaRN 4.3.1: test splits alone; the authors' copy of Proof-pile's calls its only split train."""
    hubs = {name: load_corpus([f"corpus={name}"]).corpus.sources[name] for name in ("gov_report", "proof_pile")}
    assert (hubs["gov_report"].hub, hubs["gov_report"].hub_split) == ("emozilla/govreport-test-tokenized", "test")
    assert (hubs["proof_pile"].hub, hubs["proof_pile"].hub_split) == (
        "emozilla/proofpile-test-tokenized-mistral",
        "train",
    )
    assert {source.hold_out for source in hubs.values()} == {"all"}


def test_perplexity_of_yarn():
    """YaRN 4.3.1: S = 256; 10 documents of 128k tokens, cut to each length; 50 of 16k, whole, in windows of 32k."""
    proof, report = evaluation("perplexity_proof_pile"), evaluation("perplexity_gov_report")
    assert proof.eval.stride == report.eval.stride == 256
    assert proof.grid.rope_scalings == report.grid.rope_scalings == ["trained"]
    assert (proof.eval.document_tokens, proof.eval.min_document_tokens) == ("window", 131_072)
    assert (proof.text.corpus, proof.text.max_documents) == ("proof_pile", 10)
    assert (proof.grid.lengths[0], proof.grid.lengths[-1]) == ("2048", "131072")
    assert (report.eval.document_tokens, report.eval.min_document_tokens) == ("whole", 16_384)
    assert (report.text.corpus, report.text.max_documents, report.grid.lengths) == ("gov_report", 50, ["32768"])


def test_passkeys_of_yarn():
    """YaRN 4.3.2: 10 prompts a length, the key at a uniformly drawn place, 8k to 128k."""
    config = evaluation("passkey_yarn")
    assert (config.eval.n_cases, config.eval.places) == (10, "uniform")
    assert (config.grid.lengths[0], config.grid.lengths[-1]) == ("8192", "131072")


def test_analyses_of_yarn():
    """YaRN A.2: s = 8, documents of 16k tokens in blocks of 2 048; B.3: the last 256 tokens, PI and YaRN dynamic."""
    heat, growth = evaluation("temperature"), evaluation("position_loss")
    assert (heat.eval.document_tokens, heat.eval.block) == (16_384, 2048)
    assert "ntk_by_parts@factor:8" in heat.grid.rope_scalings
    assert min(heat.eval.scales) < 1.0 < 1.208 < max(heat.eval.scales)
    assert (growth.eval.last, growth.eval.document_tokens) == (256, "window")
    assert {"trained", "dynamic_linear", "dynamic_yarn"} <= set(growth.grid.rope_scalings)


def test_coca_in_llama():
    """CoCA 4.3: T, then Q T V, then all; 15k steps each; 2 048 tokens; 8 a GPU on 32 GPUs without accumulation."""
    config = recipe("coca_llama_7b")
    stages = resolve(config)
    assert [list(stage.trainable) for stage in stages] == [
        ["blocks.*.attention.k.*"],
        ["blocks.*.attention.[qkv].*"],
        ["*"],
    ]
    assert [stage.max_steps for stage in stages] == [15_000] * 3
    train = config.train
    assert (train.seq_len, train.micro_batch_size, train.global_batch_size) == (2048, 8, 32 * 8)
    assert (config.position.scheme, config.position.variant) == ("coca", "slack")


@pytest.mark.parametrize("name", ["coca_350m", "coca_strict_350m", "roformer_350m", "alibi_350m"])
def test_the_350m_recipes_on_8_to_32_gpus(name, monkeypatch):
    """CoCA 4.3: a batch of 256 on 8 GPUs in two accumulated steps; on more GPUs the same batch."""
    for n_devices, micro, accumulated in ((8, 16, 2), (16, 16, 1), (32, 8, 1)):
        monkeypatch.setenv("WORLD_SIZE", str(n_devices))  # its rules are met in such a launch
        (stage,) = resolve(load([f"+experiment={name}"]).config, n_devices)
        train = stage.config.train
        assert (train.global_batch_size, train.micro_batch_size) == (256, micro)
        assert n_devices * micro * accumulated == train.global_batch_size


@pytest.mark.parametrize(
    ("whole", "most", "shared", "n_devices", "micro"),
    [(24, 16, 1, 1, 12), (24, 16, 1, 8, 3), (34, 16, 1, 1, 2), (37, 16, 1, 1, 1), (8, 16, 4, 8, 4), (64, 1, 1, 4, 1)],
)
def test_a_micro_batch_is_the_largest_that_divides(whole, most, shared, n_devices, micro):
    config = load([f"train.global_batch_size={whole}", f"train.micro_batch_size={most}"]).config
    engine = replace(config.engine, sequence_parallel=shared)
    assert micro_batch_size(config.train, engine, n_devices) == micro


@pytest.mark.parametrize("name", ["pi_llama_7b_32k", "coca_pi_llama_7b_32k"])
def test_position_interpolation(name):
    """CoCA B.4.1: 32k, 2e-5 without decay, 1 a GPU on 32 GPUs, 6 000 steps, everything trained; s = 32k / 2k."""
    config = recipe(name)
    train, rope_scaling = config.train, config.position.rope_scaling
    assert (train.seq_len, train.micro_batch_size, train.global_batch_size) == (32_768, 1, 32)
    assert (train.max_steps, config.optim.lr, config.optim.schedule) == (6000, 2e-5, "constant")
    assert (rope_scaling.name, rope_scaling.factor) == ("linear", 16)
    assert [list(stage.trainable) for stage in resolve(config)] == [["*"]]
    assert config.start.path.endswith({"pi_llama_7b_32k": "/llama_7b", "coca_pi_llama_7b_32k": "/coca_llama_7b"}[name])


@pytest.mark.parametrize(
    ("words", "n_shared", "n_accumulated"),
    [([], 2, 2), (["engine.activation_checkpointing=full", "engine.sequence_parallel=1"], 1, 1)],
)
def test_a_gpu_has_a_sequence_of_32k_or_shares_it(words, n_shared, n_accumulated, monkeypatch):
    """CoCA B.4.1: one sequence a GPU on 32 GPUs, which two words take; as it is written two GPUs share one."""
    monkeypatch.setenv("WORLD_SIZE", "32")
    (stage,) = resolve(load(["+experiment=pi_llama_7b_32k", *words]).config, 32)
    train, engine = stage.config.train, stage.config.engine
    assert (engine.sequence_parallel, train.micro_batch_size, train.global_batch_size) == (n_shared, 1, 32)
    assert 32 // n_shared * n_accumulated == train.global_batch_size


def test_yarn_of_llama_2():
    """YaRN 4.1: lr 2e-5, no weight decay, warm-up of 20 steps, betas 0.9 and 0.95; 400 steps of 64 at 64k; s = 16."""
    config = recipe("yarn_llama2_7b_64k")
    optim, train, rope_scaling = config.optim, config.train, config.position.rope_scaling
    assert (optim.lr, optim.weight_decay, optim.warmup_steps, optim.betas) == (2e-5, 0.0, 20, (0.9, 0.95))
    assert (train.max_steps, train.global_batch_size, train.seq_len) == (400, 64, 65_536)
    assert (rope_scaling.name, rope_scaling.factor, rope_scaling.original_seq_len) == ("yarn", 16, 4096)
    assert (rope_scaling.beta_slow, rope_scaling.beta_fast) == (1, 32)  # alpha and beta of section 3.2
    assert (config.data.packing, list(config.data.sources)) == ("segments", ["books"])


def test_yarn_to_128k():
    """YaRN 4.1 and 4.2: from the s = 16 result, 200 more steps at s = 32, on the same data of 64k."""
    first, second = (stage.config for stage in resolve(recipe("yarn_llama2_7b_128k")))
    assert (second.train.max_steps, second.position.rope_scaling.factor) == (200, 32)
    assert second.train.seq_len == first.train.seq_len == 65_536
    assert second.data == first.data
    assert (second.optim.lr, second.optim.betas) == (first.optim.lr, first.optim.betas)


def test_yarn_of_mistral():
    """YaRN B.4: 1 000 steps at s = 8 and 500 at s = 16, sequences of 16k, constant 1e-6, the window switched off."""
    first, second = (stage.config for stage in resolve(recipe("yarn_mistral_7b_128k")))
    assert (first.train.max_steps, second.train.max_steps) == (1000, 500)
    assert (first.position.rope_scaling.factor, second.position.rope_scaling.factor) == (8, 16)
    for config in (first, second):
        assert config.train.seq_len == 16_384
        assert (config.optim.lr, config.optim.schedule) == (1e-6, "constant")
        assert config.attention_pattern.name == "causal"


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("coca_350m", "optim.schedule=cosine", "cosine"),
        ("coca_350m", "optim.warmup_steps=6000", 6000),
        ("coca_350m", "optim.betas=[0.9,0.999]", (0.9, 0.999)),
        ("yarn_llama2_7b_64k", "optim.max_grad_norm=1e9", 1e9),
        ("yarn_llama2_7b_64k", "optim.betas=[0.9,0.999]", (0.9, 0.999)),
        ("yarn_llama2_7b_64k", "optim.weight_decay=0.01", 0.01),
    ],
)
def test_a_word_takes_what_a_released_script_does(name, word, expected):
    """Rows P of docs/fidelity.md."""
    option = word.partition("=")[0].removeprefix("optim.")
    assert getattr(load([f"+experiment={name}", word], launch=False).config.optim, option) == expected
