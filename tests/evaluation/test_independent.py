"""What a whole evaluation leaves in results.json, against plain loops over transformers' own model: losses one
prediction at a time, angles of its projections by trigonometry.

The interval of three documents with equally many predictions needs no draws: each of them has all three places of a
draw with a chance of 1 in 27, more than the 2.5 % beyond either end, so the ends are the documents' own extremes.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from torch.nn import functional as F

from coca_train import positions
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.positions import visibilities
from tests.evaluation.conftest import sentences
from tests.evaluation.grids import TINY, Bytes, blocks
from tests.evaluation.harnessed import TASKS, lines

TINY_2 = replace(TINY, n_layers=2)
TRAINED = 24  # the window of the folder's model [tokens]
NEAR = 1e-5


@pytest.fixture
def theirs(folders):
    return transformers.AutoModelForCausalLM.from_pretrained(folders("one"), dtype=torch.float32).eval()


@pytest.fixture
def pieces(folders):
    return sentencepiece.SentencePieceProcessor(model_file=str(folders("one") / "tokenizer.model"))


def read(file, pieces, n):
    """The first n tokens of its documents, the one that begins a text in front: (D, n)."""
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    return torch.tensor([[pieces.bos_id(), *pieces.encode(text)][:n] for text in texts])


@pytest.fixture
def ids(books, pieces):
    return read(books, pieces, 49)


@torch.no_grad()
def loss(model, ids, place, begin=0):
    """NLL [nats] of the token at this place behind those from `begin` on, of each document, alone."""
    logits = model(input_ids=ids[:, begin:place]).logits[:, -1].double()
    return -logits.log_softmax(-1)[range(len(ids)), ids[:, place]].numpy()


def first_windows(model, ids, length):
    """(D, length): each prediction with all that stands before it."""
    return np.stack([loss(model, ids, place) for place in range(1, length + 1)], 1)


def window_of(place, window, stride):
    """Where the first window that makes this prediction begins."""
    return 0 if place <= window else -(-(place - window) // stride) * stride


def octaves(length):
    """Places from ... to, counted from 1: 1, 2, 3 to 4, 5 to 8 ..."""
    ends = [1]
    while ends[-1] < length:
        ends.append(min(2 * ends[-1], length))
    return list(zip([1, *(end + 1 for end in ends[:-1])], ends, strict=True))


def test_perplexity(evaluated, theirs, ids, books, pieces):
    record, _ = evaluated("perplexity", "grid.lengths=[12,24,48]", "eval.stride=7", "text.max_documents=24")
    n_bytes = sum(len(pieces.decode(each[1:].tolist()).encode()) for each in ids)
    nll = {}
    for cell in record["cells"]:
        window = cell["point"]
        found = cell["result"]["sources"]["books"]
        each = nll[window] = np.stack([loss(theirs, ids, p, window_of(p, window, 7)) for p in range(1, 49)], 1)
        assert found["n_tokens"] == 3 * 48
        assert found["perplexity"] == pytest.approx(math.exp(each.mean()), rel=NEAR)
        assert found["bits_per_byte"] == pytest.approx(each.sum() / math.log(2) / n_bytes, rel=NEAR)
        extremes = np.exp([each.mean(1).min(), each.mean(1).max()])
        assert (found["ci_low"], found["ci_high"]) == pytest.approx(tuple(extremes), rel=NEAR)
        starts = np.array([0, *found["ends"][:-1]])
        by_bin = np.add.reduceat(each[:, :window], starts, axis=1) / np.diff([*starts, window])
        for name, expected in (("by_position", by_bin.mean(0)), ("low", by_bin.min(0)), ("high", by_bin.max(0))):
            assert found[f"loss_{name}"] == pytest.approx(expected, rel=NEAR)


def test_position_loss(evaluated, theirs, ids):
    words = ["grid.lengths=[24,48]", "grid.frequencies=[own]", "eval.block=16"]
    for cell in evaluated("position_loss", *words)[0]["cells"]:
        length, found = cell["point"], cell["result"]["books"]
        nll = first_windows(theirs, ids, length)
        last = nll[:, -16:].mean(1)
        expected = np.exp([last.mean(), last.min(), last.max()])
        assert [found[key] for key in ("perplexity", "ci_low", "ci_high")] == pytest.approx(expected, rel=NEAR)
        assert found["loss"][:8] == pytest.approx(nll[:, :8].mean(0), rel=NEAR)
        for (first, end), octave in zip(octaves(length), found["octaves"], strict=True):
            each = nll[:, first - 1 : end].mean(1)
            assert octave == [first, end, *(pytest.approx(n, rel=NEAR) for n in (each.mean(), each.min(), each.max()))]


def test_temperature(evaluated, theirs, ids):
    """transformers' rotation is slowed, and multiplied, at its own place."""
    words = ["eval.scales=[1.0,1.2]", "eval.document_tokens=40", "eval.block=16", "grid.frequencies=[linear@factor:2]"]
    record, page = evaluated("temperature", *words)
    rotation = theirs.model.rotary_emb
    rotation.inv_freq = rotation.inv_freq / 2
    nll = {}
    for cell in record["cells"]:
        rotation.attention_scaling = float(cell["point"])
        each = nll[cell["point"]] = first_windows(theirs, ids, 40)
        assert cell["result"]["tokens"] == [16, 16, 8]
        assert cell["result"]["recommended"] == pytest.approx(0.1 * math.log(2) + 1)
        for found, nll_T in zip(cell["result"]["nll"], each, strict=True):
            assert found == pytest.approx([nll_T[:16].sum(), nll_T[16:32].sum(), nll_T[32:].sum()], rel=NEAR)
    changes = 100 * (np.exp(nll["1.2"].mean(1)) / np.exp(nll["1"].mean(1)) - 1)
    (curve,) = (line for line in blocks(page)["temperature"].lines if not line.theirs)
    shown = (curve.y[1], curve.low[1], curve.high[1])
    assert shown == pytest.approx((changes.mean(), changes.min(), changes.max()), rel=1e-3)


