"""The tokenizer at tokenizer.path: trained with SentencePiece, or copied from an existing one.

It is written whole or not at all and never overwritten, with a record of how it was made next to it. Of an existing
tokenizer one file is read, checked and copied. The other files of its folder say which tokens are special; they are
copied into a folder of their own. No code is.
"""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.readers.base import escape
from coca_train.data.special_tokens import COMPANIONS, MODEL_FILES, RECORD, folder_of
from coca_train.data.storage import flush_to_disk, storage
from coca_train.data.tokenizer import NOTHING, Tokenizer, main_file
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import replace
from coca_train.runtime.errors import DataError, UserError
from coca_train.settings import TOKENIZERS
from data_prep.messages import differences, join_first

MIN_VOCAB, MAX_VOCAB = 512, 1_000_000
MAX_LINE_BYTES = 4000


def train_tokenizer(texts: Iterable[str], path: Path, vocab_size: int) -> None:
    """Train the quickstart's vocabulary on the lines of `texts` and write the model file. See `train`."""
    model = train(texts, str(path), vocab_size)
    with storage(str(path)), open(path, "wb") as file:
        file.write(model)
        flush_to_disk(file)


def train(
    texts: Iterable[str],
    where: str,
    vocab_size: int,
    model_type: str = "bpe",
    character_coverage: float = 0.9995,
    byte_fallback: bool = True,
    threads: int = 1,
    option: str = "vocab_size",
) -> bytes:
    """Train on the lines of `texts`; return the model file. where: the file it is for, and option: what sets
    vocab_size, in messages.

    Identity normalisation, no dummy prefix; with byte fallback decode(encode(x)) == x for any text. Newline and tab are
    pieces of their own, runs of spaces are learned, digits are split. Ids: 0 <unk>, 1 <s>, 2 </s> (ends a document).
    threads: a fixed number, never that of the machine: it is written into the model, and under unigram it decides in
    which order scores are summed up. With the same number the same texts give the same bytes.
    Raises DataError E-PREP-01 for a vocabulary size out of range or more pieces than the text can fill.
    """
    if not MIN_VOCAB <= vocab_size <= MAX_VOCAB:
        raise DataError(
            f"E-PREP-01 {option}={vocab_size}: {MIN_VOCAB} .. {MAX_VOCAB} is possible (256 bytes are in it). "
            f"Fix: {option}=4096"
        )
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(texts),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            byte_fallback=byte_fallback,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            user_defined_symbols=["\n", "\t"],
            character_coverage=character_coverage,
            num_threads=threads,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].rpartition("] ")[2].rstrip(".")
        raise DataError(
            f"E-PREP-01 {where}: SentencePiece cannot train {vocab_size} pieces on this text: {reason}. "
            f"Fix: lower {option}, or give it more text"
        ) from error
    return model.getvalue()


def affordable_coverage(texts: Callable[[], Iterable[str]], vocab_size: int) -> float:
    """Return the share of the characters that can have pieces of their own without being more than half of the
    vocabulary: a small text in Chinese has more characters than a small vocabulary has room for."""
    characters = set[str]().union(*texts())
    room = vocab_size // 2
    if len(characters) <= room:
        return 1.0
    counts = Counter(chain.from_iterable(texts()))
    return sum(count for _, count in counts.most_common(room)) / counts.total()


def lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the non-empty lines short enough for the trainer; a newline is never inside a learned piece."""
    for line in chain.from_iterable(text.split("\n") for text in texts):
        if line.strip() and len(line.encode()) <= MAX_LINE_BYTES:
            yield line


def short_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield lines cut at spaces to what `lines` keeps; where there is no space, in mid-word."""
    longest = MAX_LINE_BYTES // 4  # characters; four bytes is the most one takes
    for text in texts:
        for line in text.split("\n"):
            begin = 0
            while len(line) - begin > longest:
                cut = line.rfind(" ", begin + 1, begin + longest)
                cut = begin + longest if cut < 0 else cut
                yield line[begin:cut]
                begin = cut
            yield line[begin:]


FORMAT = 1
# Where text is read from and where the model goes decide nothing that can be distinguished later.
NOT_SETTINGS = ("files", "hub", "about", "licence")
TOKENIZER = ("model_type", "vocab_size", "sample_bytes", "character_coverage", "byte_fallback")
SUFFIX = {"sentencepiece": ".model", "huggingface": ".json"}
TEXT = "def f(x):\n\treturn x  # é, 漢字, \U0001f642\r\n\n  </s> <|endoftext|> 1234.5"


def record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.made.json")


def training_settings(config: PrepareConfig) -> dict[str, object]:
    """Return JSON of the settings that decide a trained vocabulary, except the files of the sources."""
    sources = {
        name: {key: value for key, value in asdict(source).items() if key not in NOT_SETTINGS}
        for name, source in config.corpus.sources.items()
    }
    return {
        "tokenizer": {key: getattr(config.tokenizer, key) for key in TOKENIZER},
        "valid_share": config.corpus.valid_share,
        "valid_characters": config.corpus.valid_characters,
        "sources": sources,
        "groups": {name: group.share for name, group in config.mix.groups.items()},
    }


