"""What suites share that ask a model and score its greedy answers: the answers, their order, a digest of prompts."""

import hashlib
from collections.abc import Iterable, Sequence

from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.subject import Setup, Subject
from coca_train.models.continuations import continuations
from coca_train.runtime import dist

Answers = list[tuple[int, str]]  # the prompt's index and the text generated; JSON makes lists of the pairs


def answers(
    subject: Subject, prompts: Sequence[Sequence[int]], length: int, max_new_tokens: int, setup: Setup
) -> Answers:
    """This rank's share, greedy (continuations.py). length: the prompts' limit [tokens]; dynamic frequencies see it and
    the new tokens, whatever the length of one prompt is."""
    new_tokens = continuations(
        subject.model,
        prompts,
        max_new_tokens,
        length=length + max_new_tokens,
        micro_batch_tokens=setup.micro_batch_tokens,
        eod=subject.tokenizer.eod,
        rank=dist.rank(),
        n_ranks=dist.world_size(),
        progress=setup.progress,
    )
    # By index: which rank answers which prompt depends on their number, and the order must not.
    return [(index, subject.tokenizer.decode(tokens)) for index, tokens in sorted(new_tokens.items())]


def gathered(parts: Iterable[Iterable[Sequence]]) -> list[str]:
    """All ranks' answers in the order of the prompts."""
    return [text for _, text in sorted(tuple(pair) for part in parts for pair in part)]


def no_positions(subject: Subject, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> str:
    """Why the model has no positions for the longest of these prompts and its answer; "" when it has."""
    needed = max(map(len, prompts)) + max_new_tokens
    problem = missing_positions(subject.model, needed)
    return problem and f"{problem}, and prompt and answer need {needed:,}"


def digest(prompts: Iterable[tuple[Sequence[int], Sequence[str]]]) -> str:
    """Of prompts (tokens) and what is expected in their answers."""
    whole = hashlib.sha256()
    for tokens, expected in prompts:
        whole.update(f"{list(tokens)} {list(expected)}\n".encode())
    return whole.hexdigest()
