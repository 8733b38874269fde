"""A decoder-only language model with CoCA, RoPE, ALiBi or no positions, as a model of the transformers library.

Whatever the scheme, a score is one dot product of what a query and a key become, so any attention implementation
computes it. With R_m the rotation by m·θ_j and t = ReLU(W_T x):

rope   (arXiv 2104.09864)          q' = R_m q,                    k' = R_n k
coca   (arXiv 2309.08646, slack)   q' = q ∘ R_m q,                k' = R_n (t, t)
       (Eq. 18, strict)            q' = |q_j|² (cos mθ_j, sin mθ_j),  k' = t_j (cos nθ_j, sin nθ_j)
alibi  (arXiv 2108.12409)          q' = q, k' = k;                the score loses slope_h · (m - n)
nope                               q' = q, k' = k

A cache holds k'. Where frequencies follow the length of the text (`dynamic_*`, longrope), k' of every key changes with
it, so a cache holds keys before their rotation, and each step rotates them all again; of CoCA that is t, at half width.

The position of a token is that of position_ids; else, with a 2D attention_mask, the number of tokens before it that are
no padding; else its index. Without a mask, positions that jump begin another document, which sees none before it.

Shape legend: B batch, T new tokens, S keys, H query heads, G key/value heads, D head width, R rotated width,
J = R/2 pairs, C model width.
"""

import math
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel, initialization
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import TransformersKwargs, can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_coca import CocaConfig

# As this version of transformers calls it.
CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else "past_key_values"
KNOWN = {*TransformersKwargs.__annotations__, "return_dict", "shift_labels"}
NO_LENGTH = ("plain", "partial", "linear", "ntk", "ntk_by_parts", "yarn", "llama3")  # frequencies of any text alike


def to_float32(x: Tensor) -> Tensor:
    """Convert to float32, or keep a wider dtype."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def float64_device(device: torch.device) -> torch.device:
    """Return a device that computes in float64: Apple's GPUs do not."""
    return torch.device("cpu") if device.type == "mps" else device


