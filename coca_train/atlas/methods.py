"""The rows of the atlas: what is trained, and what is tried at evaluation on the weights of another row."""

from typing import NamedTuple

REFERENCE = "rope"  # the row that others are compared with
WINDOW = 64  # tokens that a row is trained at (configs/experiment/atlas.yaml)
FARTHEST = 16 * WINDOW  # tokens that it is tried at
# Base of every rotation trained at the window: half of RoPE's pairs turn once within it, as in LLaMA 3 (500,000 at
# 8,192 tokens); of 10,000 a quarter would. Trainings with drawn positions, which go to FARTHEST, keep 10,000.
THETA = 100
SHORT = 16  # tokens that layers with a window see in the hybrids: a quarter of the training window


class Method(NamedTuple):
    """A training. words: of its command line, after +experiment=atlas."""

    name: str
    title: str
    words: tuple[str, ...]


class Variant(NamedTuple):
    """Another row from the weights of a training. axis: of the grid of an evaluation. choice: as that axis names it."""

    name: str
    title: str
    of: str
    axis: str
    choice: str


def _scheme(name: str, title: str, *words: str) -> Method:
    return Method(name, title, (f"position={name}", *words))


def _rotary(name: str, title: str, scheme: str, *words: str) -> Method:
    return Method(name, title, (f"position={scheme}", f"position.rope_scaling.theta={THETA}", *words))


def _hybrid(name: str, title: str, pattern: str, *words: str) -> Method:
    window = f"layers.types.local.attention_pattern.window={SHORT}"
    return _rotary(name, title, "rope", f"layers={name}", f"layers.pattern=[{pattern}]", window, *words)


METHODS = (
    _rotary("rope", "RoPE", "rope"),
    _rotary("coca", "CoCA", "coca"),
    _rotary("coca_strict", "CoCA (strict)", "coca_strict"),
    _rotary("pope", "PoPE", "pope"),
    _scheme("alibi", "ALiBi"),
    _scheme("nope", "NoPE"),
    _scheme("fox", "FoX"),
    _scheme("fire", "FIRE"),
    _scheme("cope", "CoPE"),
    _scheme("path", "PaTH"),
    _scheme("stick_breaking", "stick-breaking"),
    _scheme("t5", "T5 bias"),
    _scheme("kerple_log", "KERPLE-log"),
    Method("random", "RoPE with random positions", ("position=rope", "data.placement.name=random",
                                               f"data.placement.target={FARTHEST}")),
    _hybrid("rnope_swa", "RNoPE-SWA", "local,nope,local"),
    _rotary("xpos", "xPos", "xpos"),
    _scheme("fope", "FoPE", f"position.theta={THETA}"),
    _scheme("shaw", "Shaw"),
    _scheme("transformer_xl", "Transformer-XL", "position.memory_len=0"),
    _scheme("sinusoidal", "sinusoidal", f"position.theta={THETA}"),
    _scheme("learned", "learned positions"),
    _scheme("dape", "DAPE"),
    _scheme("grape_a", "GRAPE-A"),
    _hybrid("swan", "SWAN", "nope,local,local"),
    _hybrid("gemma3", "Gemma 3's layers", "local,local,global",
            *(f"layers.types.{kind}.position.rope_scaling.theta={THETA}" for kind in ("local", "global"))),
    Method("pose", "RoPE with PoSE", ("position=rope", "data.placement.name=pose",
                                      f"data.placement.target={FARTHEST}")),
    _rotary("ssmax", "RoPE with Scalable-Softmax", "rope", "model.logit_scale.name=ssmax", "model.score_scale=head"),
    _rotary("rope_aligned", "RoPE with angle penalty", "rope", "position.angle_penalty=0.3"),
    _rotary("partial", "RoPE on half of the head", "rope", "position.rotary_pct=0.5"),
    Method("rope_10000", "RoPE with base 10,000", ("position=rope",)),
    _scheme("kerple_power", "KERPLE-power"),
    _scheme("sandwich", "Sandwich"),
    _scheme("tupe", "TUPE"),
    _scheme("disentangled", "DeBERTa"),
    _scheme("grape_ap", "GRAPE-AP"),
    _scheme("grape_m", "GRAPE-M", f"position.theta={THETA}"),
    _scheme("selective_rope", "Selective RoPE", f"position.theta={THETA}"),
    _scheme("dd_alibi", "data-dependent ALiBi"),
    _rotary("linear_rope", "linear attention with RoPE", "linear_rope"),
)  # fmt: skip

