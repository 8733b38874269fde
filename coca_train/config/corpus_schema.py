"""The shape of `python -m data_prep`: what a corpus is made of, and how the work is done. Values: `configs/`."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Name, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FilterConfig:
    """Which documents of a source are kept. Fields are dotted: meta.lang is record["meta"]["lang"]."""

    min_chars: int = Field(default=1, ge=0, description="shorter documents are left out [characters]")
    max_chars: Positive | None = Field(
        default=None, description="longer documents are left out [characters]; null = no limit"
    )
    language_field: str | None = Field(
        default=None, description="field with the document's language; null = not looked at"
    )
    languages: list[str] = Field(
        default_factory=list, description="languages kept, as written in that field; empty = all"
    )
    licence_field: str | None = Field(
        default=None, description="field with the document's licence(s); null = not looked at"
    )
    licences: list[str] = Field(
        default_factory=list, description="licences kept, as written in that field; empty = all"
    )
    stars_field: str | None = Field(
        default=None, description="field with the stars of the repository; null = not looked at"
    )
    min_stars: float = Field(default=0.0, ge=0, description="documents of repositories with fewer stars are left out")
    quality: list[str] = Field(
        default_factory=list, description="datatrove filters by name (gopher_quality, ...; needs the quality extra)"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CorpusSourceConfig:
    """One source of documents."""

    kind: Literal["auto", "jsonl", "parquet", "text", "folder", "hub"] = Field(
        default="auto",
        description="auto: as the endings of the files say (.jsonl, .parquet, .txt, .md), folder for folders, hub "
        "where that is named; jsonl: .jsonl, .jsonl.gz, .jsonl.zst, one object a line; parquet: one row a document; "
        "text: one file a document; folder: every file in it, and in its folders, that auto knows by its ending; hub: "
        "a data set of the Hugging Face hub, or a local folder that `datasets` can load",
    )
    files: list[str] = Field(
        default_factory=list, description="paths or glob patterns of the files, or folders (not for hub)"
    )
    hub: str | None = Field(default=None, description="name of the data set, or a local folder (hub only)")
    hub_config: str | None = Field(
        default=None, description="configuration of the data set (hub only); null = its default"
    )
    hub_split: str = Field(default="train", description="split of the data set (hub only)")
    hub_files: list[str] = Field(
        default_factory=list,
        description="paths or patterns inside the data set, such as data/python/*; [] = all of its split (hub only)",
    )
    text_field: str = Field(default="text", description="dotted field that holds the text (not for text)")
    id_field: str | None = Field(
        default=None, description="dotted field that names a document; must be unique; null = none"
    )
    join_field: str | None = Field(
        default=None,
        description="dotted field, such as a repository's name: documents with the same value that come one after "
        "another become one, with a blank line between them, as far as a chunk (work.chunk_bytes) goes; folder: of "
        "text files, those of one folder; null = none are joined",
    )
    group: Name = Field(
        default="text", description="part of the mixture this source counts towards, such as text or code"
    )
    weight: float | None = Field(default=None, gt=0, description="share within its group; null = by its tokens")
    hold_out: Literal["hash", "none", "all"] = Field(
        default="hash",
        description="hash: corpus.valid_share of the documents, chosen by a hash of the text, are held out; none: all "
        "are trained on; all: every document is held out (an evaluation set)",
    )
    licence: str = Field(default="unknown", description="licence of the source, for the manifest")
    about: str = Field(default="", description="what it is and how to get it, for people")
    filter: FilterConfig = Field(default=FilterConfig(), description="which documents are kept")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CorpusConfig:
    """What the corpus is made of, and where it is made."""

    name: Name = Field(description="name of the corpus, and of the data choice that `mix` writes")
    dir: str = Field(description="folder of everything that is made")
    valid_share: float | None = Field(
        ge=0,
        lt=1,
        description="share of the documents held out where hold_out is hash; null = 0.005, or so much more as a report "
        "needs (60 documents, 20 of them long), within 8 % of the text; within 10 % for the first 20",
    )
    valid_characters: Positive | None = Field(
        description="of texts more than twice as long, stretches of this length are held out, each a document "
        "[characters]; null = documents are held out whole, or, with valid_share=null, a length that fits"
    )
    exact_duplicates: Literal["drop", "keep"] = Field(
        description="documents whose text was seen before, in any source: drop, or keep (they are counted either way)"
    )
    sources: dict[str, CorpusSourceConfig] = Field(min_length=1, description="the sources, by name")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TokenizerConfig:
    """The vocabulary: trained, or brought along."""

    path: str = Field(
        description="tokenizer used and made: SentencePiece .model or Hugging Face tokenizer.json (found by itself "
        "where the .model is not there and a .json is, or comes from import_from)"
    )
    import_from: str | None = Field(
        description="existing SentencePiece .model, Hugging Face tokenizer.json, or a folder with one; null = train one"
    )
    eod: int | str | None = Field(
        description="with import_from: token that ends a document, an id or its text; null = as its folder says"
    )
    bos: int | str | None = Field(
        description="with import_from: token that begins a text, an id or its text; null = as its folder says"
    )
    pad: int | str | None = Field(
        description="with import_from: token that fills a batch, an id or its text; null = as its folder says"
    )
    model_type: Literal["bpe", "unigram"] = Field(description="SentencePiece algorithm")
    vocab_size: Positive | None = Field(
        description="size of the vocabulary [token ids]; null = by the size of the text: twice the square root of its "
        "bytes, in hundreds, 32,000 at most"
    )
    sample_bytes: Positive = Field(description="text it is trained on, drawn by the weights of the mixture [bytes]")
    character_coverage: float = Field(
        gt=0,
        le=1,
        description="share of characters with pieces of their own; lowered where these would be more than half of the "
        "vocabulary (with byte_fallback)",
    )
    byte_fallback: bool = Field(description="characters without a piece become bytes, so that no text is lost")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WorkConfig:
    """How the work is done; nothing here changes the result, except what `on_error` leaves out."""

    workers: Positive | None = Field(
        description="processes; null = one a core. Lowered to 4 a core (to 8 on one core), and to what half of the "
        "memory holds, at 50 MB + 8 chunk_bytes each"
    )
    shard: str = Field(description="i/n, i from 0: only this part of the input files (SLURM array tasks); 0/1 = all")
    on_error: Literal["stop", "skip"] = Field(
        description="a bad document: stop with file, line and reason; or skip it, count it and list it in rejects/"
    )
    max_reject_share: float = Field(ge=0, le=1, description="skip: stop when more than this share of a file is bad")
    max_line_bytes: Positive = Field(description="longest document read [bytes]")
    chunk_bytes: Positive = Field(description="text handed to a worker at a time [bytes]")
    part_bytes: Positive = Field(description="text between two points a killed run goes on from [bytes]")
    progress_bar: bool = Field(description="live progress on the terminal")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GroupConfig:
    """A named part of the mixture."""

    share: float = Field(gt=0, description="share of the training tokens, relative to the other groups")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MixConfig:
    """The mixture that training reads."""

    tokens: Positive | None = Field(
        description="length of the training it is planned for [tokens]; null = until a source has been seen max_epochs "
        "times"
    )
    groups: dict[str, GroupConfig] = Field(description="the groups, by name; {} = all sources are of one group")
    max_epochs: float = Field(gt=0, description="warn when a source is seen more often")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LeakageConfig:
    """Overlap of training and held-out text."""

    ngram: Positive = Field(description="words in a row that must agree (13 in GPT-3, arXiv 2005.14165, appendix C)")
    against: list[str] = Field(description="further evaluation sets: prefixes of .bin/.idx pairs of the same tokenizer")
    max_share: float = Field(ge=0, le=1, description="report documents with a larger share of words in common")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LookConfig:
    """What `inspect` shows."""

    source: str | None = Field(description="only this source; null = all")
    documents: int = Field(ge=0, description="documents shown of each split")
    windows: int = Field(ge=0, description="windows shown as the model sees them")
    seq_len: Positive = Field(description="length of those windows [tokens]")
    characters: Positive = Field(description="text shown of each [characters]")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RetrievalSetConfig:
    """One file of prompts."""

    kinds: dict[str, Positive] = Field(
        description="what is asked, each as likely, and its largest size: echoes, echoes_apart [words], recall, "
        "recall_common [pairs and questions], passkey or one of RULER's tasks [fillers or words, and 1]"
    )
    n_documents: Positive = Field(description="prompts in <set>_train.jsonl.gz")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RetrievalConfig:
    """The prompts with answers that `retrieval` writes."""

    dir: str = Field(description="folder of <set>_train.jsonl.gz and <set>_valid.jsonl.gz")
    sets: dict[str, RetrievalSetConfig] = Field(description="the files, by name; a corpus names them as its sources")
    n_valid_documents: Positive = Field(description="prompts in each <set>_valid.jsonl.gz")
    seed: int = Field(ge=0, description="seed of all that is drawn")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrepareConfig:
    """Everything that configures `python -m data_prep`."""

    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    work: WorkConfig
    mix: MixConfig
    leakage: LeakageConfig
    look: LookConfig
    retrieval: RetrievalConfig
