"""Measure how far a model's context reaches."""

from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.verb import FLAGS, Reference, Verb
from coca_train.evaluation.configuration import EVALUATE, EvaluateConfig, overrides
from coca_train.runtime import dist

USAGE = """\
Measure how far a model's context reaches. Every model, variant and length is a cell; cells are measured once and kept.

  python -m coca_train evaluate checkpoint=runs/quickstart                          perplexity by context window
  python -m coca_train evaluate +eval=passkey checkpoint=runs/rope,runs/coca        several models, one report
  python -m coca_train evaluate checkpoint=runs/rope grid.rope_scalings=[trained,dynamic_ntk@alpha:4,yarn@factor:8]
  python -m coca_train evaluate checkpoint=runs/rope grid.lengths=[1x,4x,16x] text.files=[books.jsonl.gz]
  torchrun --nproc-per-node 8 -m coca_train evaluate checkpoint=runs/coca_350m      all ranks share each cell

RoPE scalings and attention patterns are written choice@option:value@option:value, here, in a training's
eval.extrapolation and in compare. trained: as the weights were trained. The base theta stays unless it is named:
yarn@factor:8@theta:20000.
Runs that differ in nothing but their seeds are seeds of one model: it reads as far as the least of them.

  --cfg job          show the configuration, composed and checked, and stop
  --config-dir DIR   more YAML files: DIR/eval/mine.yaml is then +eval=mine
  --debug            show the traceback of an error
"""
FOOT = (
    "The report: <work.root>/<work.name>/report.html. The same command goes on where it stopped. See docs/evaluation.md"
)


def _evaluate(loaded: Loaded[EvaluateConfig], arguments: Arguments) -> None:
    from coca_train.evaluation.pipeline import evaluate

    directory = evaluate(loaded.config, arguments.again(EVALUATE.command))
    dist.log(f"Report: {directory / 'report.html'} (tables and figures beside it)")


VERB = Verb(
    EVALUATE,
    USAGE,
    _evaluate,
    foot=FOOT,
    flags=(*FLAGS, "--config-dir", "--markdown"),
    resumes_from="where it stopped: measured cells are kept",
    needs_words=True,
    expand=overrides,
    reference=Reference(
        "Configuration of an evaluation",
        "`python -m coca_train evaluate +eval=<suite> checkpoint=<run> section.option=value`; values are those of "
        "`eval=perplexity`.",
        "value",
    ),
)