ALPHAS = (1, 2, 4, 8)  # of dynamic NTK


def _ntk(of: str, title: str) -> tuple[Variant, ...]:
    return tuple(
        Variant(f"{of}_ntk{a}", f"{title} + dynamic NTK (α {a})", of, "rope_scalings", f"dynamic_ntk@alpha:{a}")
        for a in ALPHAS
    )


def _scaling(name: str, title: str, of: str, choice: str) -> Variant:
    return Variant(name, title, of, "rope_scalings", choice)


def _pattern(name: str, title: str, of: str, choice: str) -> Variant:
    return Variant(name, title, of, "attention_patterns", choice)


YARN, DYNAMIC_YARN = f"yarn@factor:16@original_seq_len:{WINDOW}", f"dynamic_yarn@original_seq_len:{WINDOW}"
REROPE, LAMBDA_MASK = f"rerope@window:{WINDOW // 2}", f"lambda_mask@window:{WINDOW}@max_distance:{WINDOW}"

VARIANTS = (
    *_ntk("rope", "RoPE"),
    _scaling("rope_pi", "RoPE + PI (factor 16)", "rope", "linear@factor:16"),
    _scaling("rope_ntk_aware", "RoPE + NTK-aware (factor 16)", "rope", "ntk@factor:16"),
    _scaling("rope_by_parts", "RoPE + NTK-by-parts (factor 16)", "rope",
             f"ntk_by_parts@factor:16@original_seq_len:{WINDOW}"),
    _scaling("rope_yarn", "RoPE + YaRN (factor 16)", "rope", YARN),
    _scaling("rope_dynamic_yarn", "RoPE + dynamic YaRN", "rope", DYNAMIC_YARN),
    _pattern("rope_rerope", "RoPE + ReRoPE", "rope", REROPE),
    _pattern("rope_self_extend", "RoPE + Self-Extend", "rope", f"self_extend@window:{WINDOW}@group:22"),
    _pattern("rope_dual_chunk", "RoPE + dual chunks", "rope", f"dual_chunk@window:{WINDOW}"),
    _pattern("rope_string", "RoPE + STRING", "rope", f"string@window:{WINDOW}"),
    _pattern("rope_lambda_mask", "RoPE + LM-Infinite", "rope", LAMBDA_MASK),
    _pattern("rope_window", "RoPE + sliding window", "rope", f"sliding_window@window:{WINDOW}"),
    Variant("rope_log_n", "RoPE + log-n", "rope", "logit_scales", f"log@length:{WINDOW}"),
    *_ntk("coca", "CoCA"),
    _scaling("coca_yarn", "CoCA + YaRN (factor 16)", "coca", YARN),
    _scaling("coca_dynamic_yarn", "CoCA + dynamic YaRN", "coca", DYNAMIC_YARN),
    _pattern("coca_rerope", "CoCA + ReRoPE", "coca", REROPE),
    _pattern("coca_lambda_mask", "CoCA + LM-Infinite", "coca", LAMBDA_MASK),
    *_ntk("coca_strict", "CoCA (strict)"),
    _pattern("coca_strict_rerope", "CoCA (strict) + ReRoPE", "coca_strict", REROPE),
    *_ntk("pope", "PoPE"),
    *_ntk("rope_aligned", "RoPE with angle penalty"),
    _pattern("rope_aligned_rerope", "RoPE with angle penalty + ReRoPE", "rope_aligned", REROPE),
    Variant("nope_log_n", "NoPE + log-n", "nope", "logit_scales", f"log@length:{WINDOW}"),
)  # fmt: skip


def title_of(name: str) -> str:
    """Return what pages call a row; a row that is not in the tables is called by its name."""
    return next((each.title for each in (*METHODS, *VARIANTS) if each.name == name), name)


def variants_of(method: str) -> list[Variant]:
    return [each for each in VARIANTS if each.of == method]
