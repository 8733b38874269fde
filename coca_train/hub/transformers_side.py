"""The other side of a parity check: a class of `transformers`, or one of our own exports, and its tokenizers."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coca_train.engine.base import parameters_on_meta
from coca_train.hub import forms
from coca_train.hub.config_json import NAME
from coca_train.hub.config_keys import CODE, Json, Keys, read_json, without_code
from coca_train.hub.families import FAMILIES, name_of
from coca_train.hub.layer_rules import FULL, SLIDING
from coca_train.hub.parity import Frequencies, Probe, Read, Side, Spectra, stream_blocks
from coca_train.hub.safetensors_folder import INDEX, SINGLE, Folder
from coca_train.hub.weights import Source, name_in_files, translate
from coca_train.runtime import dist
from coca_train.runtime.errors import CheckpointError, DataError, UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Compute = Callable[[list[Probe], Spectra | None], tuple[list[Tensor], float]]  # as Side.logits_with
SHARE = 0.4  # of the free memory that a whole model may take


def library() -> ModuleType:
    """Import transformers. Raises UserError E-IOP-17 where that fails."""
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


def side_of_folder(folder: Path) -> Side:
    """Load a folder by from_pretrained, whole in memory where that fits, else block by block.

    Only its config.json and its weights are read, none of its code. Raises UserError E-IOP-04 (a model_type that needs
    code of the folder), E-IOP-16 (code that is not ours).
    """
    written = read_json(folder / NAME)
    config, is_own = without_code(written), written.get("model_type") in forms.OWN_TYPES
    if is_own:
        forms.check_code(folder, str(config["model_type"]))
    else:
        _refuse_unknown(folder / NAME, written)
        if config != written:
            dist.log(f"WARNING: {folder / NAME} names code ({CODE}); it is not run: read as {config['model_type']}")

    def compute(probes: list[Probe], spectra: Spectra | None) -> tuple[list[Tensor], float]:
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        is_half = config.get("dtype", config.get("torch_dtype")) not in (None, "float32")
        loadable = any((folder / file).is_file() for file in (SINGLE, INDEX))
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if is_own or not loadable or size * (2 if is_half else 1) > SHARE * free_bytes:
            return _stream_folder(folder, config, probes, spectra)
        return _compute_logits(_load_whole(folder, config), probes, spectra)

    return _side(config, compute)


def side_of_source(source: Source, config: Json) -> Side:
    """Stream a source's weights into the other side's class. config: its config.json."""
    library()
    read = translate(source, name_of(config)).read
    return _side(config, lambda probes, spectra: _stream_model(config, read, probes, spectra))


def _side(config: Json, compute: Compute) -> Side:
    """Return the side with its name for reports. Our own classes round frequencies as we do."""
    name, is_own = name_of(config), config["model_type"] in forms.OWN_TYPES
    what = forms.class_name(name) if is_own or name in FAMILIES else name
    title = f"{what} with transformers {library().__version__}"
    return Side(title, lambda probes: compute(probes, None)[0], None if is_own else compute, not takes_positions(name))


def _refuse_unknown(path: Path, config: Json) -> None:
    """Raise UserError E-IOP-04 for a model_type that transformers has no class of its own for."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in library().CONFIG_MAPPING:
        raise Keys(path, config).wrong(
            f"model_type={name!r}",
            f"transformers {library().__version__} has no class of that name, and code of a folder is never run",
            f"give a folder of a type that it has, such as {', '.join(FAMILIES)}",
        )


