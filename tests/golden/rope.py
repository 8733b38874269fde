"""Golden numbers for rope scaling in the words of transformers: 50-digit decimals of the standard library.

Imports nothing of coca_train. `python tests/golden/rope.py` remakes coca_train/hub/rope_vectors.json, which
`verify rope=…` compares engines with. Cases are of config.json, with models of one head.

RoFormer arXiv 2104.09864, PI 2306.15595, YaRN 2309.00071 and its authors' code (ramp over indices), LongRoPE 2402.13753
and Phi-3's code (two lists, sqrt(1 + ln s / ln L)), p-RoPE 2410.06205; Llama 3's ramp is defined by Meta's code. What
the keys mean is the documentation of transformers' RopeParameters.
"""

import json
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, getcontext
from pathlib import Path

getcontext().prec = 50
TARGET = Path(__file__).parents[2] / "coca_train/hub/rope_vectors.json"
TRAINED = "original_max_position_embeddings"
ZERO, ONE = Decimal(0), Decimal(1)


def arctan_of_inverse(n):
    """arctan(1/n)."""
    total, power, k = ZERO, ONE / n, 0
    while power > Decimal(10) ** -55:
        total += (power if k % 2 == 0 else -power) / (2 * k + 1)
        power, k = power / n**2, k + 1
    return total


TWO_PI = 8 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))  # Machin


def exact(number):
    """The decimal that a JSON number is written as."""
    return Decimal(str(number))


def between(low, value, high):
    return min(max(value, low), high)


def yarn(p, pairs, base, trained, s, width):
    fast, slow = exact(p.get("beta_fast", 32)), exact(p.get("beta_slow", 1))
    first, last = (width * (trained / (turns * TWO_PI)).ln() / (2 * base.ln()) for turns in (fast, slow))
    if p.get("truncate", True):
        first, last = first.to_integral_value(ROUND_FLOOR), last.to_integral_value(ROUND_CEILING)
    first, last = max(first, ZERO), min(last, Decimal(width - 1))
    length = last - first or Decimal("0.001")
    slowed = [between(ZERO, (j - first) / length, ONE) for j in range(len(pairs))]
    theta = [g * t / s + (1 - g) * t for g, t in zip(slowed, pairs, strict=True)]
    if p.get("attention_factor") is not None:
        return theta, exact(p["attention_factor"])

    def grown(by):
        return Decimal("0.1") * by * s.ln() + 1

    if p.get("mscale") and p.get("mscale_all_dim"):
        return theta, grown(exact(p["mscale"])) / grown(exact(p["mscale_all_dim"]))
    return theta, grown(ONE)


def llama3(p, pairs, trained, s):
    low, high, theta = exact(p["low_freq_factor"]), exact(p["high_freq_factor"]), []
    for t in pairs:
        wavelength = TWO_PI / t
        smooth = (trained / wavelength - low) / (high - low)
        if wavelength < trained / high:
            theta.append(t)
        elif wavelength > trained / low:
            theta.append(t / s)
        else:
            theta.append((1 - smooth) * t / s + smooth * t)
    return theta


