"""Small tokenizers in the styles of published models, and a page of text that shows where two readings of one differ.

Each style has the normalizer, the splits, the decoder, the post-processor and the special tokens of the files that are
named, and merges of its own, trained on the page.
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SCRIPTS = {
    "latin": "Ça, naïve façade: ÉCOLE, Straße, İstanbul, ﬁne e\u0301 vs \u00e9, I'VE don't WE'LL",
    "greek": "Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν·",
    "cyrillic": "Нещо на Български, ещё Щука й и\u0306",
    "arabic": "مَرْحَبًا بالعالم، ١٢٣٤ كيف الحال؟",
    "hebrew": "שָׁלוֹם עוֹלָם — בְּרֵאשִׁית",
    "devanagari": "नमस्ते दुनिया, क्‍ष क्ष १२३",
    "thai": "สวัสดีชาวโลก กำลังเรียน ๑๒๓",
    "chinese": "我想在apple工作1314151天～，「北京」。",
    "japanese": "こんにちは、カタカナ ガ か\u3099 漢字ABC",
    "korean": "안녕하세요 세계, \u1112\u1161\u11ab글 123",
    "code": "def main(argv):\n    if x != y:\n\t\treturn {'a': [1, 2.5e-3]}  # done\n\n\n        pass\n",
    "emoji": "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 👍🏽 🇩🇪 😶\u200d🌫️ ok✅",
    "spaces": "  leading, a\u00a0b, tabs\t\tand   runs\u3000wide \u2003em, crlf\r\nnext\r\n\r\n trailing   ",
    "digits": "3 33 333 3333 33333 1,234.56 ½ x² 2024-01-31 ٣٤",
    "control": "bell\x07 null\x00 del\x7f nel\x85 zwsp\u200b bom\ufeff ls\u2028 private\ue000 last\U0010fffd",
    "punctuation": "?!?! ======------ ''''''```````\"\"\"\"......!!!!!!?????? don''t ~@#$%^&*()",
    "space mark": "\u2581 a\u2581b ▁▁ <0x41> Ġ Ċ",
    "empty": "",
    "one space": " ",
    "new lines": "\n\n\r\n\n \n",
}
PAGE = "\n".join(SCRIPTS.values())

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3, QWEN2 = GPT4 % "1,3", GPT4.replace("{%s}", "")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


@dataclass(frozen=True)
class Style:
    """make: the tokenizer without its merges. special: tokens by their text, in this order before all others, unless
    `appended`. config: tokenizer_config.json. begins: texts of the special tokens that are put before a text."""

    make: Callable[[], Tokenizer]
    special: tuple[str, ...]
    config: dict[str, Any]
    begins: tuple[str, ...] = ()
    appended: tuple[AddedToken, ...] = ()
    trained: bool = True
    alphabet: tuple[str, ...] = field(default_factory=lambda: tuple(pre_tokenizers.ByteLevel.alphabet()))


def _split(pattern: str, behavior: str = "isolated") -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior)


def _byte_level(*steps: Any, regex: bool = False, prefix: bool = False, normalizer: Any = None) -> Tokenizer:
    made = Tokenizer(models.BPE())
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps, bytes_]) if steps else bytes_
    if normalizer is not None:
        made.normalizer = normalizer
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


def _sentencepiece(prefix: bool) -> Tokenizer:
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return made


def _gemma() -> Tokenizer:
    made = _sentencepiece(prefix=False)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return made


def _falcon() -> Tokenizer:
    punctuation = pre_tokenizers.Punctuation("contiguous")
    digits = _split(r"[0-9][0-9][0-9]")
    made = Tokenizer(models.BPE())
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([punctuation, bytes_, pre_tokenizers.Digits(False), digits])
    made.decoder = decoders.ByteLevel()
    return made


def _t5() -> Tokenizer:
    """Pieces that are counted, not trained, each with the logarithm of its share."""
    words = Counter(word for line in PAGE.split("\n") for word in ("▁" + "▁".join(line.split(" "))).split("▁") if word)
    pieces = Counter({f"▁{word}": n for word, n in words.items()}) + Counter(PAGE.replace(" ", "▁"))
    scores = [(piece, math.log(n / pieces.total())) for piece, n in sorted(pieces.items())]
    made = Tokenizer(models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *scores], 2, False))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace(prepend_scheme="always")
    return made


def _special(*texts: str, **how: bool) -> tuple[AddedToken, ...]:
    return tuple(AddedToken(text, special=True, normalized=False, **how) for text in texts)


END = "<|endoftext|>"
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
SPM = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)))
STYLES = {
    "llama2": Style(
        lambda: _sentencepiece(prefix=True), SPM,
        {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
         "add_bos_token": True, "add_eos_token": False, "legacy": False},
        ("<s>",), alphabet=(),
    ),
    "llama3": Style(
        lambda: _byte_level(_split(LLAMA3)), (),
        FAST | {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}, ("<|begin_of_text|>",),
        _special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
    ),
    "qwen2": Style(
        lambda: _byte_level(_split(QWEN2), normalizer=normalizers.NFC()), (),
        {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>", "pad_token": END,
         "add_prefix_space": False, "chat_template": "{{ messages }}"},
        appended=_special(END, "<|im_start|>", "<|im_end|>"),
    ),
    "gpt2": Style(
        lambda: _byte_level(regex=True), (),
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": END, "eos_token": END, "unk_token": END},
        appended=(AddedToken(END, special=True, normalized=True),),
    ),
    "gemma": Style(
        _gemma, ("<pad>", "<eos>", "<bos>", "<unk>", *SPM[3:]),
        {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
         "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False},
        ("<bos>",), _special("<start_of_turn>", "<end_of_turn>"), alphabet=(),
    ),
    "neox": Style(
        lambda: _byte_level(regex=True, normalizer=normalizers.NFC()), (END, "<|padding|>"),
        {"tokenizer_class": "GPTNeoXTokenizer", "bos_token": END, "eos_token": END, "unk_token": END,
         "add_prefix_space": False},
        appended=tuple(AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)),
    ),
    "bloom": Style(
        lambda: _byte_level(_split(BLOOM)), ("<unk>", "<s>", "</s>", "<pad>"),
        {"tokenizer_class": "BloomTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
         "unk_token": "<unk>", "add_prefix_space": False},
    ),
    "falcon": Style(
        _falcon, (">>TITLE<<", ">>ABSTRACT<<", END), FAST | {"eos_token": END, "add_prefix_space": False}
    ),
    "phi3": Style(
        lambda: _sentencepiece(prefix=True), SPM,
        {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": END, "pad_token": END,
         "unk_token": "<unk>", "add_bos_token": False, "add_eos_token": False, "legacy": False},
        appended=(*_special(END), *_special("<|assistant|>", "<|user|>", "<|end|>", rstrip=True)), alphabet=(),
    ),
    "glm4": Style(
        lambda: _byte_level(_split(LLAMA3)), (), FAST | {"eos_token": END, "pad_token": END}, ("[gMASK]", "<sop>"),
        _special(END, "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|user|>"),
    ),
    "cohere": Style(
        lambda: _byte_level(pre_tokenizers.Digits(True), regex=True, normalizer=normalizers.NFC()),
        ("<PAD>", "<UNK>", "<BOS_TOKEN>", "<EOS_TOKEN>"),
        {"tokenizer_class": "CohereTokenizerFast", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>",
         "pad_token": "<PAD>", "add_bos_token": True, "add_eos_token": False, "add_prefix_space": False},
        ("<BOS_TOKEN>",), _special("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    ),
    "starcoder2": Style(
        lambda: _byte_level(pre_tokenizers.Digits(True), regex=True), (END, "<fim_prefix>"),
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": END, "eos_token": END, "unk_token": END,
         "add_prefix_space": False},
    ),
    "opt": Style(
        lambda: _byte_level(regex=True), ("<s>", "<pad>", "</s>", "<unk>"),
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>",
         "unk_token": "</s>", "add_bos_token": True, "add_prefix_space": False},
        ("</s>",),
    ),
    "t5": Style(
        _t5, ("<pad>", "</s>", "<unk>"), FAST | {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
        trained=False,
    ),
}  # fmt: skip


@functools.cache
def _json(name: str) -> str:
    style = STYLES[name]
    made = style.make()
    common: dict[str, Any] = {
        "vocab_size": len(style.special) + 500, "special_tokens": list(style.special),
        "initial_alphabet": list(style.alphabet), "show_progress": False,
    }  # fmt: skip
    if style.trained:
        text = PAGE + Path(__file__).read_text(encoding="utf-8")
        made.train_from_iterator(text.split("\n"), trainers.BpeTrainer(**common))
    made.add_special_tokens(list(style.special))
    made.add_tokens(list(style.appended))
    if style.begins:
        begins = [(text, made.token_to_id(text)) for text in style.begins]
        template = processors.TemplateProcessing(" ".join([*style.begins, "$A"]), None, begins)
        steps = [made.post_processor] if made.post_processor else []
        made.post_processor = processors.Sequence([*steps, template])
    record = json.loads(made.to_str())
    if style.special[:3] == SPM[:3] or name == "gemma":  # the tokens of bytes are part of the vocabulary only
        record["added_tokens"] = [token for token in record["added_tokens"] if token["content"] not in SPM[3:]]
    return json.dumps(record)


def write(folder: Path, name: str) -> Path:
    """Write tokenizer.json and tokenizer_config.json of a style; return the former."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_json(name), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(STYLES[name].config), encoding="utf-8")
    return folder / "tokenizer.json"
