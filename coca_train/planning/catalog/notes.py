"""What the columns of the tables mean, in words."""

from coca_train.planning.catalog.facts import FAR, FARTHEST, LONG, SHORT, STRETCH
from coca_train.planning.catalog.reference import Reference


def of_schemes(given: Reference) -> list[str]:
    """The columns of the schemes."""
    return [
        f"parameters: of the whole {given.name}, trained with windows of {given.seq_len:,}, above those of `nope` (the "
        "key projection of coca has half the rows)",
        f"path: the kernel that is chosen in bfloat16 for {SHORT:,} tokens, and behind the slash for {LONG:,} where "
        "that is another one. blocked: tile by tile, memory O(T·block); sdpa: torch's fused kernel, O(T·D); flex: "
        "FlexAttention, compiled, O(T·D). In float32 the CPU takes sdpa wherever a scheme adds nothing to the scores",
        "alibi asks the device whether to fold its bias into q and k: its CUDA column is that of `fold: always`, which "
        "is what `auto` does there",
        "cost: multiply-adds per pair of tokens over those of rope, of matrix products (of a hook too); what is seen "
        "decides on the number of pairs. mem.: "
        "numbers per token that a layer hands to the kernel over those of rope. Both are taken from the tensors "
        f"themselves at {LONG:,} tokens; where the numbers grow faster or slower than T, the power is shown. cache: "
        "numbers that a token leaves in the cache of a layer, over those of rope",
        f"max. window: the longest one that is not refused, tried in bfloat16 up to {FARTHEST:,} tokens; any: no end "
        "was found",
        "visibilities: with windows shorter than the training window",
    ]


def of_frequencies(given: Reference) -> list[str]:
    """The columns of the frequencies."""
    return [
        "wavelengths: those of the fastest pair / a quarter of the way to the slowest / the slowest, at "
        f"{STRETCH} training windows ({STRETCH * given.seq_len:,} tokens), over those of plain frequencies with the "
        "same theta; the factors are those of configs/position/frequencies",
        "kind: dynamic follows the length in hand and changes no frequency up to the training window; learned has "
        "parameters (shown as they start)",
        f"temperature: multiplied into both q' and k', at {STRETCH} training windows",
    ]


def of_visibilities(given: Reference) -> list[str]:
    """The columns of the visibilities."""
    return [
        f"keys seen, largest distance: by the last query of {FAR} training windows ({FAR * given.seq_len:,} tokens); "
        "where a key counts as nearer than it is, its counted distance",
        "cache keeps: keys per layer while decoding, so that memory stays constant; all: it grows with the text",
    ]


def of_layers() -> list[str]:
    """The columns of the schedules."""
    return [
        "pattern: the kinds of the layers from the first on, repeated to the last; `own` is what position, "
        "position/frequencies, visibility and model.logit_scale say",
        "what a kind does not say it has from `own`, also where that changes in a stage or on trained weights; in your "
        "own words: [positions.md](positions.md)",
    ]
