"""What a model answers to the prompts of a cell, and how prompts are told apart: for suites that ask and score."""

import hashlib
from collections.abc import Iterable, Sequence

from coca_train.evaluation.subject import Around, Subject
from coca_train.models.continuations import continuations
from coca_train.models.generation import check_positions
from coca_train.runtime import dist

Answers = list[tuple[int, str]]  # the prompt's index and the text generated; JSON makes lists of the pairs


def begin(subject: Subject) -> tuple[int, ...]:
    """Tokens in front of a prompt or a document: that which begins texts, for a Hugging Face folder that has one. Runs
    were trained without."""
    bos = subject.tokenizer.bos
    return (bos,) if subject.facts.kind == "huggingface" and bos is not None else ()


def answers(
    subject: Subject, prompts: Sequence[Sequence[int]], length: int, max_new_tokens: int, around: Around
) -> Answers:
    """This rank's share, greedy (continuations.py). length: the prompts' limit [tokens]; dynamic frequencies see it and
    the new tokens, whatever the length of one prompt is."""
    found = continuations(
        subject.model,
        prompts,
        max_new_tokens,
        length=length + max_new_tokens,
        micro_batch_tokens=around.micro_batch_tokens,
        eod=subject.tokenizer.eod,
        rank=dist.rank(),
        n_ranks=dist.world_size(),
        progress=around.progress,
    )
    return [(index, subject.tokenizer.decode(tokens)) for index, tokens in sorted(found.items())]


def gathered(parts: Iterable[Iterable[Sequence]]) -> list[str]:
    """All ranks' answers in the order of the prompts."""
    return [text for _, text in sorted(tuple(pair) for part in parts for pair in part)]


def no_positions(subject: Subject, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> str:
    """Why the model has no positions for the longest of these prompts; "" when it has."""
    try:
        check_positions(subject.model, max(map(len, prompts)), max_new_tokens)
    except ValueError as error:
        return str(error)
    return ""


def digest(asked: Iterable[tuple[Sequence[int], Sequence[str]]]) -> str:
    """Of prompts (tokens) and what is expected in their answers."""
    whole = hashlib.sha256()
    for tokens, expected in asked:
        whole.update(f"{list(tokens)} {list(expected)}\n".encode())
    return whole.hexdigest()