@torch.no_grad()
def projected(model, ids):
    """By layer: queries and keys before rotation, (D, T, heads, features), every query head with its key."""
    seen = {}
    shape = model.config.hidden_size // model.config.num_attention_heads
    for name in ("q_proj", "k_proj"):
        for layer in model.model.layers:
            keep = seen.setdefault(name, [])
            layer.self_attn.get_submodule(name).register_forward_hook(
                lambda module, given, made, keep=keep: keep.append(made.double().unflatten(-1, (-1, shape)))
            )
    model(input_ids=ids)
    groups = model.config.num_attention_heads // model.config.num_key_value_heads
    return [(q, k.repeat_interleave(groups, 2)) for q, k in zip(seen["q_proj"], seen["k_proj"], strict=True)]


def begun(model, ids):
    """Of every document, layer, pair of tokens m > n, head and pair of features: the angle from key to query [radians],
    |q||k|, and what the distance turns it by."""
    length, halves = ids.shape[1], model.config.hidden_size // model.config.num_attention_heads // 2
    slow = model.model.rotary_emb.inv_freq.double().numpy()
    angles, weights, turned = [], [], []
    for q, k in projected(model, ids):
        for m in range(length):
            for n in range(m):
                qx, qy = q[:, m, :, :halves].numpy(), q[:, m, :, halves:].numpy()
                kx, ky = k[:, n, :, :halves].numpy(), k[:, n, :, halves:].numpy()
                angles.append((np.arctan2(qy, qx) - np.arctan2(ky, kx)) % (2 * np.pi))
                weights.append(np.hypot(qx, qy) * np.hypot(kx, ky))
                turned.append(np.broadcast_to((m - n) * slow, angles[-1].shape))
    return (np.stack(each, 1) for each in (angles, weights, turned))


