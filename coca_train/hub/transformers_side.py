"""The other side of a parity check: the `transformers` library, the only file here that imports it to run a model."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from coca_train.engine.base import parameters_on_meta
from coca_train.hub import names, own
from coca_train.hub.config_json import NAME, OWN, architecture
from coca_train.hub.families import FAMILIES
from coca_train.hub.keys import read_json
from coca_train.hub.parity import Probe, Side, Spectra
from coca_train.hub.shards import INDEX, SINGLE, Folder
from coca_train.hub.streamed import Read, streamed
from coca_train.hub.weights import Source, translate
from coca_train.runtime.errors import CheckpointError, UserError

AskWith = Callable[[list[Probe], Spectra | None], tuple[list[Tensor], float]]  # as Side.ask_with
SHARE = 0.4  # of the free memory that a whole model may take


def library() -> Any:
    """transformers. Raises UserError E-IOP-17 without it."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            "E-IOP-17 the package `transformers` is not installed; the parity check compares with it. "
            "Fix: pip install 'coca-train[interop]'"
        ) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def of_folder(folder: Path, share: float = SHARE) -> Side:
    """A folder as anyone would load it: from_pretrained, whole in memory where that fits, else block by block.

    share: of the free memory that a whole model may take.
    """
    library()
    config = read_json(folder / NAME)
    if OWN in config:
        own.check_code(folder, architecture(folder))

    def ask(probes: list[Probe], spectra: Spectra | None) -> tuple[list[Tensor], float]:
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        halves = config.get("dtype", config.get("torch_dtype")) not in (None, "float32")
        loadable = any((folder / file).is_file() for file in (SINGLE, INDEX))
        if OWN in config or not loadable or size * (2 if halves else 1) > share * _free_memory():
            return _streamed_folder(folder, config, probes, spectra)
        return _ask(_whole(folder), probes, spectra)

    return _side(config, ask)


def _side(config: dict[str, Any], ask: AskWith) -> Side:
    """With the name that reports call it by. Our own form has our frequencies anyway."""
    family = FAMILIES.get(str(config.get("model_type")))
    what = "its modelling file" if family is None else family.transformers_class
    name = f"{what} with transformers {library().__version__}"
    return Side(name, lambda probes: ask(probes, None)[0], None if OWN in config else ask)


def _whole(folder: Path) -> Any:
    try:
        model = library().AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, use_safetensors=True
        )
        return model.eval()
    except Exception as error:  # a file from outside in a library of others: each of its parts has errors of its own
        raise _refused(folder, error) from error


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
        return _streamed(config, weights.read, probes, spectra, folder)
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

    def ask(probes: list[Probe], spectra: Spectra | None) -> tuple[list[Tensor], float]:
        with TemporaryDirectory() as place:
            for file, text in own.code(source.architecture).items() if OWN in config else ():
                (Path(place) / file).write_text(text, encoding="utf-8")
            return _streamed(config, read, probes, spectra, Path(place))

    return _side(config, ask)


def _streamed(
    config: dict[str, Any], read: Read, probes: list[Probe], spectra: Spectra | None, code: Path | None = None
) -> tuple[list[Tensor], float]:
    """code: the folder with the modelling files of a model of our own."""
    transformers = library()
    if OWN in config:
        assert code is not None
        cls, config_class = own.model_class(code)
        configuration: Any = config_class(**config)
        listed, on_disk = f"{names.OWN_PREFIX}blocks", {}
    else:
        family = FAMILIES[config["model_type"]]
        cls, configuration = (
            getattr(transformers, family.transformers_class),
            transformers.AutoConfig.for_model(**config),
        )
        listed, on_disk = family.names["blocks"], {"lm_head.weight": family.names["head"] + ".weight"}
        configuration._attn_implementation = "sdpa"
    with parameters_on_meta():
        model = cls(configuration)
    with streamed(model, list(model.get_submodule(listed)), lambda known_as: read(on_disk.get(known_as, known_as))):
        return _ask(model, probes, spectra)


@torch.no_grad()
def _ask(model: Any, probes: list[Probe], spectra: Spectra | None) -> tuple[list[Tensor], float]:
    """A mask of ones: without it transformers takes positions that jump for packed documents."""
    logits, worst = [], 0.0
    for probe in probes:
        if spectra is not None:
            worst = max(worst, _put_frequencies(model, probe, spectra(probe.length)))
        answer = model(
            input_ids=probe.tokens_BT,
            position_ids=probe.pos_BT,
            attention_mask=torch.ones_like(probe.tokens_BT),
            use_cache=False,
        )
        logits.append(answer.logits[0])
    return logits, worst


def _put_frequencies(model: Any, probe: Probe, inv_freq_J: Tensor) -> float:
    """Our frequencies into the model's rotary embedding; how far its own for this probe are from them, relative."""
    (rotary,) = (module for module in model.modules() if hasattr(module, "inv_freq"))
    kind = getattr(rotary, "coca_train_kind", rotary.rope_type)
    rotary.coca_train_kind, rotary.rope_type = kind, kind
    rotary(torch.zeros(1), probe.pos_BT)  # a dynamic one adapts to the length here
    least = torch.finfo(inv_freq_J.dtype).tiny  # of pairs that do not turn, nothing but 0 is the same
    difference = ((rotary.inv_freq - inv_freq_J).abs() / inv_freq_J.clamp(min=least)).max().item()
    rotary.rope_type, rotary.inv_freq = "default", inv_freq_J.clone()
    return difference


def token_ids(folder: Path, text: str) -> list[int] | None:
    """What transformers makes of a text with the tokenizer files of a folder; None: it cannot use them."""
    try:
        return (
            library()
            .AutoTokenizer.from_pretrained(folder, local_files_only=True)
            .encode(text, add_special_tokens=False)
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError):
        return None


def _free_memory() -> int:
    """Memory of this machine that is free now [bytes]."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