def rotation(config, length):
    """(radians per position of every pair, temperature)."""
    p = config["rope_scaling"] or {"rope_type": "default"}
    kind, head, base = p.get("rope_type") or p["type"], config["hidden_size"], exact(config["rope_theta"])
    share = exact(p.get("partial_rotary_factor", config.get("partial_rotary_factor", config.get("rotary_pct", 1))))
    width = head if kind == "proportional" else int(head * share)
    pairs = [base ** (Decimal(-2 * j) / width) for j in range(width // 2)]
    longest = Decimal(config["max_position_embeddings"])
    trained = exact(p.get(TRAINED) or config.get(TRAINED) or longest)
    s = exact(p["factor"]) if p.get("factor") else longest / trained
    if kind == "default":
        return pairs, ONE
    if kind == "linear":
        return [t / s for t in pairs], ONE
    if kind == "dynamic":
        grown = s * max(ONE, length / longest) - (s - 1)
        base *= grown ** (Decimal(width) / (width - 2))
        return [base ** (Decimal(-2 * j) / width) for j in range(width // 2)], ONE
    if kind == "proportional":
        turning = int(share * head / 2)
        return [t if j < turning else ZERO for j, t in enumerate(pairs)], ONE
    if kind == "llama3":
        return llama3(p, pairs, trained, s), ONE
    if kind == "longrope":
        factors = p["long_factor" if length > trained else "short_factor"]
        usual = (1 + s.ln() / trained.ln()).sqrt()
        stated = p.get("attention_factor")
        theta = [t / exact(f) for t, f in zip(pairs, factors, strict=True)]
        return theta, usual if stated is None else exact(stated)
    assert kind == "yarn"
    return yarn(p, pairs, base, trained, s, width)


def llama(scaling, longest=4096, width=64, theta=10000.0, **more):
    return {
        "model_type": "llama", "hidden_size": width, "num_attention_heads": 1, "num_key_value_heads": 1,
        "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8, "rms_norm_eps": 1e-6,
        "max_position_embeddings": longest,
        "rope_theta": theta, "rope_scaling": scaling, **more,
    }  # fmt: skip


def neox(scaling, longest=2048, width=128, share=0.25):
    config = llama(scaling, longest, width) | {"model_type": "gpt_neox", "rotary_pct": share, "rotary_emb_base": 10000}
    of_llama = ("num_key_value_heads", "rms_norm_eps")
    return {key: value for key, value in config.items() if key not in of_llama} | {"layer_norm_eps": 1e-5}


def phi3(scaling, share, width=64):
    more = {"model_type": "phi3", "partial_rotary_factor": share, "pad_token_id": 0}
    return llama(scaling, 131072, width, original_max_position_embeddings=4096) | more


def ramp(factor, trained, **more):
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained, **more}


def third(factor, trained, low=1.0, high=4.0):
    ends = {"low_freq_factor": low, "high_freq_factor": high}
    return {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": trained, **ends}


def lists(pairs, **more):
    short, long = [1 + j / 64 for j in range(pairs)], [1 + j * j / 8 for j in range(pairs)]
    return {"type": "longrope", "short_factor": short, "long_factor": long, **more}


def linear(factor):
    return {"rope_type": "linear", "factor": factor}


def dynamic(factor):
    return {"rope_type": "dynamic", "factor": factor}


def proportional(share):
    return {"rope_type": "proportional", "partial_rotary_factor": share}


MSCALES = {"mscale": 1.0, "mscale_all_dim": 0.5}
CASES = {
    "plain": llama(None),
    "plain, theta 1e6": llama(None, 32768, 128, 1000000.0),
    "plain, a quarter of the head": neox(None),
    "plain, three quarters of the head": phi3(None, 0.75),
    "linear 4": llama(linear(4.0)),
    "linear 8, key type": llama({"type": "linear", "factor": 8.0}, 32768, 128),
    "linear 16, a quarter of the head": neox(linear(16.0)),
    "dynamic 1": llama(dynamic(1.0)),
    "dynamic 2": llama(dynamic(2.0)),
    "dynamic 4, theta 5e5": llama(dynamic(4.0), 8192, 128, 500000.0),
    "dynamic 4, a quarter of the head": neox(dynamic(4.0)),
    "yarn 4 (Qwen2.5)": llama(ramp(4.0, 32768), 131072, 128, 1000000.0),
    "yarn 16, key type (Yarn-Llama-2-64k)": llama(
        {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}, 65536, 128
    ),
    "yarn 8, short window": llama(ramp(8.0, 128), 1024),
    "yarn 4, one window": llama(ramp(4.0, 4096), 4096),
    "yarn 8, beta 20 and 2": llama(ramp(8.0, 512, beta_fast=20.0, beta_slow=2.0)),
    "yarn 8, attention_factor 1": llama(ramp(8.0, 512, attention_factor=1.0)),
    "yarn 8, attention_factor 0.7": llama(ramp(8.0, 512, attention_factor=0.7)),
    "yarn 32, truncate false (gpt-oss)": llama(ramp(32.0, 4096, truncate=False), 131072, 64, 150000.0),
    "yarn 8, truncate false, attention_factor 1": llama(ramp(8.0, 512, truncate=False, attention_factor=1.0)),
    "yarn 8, truncate true": llama(ramp(8.0, 512, truncate=True)),
    "yarn 40, mscale = mscale_all_dim (DeepSeek-V3)": llama(ramp(40.0, 4096, mscale=1.0, mscale_all_dim=1.0), 163840),
    "yarn 40, mscale 1, mscale_all_dim 0.5": llama(ramp(40.0, 4096, **MSCALES), 163840),
    "yarn 40, mscale alone": llama(ramp(40.0, 4096, mscale=0.707), 163840),
    "yarn, factor null": llama(ramp(None, 2048), 8192),
    "yarn 4, half of the head": neox(ramp(4.0, 2048), 8192, share=0.5),
    "yarn 4, half of the head, attention_factor 1.5": neox(ramp(4.0, 2048, attention_factor=1.5), 8192, share=0.5),
    "longrope (Phi-3)": phi3(lists(32), 1.0),
    "longrope, three quarters of the head (Phi-4-mini)": phi3(lists(24), 0.75),
    "longrope, attention_factor 1.25": phi3(lists(32, attention_factor=1.25), 1.0),
    "longrope 8, as a LLaMA": llama(lists(32, factor=8.0, original_max_position_embeddings=512)),
    "longrope, one list": phi3(lists(32) | {"short_factor": lists(32)["long_factor"]}, 1.0),
    "llama3 8 (Llama 3.1)": llama(third(8.0, 8192), 131072, 128, 500000.0),
    "llama3 32 (Llama 3.2)": llama(third(32.0, 8192), 131072, 64, 500000.0),
    "llama3 16, other ends": llama(third(16.0, 2048, 2.0, 32.0), 32768),
    "llama3 8, a quarter of the head": neox(third(8.0, 2048), 16384),
    "proportional 0.25": llama(proportional(0.25), 131072, 128, 1000000.0),
    "proportional 0.5": llama(proportional(0.5)),
    "proportional 0.75": llama(proportional(0.75)),
}


def golden():
    """By name: config (config.json), and at each of `lengths` [tokens] the frequencies and the temperature.

    Lengths: of the weights, one more, and four times as many as max_position_embeddings where frequencies follow it;
    else the last alone.
    """
    cases = {}
    for name, config in CASES.items():
        longest, scaling = config["max_position_embeddings"], config["rope_scaling"] or {}
        trained = scaling.get(TRAINED) or config.get(TRAINED) or longest
        moves = {scaling.get("rope_type"), scaling.get("type")} & {"dynamic", "longrope"}
        lengths = [trained, trained + 1, 4 * longest] if moves else [4 * longest]
        found = [rotation(config, length) for length in lengths]
        cases[name] = {
            "config": config,
            "lengths": lengths,
            "inv_freq": [[float(f) for f in theta] for theta, _ in found],
            "temperature": [float(temperature) for _, temperature in found],
        }
    return cases


def main():
    rows = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in golden().items()]
    TARGET.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
