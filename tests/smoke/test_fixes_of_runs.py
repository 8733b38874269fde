"""Mistakes with a run at hand: the fix is read out of the message and typed word by word, and gets past it."""

import shutil

from tests.fixes import first, fix_of, option

# The words, {run} for a run directory and {other} for one of the same name elsewhere; and the code.
MISTAKES = """
evaluate checkpoint={run},{other} grid.lengths=[1x] | E-EVAL-06
evaluate checkpoint={run} eval.window_counts=tokens grid.lengths=[1] | E-EVAL-33
export run={run} to=out form=native | E-IOP-15
generate run={run} prompt=x device=cuda | E-RUN-04
generate run={run} prompt=x max_new_tokens=99999999999 | E-CFG-74
train {words} train.max_steps=4 | E-CKP-21
train {words} engine.dtype=bf16 | E-CKP-24
export run={run} to=whole merge=false | E-IOP-21
evaluate checkpoint={run} +eval=recall work.sequence_parallel=2 grid.lengths=[256] eval.n_cases=2 | E-EVAL-08
evaluate checkpoint={run} text.sources=[none] grid.lengths=[1x] | E-EVAL-04
train {words} run.name=other data.order=stream data.sources.text.weight=0.01 | E-MIX-02
train {words} train.global_batch_size=4 | E-CKP-24
"""


def test_fixes_of_what_is_done_with_a_run(run, words, server, tmp_path):
    assert run("run.name=r", "eval.sample_tokens=0", "eval.extrapolation.enabled=false").code == 0
    made = tmp_path / "runs" / "r"
    shutil.copytree(made, tmp_path / "elsewhere" / "r")
    places = {"run": str(made), "other": str(tmp_path / "elsewhere" / "r")}
    for case in MISTAKES.strip().splitlines():
        text, code = case.rsplit(" | ", 1)
        verb, *typed = [word.format(**places, words="{words}") for word in text.split()]
        own = [*words, "run.name=r", "eval.sample_tokens=0", "eval.extrapolation.enabled=false"]
        typed = [each for word in typed for each in (own if word == "{words}" else [word])]
        told = server.command(["coca_train", verb, *typed], cwd=tmp_path)[0]
        line = next((line for line in told.text.splitlines() if line.startswith(f"{code} ")), "")
        assert line, f"{case}: {told.text[-600:]}"
        fix = first(fix_of(line))
        assert all("=" in word for word in fix), line
        again = [*(word for word in typed if option(word) not in map(option, fix)), *fix]
        after = server.command(["coca_train", verb, *again], cwd=tmp_path)[0]
        assert not [each for each in after.text.splitlines() if each.startswith("E-")], f"{case}, {fix}: {after.text}"


def test_a_comparison_of_what_was_not_measured(run, words, server, tmp_path):
    """The first message is about the name that two runs share; the second about what their reports lack."""
    words = [*words, "run.name=r", "eval.sample_tokens=0", "eval.extrapolation.enabled=false"]
    runs = [tmp_path / "runs" / "r", tmp_path / "elsewhere" / "r"]
    assert run(*words[-3:]).code == 0
    shutil.copytree(*runs)

    def compared() -> str:
        told = server.command(["coca_train", "compare", f"runs={runs[0]},{runs[1]}"], cwd=tmp_path)[0]
        return next((line for line in told.text.splitlines() if line.startswith("E-")), "")

    line = compared()
    assert line.startswith("E-RUN-22 command line runs=") and "rename" in fix_of(line)
    runs[1] = runs[1].rename(tmp_path / "elsewhere" / "s")
    line = compared()
    assert line.startswith(f"E-RUN-22 {runs[0]}: ")
    (fix,) = [word for word in first(fix_of(line).split(",")[0]) if "=" in word]
    again = [*(word for word in words if option(word) != option(fix)), fix]
    assert server.command(["coca_train", "train", *again], cwd=tmp_path)[0].code == 0
    shutil.rmtree(runs[1])
    shutil.copytree(*runs)
    assert compared() == ""
