"""The other side of a parity check: the `transformers` library, the only file here that imports it to run a model."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from coca_train.engine.base import parameters_on_meta
from coca_train.hub import own, own_json
from coca_train.hub.config_json import NAME
from coca_train.hub.families import FAMILIES, Family
from coca_train.hub.keys import CODE, Keys, read_json, without_code
from coca_train.hub.parity import Probe, Side, Spectra
from coca_train.hub.shards import INDEX, SINGLE, Folder
from coca_train.hub.streamed import Read, streamed
from coca_train.hub.weights import Source, translate
from coca_train.runtime import dist
from coca_train.runtime.errors import CheckpointError, DataError, UserError

AskWith = Callable[[list[Probe], Spectra | None], tuple[list[Tensor], float]]  # as Side.ask_with
SHARE = 0.4  # of the free memory that a whole model may take


def library() -> Any:
    """transformers. Raises UserError E-IOP-17 where it cannot be imported."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            f"E-IOP-17 transformers cannot be imported ({_first_line(error)}); the parity check compares with it. "
            "Fix: pip install 'coca-train[interop]'"
        ) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def of_folder(folder: Path, share: float = SHARE) -> Side:
    """A folder as anyone would load it: from_pretrained, whole in memory where that fits, else block by block.

    Its config.json and its weights are read, none of its code. share: of the free memory that a whole model may take.
    Raises UserError E-IOP-04 (a model_type that needs code of the folder), E-IOP-16 (code that is not ours).
    """
    written = read_json(folder / NAME)
    config, ours = without_code(written), written.get("model_type") in own_json.TYPES
    if ours:
        own.check_code(folder, config["model_type"])
    else:
        _refuse_unknown(folder / NAME, written)
        if config != written:
            dist.log(f"WARNING: {folder / NAME} names code ({CODE}); it is not run: read as {config['model_type']}")

    def ask(probes: list[Probe], spectra: Spectra | None) -> tuple[list[Tensor], float]:
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        halves = config.get("dtype", config.get("torch_dtype")) not in (None, "float32")
        loadable = any((folder / file).is_file() for file in (SINGLE, INDEX))
        if ours or not loadable or size * (2 if halves else 1) > share * _free_memory():
            return _streamed_folder(folder, config, probes, spectra)
        return _ask(_whole(folder, config), probes, spectra)

    return _side(config, ask)


def _side(config: dict[str, Any], ask: AskWith) -> Side:
    """With the name that reports call it by. Our own classes round frequencies as we do."""
    own_class = own_json.CLASSES.get(config["model_type"])
    family = FAMILIES.get(str(config["model_type"]))
    what = own_class or (config["model_type"] if family is None else family.transformers_class)
    name = f"{what} with transformers {library().__version__}"
    return Side(name, lambda probes: ask(probes, None)[0], None if own_class else ask)


