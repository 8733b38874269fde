"""Parity checks that are too long for the whole model, in a small copy with random weights.

`check_windows` (import) crosses a window wider than a probe is long; the copy keeps the folder's config.json except
widths and the number of layers, so that defaults of missing keys are compared too. `check_decoding` (export) compares
the exported class with a cache, with padding on the left, and with packed texts to our model without any of these;
lengths are scaled down to a short window.

Shape legend: B batch, T tokens, V vocab_size.
"""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coca_train.hub import config_json, forms, parity, transformers_side
from coca_train.hub.architecture import Architecture
from coca_train.hub.config_keys import Json, read_json, without_code
from coca_train.hub.families import FAMILIES, WIDER
from coca_train.hub.weights import Source
from coca_train.models.transformer import Transformer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BEYOND = 32  # tokens that no longer see the first one
WIDEST = 1 << 13  # a wider window is narrowed in the copy: a mask grows with its square [tokens]
LONGEST = 512  # training window of the copy that decodes [tokens]
LENGTHS = ("original_seq_len", "window", "max_distance", "length", "n_positions", "max_position")
LAYERED = ("no_rope_layers", "layer_types")  # keys of config.json with an entry a layer
PADDING = 5  # [tokens]
N_HEADS, WIDTH, N_IDS, STD = 2, 32, 64, 0.15


def random_source(source: Source, architecture: Architecture) -> Source:
    """Return a copy of a source with another architecture and random weights."""
    generator, shapes = torch.Generator().manual_seed(1), architecture.shapes()
    weights = {
        name: torch.randn(shape, generator=generator) * STD + name.endswith("norm.weight")
        for name, shape in shapes.items()
    }
    dtypes = dict.fromkeys(shapes, torch.float32)
    return replace(source, architecture=architecture, shapes=shapes, dtypes=dtypes, read=weights.__getitem__)


def _layers_of_all_kinds(architecture: Architecture) -> int:
    """Return the number of layers up to the last one of a new kind."""
    used = architecture.layer_type_names
    return 1 + max(used.index(kind) for kind in set(used))


def check_windows(source: Source, ignore: tuple[str, ...], tokens: int) -> list[parity.Result]:
    """Compare a Hugging Face folder with its class beyond its widest window; empty where ordinary probes cross it.

    ignore: keys of config.json known to change nothing. tokens: of each ordinary probe.
    """
    windows = [getattr(kind.attention_pattern, "window", None) for kind in source.architecture.layer_types]
    window = max((window for window in windows if window is not None), default=None)
    if window is None or window < min(tokens, max(parity.MULTIPLES) * source.architecture.seq_len):
        return []
    values = _small_config(without_code(read_json(source.path / config_json.NAME)), source.architecture)
    if window > WIDEST:
        values["sliding_window"] = window = WIDEST // 2
    with TemporaryDirectory() as folder:
        Path(folder, config_json.NAME).write_text(json.dumps(values), encoding="utf-8")
        small = random_source(source, config_json.read_architecture(Path(folder), ignore))
    positions = torch.arange(window + BEYOND)
    ids = torch.randint(N_IDS, (1, len(positions)), generator=torch.Generator().manual_seed(0))
    probe = parity.Probe("beyond the window", ids, positions[None], len(positions))
    ours = parity.our_logits(small.architecture, small.read)
    theirs = transformers_side.side_of_source(small, values)
    return parity.compare([probe], ours, theirs, parity.our_spectra(small.architecture))


def _small_config(values: Json, architecture: Architecture) -> Json:
    n_layers = _layers_of_all_kinds(architecture)
    lists = {key: each[:n_layers] for key in LAYERED if isinstance(each := values.get(key), list)}
    return {
        **values,
        **lists,
        "num_hidden_layers": n_layers,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_HEADS,
        "head_dim": architecture.head_dim,  # lists of factors have its length
        "hidden_size": N_HEADS * architecture.head_dim,
        "intermediate_size": WIDTH,
        "vocab_size": N_IDS,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }


@torch.no_grad()
def check_decoding(source: Source, name: str) -> list[parity.Result]:
    """Compare a small copy of a source with the class of this family, or of our model type; where they differ, again
    with our frequencies in the class, as parity.py does."""
    small = random_source(source, _small_architecture(source.architecture))
    is_own = name in forms.OWN_TYPES
    values = forms.own_config(small.architecture) if is_own else forms.native_config(small.architecture, name)
    ours, theirs = small.architecture.build().eval(), transformers_side.model_of_source(small, values)
    ours.load_state_dict({each: small.read(each) for each in small.names}, strict=False)
    ours.tie()
    n_tokens = min(2 * small.architecture.seq_len + 4, ours.max_positions or 4 * LONGEST)
    takes_positions = transformers_side.takes_positions(name)
    n_tokens = n_tokens if takes_positions else min(n_tokens, parity.LONGEST_COUNTED)
    transformers_side.lengthen(theirs, n_tokens)
    tokens_BT = torch.randint(N_IDS, (1, n_tokens), generator=torch.Generator().manual_seed(0))
    probes = [_packed] if takes_positions and (is_own or FAMILIES[name].packs) else []
    probes += [_padded] if forms.decodes_otherwise(small.architecture, name) else [_padded, _cached]
    results = []
    for probe in probes:
        transformers_side.reset_lengths(theirs)
        results.append(probe(ours, theirs, tokens_BT))
    spectra = None if is_own else parity.our_spectra(small.architecture)
    if parity.passed(results) or spectra is None:
        return results
    again = []
    for probe, result in zip(probes, results, strict=True):
        transformers_side.reset_lengths(theirs)
        positions = torch.arange(result.length)[None]
        off = transformers_side.put_frequencies(theirs, positions, spectra(result.length))
        relative = probe(ours, theirs, tokens_BT).relative
        again.append(replace(result, with_our_frequencies=relative, frequencies=off))
    return again


