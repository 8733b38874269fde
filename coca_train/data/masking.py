"""The masked-token objective of models that read in both directions (BERT, arXiv 1810.04805, section 3.1).

A share of the tokens is chosen to be predicted, each at its own place; most of these are shown as the mask, some as a
random token, the rest as they are, so that no token can be trusted to be what it seems.

Shape legend: B sequences, T tokens, V token ids, N ordinary ones.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import torch

from coca_train.config.schema import DataConfig
from coca_train.data.batch import Batch
from coca_train.data.tokenizer import UNKNOWN_PIECE, Tokenizer
from coca_train.runtime import IGNORE
from coca_train.runtime.errors import DataError

MASK_PIECES = ("<mask>", "[MASK]", "<|mask|>")


class Masking:
    """Masks batches as `data.objective` says.

    mask: the id that is shown for what is hidden. Special tokens, the mask among them, are neither chosen nor drawn.
    Raises DataError E-MIX-07 where the tokenizer has no such id.
    """

    def __init__(self, config: DataConfig) -> None:
        tokenizer = Tokenizer(config.tokenizer)
        self.config, self.of_answers = config.objective, config.answers.begin is not None
        self.mask = find_mask(tokenizer, config.objective.mask)
        special = {self.mask, *tokenizer.control, *(() if tokenizer.pad is None else (tokenizer.pad,))}
        # The last entry is that of ids beyond the tokenizer's, which `np.take` clips to.
        self._is_special_V = np.zeros(tokenizer.vocab_size + 1, bool)
        self._is_special_V[[token for token in special if token < tokenizer.vocab_size]] = True
        self._ordinary_N = np.flatnonzero(~self._is_special_V[:-1])

    def __call__(self, batch: Batch, draws: Sequence[str]) -> Batch:
        """Return the batch with its chosen tokens as targets, hidden from the inputs.

        batch: with the next tokens as targets, those of answers alone where `data.answers` is given. draws: for each
        row what its draw follows from. A row with a token that can be chosen has one that is.
        """
        rows = zip(batch.tokens_BT.numpy(), batch.targets_BT.numpy() != IGNORE, draws, strict=True)
        masked = [
            self._mask(tokens_T, self._can_be_chosen(tokens_T, scored_T), draw) for tokens_T, scored_T, draw in rows
        ]
        tokens_BT, targets_BT = (torch.from_numpy(np.stack(each)) for each in zip(*masked, strict=True))
        return replace(batch, tokens_BT=tokens_BT, targets_BT=targets_BT)

    def _can_be_chosen(self, tokens_T: np.ndarray, scored_T: np.ndarray) -> np.ndarray:
        """Return which tokens may be chosen, of a row whose next-token predictions `scored_T` are scored."""
        ordinary_T = ~self._is_special_V.take(tokens_T, mode="clip")
        if self.of_answers:  # a token is part of an answer where its prediction is
            return ordinary_T & np.append(False, scored_T[:-1])
        return ordinary_T & scored_T.any()  # a row without a scored prediction is padding

    def _mask(self, tokens_T: np.ndarray, can_be_T: np.ndarray, draw: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and the targets of a row."""
        # Raw numbers are the same in every release of numpy, those of a Generator need not be.
        key = int.from_bytes(hashlib.sha256(draw.encode()).digest()[:16], "little")
        raw_3T = np.random.Philox(key=key).random_raw(3 * len(tokens_T)).reshape(3, -1)
        choice_T, kind_T = (raw_3T[:2] >> np.uint64(11)) * 2.0**-53  # uniform in [0, 1)
        choice_T = np.where(can_be_T, choice_T, 2.0)
        chosen_T = choice_T < max(self.config.share, np.nextafter(choice_T.min(), 2.0))
        masked_T = chosen_T & (kind_T < self.config.masked)
        random_T = chosen_T & ~masked_T & (kind_T < self.config.masked + self.config.random)
        others_T = self._ordinary_N[raw_3T[2] % np.uint64(len(self._ordinary_N))]
        inputs_T = np.where(masked_T, self.mask, np.where(random_T, others_T, tokens_T))
        return inputs_T, np.where(chosen_T, tokens_T, IGNORE)

    def fingerprint(self) -> dict[str, object]:
        """Return what a draw depends on, apart from its seed, as JSON."""
        return {**asdict(self.config), "mask": self.mask}


def find_mask(tokenizer: Tokenizer, piece: str | None) -> int:
    """Return the id of a piece; None: of the mask of the tokenizer, or of the unknown piece where no text is encoded as
    it. Raises DataError E-MIX-07."""
    edges = {tokenizer.eod, tokenizer.bos, tokenizer.pad} - {None}
    if piece is not None:
        if (token := tokenizer.id_of(piece)) is None:
            raise DataError(
                f"E-MIX-07 data.objective.mask={piece!r}: is no piece of {tokenizer.path}. Fix: name a piece of its "
                "vocabulary that no text has"
            )
        if token in edges:
            raise DataError(
                f"E-MIX-07 data.objective.mask={piece!r}: begins, ends or fills up texts, and what is hidden would "
                "look like it. Fix: name another piece that no text has"
            )
        return token
    known = [*(tokenizer.id_of(name) for name in MASK_PIECES), tokenizer.unused_unknown]
    if (token := next((each for each in known if each is not None and each not in edges), None)) is None:
        has_unknown = tokenizer.id_of(UNKNOWN_PIECE) not in (None, *edges)
        unknown = f", and texts may have its {UNKNOWN_PIECE}" if has_unknown else ""
        example = f""", for example "data.objective.mask='{UNKNOWN_PIECE}'\"""" if has_unknown else ""
        raise DataError(
            f"E-MIX-07 data.objective.mask: {tokenizer.path} has no piece for what is hidden (known are "
            f"{', '.join(MASK_PIECES)}){unknown}. Fix: name a piece of its vocabulary that no text of yours "
            f"has{example}"
        )
    return token
