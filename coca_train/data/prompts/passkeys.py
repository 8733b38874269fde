"""The words of passkey prompts (arXiv 2305.16300), as the CoCA and the YaRN paper ask: to train on, and to be asked."""

from dataclasses import dataclass

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Task, fillers, the sentence with the key, fillers and the question, each part on lines of its own.

    between: two fillers. Keys are drawn from lowest to highest, all equally likely.
    """

    name_of_key: str
    question: str
    between: str
    lowest: int
    highest: int

    def prompt(self, key: int, n_before: int, n_after: int) -> str:
        """With so many fillers before the key's sentence and behind it."""
        sentence = f"The {self.name_of_key} is {key}. Remember it. {key} is the {self.name_of_key}."
        return "\n".join([*self._head(n_before), sentence, *self._fillers(n_after), self.question])

    def before_key(self, n_before: int) -> str:
        """What stands before the key's sentence."""
        return "".join(f"{line}\n" for line in self._head(n_before))

    def _head(self, n_before: int) -> list[str]:
        return [TASK, *self._fillers(n_before)]

    def _fillers(self, n: int) -> list[str]:
        return self.between.join([FILLER] * n).split("\n") if n or self.between != "\n" else []


# CoCA paper B.1, listing 1: every filler on a line, keys of five digits, and nothing behind the question.
COCA = Wording(name_of_key="passkey", question="What is the passkey?", between="\n", lowest=10_000, highest=99_999)
# YaRN's authors (eval/passkey.py, after arXiv 2305.16300): fillers are one line, which is empty where there are none,
# and the answer is begun. They cut the fillers at any character, here they are whole.
YARN = Wording(
    name_of_key="pass key", question="What is the pass key? The pass key is", between=" ", lowest=1, highest=50_000
)
