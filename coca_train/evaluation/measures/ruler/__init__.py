"""Tasks in the manner of RULER (Hsieh et al., arXiv 2404.06654): retrieval, tracing and counting at any length.

The texts are our own, and the haystacks are those that are given, so figures compare between models measured here, not
with those of RULER's own prompts. Numbers (four keys, four values, four hops, 30 against 3 repeats, exponent 2) and new
tokens are RULER's defaults. A small file a task; base.py says how a prompt gets its length and an answer its score.
"""

from coca_train.evaluation.measures.ruler import aggregation, needles, variables
from coca_train.evaluation.measures.ruler.base import Task

TASKS: dict[str, Task] = {task.name: task for task in (*needles.TASKS, variables.TASK, *aggregation.TASKS)}
