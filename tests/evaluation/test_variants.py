"""What is tried on trained weights: names, settings, and why some cannot be."""

import pytest

from coca_train.evaluation.variants import Choice, Variant, after_training, described, variants
from coca_train.runtime.errors import UserError
from coca_train.settings import load


def tried(*words):
    config = load(list(words)).config
    return config, variants(config, after_training(config))


def test_after_training_the_trained_base_stays():
    words = ["position=rope", "position.rope_scaling.theta=500000", "train.seq_len=64"]
    config, by_name = tried(*words, "eval.extrapolation.attention_patterns=[sinks]")
    assert list(by_name) == ["plain", "dynamic_ntk (alpha 4)", "plain, sinks"]
    plain, dynamic, sinks = by_name.values()
    assert plain == Variant(config.position, config.attention_pattern)
    assert (dynamic.position.rope_scaling.name, dynamic.attention_pattern) == ("dynamic_ntk", config.attention_pattern)
    assert (dynamic.position.rope_scaling.theta, dynamic.position.rope_scaling.original_seq_len) == (500_000, 64)
    assert (sinks.position, sinks.attention_pattern.name, sinks.attention_pattern.window) == (
        config.position,
        "sinks",
        64,
    )


def test_one_spelling_in_a_training_and_in_a_grid():
    written = ["dynamic_ntk@alpha:8", "yarn@factor:16@theta:20000", "linear"]
    config, by_name = tried("position=rope", f"eval.extrapolation.rope_scalings=[{','.join(written)}]")
    assert list(by_name) == ["plain", "dynamic_ntk (alpha 8)", "yarn (factor 16, theta 20000)", "linear"]
    assert list(by_name.values())[1:] == list(variants(config, map(Choice, written)).values())
    ntk, yarn = (variant.position.rope_scaling for variant in list(by_name.values())[1:3])
    assert (ntk.alpha, yarn.factor, yarn.theta) == (8, 16, 20_000)


def test_the_350m_recipes_are_evaluated_as_in_the_paper_s_tables():
    for name in ("roformer_350m", "alibi_350m", "coca_350m", "coca_strict_350m"):
        config = load([f"+experiment={name}"]).config
        alphas = [
            variant.position.rope_scaling.alpha
            for variant in variants(config, after_training(config)).values()
            if getattr(variant.position, "rope_scaling", None) and variant.position.rope_scaling.name == "dynamic_ntk"
        ]
        assert alphas == ([] if name == "alibi_350m" else [2, 4, 8])


def test_a_scheme_without_frequencies_is_tried_as_it_is():
    config, by_name = tried("position=alibi")
    assert by_name == {"plain": Variant(config.position, config.attention_pattern)}


def test_a_choice_that_is_there_for_its_base_brings_it():
    words = ["position=rope", "position.rope_scaling.theta=50000", "train.seq_len=64"]
    _, by_name = tried(*words, "eval.extrapolation.rope_scalings=[code_llama,llama3,ntk]")
    bases = {name: variant.position.rope_scaling.theta for name, variant in by_name.items()}
    assert bases == {"plain": 50000, "code_llama": 1e6, "llama3": 50000, "ntk": 50000}
    assert by_name["llama3"].position.rope_scaling.original_seq_len == 64
    assert not any(variant.problem for variant in by_name.values())


def test_learned_frequencies_go_with_no_others():
    words = "eval.extrapolation.rope_scalings=[plain,clex,yarn]"
    _, from_plain = tried("position=rope", words)
    assert {name: bool(v.problem) for name, v in from_plain.items()} == {"plain": False, "clex": True, "yarn": False}
    _, from_clex = tried("position=rope", "position/rope_scaling=clex", words)
    assert {name: bool(v.problem) for name, v in from_clex.items()} == {"clex": False, "plain": True, "yarn": True}
    assert "clex" in from_clex["yarn"].problem


@pytest.mark.parametrize(("scheme", "choice"), [("learned", Choice("trained", "rerope")), ("alibi", Choice("yarn"))])
def test_a_choice_that_a_scheme_cannot_have_is_a_variant_with_a_reason(scheme, choice):
    config = load([f"position={scheme}"]).config
    (variant,) = variants(config, [choice]).values()
    assert scheme in variant.problem
    assert (variant.position, variant.attention_pattern) == (config.position, config.attention_pattern)


def test_a_wrong_word_is_the_user_s_error():
    config = load(["position=rope"]).config
    with pytest.raises(UserError, match="E-EVAL-02 grid 'yarn@4'"):
        variants(config, [Choice("yarn@4")])
    with pytest.raises(UserError, match="choice@option:value"):
        variants(config, [Choice("yarn@nothing:4")])


def test_a_logit_scale_is_tried_like_frequencies_and_leaves_the_keys_of_other_cells():
    config = load(["position=rope", "train.seq_len=64"]).config
    choices = [Choice(), Choice("trained", "rerope@window:32", "log"), Choice(logit_scale="steps@length:8@beta:0.5")]
    by_name = variants(config, choices)
    assert list(by_name) == [
        "plain",
        "plain, rerope (window 32), logit scale log",
        "plain, logit scale steps (length 8, beta 0.5)",
    ]
    own, log, steps = by_name.values()
    assert (own.logit_scale, log.logit_scale.name, steps.logit_scale.length) == (None, "log", 8)
    assert described(own).keys() == {"position", "attention_pattern"}
    assert described(log)["logit_scale"] == {"name": "log", "length": None, "beta": 0.1}
    with pytest.raises(UserError, match="none, log, ssmax, steps"):
        variants(config, [Choice(logit_scale="logn")])