def test_anomaly(evaluated, theirs, ids):
    """Windows of two tokens have one pair, drawn again and again; of longer ones the draws come close to all pairs."""
    record, _ = evaluated("anomaly", "grid.lengths=[2,12]", "eval.pairs=3000")
    for cell in record["cells"]:
        found, near = cell["result"], NEAR if cell["point"] == 2 else 0.03
        angle, weight, turned = begun(theirs, ids[:, : cell["point"]])
        wrong = angle > np.pi
        slow = turned.reshape(-1, turned.shape[-1])[0]
        inside = wrong & (turned < 2 * np.pi - angle)
        theta = angle + turned - 2 * np.pi * wrong
        of_documents = {
            "anomalous": wrong.mean((1, 2, 3)),
            "weighted": (weight * wrong).sum((1, 2, 3)) / weight.sum((1, 2, 3)),
            "abnormal": inside.mean((1, 2, 3)),
            "placed": wrong.mean((1, 2, 3)),
        }
        for name, each in of_documents.items():
            whole = (weight * wrong).sum() / weight.sum() if name == "weighted" else each.mean()
            expected = (whole, each.min(), each.max())
            assert [found[name], found["low"][name], found["high"][name]] == pytest.approx(expected, abs=near)
        crossed = {"k": wrong & ~inside, "-q": np.floor(theta / np.pi + 1) // 2, "q": np.floor(theta / 2 / np.pi)}
        assert found["borders"] == pytest.approx({b: np.maximum(n, 0).mean() for b, n in crossed.items()}, abs=near)
        density = np.histogram(angle, bins=36, range=(0, 2 * np.pi))[0] / angle.size * 36
        assert found["density"] == pytest.approx(density, abs=36 * near)
        if cell["point"] == 2:
            reach = np.where(wrong, (2 * np.pi - angle) / slow, 0).sum((0, 1, 2)) / wrong.sum((0, 1, 2))
            assert found["reach_by_pair"] == pytest.approx(reach, rel=1e-4)
            by_layer = wrong.reshape(3, 2, 1, *wrong.shape[2:])  # layers, the one pair of tokens
            assert np.array(found["by_head"]) == pytest.approx(by_layer.mean((0, 2, 4)), abs=near)


@torch.no_grad()
def xl_losses(model, tokens, segment, memory):
    """Transformer-XL (sections 3.2 and 3.3) of one text from its weights: every query and key by itself."""
    weights = {name: value.double() for name, value in model.named_parameters()}
    n_heads, width = TINY_2.n_heads, TINY.d_model // TINY.n_heads
    waves = 10000 ** (-torch.arange(0, TINY.d_model, 2).double() / TINY.d_model)
    u, v = weights["position.u"], weights["position.v"]

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], TINY.norm_eps)

    kept = [torch.zeros(0, TINY.d_model).double()] * TINY_2.n_layers
    nll = []
    for begin in range(0, len(tokens) - 1, segment):
        end = min(begin + segment, len(tokens) - 1)
        x = weights["embed.weight"][tokens[begin:end]]
        for layer in range(TINY_2.n_layers):
            at = f"blocks.{layer}"
            seen = torch.cat((kept[layer], x))
            kept[layer] = seen[max(0, len(seen) - memory) :]
            n_old = len(seen) - len(x)
            q = linear(norm(x, f"{at}.attention_norm"), f"{at}.attention.q").unflatten(-1, (n_heads, width))
            k, values = (
                linear(norm(seen, f"{at}.attention_norm"), f"{at}.attention.{name}").unflatten(-1, (n_heads, width))
                for name in "kv"
            )
            mixed = torch.zeros_like(q)
            for m in range(len(x)):
                # All of the segment before it, and all of the memory.
                distance = torch.arange(n_old + m, -1, -1)[:, None] * waves
                far = torch.cat((distance.sin(), distance.cos()), 1) @ weights[f"{at}.attention.position.w_r"].T
                score = ((q[m] + u) * k[: n_old + m + 1] + (q[m] + v) * far.unflatten(-1, (n_heads, width))).sum(-1)
                mixed[m] = ((score / math.sqrt(width)).softmax(0)[..., None] * values[: n_old + m + 1]).sum(0)
            inner = F.gelu(linear(norm(x, f"{at}.mlp_norm"), f"{at}.mlp.up"))
            x = x + linear(mixed.flatten(1), f"{at}.attention.out") + linear(inner, f"{at}.mlp.down")
        log_p = linear(norm(x, "final_norm"), "head").log_softmax(-1)
        nll += [-float(log_p[i, tokens[begin + i + 1]]) for i in range(end - begin)]
    return np.array(nll)


def test_recurrence(evaluated, books):
    """A model with a memory in the folder's place, its tokens bytes."""
    settings = positions.settings({"scheme": "transformer_xl", "shared": True, "memory_len": 8})
    causal = visibilities.settings({"name": "causal"})
    model = Transformer(TINY_2, settings, causal, vocab_size=256, max_seq_len=16)
    init_weights(model, TINY_2, seed=3)

    def exchanged(opened):
        train = replace(opened.config.train, seq_len=16)
        data = replace(opened.config.data, order="stream")  # the order that a memory asks for
        config = replace(
            opened.config, model=TINY_2, position=settings, visibility=causal, train=train, data=data
        )
        return opened._replace(model=model.eval(), tokenizer=Bytes(), config=config)

    words = ["grid.lengths=[8,14,24]", "eval.segment=8", "eval.document_tokens=30"]
    record, _ = evaluated("recurrence", *words, exchanged=exchanged)
    texts = [torch.tensor([1, *json.loads(line)["text"].encode()][:31]) for line in books.read_text().splitlines()]
    for cell in record["cells"]:
        nll = np.array([xl_losses(model, text, 8, cell["point"] - 8).mean() for text in texts])
        expected = np.exp([nll.mean(), nll.min(), nll.max()])
        found = [cell["result"][key] for key in ("perplexity", "ci_low", "ci_high")]
        assert found == pytest.approx(expected, rel=NEAR)
    assert len({cell["result"]["perplexity"] for cell in record["cells"]}) == 3


