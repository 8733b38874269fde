"""The words of passkey and key-value recall prompts: training text (data_prep retrieval) and evaluations share them."""

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

CONSONANTS, VOWELS, SYLLABLES = "bdfgklmnprstvz", "aeiou", 3

Thing = TypeVar("Thing")

# Nouns of everyday, in one or two tokens of a small tokenizer. None is part of another one, nor of what surrounds
# them in prompts (ruler.NOUNS, the passkey's filler), because an answer is looked through for the word alone.
_NOUNS = """
    acorn album angle ankle apple apron arch attic aunt autumn axe baby bag baker balloon band bank barn basin basket
    bath beach beam bean beard bed bee bell belt bench berry bird biscuit blanket boat body bone book boot border
    bottle bowl box branch brass bread brick broom brother brush bucket bull bus butter button cabin cake camel camp
    canal cap card carpet cart cattle cave chain chair chalk cheese cherry chest chicken child chin church circle city
    clay clerk clock cloth cloud coach coal coast coat coffee coin collar comb cook coral cork cotton cousin cow crab
    cradle cream crown cup curtain desert desk diamond dish doctor dog doll donkey door dress drum duck dust eagle
    earth egg elbow eye face factory farm father fence ferry field finger fire fish flag flame floor flour flower fog
    foot forest fork fox frame frog fruit gate giant glass glove goat goose grain grape guest guitar hall hand hay
    head heart hedge hill honey hook horn horse hotel house ink iron jacket jar jewel judge juice jungle kitchen kite
    knee knife lake lamb lamp lawn leaf leather lemon letter library lime linen lion lip log lunch map market mask
    metal milk mill monkey moon morning mother mountain mouse mouth museum music nail neck needle nephew nest nose
    nurse oak ocean office oil onion orange oven page paint palace palm pan paper park path pearl pencil pepper pig
    pin pipe plant plate plum pocket poet pond porch potato prince queen rabbit rat ribbon rice river road rock roof
    root rope rose salt sand school seed sheep shell ship shirt shoe shop silk sister skirt snow soap sock soldier
    song soup spider spring square stair star station steam steel stone storm street sugar tailor tent thread throat
    ticket tiger timber tin tongue tooth tower town toy train tray tunnel turkey uncle vase village violin wagon wall
    watch water wave wheat wheel whistle wife wine wing winter wire witness wolf wood wool yard
"""
EVERYDAY = tuple(_NOUNS.split())


def different(n: int, one: Callable[[], Thing]) -> list[Thing]:
    """Draw n different things; the first k are the same for every n >= k."""
    drawn: dict[Thing, None] = {}
    while len(drawn) < n:
        drawn[one()] = None
    return list(drawn)


def word(draw: random.Random) -> str:
    """Draw a made-up word of three syllables, such as bamilo."""
    return "".join(draw.choice(CONSONANTS) + draw.choice(VOWELS) for _ in range(SYLLABLES))


def words(n: int, draw: random.Random) -> list[str]:
    """Draw n different made-up words."""
    return different(n, lambda: word(draw))


def common(draw: random.Random) -> str:
    """Draw one of EVERYDAY."""
    return draw.choice(EVERYDAY)


# Passkey prompts (arXiv 2305.16300), as the CoCA and the YaRN paper ask.

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
        """Return the prompt with n_before fillers before the sentence with the key and n_after after it."""
        sentence = f"The {self.name_of_key} is {key}. Remember it. {key} is the {self.name_of_key}."
        return "\n".join([*self._head(n_before), sentence, *self._fillers(n_after), self.question])

    def before_key(self, n_before: int) -> str:
        """Return the part of the prompt before the sentence with the key."""
        return "".join(f"{line}\n" for line in self._head(n_before))

    def _head(self, n_before: int) -> list[str]:
        return [TASK, *self._fillers(n_before)]

    def _fillers(self, n: int) -> list[str]:
        return self.between.join([FILLER] * n).split("\n") if n or self.between != "\n" else []


# CoCA paper B.1, listing 1: every filler on a line, keys of five digits, and nothing after the question.
COCA = Wording(name_of_key="passkey", question="What is the passkey?", between="\n", lowest=10_000, highest=99_999)
# YaRN's authors (eval/passkey.py, after arXiv 2305.16300): fillers are one line, which is empty where there are none,
# and the answer is begun. They cut the fillers at any character, here they are whole.
YARN = Wording(
    name_of_key="pass key", question="What is the pass key? The pass key is", between=" ", lowest=1, highest=50_000
)


# Key-value recall (arXiv 2307.03172): a JSON object of random pairs, then one of its keys.

Form = Literal["words", "common", "digits", "hex", "uuid"]
FORMS: dict[Form, Callable[[random.Random], str]] = {
    "words": word,
    "common": common,
    "digits": lambda draw: f"{draw.randrange(10**6):06}",
    "hex": lambda draw: f"{draw.getrandbits(32):08x}",
    "uuid": lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
}
HOW_MANY: dict[Form, int] = {"common": len(EVERYDAY)}  # different keys, of forms that a long prompt can exhaust


def recall_prompt(keys: Sequence[str], values: Sequence[str], asked: str) -> str:
    """Return the object with all pairs and the question for one key."""
    return f'{recall_prefix(keys, values, len(keys))}\n}}\n"{asked}":'


def recall_prefix(keys: Sequence[str], values: Sequence[str], n: int) -> str:
    """Return the part of a recall prompt before pair n."""
    lines = ",\n".join(f'"{key}": "{value}"' for key, value in zip(keys[:n], values[:n], strict=True))
    return "{\n" + lines + (",\n" if 0 < n < len(keys) else "")


def recall_answer(value: str) -> str:
    """Return the text that the model has to generate."""
    return f' "{value}"'
