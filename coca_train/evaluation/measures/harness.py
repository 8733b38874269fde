"""The tasks of lm-evaluation-harness (Gao et al., github.com/EleutherAI/lm-evaluation-harness), answered by our models.

Tasks, prompts, few-shot examples, filters, metrics and standard errors are the harness's; ours is the likelihood
(likelihood.py) and the greedy generation. A task is evaluated in two halves: `answer` gives the model's answers to some
of its requests (each rank to its share), `score` hands all answers to the harness's own evaluation, which asks again.
So a figure does not depend on the number of ranks.

Encoding is TemplateLM's: context and continuation as one text, cut after the tokens of the context alone; spaces at
the end of a context belong to the continuation. Where one token reaches from the context to the continuation's end,
that token is scored; the harness has an AssertionError. Without a `window` all is read as it is. With one, what is
longer loses tokens on its left (counted in `n_clipped`), and texts of loglikelihood_rolling are cut into disjoint
windows (lm_eval.utils); the prompt of a generation is clipped to `window` - max_gen_toks.

Seeds are those of `lm_eval --seed`. Each task is loaded by itself, so that its figure does not depend on those before
it.
"""

import hashlib
import json
import logging
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, NamedTuple
from unittest.mock import patch

import lm_eval
import numpy as np
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, TemplateLM
from lm_eval.evaluator import evaluate
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.tasks import TaskManager
from lm_eval.tasks.manager import TaskDict
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from coca_train.evaluation.measures.harness_text import TaskText
from coca_train.evaluation.measures.likelihood import Likelihood, Request, clip, likelihoods
from coca_train.models.generation import generate
from coca_train.models.transformer import Transformer
from coca_train.runtime.untrusted_io import JsonObject

VERSION = lm_eval.__version__
# Of the harness's bootstrap, for metrics whose standard error has no formula. It draws 100,000 on all cores, which
# takes half an hour on one for 1,000 documents; the figures are the same, their standard errors within 3 %.
RESAMPLES = 1000
Answers = JsonObject  # answer by request_key(request)

# The harness would fork a process for each core, of one that may hold a GPU.
os.environ.setdefault("DISABLE_MULTIPROC", "1")
logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of every default of every task


class Reading(NamedTuple):
    """How much is read at once: see the module. window, batch_tokens [tokens], window None: none."""

    window: int | None
    batch_tokens: int


class Seeds(NamedTuple):
    """As in `lm_eval --seed`."""

    python: int
    numpy: int
    torch: int
    few_shot: int


class Adapter(TemplateLM):
    """A model as the harness asks it."""

    def __init__(self, model: Transformer, text: TaskText, reading: Reading) -> None:
        super().__init__()
        self.model, self.text, self.reading = model, text, reading
        self.n_clipped = 0  # requests that did not fit
        self.progress: Callable[[int], None] = lambda n_requests: None

    @property
    def eot_token_id(self) -> int:
        return self.text.prefix

    @property
    def prefix_token_id(self) -> int:
        return self.text.prefix

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: object) -> list[int]:
        return self.text.encode(string, add_special_tokens)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        before, after = super()._encode_pair(context, continuation)
        if after:
            return before or [self.text.prefix], after
        whole = self.tok_encode(context + continuation)
        return whole[:-1] or [self.text.prefix], whole[-1:]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: object
    ) -> list[tuple[float, bool]]:
        pairs = [Request(tuple(context), tuple(continuation)) for _, context, continuation in requests]
        return [(answer.total, answer.greedy) for answer in self._likelihoods(pairs)]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        windows, owners = [], []
        for index, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            window = self.reading.window or len(tokens) or 1
            for pair in get_rolling_token_windows(tokens, self.text.prefix, window, context_len=1):
                windows.append(Request(*map(tuple, make_disjoint_window(pair))))
                owners.append(index)
        totals = [0.0] * len(requests)
        for index, answer in zip(owners, self._likelihoods(windows), strict=True):
            totals[index] += answer.total
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        return [self._generate(*request.args) for request in requests]

    def _likelihoods(self, requests: Sequence[Request]) -> list[Likelihood]:
        window = self.reading.window
        clipped = list(requests) if window is None else [clip(request, window) for request in requests]
        self.n_clipped += sum(one != other for one, other in zip(clipped, requests, strict=True))
        return likelihoods(self.model, clipped, batch_tokens=self.reading.batch_tokens, progress=self.progress)

    def _generate(self, context: str, options: JsonObject) -> str:
        wanted = _generation_options(options)
        n_new, stops = wanted["max_gen_toks"], [stop for stop in (*wanted["until"], *self.text.stops) if stop]
        tokens = self.tok_encode(context) or [self.text.prefix]
        kept = tokens if self.reading.window is None else tokens[-(self.reading.window - n_new) :]
        self.n_clipped += len(kept) < len(tokens)

        def ended(new: list[int]) -> bool:
            return new[-1] in self.text.ends or any(stop in self.text.decode(new) for stop in stops)

        new = generate(self.model, kept, n_new, stop=ended)
        self.progress(1)
        # Decoded alone, as the harness does: a tokenizer that begins texts with a space takes that of an answer away.
        return postprocess_generated_text(self.text.decode(new), stops, think_end_token=None)