def _cached(ours: Transformer, theirs: "PreTrainedModel", tokens_BT: Tensor) -> parity.Result:
    """Compare piece by piece with a cache, single tokens where the trained length is crossed and at the end."""
    from coca_train.hub.export_files.modeling_coca import CACHE  # imports transformers

    end, window = tokens_BT.shape[1], ours.shape.max_seq_len
    cuts = sorted({min(cut, end) for cut in (window - 1, window, window + 1, window + 2, end - 2, end - 1, end)})
    cache, start, expected, got = None, 0, [], []
    for cut in cuts:
        out = theirs(tokens_BT[:, start:cut], **{CACHE: cache}, use_cache=True)
        cache = out[CACHE]
        got.append(out.logits[0])
        expected.append(ours(tokens_BT[:, :cut], length=cut)[0, start:])
        start = cut
    return _compare("small copy, cached", tokens_BT, end, torch.cat(expected), torch.cat(got))


def _padded(ours: Transformer, theirs: "PreTrainedModel", tokens_BT: Tensor) -> parity.Result:
    """Compare two rows, the shorter one padded on the left, as `generate` pads it."""
    short = tokens_BT[:, PADDING:]
    rows = torch.cat((tokens_BT, torch.cat((torch.zeros_like(tokens_BT[:, :PADDING]), short), 1)))
    mask = torch.ones_like(rows)
    mask[1, :PADDING] = 0
    placed = transformers_side.position_words(theirs, (mask.cumsum(1) - 1).clamp(min=0))
    got = theirs(rows, attention_mask=mask, **placed, use_cache=False).logits[1, PADDING:]
    length = tokens_BT.shape[1]
    return _compare("small copy, padded", short, length, ours(short, length=length)[0], got)


def _packed(ours: Transformer, theirs: "PreTrainedModel", tokens_BT: Tensor) -> parity.Result:
    """Compare three texts in a row, separated by positions that restart at 0."""
    n_tokens = tokens_BT.shape[1]
    lengths = [n_tokens // 2, n_tokens // 3, n_tokens - n_tokens // 2 - n_tokens // 3]
    pos_BT = torch.cat([torch.arange(n) for n in lengths])[None]
    doc_BT = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    got = theirs(tokens_BT, position_ids=pos_BT, use_cache=False).logits[0]
    length = max(lengths)
    expected = ours(tokens_BT, pos_BT=pos_BT, doc_BT=doc_BT, length=length)[0]
    return _compare("small copy, packed", tokens_BT, length, expected, got)


def _compare(name: str, tokens_BT: Tensor, length: int, ours_TV: Tensor, theirs_TV: Tensor) -> parity.Result:
    """length: what dynamic frequencies adapt to [tokens]."""
    pos_BT = torch.arange(tokens_BT.shape[1])[None]
    return parity.result(parity.Probe(name, tokens_BT, pos_BT, length), ours_TV, theirs_TV)


def _small_architecture(architecture: Architecture) -> Architecture:
    """Return the architecture with layers up to the last one of a new kind, few heads, lengths up to LONGEST."""
    model = architecture.complete
    width = N_HEADS * architecture.head_dim
    # As wide models of a family multiply embeddings by the root of the width (Gemma), so does the copy.
    of_root = model.embedding_multiplier == math.sqrt(model.d_model)
    small = replace(
        model,
        n_layers=_layers_of_all_kinds(architecture),
        d_model=width,
        embedding_multiplier=math.sqrt(width) if of_root else model.embedding_multiplier,
        n_heads=N_HEADS,
        n_kv_heads=N_HEADS if model.n_kv_heads == model.n_heads else 1,
        d_ff=WIDER * width if model.d_ff == WIDER * model.d_model else WIDTH,
        vocab_size=N_IDS,
    )
    sections: Json = {**architecture.sections(), "model": asdict(small)}
    if architecture.seq_len > LONGEST:
        sections = _scale_lengths(sections, LONGEST / architecture.seq_len)
    return config_json.architecture_of_sections(
        "a small copy", sections | {"seq_len": min(architecture.seq_len, LONGEST)}
    )


def _scale_lengths(section: Json, share: float) -> Json:
    """Multiply every length in these sections by a share."""
    scaled = dict(section)
    for key, value in section.items():
        if isinstance(value, dict):
            scaled[key] = _scale_lengths(value, share)
        elif key in LENGTHS and isinstance(value, int):
            scaled[key] = max(2, round(value * share))
    return scaled