def spectrum(settings: dict[str, Any], width: int, length: Tensor) -> tuple[Tensor, Tensor]:
    """Return radians per position of every pair, (J,), and the temperature that multiplies q' and k'; float32.

    settings: the frequencies of a kind. width: R [features]. length: of the text so far, l [tokens], a scalar. Computed
    in float64 and rounded once. YaRN (arXiv 2309.00071): Eq. 16 to 22, and section 3.3 for s(l); LongRoPE: 2402.13753.
    """
    device, length = length.device, length.to(float64_device(length.device))
    name, theta = settings["name"], settings["theta"]
    method = name.removeprefix("dynamic_").removesuffix("_tuned")
    exponent_J = torch.arange(0, width, 2, dtype=torch.float64, device=length.device) / width
    inv_freq_J, one = theta**-exponent_J, torch.ones((), dtype=torch.float64, device=length.device)
    s = one * settings.get("factor", 1.0)
    if name.startswith("dynamic"):
        stretch = (length.double() / settings["original_seq_len"]).clamp(min=1.0)
        s = torch.maximum(s, stretch)
        if name == "dynamic_ntk":
            s = settings["alpha"] * stretch - (settings["alpha"] - 1)
    temperature = one
    if method == "partial":
        inv_freq_J = torch.where(torch.arange(width // 2, device=length.device) < int(settings["share"] * width // 2),
                                 inv_freq_J, 0.0)  # fmt: skip
    elif method == "linear":
        inv_freq_J = inv_freq_J / s
    elif method == "ntk":
        inv_freq_J = ntk(theta, s, exponent_J, width)
    elif method in ("ntk_by_parts", "yarn", "llama3"):
        inv_freq_J = by_parts(settings, inv_freq_J, exponent_J, s, width)
        if method == "yarn":
            temperature = one * (settings.get("temperature") or 0.1 * s.log() + 1.0)
    elif method == "longrope":
        inv_freq_J, temperature = longrope(settings, inv_freq_J, length)
    return inv_freq_J.float().to(device), temperature.float().to(device)


def ntk(theta: float, s: Tensor, exponent_J: Tensor, width: int) -> Tensor:
    """Return frequencies of a base that grows by s^(R/(R-2)) (Eq. 16)."""
    return (theta * s ** (width / (width - 2))) ** -exponent_J


def by_parts(settings: dict[str, Any], theta_J: Tensor, exponent_J: Tensor, s: Tensor, width: int) -> Tensor:
    """Keep θ_j for fast pairs, return θ_j/s for slow ones, with a ramp between (Eq. 18 and 20).

    The ramp goes over the turns that a pair makes in the original length; by another convention over pair indices
    between ends that are rounded, as YaRN's code has it, or not (gpt-oss).
    """
    ends = ("high_freq_factor", "low_freq_factor") if settings["name"] == "llama3" else ("beta_fast", "beta_slow")
    fast, slow = (settings[end] for end in ends)
    convention, slowed_J = settings.get("convention", "paper"), theta_J / s
    if convention == "paper":
        turns_J = settings["original_seq_len"] * theta_J / (2 * math.pi)
        kept_J = ((turns_J - slow) / (fast - slow)).clamp(0, 1)
    else:
        if convention == "authors":  # what the same code calls NTK-by-parts: NTK-aware frequencies between the two
            share_J = by_indices(settings, 1.25, 0.75, width, theta_J.device)
            slowed_J = (1 - share_J) * slowed_J + share_J * ntk(settings["theta"], s, exponent_J, width)
        kept_J = by_indices(settings, fast, slow, width, theta_J.device)
    return (1 - kept_J) * slowed_J + kept_J * theta_J


def by_indices(settings: dict[str, Any], fast: float, slow: float, width: int, device: torch.device) -> Tensor:
    """Return 1 up to the pair that makes `fast` turns, 0 from that of `slow` on, (J,)."""

    def pair(turns: float) -> float:
        wavelengths = settings["original_seq_len"] / (turns * 2 * math.pi)
        return width * math.log(wavelengths) / (2 * math.log(settings["theta"]))

    low, high = pair(fast), pair(slow)
    if settings.get("convention") != "unrounded":
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    pairs_J = torch.arange(width // 2, dtype=torch.float64, device=device)
    return 1 - ((pairs_J - low) / (high - low or 0.001)).clamp(0, 1)


def longrope(settings: dict[str, Any], inv_freq_J: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Divide every pair by a factor of its own: of one list up to the original length, of another beyond."""
    original, n_pairs, s = settings["original_seq_len"], len(inv_freq_J), settings["factor"]
    short_J = inv_freq_J.new_tensor(settings["short_factor"] or [1.0] * n_pairs)
    long_J = inv_freq_J.new_tensor(settings["long_factor"] or [s] * n_pairs)
    temperature = settings["temperature"] or math.sqrt(1 + math.log(s) / math.log(original))
    return inv_freq_J / torch.where(length > original, long_J, short_J), inv_freq_J.new_tensor(temperature)


def rotate(x_BHTD: Tensor, cos_B1TR: Tensor, sin_B1TR: Tensor) -> Tensor:
    """Rotate the first R features, feature j paired with j + R/2; float32 or wider. sin: (-sin, sin)."""
    width = cos_B1TR.shape[-1]
    x = to_float32(x_BHTD[..., :width])
    return x * cos_B1TR + x.roll(width // 2, -1) * sin_B1TR


class CosSin:
    """The rotation at each position, times the temperature; cos and sin: (B, 1, T, R), float32."""

    def __init__(self, pos_BT: Tensor, inv_freq_J: Tensor, temperature: Tensor) -> None:
        angle_B1TJ = (pos_BT[..., None].float() * inv_freq_J)[:, None]
        cos, sin = angle_B1TJ.cos() * temperature, angle_B1TJ.sin() * temperature
        self.cos, self.sin, self.temperature = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1), temperature


class Scheme:
    """What the layers of a type do with positions: queries and keys to what the dot product takes.

    follows_length: its keys are others in a longer text, so that a cache holds them before they are rotated.
    """

    def __init__(self, settings: dict[str, Any], head_dim: int) -> None:
        self.name, self.settings = settings["scheme"], settings
        self.rotates = self.name in ("coca", "rope")
        self.width = round(head_dim * settings["rotary_pct"]) if self.rotates else 0
        self.follows_length = self.rotates and settings["rope_scaling"]["name"] not in NO_LENGTH
        halved = self.name == "coca" and settings["t_width"] == "half"
        self.projected_key_dim = head_dim - self.width // 2 if halved else head_dim

    def reduce_keys(self, k_BGTP: Tensor) -> Tensor:
        """Return projected keys as a cache holds them: for a CoCA T of full width the mean of both halves."""
        if self.name != "coca" or self.settings["t_width"] == "half":
            return k_BGTP
        a, b = to_float32(k_BGTP[..., : self.width]).chunk(2, -1)
        return torch.cat(((a + b) * 0.5, to_float32(k_BGTP[..., self.width :])), -1)

    def query(self, q_BHTD: Tensor, cos_sin: CosSin | None) -> Tensor:
        """Return q', in the dtype of q."""
        if cos_sin is None:
            return q_BHTD
        if self.name == "rope":
            return self._rotate(q_BHTD, cos_sin)
        q, rest = to_float32(q_BHTD[..., : self.width]), q_BHTD[..., self.width :]
        if self.settings["variant"] == "slack":
            return self._with_rest(q * rotate(q, cos_sin.cos, cos_sin.sin), rest, cos_sin, q_BHTD.dtype)
        a, b = q.chunk(2, -1)
        norm = a * a + b * b
        cos, sin = cos_sin.cos.chunk(2, -1)[0], cos_sin.sin.chunk(2, -1)[1]
        return self._with_rest(torch.cat((norm * cos, norm * sin), -1), rest, cos_sin, q_BHTD.dtype)

    def key(self, k_BGSK: Tensor, cos_sin: CosSin | None) -> Tensor:
        """Return k', not yet in the dtype of the model."""
        if cos_sin is None:
            return k_BGSK
        if self.name == "rope":
            return self._rotate(k_BGSK, cos_sin)
        t, rest = to_float32(k_BGSK[..., : self.width // 2]).relu(), k_BGSK[..., self.width // 2 :]
        if self.settings["variant"] == "slack":
            return self._with_rest(rotate(torch.cat((t, t), -1), cos_sin.cos, cos_sin.sin), rest, cos_sin)
        cos, sin = cos_sin.cos.chunk(2, -1)[0], cos_sin.sin.chunk(2, -1)[1]
        return self._with_rest(torch.cat((t * cos, t * sin), -1), rest, cos_sin)

    def _rotate(self, x: Tensor, cos_sin: CosSin) -> Tensor:
        rotated = rotate(x, cos_sin.cos, cos_sin.sin)
        return self._with_rest(rotated, x[..., self.width :], cos_sin, x.dtype)

    def _with_rest(self, rotated: Tensor, rest: Tensor, cos_sin: CosSin, dtype: torch.dtype | None = None) -> Tensor:
        """Append the features that do not turn, times the temperature or not. dtype None: that of the first part."""
        dtype = dtype or rotated.dtype
        if rest.shape[-1] == 0:
            return rotated.to(dtype)
        if self.settings.get("temperature_on") != "rotated":
            rest = rest * cos_sin.temperature
        return torch.cat((rotated.to(dtype), rest.to(dtype)), -1)


def slopes(n_heads: int, device: torch.device) -> Tensor:
    """Return the slopes of ALiBi, (H,): 2^(-8h/H).

    Where H is no power of two, those of the power below it, and every second of the next power.
    """
    below = 2 ** (n_heads.bit_length() - 1)
    options: dict[str, Any] = {"dtype": torch.float64, "device": float64_device(device)}
    of_power = torch.arange(1, below + 1, **options) * (-8 / below)
    between = torch.arange(1, 2 * (n_heads - below) + 1, 2, **options) * (-4 / below)
    return torch.cat((of_power, between)).exp2().float().to(device)


def positions_of(mask_BS: Any) -> Tensor:
    """Count the tokens before each that are no padding."""
    return (mask_BS.long().cumsum(1) - 1).clamp(min=0)


class Positions:
    """The positions of the tokens of one forward.

    pos_BT, index_T: position and index in the text of the new tokens. mask: the 2D attention_mask, which gives the
    positions of those before them; None: they are as far before the new ones as their indices; or one of four
    dimensions, which does not give any. is_first: there are none before them. length: what dynamic frequencies adapt to
    [tokens].
    """

    def __init__(self, pos_BT: Tensor, index_T: Tensor, mask: Tensor | None, is_first: bool, length: Tensor) -> None:
        self.pos_BT, self.index_T, self.mask, self.is_first, self.length = pos_BT, index_T, mask, is_first, length

    def to(self, device: torch.device) -> "Positions":
        """Return the same on another device."""
        mask = None if self.mask is None else self.mask.to(device)
        return Positions(self.pos_BT.to(device), self.index_T.to(device), mask, self.is_first, self.length.to(device))

    def index_S(self, n_keys: int) -> Tensor:
        """Return the indices of the keys in the text: a cache with a window returns its last ones, one of fixed size
        more than there are."""
        first = (self.index_T[-1] + 1 - n_keys).clamp(min=0)
        return torch.arange(n_keys, device=self.index_T.device) + first

    def keys(self, n_keys: int) -> Tensor:
        """Return the positions of the keys that attention gets, (B, S)."""
        if self.is_first and n_keys == self.pos_BT.shape[1]:
            return self.pos_BT
        index_S = self.index_S(n_keys)
        if self.mask is None:
            return index_S + (self.pos_BT[:, :1] - self.index_T[0])
        if self.mask.ndim != 2:
            raise ValueError(
                "attention_mask of four dimensions: it does not give the positions of the keys in a cache, which "
                "this position scheme needs; give a mask of tokens, (B, S)"
            )
        known_BS = positions_of(self.mask)
        return known_BS[:, index_S.clamp(max=known_BS.shape[1] - 1)]


class MaskConfig:
    """What a mask depends on. A configuration of transformers has one window; layer types may have several."""

    def __init__(self, window: int | None, implementation: str | None) -> None:
        self.sliding_window, self._attn_implementation = window, implementation


class KindInputs:
    """What all layers of one kind share in one forward: the mask, the rotations, the growth of the scores."""

    def __init__(self, scheme: Scheme, kind: dict[str, Any], config: Any, positions: Positions, mask: Any) -> None:
        self._made_of = scheme, kind, config
        self._elsewhere: dict[torch.device, KindInputs] = {}
        self.scheme, self.positions, self.mask, self.window = (
            scheme,
            positions,
            mask,
            kind["attention_pattern"].get("window"),
        )
        self.spectrum = None
        if scheme.rotates:
            self.spectrum = spectrum(scheme.settings["rope_scaling"], scheme.width, positions.length)
        self.cos_sin = None if self.spectrum is None else CosSin(positions.pos_BT, *self.spectrum)
        self.scale_B1T1 = self._scale(kind["logit_scale"], config.max_position_embeddings)
        self.slope_H = slopes(config.num_attention_heads, positions.pos_BT.device) if scheme.name == "alibi" else None
        self._key_cos_sin: dict[int, CosSin] = {}
        self._masks: dict[int, Tensor] = {}

    def to(self, device: Any, **kwargs: Any) -> "KindInputs":
        """Return the same on another device, as accelerate asks where layers are on several; once for each."""
        device = torch.empty(0, device=device).device  # cuda and 0 are cuda:0
        if device == self.positions.pos_BT.device:
            return self
        if device not in self._elsewhere:
            mask = self.mask.to(device) if isinstance(self.mask, Tensor) else self.mask
            self._elsewhere[device] = KindInputs(*self._made_of, self.positions.to(device), mask)
        return self._elsewhere[device]

    def _scale(self, settings: dict[str, Any], trained: int) -> Tensor | None:
        """Return how much scores grow with a query's position (kexue.fm/archives/8823; Llama 4's steps)."""
        if settings["name"] == "none":
            return None
        length, n_keys_BT = settings["length"] or trained, self.positions.pos_BT + 1
        if settings["name"] == "log":
            scale_BT = (n_keys_BT.float().log() / math.log(length)).clamp(min=1.0)
        else:
            scale_BT = 1.0 + settings["beta"] * torch.log1p((n_keys_BT // length).float())
        return scale_BT[:, None, :, None]

    def key_cos_sin(self, n_keys: int) -> CosSin:
        """Return the rotation of all keys."""
        if n_keys not in self._key_cos_sin:
            assert self.spectrum is not None
            self._key_cos_sin[n_keys] = CosSin(self.positions.keys(n_keys), *self.spectrum)
        return self._key_cos_sin[n_keys]

    def mask_of(self, n_keys: int, dtype: torch.dtype) -> Any:
        """Return the mask; of ALiBi with what a score loses, (B, H, T, S)."""
        if self.slope_H is None:
            return self.mask
        if n_keys not in self._masks:
            distance_BTS = self.positions.pos_BT[:, :, None] - self.positions.keys(n_keys)[:, None, :]
            bias = -self.slope_H[:, None, None] * distance_BTS[:, None].clamp(min=0)
            if self.scale_B1T1 is not None:
                bias = bias * self.scale_B1T1
            mask = self.mask
            if mask is None:  # plain causal
                mask = self.positions.index_S(n_keys) <= self.positions.index_T[:, None]
            mask = mask[..., :n_keys]
            least = torch.finfo(dtype).min
            whole = bias.masked_fill(~mask, least) if mask.dtype == torch.bool else bias + mask
            self._masks[n_keys] = whole.clamp(min=least).to(dtype)
        return self._masks[n_keys]


def capped(x: Tensor, cap: float | None) -> Tensor:
    """Return cap tanh(x / cap), in float32 or wider (Gemma 2, arXiv 2408.00118); None: x."""
    return x if cap is None else cap * torch.tanh(to_float32(x) / cap)


def implementation_of(config: Any) -> str:
    """Return the attention of a configuration: eager in place of sdpa where scores are capped, which that cannot do."""
    name = config._attn_implementation or "eager"
    return "eager" if name == "sdpa" and config.score_cap is not None else name


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Compute attention by its definition. Returns (B, T, H, D) and the weights, (B, H, T, S)."""
    n_repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(n_repeats, 1), value.repeat_interleave(n_repeats, 1)
    scores = capped(query @ key.transpose(2, 3) * scaling, softcap)
    if attention_mask is not None:
        mask = attention_mask[..., : key.shape[2]]
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def check_cache(cache: Any, is_checkpointed: bool) -> None:
    """Raise TypeError for what is no Cache, ValueError for one that holds something where layers are computed again."""
    if cache is not None and not isinstance(cache, Cache):
        raise TypeError(f"past_key_values is a {type(cache).__name__}; a Cache of transformers is needed")
    if is_checkpointed and cache is not None and cache.get_seq_length():
        raise ValueError("gradient checkpointing computes layers again, which a cache does not allow: leave out either")


class CocaAttention(nn.Module):
    """Projections, the scheme's map of queries and keys, one dot product."""

    def __init__(self, config: CocaConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer_idx, self.head_dim = config, layer, config.head_dim
        self.scheme = Scheme(config.kinds[config.layer_kinds[layer]]["position"], config.head_dim)
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling, self.is_causal = config.attention_multiplier or config.head_dim**-0.5, True
        key_dim, n_queries = self.scheme.projected_key_dim, config.num_attention_heads * self.head_dim
        n_keys, n_values = config.num_key_value_heads * key_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, n_queries, bias="qkv" in config.bias)
        self.k_proj = nn.Linear(config.hidden_size, n_keys, bias="qkv" in config.bias)
        self.v_proj = nn.Linear(config.hidden_size, n_values, bias="qkv" in config.bias)
        self.o_proj = nn.Linear(n_queries, config.hidden_size, bias="out" in config.bias)
        self.q_norm = self.k_norm = nn.Identity()
        if config.qk_norm != "none":
            widths = (self.head_dim, key_dim) if config.qk_norm == "head" else (n_queries, n_keys)
            self.q_norm, self.k_norm = (build_norm(config, width, "rmsnorm") for width in widths)

    def normed(self, norm: nn.Module, x_BTN: Tensor, width: int) -> Tensor:
        """Normalise each head, or all together; (B, heads, T, width)."""
        heads = (-1, width)
        x = norm(x_BTN).unflatten(-1, heads) if self.config.qk_norm == "full" else norm(x_BTN.unflatten(-1, heads))
        return x.transpose(1, 2)

    def forward(
        self, x_BTC: Tensor, inputs: KindInputs, cache: Cache | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Returns what is added to the residual stream, and the weights where attention is eager."""
        q, k, v = self.q_proj(x_BTC), self.k_proj(x_BTC), self.v_proj(x_BTC)
        if (limit := self.config.clip_qkv) is not None:
            q, k, v = (x.clamp(-limit, limit) for x in (q, k, v))
        q = self.normed(self.q_norm, q, self.head_dim)
        k = self.normed(self.k_norm, k, self.scheme.projected_key_dim)
        v = v.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        scheme, dtype = self.scheme, v.dtype
        q, k = scheme.query(q, inputs.cos_sin), scheme.reduce_keys(k)
        if inputs.scale_B1T1 is not None:
            q = (q * inputs.scale_B1T1).to(dtype)
        if not scheme.follows_length:
            k = scheme.key(k, inputs.cos_sin)
        k = k.to(dtype)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        if scheme.follows_length:
            k = scheme.key(k, inputs.key_cos_sin(k.shape[2])).to(dtype)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation_of(self.config), eager_attention_forward)
        mask = inputs.mask_of(k.shape[2], dtype)
        kwargs |= {"dropout": 0.0, "sliding_window": inputs.window, "softcap": self.config.score_cap}
        out, weights = attention(self, q, k, v, mask, scaling=self.scaling, **kwargs)
        out = self.o_proj(out.reshape(*x_BTC.shape[:-1], -1))
        return nn.functional.dropout(out, self.config.dropout, self.training), weights


class CocaMLP(nn.Module):
    """down(act(gate x) * up x), or down(act(up x))."""

    def __init__(self, config: CocaConfig) -> None:
        super().__init__()
        self.dropout, bias = config.dropout, "mlp" in config.bias
        if config.gated_mlp:
            self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.act_fn, self.gated = ACT2FN[config.hidden_act], config.gated_mlp

    def forward(self, x_BTC: Tensor) -> Tensor:
        up = self.up_proj(x_BTC)
        inner = self.act_fn(self.gate_proj(x_BTC)) * up if self.gated else self.act_fn(up)
        return nn.functional.dropout(self.down_proj(inner), self.dropout, self.training)


class OnePlusRMSNorm(nn.Module):
    """RMSNorm that multiplies by 1 + w, in float32 or wider (Gemma, arXiv 2403.08295)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = to_float32(x)
        return nn.functional.rms_norm(wide, self.weight.shape, 1 + self.weight.to(wide.dtype), self.eps).to(x.dtype)


def build_norm(config: CocaConfig, width: int | None = None, name: str | None = None) -> nn.Module:
    """Over a width, by default the residual one. name: which of them, where the model's does not decide."""
    width, weighted = width or config.hidden_size, config.norm_weight != "none"
    if (name or config.norm) == "layernorm":
        return nn.LayerNorm(width, config.norm_eps, weighted, bias="norm" in config.bias)
    if config.norm_weight == "one_plus":
        return OnePlusRMSNorm(width, config.norm_eps)
    return nn.RMSNorm(width, config.norm_eps, weighted)


class CocaDecoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, in parallel (GPT-NeoX) or one after the other, their inputs or outputs normalised, or
    both."""

    def __init__(self, config: CocaConfig, layer: int) -> None:
        super().__init__()
        self.parallel, self.multiplier = config.residual != "sequential", config.residual_multiplier
        self.self_attn, self.mlp = CocaAttention(config, layer), CocaMLP(config)
        pre, post = config.norm_placement != "post", config.norm_placement != "pre"
        self.one_norm = config.residual == "parallel_one_norm"
        self.input_layernorm = build_norm(config) if pre else nn.Identity()
        self.post_attention_layernorm = build_norm(config) if pre and not self.one_norm else nn.Identity()
        self.attention_out_norm = build_norm(config) if post else nn.Identity()
        self.mlp_out_norm = build_norm(config) if post else nn.Identity()

    def forward(self, x_BTC: Tensor, inputs: KindInputs, cache: Cache | None, **kwargs: Any) -> Tensor:
        normed_BTC = self.input_layernorm(x_BTC)
        attended_BTC, _ = self.self_attn(normed_BTC, inputs, cache, **kwargs)
        attended_BTC = self.attention_out_norm(attended_BTC) * self.multiplier
        before_BTC = x_BTC if self.parallel else x_BTC + attended_BTC
        fed_BTC = self.mlp(normed_BTC if self.one_norm else self.post_attention_layernorm(before_BTC))
        return x_BTC + attended_BTC + self.mlp_out_norm(fed_BTC) * self.multiplier


class CocaPreTrainedModel(PreTrainedModel):
    """What transformers must know of both classes."""

    config_class = CocaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CocaDecoderLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values", "cache"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": CocaDecoderLayer, "attentions": CocaAttention}  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, OnePlusRMSNorm):
            initialization.zeros_(module.weight)


class CocaModel(CocaPreTrainedModel):
    """Final hidden states."""

    def __init__(self, config: CocaConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embedding_norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.layers = nn.ModuleList(CocaDecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = build_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        length: int | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """attention_mask: (B, S), 0 where a token is padding, on either side; of four dimensions: taken as it is.
        position_ids: (B, T). cache: what versions of transformers call past_key_values or cache. length: what dynamic
        frequencies adapt to [tokens]; None: the longest row so far.

        Raises ValueError and TypeError for arguments that exclude each other, and for those that nobody knows.
        """
        if unknown := sorted(kwargs.keys() - KNOWN):
            raise TypeError(f"{type(self).__name__}.forward() got an unexpected keyword argument {unknown[0]!r}")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds is needed")
        if past_key_values is not None and cache is not None:
            raise ValueError("cache and past_key_values are two names of one argument")
        x_BTC = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = past_key_values if cache is None else cache
        is_checkpointed = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        check_cache(cache, is_checkpointed)
        if is_checkpointed:
            cache, use_cache = None, False  # a layer that is computed again would extend it again
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        # Of a cache of fixed size it is a tensor, which that cache counts on in.
        n_seen = 0 if cache is None else cache.get_seq_length()
        index_T = torch.arange(x_BTC.shape[1], device=x_BTC.device) + n_seen
        is_first = cache is None or (isinstance(n_seen, int) and n_seen == 0 and not cache.is_compileable)
        positions = self._positions(attention_mask, position_ids, index_T, n_seen, is_first, length)
        # A cache that holds nothing and grows by what it is given has no say in a mask, and would hide documents.
        mask_of = {"attention_mask": attention_mask, "position_ids": position_ids, CACHE: None if is_first else cache}
        x_BTC = self.embedding_norm(x_BTC * torch.tensor(self.config.embedding_multiplier, dtype=x_BTC.dtype))
        inputs = {
            kind: self._inputs_of_kind(kind, x_BTC, positions, mask_of)
            for kind in dict.fromkeys(self.config.layer_kinds)
        }
        for kind, layer in zip(self.config.layer_kinds, self.layers, strict=True):
            # position_ids: flash attention tells packed texts by them.
            x_BTC = layer(x_BTC, inputs[kind], cache, position_ids=position_ids, **kwargs)
        held: dict[str, Any] = {CACHE: cache if use_cache else None}
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x_BTC), **held)

    def _positions(
        self,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        index_T: Tensor,
        n_seen: int | Tensor,
        is_first: bool,
        length: int | None,
    ) -> Positions:
        pos_BT = position_ids
        if pos_BT is None:
            of_tokens = attention_mask if attention_mask is not None and attention_mask.ndim == 2 else None
            if of_tokens is not None and isinstance(n_seen, int) and of_tokens.shape[1] < n_seen + len(index_T):
                raise ValueError(
                    f"attention_mask is of {of_tokens.shape[1]} tokens, and there are {n_seen} in the cache and "
                    f"{len(index_T)} new ones; give a mask of all of them"
                )
            pos_BT = index_T[None] if of_tokens is None else positions_of(of_tokens)[:, index_T]
        longest = pos_BT.max() + 1 if length is None else torch.tensor(length, device=index_T.device)
        return Positions(pos_BT, index_T, attention_mask, is_first, longest)

    def _inputs_of_kind(self, kind: str, x_BTC: Tensor, positions: Positions, mask_of: dict[str, Any]) -> KindInputs:
        settings = self.config.kinds[kind]
        window = settings["attention_pattern"].get("window")
        create = create_causal_mask if window is None else create_sliding_window_causal_mask
        scheme, implementation = Scheme(settings["position"], self.config.head_dim), implementation_of(self.config)
        config: Any = MaskConfig(window, implementation)
        if scheme.name == "alibi" and implementation not in ("eager", "sdpa"):
            raise ValueError(
                f"attn_implementation={implementation!r}: ALiBi takes something off each score, which it cannot do; "
                "load the model with attn_implementation='sdpa' or 'eager'"
            )
        if self.config.score_cap is not None and not implementation.startswith(("eager", "flash_attention")):
            raise ValueError(
                f"attn_implementation={implementation!r}: score_cap caps each score, which it may not do; load the "
                "model with attn_implementation='eager' or a flash_attention"
            )
        if scheme.follows_length and not implementation.startswith(("eager", "sdpa", "flash_attention")):
            raise ValueError(
                f"attn_implementation={implementation!r}: keys rotate again as the text grows, and this may hold "
                "rotated ones; load the model with attn_implementation='sdpa' or 'eager'"
            )
        mask = create(config=config, inputs_embeds=x_BTC, **mask_of)
        return KindInputs(scheme, settings, self.config, positions, mask)


class CocaForCausalLM(CocaPreTrainedModel, GenerationMixin):
    """Next-token logits."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: CocaConfig) -> None:
        super().__init__(config)
        self.model = CocaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias="head" in config.bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        logits_to_keep: int | Tensor = 0,
        length: int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As CocaModel. labels: (B, T), -100 is ignored; the loss is their mean, or with num_items_in_batch their sum
        over that number; shift_labels: beside them, each the label of the next token, where a text is cut into shards.
        logits_to_keep: how many of the last logits, 0: all; or indices."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cache=cache,
            length=length,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept] * self.config.logits_multiplier)
        logits = capped(logits, self.config.logits_cap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        also: dict[str, Any] = {
            CACHE: outputs.get(CACHE),
            "hidden_states": outputs.hidden_states,
            "attentions": outputs.attentions,
        }
        return CausalLMOutputWithPast(loss=loss, logits=logits, **also)

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Raises NotImplementedError: keys of a paged cache cannot be rotated again."""
        raise NotImplementedError("generate_batch: paged caches are not for this model; give generate a padded batch")

    @staticmethod
    def create_masks_for_generate(
        config: CocaConfig, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor | None:
        """A cache of fixed size is given the mask of tokens, as long as itself so that a compiled forward sees one
        shape: it says where keys stand, which one of four dimensions does not."""
        cache = kwargs.get(CACHE)
        if attention_mask is None or cache is None:
            return attention_mask
        n_free = max(layer.max_cache_len for layer in cache.layers) - attention_mask.shape[1]
        return nn.functional.pad(attention_mask, (0, max(0, n_free)))


__all__ = ["CocaForCausalLM", "CocaModel", "CocaPreTrainedModel"]