def publish(path: Path, model: bytes, record: dict[str, object] | None) -> None:
    """Write record and model, the model last: it is there when everything is. record: None: none is kept."""
    # The record first: a record without a model is nothing, a model without a record would be foreign to the next run.
    if record is not None:
        record = {"format": FORMAT, "sha256": hashlib.sha256(model).hexdigest(), **record}
        replace_file(record_path(path), json.dumps(record, indent=2, sort_keys=True).encode() + b"\n")
    replace_file(path, model)


def replace_file(path: Path, content: bytes) -> None:
    with storage(str(path)):
        replace(path, content)


def already_trained(config: PrepareConfig) -> bool:
    """Return whether tokenizer.path was trained with these settings. DataError E-TKN-05 when it is something else."""
    path = Path(config.tokenizer.path)
    if not path.exists():
        return False
    wrong = ""
    digest = hashlib.sha256(untrusted_io.read_bytes(path)).hexdigest()
    try:
        record, now = untrusted_io.read_object(record_path(path)), training_settings(config)
        if record.get("format") != FORMAT or record.get("sha256") != digest:
            wrong = "was not made by this version, or was changed since"
        elif changes := differences({key: record.get(key) for key in now}, now):
            wrong = f"was made with other settings: {join_first(changes)}"
    except FileNotFoundError:
        wrong = "was not made by this command"
    except (OSError, ValueError) as error:
        wrong = f"its record {record_path(path).name} cannot be read ({getattr(error, 'strerror', None) or error})"
    if wrong:
        raise refusal(path, wrong)
    return True


def refusal(path: Path, why: str) -> DataError:
    return DataError(
        f"E-TKN-05 {path}: is there, and {why}; a tokenizer is never overwritten, data may have been made with it. "
        "Fix: use it as it is (this step is not needed then), move it away, or choose another tokenizer.path"
    )


def import_tokenizer(origin: Path, path: Path, given: Mapping[str, int | str | None] = NOTHING) -> bool:
    """Copy a tokenizer to `path`; return False when the same one is there already.

    origin: a SentencePiece model, a tokenizer.json, or a folder with one (the one that knows more tokens). given: as of
    `Tokenizer`. Raises DataError: E-TKN-01 nothing there, 02 not a tokenizer, 03 no end of document, 05 another is
    there already, 08 it does not give back a text as it should, 11 changed while it was read, 13 to 15 (its folder
    contradicts itself); UserError: 04 a package is missing, 06 `path` has another ending.
    """
    origin = find_tokenizer_file(origin)
    tokenizer = Tokenizer(origin, given)
    if path.suffix != SUFFIX[tokenizer.kind]:
        fix = f"write tokenizer.path={path.with_name('tokenizer')}{SUFFIX[tokenizer.kind]}"
        raise UserError(
            f"E-TKN-06 tokenizer.path={path}: {origin} is a {tokenizer.kind} file; the name of its copy has to end in "
            f"{SUFFIX[tokenizer.kind]}, as other programs expect. Fix: {fix}, for every verb"
        )
    back = tokenizer.decode(tokenizer.encode(TEXT))
    if tokenizer.lossless and back != TEXT:
        raise DataError(
            f"E-TKN-08 {origin}: makes {back!r} of {TEXT!r}, although nothing in the file says so; data made with it "
            "could not be verified. Fix: take the file from its authors again, or use another tokenizer"
        )
    model = untrusted_io.read_bytes(origin)
    if hashlib.sha256(model).hexdigest() != tokenizer.digest:
        raise DataError(f"E-TKN-11 {origin}: changed while it was read. Fix: run the same command again")
    if path.exists():
        if not path.is_file() or hashlib.sha256(untrusted_io.read_bytes(path)).hexdigest() != tokenizer.digest:
            raise refusal(path, f"is not {origin}")
        if (there := Tokenizer(path)).eod != tokenizer.eod:
            raise refusal(path, f"ends documents with {there.eod}, not {tokenizer.eod}")
        return False
    copy_companions(origin, tokenizer, path.with_suffix(""))
    publish(path, model, None)
    return True


def copy_companions(origin: Path, tokenizer: Tokenizer, into: Path) -> None:
    """Copy the other files of a tokenizer, and record its special tokens, unless its file alone says it all."""
    files = [folder_of(origin) / name for name in (*COMPANIONS, MODEL_FILES[1])]
    files = [file for file in files if file.is_file()]
    if not files and tokenizer.identity == tokenizer.digest:
        return
    with storage(str(into)):
        into.mkdir(exist_ok=True)
    for file in files:
        replace_file(into / file.name, untrusted_io.read_bytes(file))
    replace_file(into / RECORD, tokenizer.special.as_json())


def find_tokenizer_file(origin: Path) -> Path:
    """Return the tokenizer's file: `origin` itself, or the one in that folder. DataError E-TKN-01 when it holds
    none."""
    if not origin.is_dir():
        return origin
    if (found := main_file(origin)) is not None:
        return found
    names = ", ".join(sorted(escape(entry.name) for entry in origin.iterdir())[:8]) or "nothing"
    raise DataError(
        f"E-TKN-01 {origin}: holds neither {TOKENIZERS[0]} nor {TOKENIZERS[1]} (it holds {names}); one of them is "
        "needed. Fix: give the file itself, or save the tokenizer with save_pretrained of `transformers`"
    )
