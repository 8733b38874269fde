"""The check of an export beyond whole texts: what its class makes of one piece by piece with a cache, of a row with
padding on the left, and of packed texts, against our model without any of these.

In a copy that is small enough to go through two windows: random weights, few heads and layers, a short window and all
that is measured by it (the length that frequencies scale from, windows of layers) as much shorter.

Shape legend: B batch, T tokens, V vocab_size.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from coca_train.hub import families, forms, own_json, parity, transformers_side
from coca_train.hub.architecture import Architecture
from coca_train.hub.config_json import of_sections
from coca_train.hub.small_copy import N_HEADS, N_IDS, WIDTH, random_source
from coca_train.hub.weights import Source
from coca_train.models.transformer import Transformer

LONGEST = 512  # window of the copy [tokens]
LENGTHS = ("original_seq_len", "window", "max_distance", "length", "n_positions", "max_position")
PADDING = 5  # [tokens]


@torch.no_grad()
def check(source: Source, config: Mapping[str, Any]) -> list[parity.Result]:
    """Compare a small copy of a source with the class that this config.json names, and again with our frequencies in
    it, as parity.py does, where the two differ."""
    small = random_source(source, _shrunk(source.architecture))
    name = config["model_type"]
    values = (
        own_json.config(small.architecture) if name in own_json.TYPES else families.config(small.architecture, name)
    )
    ours, theirs = small.architecture.build().eval(), transformers_side.model_of(small, values)
    ours.load_state_dict({each: small.read(each) for each in small.names}, strict=False)
    ours.tie()
    n_tokens = min(2 * small.architecture.seq_len + 4, ours.max_positions or 4 * LONGEST)
    tokens_BT = torch.randint(N_IDS, (1, n_tokens), generator=torch.Generator().manual_seed(0))
    probes = [_packed, _padded] if forms.decodes_otherwise(small.architecture, values) else [_packed, _padded, _cached]
    results = []
    for probe in probes:
        transformers_side.forget_lengths(theirs)
        results.append(probe(ours, theirs, tokens_BT))
    spectra = None if name in own_json.TYPES else parity.our_spectra(small.architecture)
    if parity.passed(results) or spectra is None:
        return results
    again = []
    for probe, result in zip(probes, results, strict=True):
        transformers_side.forget_lengths(theirs)
        off = transformers_side.put_frequencies(theirs, torch.arange(result.length)[None], spectra(result.length))
        relative = probe(ours, theirs, tokens_BT).relative
        again.append(replace(result, with_our_frequencies=relative, frequencies=off))
    return again


def _cached(ours: Transformer, theirs: Any, tokens_BT: Tensor) -> parity.Result:
    """Piece by piece, single tokens where the trained length is crossed and at the end; dynamic frequencies follow the
    text so far."""
    from coca_train.hub.export_files.modeling_coca import CACHE

    end, window = tokens_BT.shape[1], ours.shape.max_seq_len
    cuts = sorted({min(cut, end) for cut in (window - 1, window, window + 1, window + 2, end - 2, end - 1, end)})
    cache, start, expected, got = None, 0, [], []
    for cut in cuts:
        out = theirs(tokens_BT[:, start:cut], **{CACHE: cache}, use_cache=True)
        cache = out[CACHE]
        got.append(out.logits[0])
        expected.append(ours(tokens_BT[:, :cut], length=cut)[0, start:])
        start = cut
    return _compared("small copy, cached", tokens_BT, end, torch.cat(expected), torch.cat(got))


def _padded(ours: Transformer, theirs: Any, tokens_BT: Tensor) -> parity.Result:
    """Two rows, one of them shorter, as `generate` gives them."""
    short = tokens_BT[:, PADDING:]
    rows = torch.cat((tokens_BT, torch.cat((torch.zeros_like(tokens_BT[:, :PADDING]), short), 1)))
    mask = torch.ones_like(rows)
    mask[1, :PADDING] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    got = theirs(rows, attention_mask=mask, position_ids=positions, use_cache=False).logits[1, PADDING:]
    length = tokens_BT.shape[1]
    return _compared("small copy, padded", short, length, ours(short, length=length)[0], got)


def _packed(ours: Transformer, theirs: Any, tokens_BT: Tensor) -> parity.Result:
    """Three texts in a row, said by positions that begin anew."""
    n_tokens = tokens_BT.shape[1]
    lengths = [n_tokens // 2, n_tokens // 3, n_tokens - n_tokens // 2 - n_tokens // 3]
    pos_BT = torch.cat([torch.arange(n) for n in lengths])[None]
    doc_BT = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    got = theirs(tokens_BT, position_ids=pos_BT, use_cache=False).logits[0]
    length = max(lengths)
    expected = ours(tokens_BT, pos_BT=pos_BT, doc_BT=doc_BT, length=length)[0]
    return _compared("small copy, packed", tokens_BT, length, expected, got)


def _compared(name: str, tokens_BT: Tensor, length: int, ours_TV: Tensor, theirs_TV: Tensor) -> parity.Result:
    """length: what dynamic frequencies adapt to [tokens]."""
    pos_BT = torch.arange(tokens_BT.shape[1])[None]
    return parity.result(parity.Probe(name, tokens_BT, pos_BT, length), ours_TV, theirs_TV)


def _shrunk(architecture: Architecture) -> Architecture:
    """The layers up to the last one of a new kind, few heads, nothing longer than LONGEST."""
    model, used = architecture.complete, architecture.layer_kinds
    grouped = model.n_kv_heads != model.n_heads
    small = replace(
        model,
        n_layers=1 + max(used.index(kind) for kind in set(used)),
        d_model=N_HEADS * architecture.head_dim,
        n_heads=N_HEADS,
        n_kv_heads=1 if grouped else N_HEADS,
        d_ff=WIDTH,
        vocab_size=N_IDS,
    )
    sections = architecture.sections() | {"model": asdict(small)}
    if architecture.seq_len > LONGEST:
        sections = _shorter(sections, LONGEST / architecture.seq_len)
    return of_sections("a small copy", sections | {"seq_len": min(architecture.seq_len, LONGEST)})


def _shorter(value: Any, share: float) -> Any:
    """Every length in these sections by so much shorter."""
    if not isinstance(value, dict):
        return value
    return {
        key: max(2, round(each * share)) if key in LENGTHS and isinstance(each, int) else _shorter(each, share)
        for key, each in value.items()
    }
