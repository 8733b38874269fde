"""The end of a learned table of absolute positions, in words."""

from torch import Tensor

from coca_train.runtime.errors import UserError


def check_max_len(pos_BT: Tensor, max_len: int, scheme: str) -> None:
    """UserError (E-POS-04) when a position has no row in a table of `max_len` rows, 0 to max_len - 1.

    Refused, not clipped: with the last row for all that follows, the numbers would look like results.
    """
    last = int(pos_BT.max())
    if last >= max_len:
        raise UserError(
            f"E-POS-04 position.max_len={max_len}: {scheme} has no row for position {last}; its table is learned and "
            f"ends at position {max_len - 1}. Fix: train with position.max_len={last + 1} or more, or take windows of "
            f"at most {max_len} tokens"
        )
