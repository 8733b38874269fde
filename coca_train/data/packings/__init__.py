"""How a source becomes windows of seq_len inputs: data.packing."""

from coca_train.config.schema import DataConfig
from coca_train.data.dataset import IndexedDataset
from coca_train.data.packings.base import Edges, Packing, Upsampling
from coca_train.data.packings.documents import Documents
from coca_train.data.packings.segments import Segments
from coca_train.data.packings.windows import Windows


def pack(data: DataConfig, name: str, dataset: IndexedDataset, seq_len: int, edges: Edges | None) -> Packing:
    """The windows of the source `name`. edges: needed but for data.packing=windows.

    Raises DataError E-TOK-12 when there is not one window, E-MIX-04 when the tokenizer lacks a token.
    """
    upsampling = None
    if data.upsample_from_tokens is not None:
        upsampling = Upsampling(data.upsample_from_tokens, data.upsample_factor)
    if data.packing == "windows":
        return Windows(dataset, name, seq_len, with_starts=data.document_mask)
    assert edges is not None, data.packing
    if data.packing == "segments":
        return Segments(dataset, name, seq_len, data.document_mask, edges, upsampling)
    return Documents(dataset, name, seq_len, edges, upsampling)