def _refuse_unknown(path: Path, config: dict[str, Any]) -> None:
    """UserError E-IOP-04 for a model_type that transformers has no class of its own for."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in library().CONFIG_MAPPING:
        raise Keys(path, config).wrong(
            f"model_type={name!r}",
            f"transformers {library().__version__} has no class of that name, and code of a folder is never run",
            f"give a folder of a type that it has, such as {', '.join(FAMILIES)}",
        )


def _whole(folder: Path, config: dict[str, Any]) -> Any:
    with _inert(folder, config) as place:
        try:
            model = library().AutoModelForCausalLM.from_pretrained(
                place, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, use_safetensors=True,
                trust_remote_code=False,
            )  # fmt: skip
            return model.eval()
        except Exception as error:  # a file from outside in a library of others: each part has errors of its own
            raise _refused(folder, error) from error


@contextmanager
def _inert(folder: Path, config: dict[str, Any]) -> Iterator[Path]:
    """A fresh folder with this config.json and links to the weights of another: nothing else of it is in reach."""
    with TemporaryDirectory() as fresh:
        place = Path(fresh)
        (place / NAME).write_text(json.dumps(config), encoding="utf-8")
        for file in (*folder.glob("*.safetensors"), folder / INDEX):
            if file.is_file():
                (place / file.name).symlink_to(file.resolve())
        yield place


def _refused(folder: Path, error: Exception) -> CheckpointError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return CheckpointError(
        f"E-IOP-13 {folder}: transformers cannot load it: {reason}. Fix: download or export the folder again; if it is "
        "new, mend to_transformers of a scheme or frequencies of your own, or report it with its config.json"
    )


def _streamed_folder(
    folder: Path, config: dict[str, Any], probes: list[Probe], spectra: Spectra | None
) -> tuple[list[Tensor], float]:
    weights = Folder(folder)
    try:
        return _streamed(config, weights.read, probes, spectra)
    except UserError:
        raise
    except Exception as error:
        raise _refused(folder, error) from error
    finally:
        weights.close()


def of_source(source: Source, config: dict[str, Any]) -> Side:
    """The other side's own class with a source's weights streamed into it. config: its config.json."""
    library()
    read = translate(source, config).read

    return _side(config, lambda probes, spectra: _streamed(config, read, probes, spectra))


def model_of(source: Source, config: dict[str, Any]) -> Any:
    """The other side's own class with all of a source's weights, in float32. config: its config.json."""
    transformers = library()
    if (name := config["model_type"]) in own_json.TYPES:
        cls, config_class = own.classes(name)
        configuration = config_class(**config)
    else:
        cls, configuration = getattr(transformers, FAMILIES[name].transformers_class), None
        configuration = transformers.AutoConfig.for_model(**config)
    model = cls._from_config(configuration, attn_implementation="sdpa", dtype=torch.float32).eval()
    theirs = translate(source, config)
    in_memory = {} if name in own_json.TYPES else {on_disk: held for held, on_disk in _on_disk(FAMILIES[name]).items()}
    weights = {in_memory.get(tensor, tensor): theirs.read(tensor) for tensor in theirs.shapes}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and (not missing or source.architecture.model.tie_embeddings), (missing, unexpected)
    model.tie_weights()
    return model


def _on_disk(family: Family) -> dict[str, str]:
    """What a class calls otherwise than its files do: the head of GPT-NeoX."""
    return {"lm_head.weight": f"{family.names['head']}.weight"}


def _streamed(
    config: dict[str, Any], read: Read, probes: list[Probe], spectra: Spectra | None
) -> tuple[list[Tensor], float]:
    if (name := config["model_type"]) in own_json.TYPES:
        cls, config_class = own.classes(name)
        configuration = config_class(**config)
        configuration._attn_implementation = "sdpa"
        return _block_by_block(cls, configuration, own_json.BLOCKS[name], read, probes, None)
    transformers, family = library(), FAMILIES[config["model_type"]]
    configuration = transformers.AutoConfig.for_model(**config)
    configuration._attn_implementation = "sdpa"
    on_disk = _on_disk(family)
    cls = getattr(transformers, family.transformers_class)
    return _block_by_block(
        cls, configuration, family.names["blocks"], lambda name: read(on_disk.get(name, name)), probes, spectra
    )


def _block_by_block(
    cls: Any, configuration: Any, listed: str, read: Read, probes: list[Probe], spectra: Spectra | None
) -> tuple[list[Tensor], float]:
    """listed: the module with the blocks. read: a parameter by its name in the model."""
    with parameters_on_meta():
        model = cls(configuration)
    with streamed(model, list(model.get_submodule(listed)), read):
        return _ask(model, probes, spectra)


@torch.no_grad()
def _ask(model: Any, probes: list[Probe], spectra: Spectra | None) -> tuple[list[Tensor], float]:
    """A mask of ones: without it transformers takes positions that jump for packed documents."""
    logits, worst = [], 0.0
    for probe in probes:
        forget_lengths(model)
        if spectra is not None:
            worst = max(worst, put_frequencies(model, probe.pos_BT, spectra(probe.length)))
        answer = model(
            input_ids=probe.tokens_BT,
            position_ids=probe.pos_BT,
            attention_mask=torch.ones_like(probe.tokens_BT),
            use_cache=False,
        )
        logits.append(answer.logits[0])
    return logits, worst


def forget_lengths(model: Any) -> None:
    """Undo what a longer text left in dynamic frequencies: transformers goes back for texts below the trained length
    alone, so that a text of that very length would be computed with the frequencies of the one before."""
    for module in model.modules():
        if hasattr(module, "original_inv_freq") and hasattr(module, "max_seq_len_cached"):
            module.inv_freq, module.max_seq_len_cached = module.original_inv_freq, module.original_max_seq_len


def put_frequencies(model: Any, pos_BT: Tensor, inv_freq_J: Tensor) -> float:
    """Our frequencies into the model's rotary embedding; how far its own at these positions are from them, relative."""
    (rotary,) = (module for module in model.modules() if hasattr(module, "inv_freq"))
    kind = getattr(rotary, "coca_train_kind", rotary.rope_type)
    rotary.coca_train_kind, rotary.rope_type = kind, kind
    rotary(torch.zeros(1), pos_BT)  # a dynamic one adapts to the length here
    least = torch.finfo(inv_freq_J.dtype).tiny  # of pairs that do not turn, nothing but 0 is the same
    difference = ((rotary.inv_freq - inv_freq_J).abs() / inv_freq_J.clamp(min=least)).max().item()
    rotary.rope_type, rotary.inv_freq = "default", inv_freq_J.clone()
    return difference


