"""Hidden states that segment recurrence keeps of the text before a segment (Transformer-XL, arXiv 1901.02860, section
3.2).

Shape legend: B batch, T tokens of the segment, M memory_len, C d_model.
"""

import torch
from torch import Tensor

from coca_train.positions.token_positions import Positions


class Memory:
    """The past of one micro batch, layer by layer: the model reads it, and appends the next one to `new`.

    hidden: for each layer the inputs of its block at the M positions before the segment, (B, M, C), without gradient.
    length_B: int64, how many of the M positions each row really has: the last ones; the values of the others mean
    nothing and must not be attended to (they are finite). An object serves one forward.
    """

    def __init__(self, hidden: list[Tensor], length_B: Tensor) -> None:
        assert all(x_BMC.shape[:2] == (len(length_B), hidden[0].shape[1]) for x_BMC in hidden)
        self.hidden = hidden
        self.length_B = length_B
        self.new: list[Tensor] = []

    @property
    def memory_len(self) -> int:
        """M, positions [tokens]."""
        return self.hidden[0].shape[1]

    @property
    def valid_BM(self) -> Tensor:
        """bool: the positions that may be attended to. A row whose text has just begun has none."""
        from_end_M = torch.arange(self.memory_len, 0, -1, device=self.length_B.device)
        return from_end_M <= self.length_B[:, None]

    def exchange(self, x_BTC: Tensor) -> Tensor:
        """Return x_BMC, a layer's memory, and remember the input of its block. Called once a layer and forward, in
        their order.

        Appends the last M positions of [memory ; segment] to `new`: values only, no graph and no view of x_BTC.
        """
        layer = len(self.new)
        assert layer < len(self.hidden), "the model has more layers than its memory"
        x_BMC, x_BTC = self.hidden[layer], x_BTC.detach()
        n_old = max(0, self.memory_len - x_BTC.shape[1])
        self.new.append(torch.cat([x_BMC[:, self.memory_len - n_old :], x_BTC[:, -self.memory_len :]], dim=1))
        return x_BMC


def prepend_memory(memory: Memory, positions: Positions, doc_BT: Tensor | None) -> tuple[Positions, Tensor]:
    """Return positions and documents of memory and segment; positions that a row does not have get a document of their
    own."""
    valid_BM, pos_BT = memory.valid_BM, positions.pos_BT
    before_M = torch.arange(-memory.memory_len, 0, device=pos_BT.device)
    pos_BS = torch.cat((pos_BT[:, :1] + before_M, pos_BT), dim=1)
    if doc_BT is None:
        doc_BT = torch.zeros(valid_BM.shape[0], pos_BT.shape[1], dtype=torch.long, device=pos_BT.device)
    doc_BS = torch.cat((torch.where(valid_BM, doc_BT[:, :1], -1), doc_BT), dim=1)
    first = positions.first - memory.memory_len
    return Positions(pos_BS, first, positions.last, positions.contiguous), doc_BS
