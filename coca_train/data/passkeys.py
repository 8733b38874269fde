"""The words of a passkey prompt (arXiv 2305.16300; CoCA paper B.1, listing 1): to train on, and to be asked."""

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
QUESTION = "What is the passkey?"
LOWEST, HIGHEST = 10_000, 99_999


def lines(key: int, n_before: int, n_after: int) -> list[str]:
    """The prompt's lines; joined by line ends they are the prompt."""
    sentence = f"The passkey is {key}. Remember it. {key} is the passkey."
    return [TASK, *[FILLER] * n_before, sentence, *[FILLER] * n_after, QUESTION]


def prompt(key: int, n_before: int, n_after: int) -> str:
    return "\n".join(lines(key, n_before, n_after))