def check_tokenizer(path: Path) -> None:
    """Refuse a tokenizer_config.json whose class transformers does not have. UserError E-IOP-23."""
    name = read_json(path).get("tokenizer_class")
    if name is None:
        return
    transformers = library()
    lookup = transformers.models.auto.tokenization_auto.tokenizer_class_from_name
    found = lookup(name) if isinstance(name, str) else None
    # One that needs a package which is not installed has _backends.
    if not isinstance(found, type) or not (
        issubclass(found, transformers.PreTrainedTokenizerBase) or hasattr(found, "_backends")
    ):
        raise UserError(
            f"E-IOP-23 {path} tokenizer_class={name!r}: transformers {transformers.__version__} has no tokenizer of "
            "that name, and code of a folder (auto_map) is never run. Fix: export with tokenizer=none, or write "
            '"PreTrainedTokenizerFast" there where a tokenizer.json says everything'
        )


def tokenizer(folder: Path, **options: Any) -> Any:
    """The tokenizer that transformers makes of a folder's files, none of its code.

    Raises UserError E-IOP-17 where it, or a package that it reads them with, cannot be imported, DataError E-IOP-24
    where it cannot read them.
    """
    theirs = library().AutoTokenizer
    with _reading_tokenizer(folder):
        return theirs.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)


def token_ids(folder: Path, text: str) -> list[int]:
    """What transformers makes of a text with the tokenizer files of a folder. Raises what `tokenizer` raises."""
    theirs = tokenizer(folder)
    with _reading_tokenizer(folder):
        return theirs.encode(text, add_special_tokens=False)


@contextmanager
def _reading_tokenizer(folder: Path) -> Iterator[None]:
    """Around one call of theirs: what it raises, in its own words."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"E-IOP-17 {folder}: transformers cannot read its tokenizer: {_first_line(error)}. "
            "Fix: pip install 'coca-train[interop]', or the package that is named"
        ) from error
    except Exception as error:  # files from outside in a library of others: each part has errors of its own
        raise DataError(
            f"E-IOP-24 {folder}: transformers cannot read its tokenizer: {type(error).__name__}: {_first_line(error)}. "
            "Fix: give the folder the tokenizer files of its model as they were published"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "without a word")[:200]


def _free_memory() -> int:
    """Memory of this machine that is free now [bytes]."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