def _generation_options(options: JsonObject) -> JsonObject:
    """Return max_gen_toks, until and do_sample of a request to generate, whatever a task calls them."""
    return dict(normalize_gen_kwargs(options))


class _Answered(LM):
    """A model that has answered everything already."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self._answer: Callable[[Instance], Any] = lambda request: answers[request_key(request)]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return [(nats, greedy) for nats, greedy in map(self._answer, requests)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return list(map(self._answer, requests))

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return list(map(self._answer, requests))


class LoadedTask(NamedTuple):
    """A task, or a group of them, with its data. requests: all of them, in a fixed order."""

    tree: TaskDict
    limit: int | None
    seeds: Seeds
    requests: list[Instance]


def request_key(request: Instance) -> str:
    """Return the digest of what is asked; the same question has the same answer."""
    question = json.dumps([request.request_type, request.args], sort_keys=True, default=str)
    return hashlib.sha256(question.encode()).hexdigest()[:32]


class Tasks(NamedTuple):
    """Task files. text: of the model, for tasks that count tokens."""

    index: TaskManager
    text: TaskText


def tokenizer_name(text: TaskText) -> str:
    """Return what a task calls the tokenizer of a model."""
    return f"coca_train/{hashlib.sha256(text.identity.encode()).hexdigest()}"


def find_tasks(
    names: Sequence[str], include_path: str | None, text: TaskText, metadata: Mapping[str, object] | None = None
) -> Tasks:
    """Return the index of task files: your own folder alone when it has all of `names`, else with the harness's own.

    metadata: for tasks that make their texts, such as max_seq_lengths."""
    options = {"tokenizer": tokenizer_name(text), **(metadata or {})}
    if include_path is not None:
        own = TaskManager(include_path=include_path, include_defaults=False, metadata=options)
        if set(names) <= set(own.all_tasks):
            return Tasks(own, text)
    return Tasks(TaskManager(include_path=include_path, metadata=options), text)


@contextmanager
def own_tokenizer(text: TaskText) -> Iterator[None]:
    """Give tasks that make texts of a given length (RULER's) the model's own tokenizer, which they open by name with
    transformers; and run no code of a folder for any other, though they ask for it."""
    opened, ours = transformers.AutoTokenizer.from_pretrained, tokenizer_name(text)

    def from_pretrained(name: str, *given: object, **options: object) -> object:
        if name == ours:
            return text.counter
        return opened(name, *given, **{**options, "trust_remote_code": False})

    with patch.object(transformers.AutoTokenizer, "from_pretrained", from_pretrained):
        yield


def load_task(known: Tasks, name: str, num_fewshot: int | None, limit: int | None, seeds: Seeds) -> LoadedTask:
    """Load a task with its data and all its requests.

    num_fewshot: None = each task's own; a task that sets 0 keeps it, as in the harness. limit: documents a task,
    None = all. Raises ValueError with the reason in words: no such task, no data, or requests we do not answer.
    """
    try:
        # A bar for each of its steps, and what its task files print.
        silence = redirect_stderr(StringIO()), redirect_stdout(StringIO())
        with _seeded(seeds), silence[0], silence[1], own_tokenizer(known.text):
            tree = known.index.load([name])
            for task in tree["tasks"].values():
                own = task.get_config("num_fewshot")
                task.set_config("num_fewshot", own or 0 if num_fewshot is None or own == 0 else num_fewshot)
            requests = []
            for task in tree["tasks"].values():
                task.set_fewshot_seed(seeds.few_shot)
                task.build_all_requests(limit=get_sample_size(task, limit))
                requests += task.instances
    except Exception as error:  # data sets, their hub and task files fail in every way there is
        words = [line.strip() for line in str(error).splitlines() if re.search(r"\w", line)] or [""]
        raise ValueError(f"task {name} cannot be loaded: {type(error).__name__}: {words[0][:200]}") from error
    generated = [_generation_options(r.args[1]) for r in requests if r.request_type == "generate_until"]
    if any(options["do_sample"] for options in generated):
        raise ValueError(f"task {name} asks for sampled answers; only the most probable ones are generated")
    if any(r.doc.get("outputs") == [] for r in requests if isinstance(r.doc, dict)):  # RULER's common words
        raise ValueError(f"task {name} has questions without an answer: prompts of this length have no room for one")
    rolling = [r.args[0] for r in requests if r.request_type == "loglikelihood_rolling"]
    if rolling and not any(rolling):  # its metrics divide by bytes
        raise ValueError(f"task {name} has nothing but empty texts")
    if any(r.request_type == "loglikelihood" and not any(r.args) for r in requests):
        raise ValueError(f"task {name} asks how likely an empty text is after an empty one")
    return LoadedTask(tree, limit, seeds, requests)


@contextmanager
def _seeded(seeds: Seeds) -> Iterator[None]:
    """Seed the global generators, which task files use, and back."""
    before = random.getstate(), np.random.get_state()
    random.seed(seeds.python)
    np.random.seed(seeds.numpy)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seeds.torch)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def explain_too_long(adapter: Adapter, requests: Sequence[Instance]) -> str:
    """Say why some request can never fit into the window, in words; "" when all can."""
    window = adapter.reading.window
    if window is None:
        return ""
    for request in requests:
        *_, last = request.args
        if request.request_type == "generate_until":
            if (n_new := _generation_options(last)["max_gen_toks"]) >= window:
                return f"{n_new:,} new tokens leave no room for a prompt in a window of {window:,}"
        elif request.request_type == "loglikelihood" and len(adapter.text.encode(last, False)) > window:
            return f"a continuation is longer than the window of {window:,} tokens"
    return ""


def longest_request(adapter: Adapter, requests: Sequence[Instance]) -> int:
    """Return the positions that the longest of these requests takes as it is asked, its answer included [tokens]."""
    window, taken = adapter.reading.window, [0]
    for request in requests:
        n_new, texts = 0, list(request.args)
        if request.request_type == "generate_until":
            n_new = _generation_options(texts.pop())["max_gen_toks"]
        taken.append(len(adapter.tok_encode("".join(texts)) or [adapter.text.prefix]) + n_new)
    return max(taken) if window is None else min(window, max(taken))


def share(requests: Sequence[Instance], rank: int, n_ranks: int) -> list[Instance]:
    """Return this rank's requests: whole documents in turn, so that the choices of a question stay together."""
    documents = {place: turn for turn, place in enumerate(dict.fromkeys((r.task_name, r.doc_id) for r in requests))}
    return [r for r in requests if documents[r.task_name, r.doc_id] % n_ranks == rank]


def answer(adapter: Adapter, requests: Sequence[Instance]) -> Answers:
    """Answer these requests, as plain JSON."""
    answers: Answers = {}
    for kind in dict.fromkeys(request.request_type for request in requests):
        unique = list({request_key(r): r for r in requests if r.request_type == kind}.values())
        answers |= {request_key(r): given for r, given in zip(unique, getattr(adapter, kind)(unique), strict=True)}
    return answers


def definition(task: LoadedTask) -> str:
    """Return what makes figures of answers: versions, metrics and filters of the tasks, as text."""
    keys = ("task", "metric_list", "filter_list", "num_fewshot", "output_type")
    definitions = [[str(each.VERSION), *map(each.get_config, keys)] for each in task.tree["tasks"].values()]
    # Metrics and filters may be functions; their names differ, and are the same in every process.
    name_of = lambda thing: getattr(thing, "__qualname__", type(thing).__name__)  # noqa: E731
    return json.dumps(definitions, sort_keys=True, default=name_of)


def score(task: LoadedTask, answers: Answers) -> JsonObject:
    """Return the harness's own results (lm_eval.result_schema) from the answers to all requests, with its log of
    documents."""
    for each in task.tree["tasks"].values():
        each.set_fewshot_seed(task.seeds.few_shot)
    with redirect_stderr(StringIO()):
        known = _Answered(answers)
        results = evaluate(known, task.tree, limit=task.limit, bootstrap_iters=RESAMPLES, log_samples=True)
    assert results is not None
    return dict(results)
