"""What the host knows of tensors, kept with them, so that no device has to be asked: a question (`.item()`, `bool(…)`)
makes the host wait until all that was launched has run, and a copy from the host's memory does too.

Positions are noted where they are made (data/batch.py, Decoder.places); what was not noted is measured when it is asked
for, once. A note stays with the tensor object alone: a slice or a copy of it has none.

Shape legend: B batch, T queries, S keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.runtime.staging import placed

NOTE, DOCUMENTS, COPIES = "known_extent", "known_rising", "known_copies"


class Extent(NamedTuple):
    """Between which positions all of a tensor lie, both ends included: bounds, and where measured the very ends."""

    first: int
    last: int


def note(pos_BS: Tensor, extent: Extent, rising: bool | None = None, doc_BS: Tensor | None = None) -> Tensor:
    """The same tensor, with what is known of it. rising: see `rising`, with these documents; None: not known."""
    setattr(pos_BS, NOTE, extent)
    if rising is not None:
        # By identity: positions that count anew in every document rise only with just those documents.
        setattr(pos_BS, DOCUMENTS, (rising, doc_BS))
    return pos_BS


def extent(pos_BS: Tensor) -> Extent:
    """What is noted, else measured."""
    if not hasattr(pos_BS, NOTE):
        note(pos_BS, Extent(int(pos_BS.min()), int(pos_BS.max())))
    return getattr(pos_BS, NOTE)


def rising(pos_BS: Tensor, doc_BS: Tensor | None) -> bool:
    """Whether positions rise by one from key to key, but where another document starts; documents in rising order, so
    that none comes back later. Noted, else measured."""
    noted, of_documents = getattr(pos_BS, DOCUMENTS, (None, None))
    if noted is not None and of_documents is doc_BS:
        return noted
    rises = pos_BS[:, 1:] - pos_BS[:, :-1] == 1
    if doc_BS is not None:
        step_BS = doc_BS[:, 1:] - doc_BS[:, :-1]
        rises = (rises & (step_BS == 0)) | (step_BS > 0)
    rose = bool(rises.all())
    setattr(pos_BS, DOCUMENTS, (rose, doc_BS))
    return rose


def is_noted_rising(pos_BS: Tensor) -> bool:
    """Whether it is noted that they rise, with whatever documents."""
    return getattr(pos_BS, DOCUMENTS, (False, None))[0] is True


def moved(pos_BS: Tensor, doc_BS: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Both on a device, with their notes."""
    there_BS, docs_BS = (None if x is None else placed(x, device) for x in (pos_BS, doc_BS))
    assert there_BS is not None
    noted, of_documents = getattr(pos_BS, DOCUMENTS, (None, None))
    known = noted if of_documents is doc_BS else None
    return (note(there_BS, extent(pos_BS), known, docs_BS) if hasattr(pos_BS, NOTE) else there_BS), docs_BS


def on(tensor: Tensor, device: torch.device) -> Tensor:
    """A constant of the host on a device: copied the first time, then kept with it."""
    if tensor.device == device or tensor.is_meta:  # of a model without memory: what it meets goes there
        return tensor
    copies = getattr(tensor, COPIES, {})
    setattr(tensor, COPIES, copies)
    if device not in copies:
        copies[device] = tensor.to(device)
    return copies[device]
