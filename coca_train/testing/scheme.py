"""What every position scheme promises, as a class of tests: `class TestMine(SchemeContract)`, see docs/extending.md.

Each of its parents holds a scheme to one thing, and says why: the definition, what the class declares of itself, its
tensors, a whole model.
"""

from coca_train.testing.declarations import Declared
from coca_train.testing.definition import Defined
from coca_train.testing.tensors import Tensors
from coca_train.testing.whole_models import InAModel


class SchemeContract(Defined, Declared, Tensors, InAModel):
    """The tests of one scheme. A subclass gives its name, its definition and what its parameters are called.

    cases: settings to test besides those of the yamls in configs/position/ that name the scheme, without the key
    `scheme`; small ones, so that tables end and counts run out within 17 tokens. shared, own: shapes of the scheme's
    and of a layer's parameters under cases[0], or under the first yaml where there are none, at 4 heads, 2 of keys,
    head_dim 16, d_model 24.
    angles: it computes with float32 angles. rounding: what float32 may differ by. positive: parameters that are
    drawn above 0.1.
    """