def _load_whole(folder: Path, config: Json) -> "PreTrainedModel":
    """Load a model from a temporary folder with this config.json and links to the weights, and no other file."""
    with TemporaryDirectory() as fresh:
        place = Path(fresh)
        (place / NAME).write_text(json.dumps(config), encoding="utf-8")
        for file in (*folder.glob("*.safetensors"), folder / INDEX):
            if file.is_file():
                (place / file.name).symlink_to(file.resolve())
        try:
            model = library().AutoModelForCausalLM.from_pretrained(
                place,
                dtype=torch.float32,
                attn_implementation=_attention(_known_class(name_of(config))),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
            return model.eval()
        except Exception as error:  # of an untrusted file in another library: any class
            raise _unloadable(folder, error) from error


def _known_class(name: str) -> "type[PreTrainedModel] | None":
    """Return the class of one of our families; None: it is none of them."""
    family = FAMILIES.get(name)
    return None if family is None else getattr(library(), family.transformers_class)


def _attention(cls: "type[PreTrainedModel] | None") -> str:
    """Return the kernel of transformers that computes what the class defines: caps of scores (Gemma 2) are in its own
    code only, which classes before 5.21 do not say."""
    capped = getattr(cls and cls.config_class, "attn_logit_softcapping", None) is not None
    return "sdpa" if cls is None or (cls._supports_sdpa and not capped) else "eager"


def _stream_folder(
    folder: Path, config: Json, probes: list[Probe], spectra: Spectra | None
) -> tuple[list[Tensor], float]:
    weights = Folder(folder)
    try:
        return _stream_model(config, lambda name: weights.read(name_in_files(name, weights.shapes)), probes, spectra)
    except UserError:
        raise
    except Exception as error:
        raise _unloadable(folder, error) from error
    finally:
        weights.close()


def _unloadable(folder: Path, error: Exception) -> CheckpointError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return CheckpointError(
        f"E-IOP-13 {folder}: transformers cannot load it: {reason}. Fix: download or export the folder again; if it is "
        "new, mend to_transformers of a scheme or frequencies of your own, or report it with its config.json"
    )


def _class_of(config: Json) -> "tuple[type[PreTrainedModel], PretrainedConfig, str, dict[str, str]]":
    """Return the class of a config.json, its configuration, the module with its blocks, and the names of parameters
    that differ in its files (the head of GPT-NeoX)."""
    if (name := name_of(config)) in forms.OWN_TYPES:
        cls, config_class = forms.own_classes(name)
        return cls, config_class.from_dict(config), forms.BLOCKS[name], {}
    family = FAMILIES[name]
    cls, configuration = getattr(library(), family.transformers_class), library().AutoConfig.for_model(**config)
    return cls, configuration, family.names["blocks"], {"lm_head.weight": f"{family.names['head']}.weight"}


def _stream_model(config: Json, read: Read, probes: list[Probe], spectra: Spectra | None) -> tuple[list[Tensor], float]:
    """Build the class of a config.json and read one block at a time. read: a parameter by its name in the files."""
    cls, configuration, blocks, on_disk = _class_of(config)
    configuration._attn_implementation = _attention(cls)
    with parameters_on_meta():
        model = cls(configuration)
    stack = model.get_submodule(blocks)
    with stream_blocks(model, list(stack.children()), lambda name: read(on_disk.get(name, name))):
        return _compute_logits(model, probes, None if config["model_type"] in forms.OWN_TYPES else spectra)


def model_of_source(source: Source, config: Json) -> "PreTrainedModel":
    """Build the other side's class with all of a source's weights, in float32. config: its config.json."""
    cls, configuration, _, on_disk = _class_of(config)
    model = cls._from_config(configuration, attn_implementation=_attention(cls), dtype=torch.float32).eval()
    theirs, in_memory = translate(source, name_of(config)), {disk: name for name, disk in on_disk.items()}
    weights = {in_memory.get(tensor, tensor): theirs.read(tensor) for tensor in theirs.shapes}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and (not missing or source.architecture.model.tie_embeddings), (missing, unexpected)
    model.tie_weights()
    return model


@torch.no_grad()
def _compute_logits(
    model: "PreTrainedModel", probes: list[Probe], spectra: Spectra | None
) -> tuple[list[Tensor], float]:
    """Return the logits of each probe, and the largest relative difference of frequencies from ours."""
    logits, worst = [], 0.0
    for probe in probes:
        reset_lengths(model)
        if spectra is not None:
            worst = max(worst, put_frequencies(model, probe.pos_BT, spectra(probe.length)))
        # Without a mask positions that jump begin another document.
        mask = torch.ones_like(probe.tokens_BT)
        lengthen(model, probe.length)
        placed = position_words(model, probe.pos_BT)
        out = model(input_ids=probe.tokens_BT, attention_mask=mask, **placed, use_cache=False)
        logits.append(out.logits[0])
    return logits, worst


def takes_positions(name: str) -> bool:
    """Whether the class of a family, or of our model types, takes positions of tokens."""
    return name not in FAMILIES or not FAMILIES[name].positions.counted


def position_words(model: "PreTrainedModel", pos_BT: Tensor) -> dict[str, Tensor]:
    """Return the argument that places tokens, of a class that takes one."""
    name = name_of({"model_type": model.config.model_type})
    return {"position_ids": pos_BT} if takes_positions(name) else {}


def lengthen(model: "PreTrainedModel", length: int) -> None:
    """Let a class that prepares biases for `max_seq_len` tokens (MPT) read as many as these."""
    if hasattr(model.config, "max_seq_len"):
        model.config.max_seq_len = max(model.config.max_seq_len, length)


def reset_lengths(model: nn.Module) -> None:
    """Reset dynamic frequencies after a longer text.

    transformers resets them only for texts below the trained length: a text of exactly that length would keep the
    frequencies of the one before.
    """
    for module in model.modules():
        if hasattr(module, "original_inv_freq") and hasattr(module, "max_seq_len_cached"):
            module.inv_freq, module.max_seq_len_cached = module.original_inv_freq, module.original_max_seq_len


def put_frequencies(model: nn.Module, pos_BT: Tensor, frequencies: Frequencies) -> float:
    """Put our frequencies into the model's rotary embedding; return the largest relative difference of its own at these
    positions. Raises UserError E-IOP-10 where it rotates another number of pairs."""
    rotary: Any  # a class of each family
    (rotary,) = (module for module in model.modules() if any("inv_freq" in name for name in module._buffers))
    if not isinstance(rotary.rope_type, dict):
        rotary.rope_type = rotary.config.rope_parameters["rope_type"]  # an earlier call made it "default"
        rotary(torch.zeros(1), pos_BT)  # a dynamic one adapts to the length here
        rotary.rope_type = "default"
        return _replace_frequencies(rotary, "inv_freq", frequencies.full)
    for name in rotary.rope_type:
        rotary.rope_type[name] = rotary.config.rope_parameters[name]["rope_type"]
        rotary(torch.zeros(1), pos_BT, name)
        rotary.rope_type[name] = "default"
    ours = {FULL: frequencies.full, SLIDING: frequencies.windows}
    return max(_replace_frequencies(rotary, f"{name}_inv_freq", ours[name]) for name in rotary.rope_type)


def _replace_frequencies(rotary: nn.Module, name: str, inv_freq_J: Tensor) -> float:
    """Replace a buffer; return its largest relative difference from the new one."""
    theirs_J, least = rotary.get_buffer(name), torch.finfo(inv_freq_J.dtype).tiny  # a still pair equals 0 only
    if theirs_J.shape != inv_freq_J.shape:
        raise UserError(
            f"E-IOP-10 {NAME}: its heads rotate {len(theirs_J)} pairs of their dimensions, those of the run "
            f"{len(inv_freq_J)}; only models of the same size can be compared. Fix: give the folder of this model"
        )
    difference = ((theirs_J - inv_freq_J).abs() / inv_freq_J.clamp(min=least)).max().item()
    setattr(rotary, name, inv_freq_J.clone())
    return difference


def check_tokenizer(path: Path) -> None:
    """Raise UserError E-IOP-23 for a tokenizer_config.json whose class transformers does not have."""
    name = read_json(path).get("tokenizer_class")
    if name is None:
        return
    transformers = library()
    lookup = transformers.models.auto.tokenization_auto.tokenizer_class_from_name
    cls = lookup(name) if isinstance(name, str) else None
    # One that needs a package which is not installed has _backends.
    if not isinstance(cls, type) or not (
        issubclass(cls, transformers.PreTrainedTokenizerBase) or hasattr(cls, "_backends")
    ):
        raise UserError(
            f"E-IOP-23 {path} tokenizer_class={name!r}: transformers {transformers.__version__} has no tokenizer of "
            "that name, and code of a folder (auto_map) is never run. Fix: export with tokenizer=none, or write "
            '"PreTrainedTokenizerFast" there where a tokenizer.json is complete'
        )


def load_tokenizer(folder: Path, **options: object) -> "PreTrainedTokenizerBase":
    """Load a folder's tokenizer with transformers, and none of its code.

    Raises UserError E-IOP-17 where it, or a package that it reads them with, cannot be imported, DataError E-IOP-24
    where it cannot read them.
    """
    theirs = library().AutoTokenizer
    with _reading_tokenizer(folder):
        return theirs.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)


def token_ids(folder: Path, text: str) -> list[int]:
    """Encode a text with transformers and the tokenizer files of a folder. Raises as `load_tokenizer`."""
    theirs = load_tokenizer(folder)
    with _reading_tokenizer(folder):
        return theirs.encode(text, add_special_tokens=False)


@contextmanager
def _reading_tokenizer(folder: Path) -> Iterator[None]:
    """Turn an exception of transformers into an error of ours that quotes it."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"E-IOP-17 {folder}: transformers cannot read its tokenizer: {_first_line(error)}. "
            "Fix: pip install 'coca-train[interop]', or the package that is named"
        ) from error
    except Exception as error:  # of untrusted files in another library: any class
        raise DataError(
            f"E-IOP-24 {folder}: transformers cannot read its tokenizer: {type(error).__name__}: {_first_line(error)}. "
            "Fix: give the folder the tokenizer files of its model as they were published"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
