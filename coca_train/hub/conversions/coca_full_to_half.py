"""A T of full width, whose halves the model averages, as the T of half width of the same function.

The halves of official weights and of t_width=full_mean get the same gradients, so nothing is lost for training either;
in bfloat16 and float16 the mean is rounded once.
"""

from dataclasses import replace

from torch import Tensor

from coca_train.config.schema import StartConfig
from coca_train.hub.architecture import Architecture
from coca_train.hub.conversions import EVERYWHERE
from coca_train.hub.weights import KEYS, Source
from coca_train.positions.schemes.coca import fold_full_mean
from coca_train.runtime.errors import UserError

EQUAL = EVERYWHERE


def leads(before: Architecture, after: Architecture) -> bool:
    widths = tuple(getattr(architecture.position, "t_width", "") for architecture in (before, after))
    return widths == ("full_mean", "half")


def converted(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    return fold(source)


def fold(source: Source) -> Source:
    """Formed in float32. UserError E-IOP-14 where T is not of full width."""
    settings = source.architecture.position
    if getattr(settings, "t_width", "") != "full_mean":
        raise UserError(
            f"E-IOP-14 {source.path} t_width=half: its T is not of full width (scheme {settings.scheme}). "
            "Fix: leave t_width away"
        )
    architecture = replace(source.architecture, position=replace(settings, t_width="half"))

    def read(name: str) -> Tensor:
        tensor = source.read(name)
        if not name.endswith(KEYS):
            return tensor
        return fold_full_mean(tensor.float(), architecture.n_kv_heads).to(tensor.dtype)

    return replace(
        source, architecture=architecture, shapes=architecture.shapes(), read=read,
        origin=source.origin | {"t_width": "folded to half"},
    )  # fmt: skip
