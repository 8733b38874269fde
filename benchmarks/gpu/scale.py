"""How large everything is: as on a GPU, or as toys that a CPU rehearses with."""

from dataclasses import dataclass
from typing import TypeVar

import torch

from coca_train.planning.hardware import GPUS, RATES, Rates

T = TypeVar("T")
# A recipe in miniature: its scheme, stages and dtype stay.
TOY = (
    *("model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.n_kv_heads=null", "model.d_ff=48"),
    *("model.vocab_size=4096", "train.seq_len=32", "train.micro_batch_size=2", "train.global_batch_size=4"),
)


@dataclass(frozen=True)
class Scale:
    """toy: sizes for a rehearsal."""

    toy: bool

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def rates(self) -> Rates | None:
        """Those of this GPU, where the roofline knows them."""
        if self.device == "cpu":
            return None
        name = torch.cuda.get_device_name()
        return next((RATES[short] for short, gpu in GPUS.items() if gpu.device == name and short in RATES), None)

    def pick(self, full: T, toy: T) -> T:
        return toy if self.toy else full

    def words(self, *words: str) -> list[str]:
        """The command line of a recipe, in miniature where this is a rehearsal."""
        return [*words, *self.pick((), TOY), f"engine.device={self.device}"]
