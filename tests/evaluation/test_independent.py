"""What a whole evaluation leaves in results.json, against plain loops over transformers' own model: losses one
prediction at a time, angles of its projections by trigonometry.

The interval of three documents with equally many predictions needs no draws: each of them has all three places of a
draw with a chance of 1 in 27, more than the 2.5 % beyond either end, so the ends are the documents' own extremes.
"""

import json
import math

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from scipy import stats

from coca_train.evaluation.suites import speed
from tests.evaluation.conftest import sentences
from tests.evaluation.grids import blocks
from tests.evaluation.harnessed import TASKS, lines

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
    words = ["grid.lengths=[24,48]", "grid.rope_scalings=[trained]", "eval.last=16"]
    for cell in evaluated("position_loss", *words)[0]["cells"]:
        length, found = cell["point"], cell["result"]["sources"]["books"]
        nll = first_windows(theirs, ids, length)
        last = nll[:, -16:].mean(1)
        expected = np.exp([last.mean(), last.min(), last.max()])
        assert [found[key] for key in ("perplexity", "ci_low", "ci_high")] == pytest.approx(expected, rel=NEAR)
        assert found["loss_by_position"][:8] == pytest.approx(nll[:, :8].mean(0), rel=NEAR)


def test_temperature(evaluated, theirs, ids):
    """transformers' rotation is slowed, and multiplied, at its own place."""
    words = [
        "eval.scales=[1.0,1.2]",
        "eval.document_tokens=40",
        "eval.block=16",
        "grid.rope_scalings=[linear@factor:2]",
    ]
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
    and what the distance turns it by."""
    length, halves = ids.shape[1], model.config.hidden_size // model.config.num_attention_heads // 2
    slow = model.model.rotary_emb.inv_freq.double().numpy()
    angles, turned = [], []
    for q, k in projected(model, ids):
        for m in range(length):
            for n in range(m):
                qx, qy = q[:, m, :, :halves].numpy(), q[:, m, :, halves:].numpy()
                kx, ky = k[:, n, :, :halves].numpy(), k[:, n, :, halves:].numpy()
                angles.append((np.arctan2(qy, qx) - np.arctan2(ky, kx)) % (2 * np.pi))
                turned.append(np.broadcast_to((m - n) * slow, angles[-1].shape))
    return (np.stack(each, 1) for each in (angles, turned))


def test_anomaly(evaluated, theirs, ids):
    """Windows of two tokens have one pair, drawn again and again; of longer ones the draws come close to all pairs."""
    record, _ = evaluated("anomaly", "grid.lengths=[2,12]", "eval.pairs=3000")
    for cell in record["cells"]:
        found, near = cell["result"], NEAR if cell["point"] == 2 else 0.03
        angle, turned = begun(theirs, ids[:, : cell["point"]])
        wrong = angle > np.pi
        inside = wrong & (turned < 2 * np.pi - angle)
        theta = angle + turned - 2 * np.pi * wrong
        of_pairs = {
            "anomalous": wrong,
            "abnormal": inside,
            "k": wrong & ~inside,
            "-q": np.maximum(np.floor(theta / np.pi + 1) // 2, 0),
            "q": np.maximum(np.floor(theta / 2 / np.pi), 0),
        }
        for name, each in of_pairs.items():
            of_documents = each.mean((1, 2, 3))
            expected = (each.mean(), of_documents.min(), of_documents.max())
            assert found["shares"][name] == pytest.approx(expected, abs=near)
        if cell["point"] == 2:
            by_layer = wrong.reshape(3, 2, 1, *wrong.shape[2:])  # layers, the one pair of tokens
            assert np.array(found["by_head"]) == pytest.approx(by_layer.mean((0, 2, 4)), abs=near)


def studentized(sums):
    """Estimate and 99.9 % interval of a ratio of sums over documents (n, 2), with draws of its own."""
    n, ratio = len(sums), sums[:, 0].sum() / sums[:, 1].sum()

    def error(drawn):
        rest = drawn[:, 0] - drawn[:, 0].sum() / drawn[:, 1].sum() * drawn[:, 1]
        return math.sqrt((rest**2).sum() * n / (n - 1)) / drawn[:, 1].sum()

    draws = [sums[places] for places in np.random.default_rng(7).integers(0, n, (40_000, n))]
    t = [(drawn[:, 0].sum() / drawn[:, 1].sum() - ratio) / error(drawn) for drawn in draws]
    low, high = np.percentile(t, [0.05, 99.95])
    widened = error(sums) * math.sqrt(n / (n - 2))
    least = stats.t.ppf(0.9995, n - 1) * error(sums)  # no narrower than Student's
    return ratio, ratio - max(high * widened, least), ratio + max(-low * widened, least)


def test_reach_of_reading(evaluated, theirs, pieces, tmp_path):
    """What is held beyond the training window, and what the farther half gains; of documents in windows begun anew."""
    texts = tmp_path / "many.jsonl"
    texts.write_text("".join(json.dumps({"text": sentences(i, 60)}) + "\n" for i in range(20)))
    words = ["grid.lengths=[24,48]", f"text.files=[{texts}]", "eval.finds=null", "eval.works=null"]
    _, page = evaluated("reach", *words)
    ids = read(texts, pieces, 49)
    beyond = range(TRAINED + 1, 49)
    excess = sum(loss(theirs, ids, p, window_of(p, 48, 24)) - loss(theirs, ids, p, window_of(p, 24, 3)) for p in beyond)
    gain = {}
    for length, ends in ((12, 1), (24, 3), (48, 6)):
        last = [end for end in range(length, 49, length)]
        predicted = [(p, end) for end in last for p in range(end - ends + 1, end + 1)]
        more_of = sum(loss(theirs, ids, p, end - length) for p, end in predicted)
        less_of = sum(loss(theirs, ids, p, end - length // 2 - ends) for p, end in predicted)
        gain[length] = (less_of - more_of, len(predicted))
    shown = blocks(page)["answers"]
    values = {
        (each.label[1], n): value for each in shown.rows for n, value in zip(shown.columns, each.values, strict=True)
    }
    asked = {("holds", "48"): (excess, len(beyond))} | {("uses", str(n)): gain[n] for n in (12, 24, 48)}
    for what, (sums, n) in asked.items():
        ratio, low, high = studentized(np.stack((sums, np.full(20, n)), 1))
        found = values[what]
        assert found.number == pytest.approx(ratio, rel=1e-3, abs=1e-6)
        assert (found.low, found.high) == pytest.approx(
            (low, high), abs=0.1 * (high - low)
        )  # an end of 99.9 % is of few draws


def test_speed(evaluated, monkeypatch):
    """A time cannot be computed twice. What is made of planted ones can: a figure of each, one a token decoded, and a
    ratio turn by turn, which is not that of the medians."""
    planted = {"own": [6.0, 2.0, 5.0], "rope": [2.0, 2.0, 10.0], "nope": [1.0, 4.0, 4.0]}
    monkeypatch.setattr(speed, "in_turns", lambda turns, rounds, device: {who: planted[who] for who in turns})
    words = ["grid.lengths=[12]", "eval.rounds=3", "eval.new_tokens=4", "eval.memory=false"]
    (cell,) = evaluated("speed", *words)[0]["cells"]
    for work, found in cell["result"]["seconds"].items():
        for who, seconds in planted.items():
            each = np.array(seconds) / (4 if work == "decode" else 1)
            assert found[who] == {"median": np.median(each), "low": each.min(), "high": each.max()}
            if who != "own":
                ratio = np.array(planted["own"]) / seconds
                expected = {"median": np.median(ratio), "low": ratio.min(), "high": ratio.max()}
                assert cell["result"]["ratio"][work][who] == pytest.approx(expected)


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
