"""Words that prompts are made of: some nobody has read before, and some that everybody has."""

import random
from collections.abc import Callable
from typing import TypeVar

CONSONANTS, VOWELS, SYLLABLES = "bdfgklmnprstvz", "aeiou", 3

Thing = TypeVar("Thing")

# Nouns of everyday, in one or two tokens of a small tokenizer. None is part of another one, nor of what stands beside
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
    """n different things, drawn one after the other: the first ones are the same whatever n is."""
    drawn: dict[Thing, None] = {}
    while len(drawn) < n:
        drawn[one()] = None
    return list(drawn)


def word(draw: random.Random) -> str:
    """A made-up word of three syllables, such as bamilo."""
    return "".join(draw.choice(CONSONANTS) + draw.choice(VOWELS) for _ in range(SYLLABLES))


def words(n: int, draw: random.Random) -> list[str]:
    """n different made-up words."""
    return different(n, lambda: word(draw))


def common(draw: random.Random) -> str:
    """One of EVERYDAY."""
    return draw.choice(EVERYDAY)