def studentized(sums):
    """Estimate and 95 % interval of a ratio of sums over documents (n, 2), with draws of its own."""
    n, ratio = len(sums), sums[:, 0].sum() / sums[:, 1].sum()

    def error(drawn):
        rest = drawn[:, 0] - drawn[:, 0].sum() / drawn[:, 1].sum() * drawn[:, 1]
        return math.sqrt((rest**2).sum() * n / (n - 1)) / drawn[:, 1].sum()

    draws = [sums[places] for places in np.random.default_rng(7).integers(0, n, (8000, n))]
    t = [(drawn[:, 0].sum() / drawn[:, 1].sum() - ratio) / error(drawn) for drawn in draws]
    low, high = np.percentile(t, [2.5, 97.5])
    widened = error(sums) * math.sqrt(n / (n - 2))
    return ratio, ratio - high * widened, ratio - low * widened


def test_reach_of_reading(evaluated, theirs, pieces, tmp_path):
    """What is held beyond the training window, and what the farther half gains; of documents in windows begun anew."""
    texts = tmp_path / "many.jsonl"
    texts.write_text("".join(json.dumps({"text": sentences(i, 60)}) + "\n" for i in range(20)))
    words = ["grid.lengths=[24,48]", f"text.files=[{texts}]", "eval.finds=null", "eval.works=null"]
    _, page = evaluated("reach", *words)
    ids = read(texts, pieces, 49)
    beyond = range(TRAINED + 1, 49)
    excess = sum(loss(theirs, ids, p, window_of(p, 48, 24)) - loss(theirs, ids, p, window_of(p, 24, 24)) for p in beyond)
    gain = {}
    for length, ends in ((12, 1), (24, 3), (48, 6)):
        last = [end for end in range(length, 49, length)]
        predicted = [(p, end) for end in last for p in range(end - ends + 1, end + 1)]
        more_of = sum(loss(theirs, ids, p, end - length) for p, end in predicted)
        less_of = sum(loss(theirs, ids, p, end - length // 2 - ends) for p, end in predicted)
        gain[length] = (less_of - more_of, len(predicted))
    shown = blocks(page)["reach-evidence"]
    values = {(each.label[2], n): value for each in shown.rows for n, value in zip(shown.columns, each.values, strict=True)}
    asked = {("holds", "48"): (excess, len(beyond))} | {("uses", str(n)): gain[n] for n in (12, 24, 48)}
    for what, (sums, n) in asked.items():
        ratio, low, high = studentized(np.stack((sums, np.full(20, n)), 1))
        found = values[what]
        assert found.number == pytest.approx(ratio, rel=1e-3, abs=1e-6)
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_harness(evaluated, theirs, pieces):
    """Choices by the sum of their log-probabilities; the standard error of a mean of right and wrong."""
    pytest.importorskip("lm_eval")
    words = ["eval.tasks=[own_lands]", f"eval.include_path={TASKS}", "eval.window=whole"]
    (cell,) = evaluated("harness", *words)[0]["cells"]
    hits = []
    for doc in lines("capitals"):
        question = f"Question: where is {doc['town']}?\nAnswer:"
        n, totals = len(pieces.encode(question)), []
        for land in doc["lands"]:
            ids = torch.tensor([pieces.encode(f"{question}  {land}")])
            totals.append(-sum(float(loss(theirs, ids, place)[0]) for place in range(n, ids.shape[1])))
        hits.append(totals.index(max(totals)) == doc["right"])
    mean = np.mean(hits)
    found = cell["result"]["metrics"]["own_lands"]["acc"]
    assert found["value"] == pytest.approx(mean) and 0 < mean < 1
    assert found["stderr"] == pytest.approx(math.sqrt(mean * (1 - mean) / (len(hits) - 1)))
