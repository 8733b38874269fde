"""Compare what we make of folders that some versions of transformers write with what their classes compute.

    python -m tests.outside.families [version or family …]   these, or all
    python -m tests.outside.families --docs …                and write docs/interop.json and the table of interop.md

A folder is a release of tests/hub/published.py made narrow, with random weights, for each kind of frequencies; its
config.json is as this version saves it (`rope_parameters`), or as older ones do (`rope_scaling` and `rope_theta`). The
version computes its logits: whole texts of 1× and 4× the trained length, and one token at a time with a cache. The
import of this checkout accepts a folder and computes the same, or refuses it with a reason; anything else is WRONG.
What was accepted with the pinned version is exported again, as a class of transformers, for READERS to compute too.
"""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.outside.plain import FOLDER, ROOT
from tests.outside.rotations import installed

if TYPE_CHECKING:
    from coca_train.hub.position_rules import RopeRule

VERSIONS = ("5.4.0", "5.23.0", "5.24.0")  # the oldest that pyproject.toml allows, the pin, the newest
PINNED = "5.23.0"
READERS = ("4.57.6", "5.4.0", "5.24.0")
FIGURES, PAGE = ROOT / "docs" / "interop.json", ROOT / "docs" / "interop.md"
BEGIN, END = "<!-- python -m tests.outside.families -->", "<!-- end -->"
LENGTH, THETA = 16, 500.0  # trained length [tokens]; base of the frequencies
THETA_OF_WINDOWS = 50.0  # where layers with a window have their own
NO_CLASS = {"internlm3": "llama"}  # model types without a class, and the one that computes the same
SAME = 1e-5  # of the largest logit, or of 1
# Of these the plain and the YaRN ones: biases, sequential, three without a window, hidden_act that all versions agree
# on, queries, keys and values that are cut off, a part of each head.
MORE = (
    "Granite 3B code", "RedPajama INCITE 3B", "Mistral 7B 0.3", "Phi 4", "EXAONE 4 1.2B", "CodeGemma 7B", "OLMo 1.7 7B",
    "Phi 4 mini",
)  # fmt: skip
KNOWN = (
    ("5.4.0", "Gemma 2B"),  # its hidden_act is "gelu": the exact one there, that with tanh to the newer versions
    ("exports in 4.57.6", "OLMo 3 7B"),  # one theta in all layers
)
SCALINGS: dict[str, dict[str, Any]] = {
    "plain": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": LENGTH // 3},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": LENGTH // 2,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    "longrope": {"rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": LENGTH // 2},
    "partial": {"rope_type": "default", "partial_rotary_factor": 0.5},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.75},
}  # fmt: skip
OLDER = ("plain", "yarn", "longrope")  # in both dialects; of the others the newer one alone
# "config": config.json; "saved": whether the version writes it again; "read": another to read, of a type without class
Case = dict[str, Any]
Outcome = dict[str, Any]  # "way": same, refused, WRONG, known or "no reference"; "why", or the largest "difference"


def cases() -> dict[str, Case]:
    """By `family|scaling|release|dialect`."""
    from coca_train.hub.families import name_of
    from tests.hub.published import READ

    first = {name_of(values): name for name, values in reversed(READ.items())}
    return {
        f"{name_of(READ[name])}|{scaling}|{name}|{dialect}": case(READ[name], scaling, dialect)
        for name in (*reversed(first.values()), *MORE)
        for scaling in (SCALINGS if rule_of(READ[name]) is not None and name not in MORE else ("plain", "yarn"))
        for dialect in ("rope_parameters", "rope_scaling")
        if is_wanted(READ[name], scaling, dialect)
    }


def rule_of(published: dict[str, Any]) -> "RopeRule | None":
    """The rule of a release with RoPE."""
    from coca_train.hub.families import FAMILIES, name_of
    from coca_train.hub.position_rules import RopeRule

    rule = FAMILIES[name_of(published)].positions
    return rule if isinstance(rule, RopeRule) else None


def is_wanted(published: dict[str, Any], scaling: str, dialect: str) -> bool:
    """Whether a release has such a file."""
    if rule_of(published) is None:
        return scaling == "plain"
    if published["model_type"] in NO_CLASS:
        return dialect == "rope_scaling"
    return dialect == "rope_parameters" or scaling in OLDER


def case(published: dict[str, Any], scaling: str, dialect: str) -> Case:
    """A release, made narrow, with these frequencies."""
    values = config(published, scaling, dialect)
    if (of_class := NO_CLASS.get(values["model_type"])) is None:
        return {"config": values, "saved": dialect == "rope_parameters"}
    return {"config": values | {"model_type": of_class}, "saved": False, "read": values}


def config(published: dict[str, Any], scaling: str, dialect: str) -> dict[str, Any]:
    """The config.json of a release, made narrow, with these frequencies."""
    from coca_train.hub.position_rules import FULL, SLIDING, TwoRopesRule
    from tests.hub.published import ORIGINAL, small

    rule = rule_of(published)
    values = small(published | ({} if rule is None else {"rope_scaling": None}), 4 * LENGTH)
    # Of larger weights the softmax is so sharp that rounding alone differs by more than SAME.
    values |= {"init_std" if "init_std" in values else "initializer_range": 0.08}
    # What 5.4 refuses: an id below 0 (LLaMA 1), an int for a float (MPT).
    values |= {"pad_token_id": None} if values.get("pad_token_id") == -1 else {}
    values |= {key: float(values[key]) for key in ("emb_pdrop", "resid_pdrop") if key in values}
    values = {key: value for key, value in values.items() if key not in ("architectures", "auto_map", "torch_dtype")}
    if rule is None:
        return values
    values |= {"max_position_embeddings": LENGTH}
    values |= {key: LENGTH for key in ("sliding_window", "sliding_window_size") if values.get(key)}
    width = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    share = values.get(rule.share_key, rule.share)
    section = dict(SCALINGS[scaling])
    if scaling == "longrope":
        n = int(width * share) // 2
        section |= {"short_factor": [1 + j / 16 for j in range(n)], "long_factor": [1 + j / 2 for j in range(n)]}
    share = section.pop("partial_rotary_factor", share)
    values |= {ORIGINAL: section.get(ORIGINAL, LENGTH)} if ORIGINAL in values else {}  # outside of the section (Phi-3)
    of_windows = rule.of_windows_key if isinstance(rule, TwoRopesRule) else ""
    for key in ("rope_scaling", rule.theta_key, rule.share_key, of_windows):
        values.pop(key, None)
    if dialect == "rope_scaling":
        if not isinstance(rule, TwoRopesRule):  # whose classes do not read it
            section["type"] = section.pop("rope_type")
        said = {} if rule.whole_head and share == 1 else {rule.share_key: share}
        said |= {of_windows: THETA_OF_WINDOWS} if of_windows else {}
        # Versions differ in what a theta without a part of its own means (OLMo 3).
        theta = rule.theta if isinstance(rule, TwoRopesRule) and not of_windows else THETA
        whole = None if scaling in ("plain", "partial") else section
        return values | said | {rule.theta_key: theta, "rope_scaling": whole}
    section |= {} if share == 1 else {"partial_rotary_factor": share}
    section |= {"rope_theta": THETA}
    if isinstance(rule, TwoRopesRule):
        local = {"rope_type": "default", "rope_theta": THETA_OF_WINDOWS}
        return values | {"rope_parameters": {FULL: section, SLIDING: local}}
    return values | {"rope_parameters": section}


def write(case: Case, folder: Path) -> None:
    """Write the folder of a case with the transformers at hand, all weights random."""
    import torch

    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(case["config"])))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # zeros and ones would hide a swap
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
    model.save_pretrained(folder)
    if not case["saved"]:
        (folder / "config.json").write_text(json.dumps(case["config"]), encoding="utf-8")


def computed(every: dict[str, Case | None]) -> dict[str, str]:
    """Write the logits of each folder with the transformers at hand, and before them the folder of a case. Return why
    its class refuses, where it does. Imports nothing of ours."""
    from safetensors.torch import save_file

    logging = importlib.import_module("transformers").logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    refused = {}
    for folder, case in every.items():
        try:
            if case is not None:
                write(case, Path(folder))
            save_file(logits(Path(folder)), Path(f"{folder}.logits"))
            if case is not None and "read" in case:
                (Path(folder) / "config.json").write_text(json.dumps(case["read"]), encoding="utf-8")
        except Exception as error:  # of another library: any class
            refused[folder] = f"{type(error).__name__} {error}"[:300]
    return refused


def logits(folder: Path) -> dict[str, Any]:
    """Those of texts of both lengths, and one token at a time, by the transformers at hand."""
    import torch

    transformers = importlib.import_module("transformers")
    capped = getattr(transformers.AutoConfig.from_pretrained(folder), "attn_logit_softcapping", None) is not None
    attention = {"attn_implementation": "eager"} if capped else {}  # 5.4 takes sdpa, which caps no scores
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **attention).float().eval()
    ids = tokens(model.config.vocab_size)
    with torch.no_grad():
        once = model(ids[:, :LENGTH], use_cache=False).logits[0]
        past, decoded = None, []
        for step in range(ids.shape[1]):
            out = model(ids[:, step : step + 1], past_key_values=past, use_cache=True)
            past = out.past_key_values
            decoded.append(out.logits[0, 0])
        return {"1x": once, "decoded": torch.stack(decoded), "4x": model(ids, use_cache=False).logits[0]}


def tokens(n_ids: int) -> Any:
    """The text of every comparison, (1, 4 LENGTH)."""
    import torch

    return torch.randint(n_ids, (1, 4 * LENGTH), generator=torch.Generator().manual_seed(3))


def outcome(folder: Path, export: bool) -> Outcome:
    """What this checkout makes of a folder that has its logits too. export: into `export` in it too."""
    from coca_train.hub.exporting import export_run
    from coca_train.hub.importing import import_weights
    from coca_train.hub.options import ExportConfig, ImportConfig
    from coca_train.runtime.errors import UserError

    with TemporaryDirectory() as root, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        options = ImportConfig(source=str(folder), name="run", root=root, tokenizer="none", parity_tokens=4 * LENGTH)
        try:
            run = import_weights(options)
        except UserError as error:
            return {"way": "refused", "why": str(error).replace(str(folder), "")[:300]}
        found = compared(run, folder)
        if export and found["way"] == "same":
            try:
                export_run(ExportConfig(run=str(run), to=str(folder / "export"), form="native", tokenizer="none"))
            except UserError as error:
                found["export"] = str(error)[:200]
        return found


def compared(run: Path, folder: Path) -> Outcome:
    """Our logits of a run, and those kept with the folder."""
    import torch
    from safetensors.torch import load_file

    from coca_train.hub.weights import open_source
    from coca_train.positions import hugging_face

    theirs = load_file(f"{folder}.logits")
    with open_source(run) as source:
        architecture = source.architecture
        model = architecture.build().eval()
        model.load_state_dict({name: source.read(name).float() for name in source.names}, strict=False)
        model.tie()
    ids = tokens(architecture.n_rows)
    cache = model.new_cache(ids.shape[1])
    with torch.no_grad():
        ours = {"1x": model(ids[:, :LENGTH])[0], "4x": model(ids)[0]}
        steps = [model(ids[:, step : step + 1], cache=cache)[0, 0] for step in range(ids.shape[1])]
    ours["decoded"] = torch.stack(steps)
    # Beyond some length a class may decode otherwise than it reads, as caveats of an export say.
    rotates = architecture.position.scheme == "rope"
    rotated = hugging_face.rotation(architecture.position, architecture.head_dim) if rotates else None
    return judged(ours, theirs, None if rotated is None else rotated.words.decodes_to)


def judged(ours: dict[str, Any], theirs: dict[str, Any], decodes_to: int | None) -> Outcome:
    """Whether two sides computed the same; one token at a time up to `decodes_to` only."""
    worst = 0.0
    for name, ours_TV in ours.items():
        a, b = (each[: decodes_to if name == "decoded" else None] for each in (ours_TV, theirs[name]))
        worst = max(worst, (a - b).abs().max().item() / max(1.0, b.abs().max().item()))
    return {"way": "same" if worst <= SAME else "WRONG", "difference": worst}


def with_version(version: str, every: dict[str, Case | None]) -> dict[str, str]:
    """What `computed` returns, of another version."""
    asked = FOLDER / f"families-{version}-{os.getpid()}.json"
    asked.write_text(json.dumps(every), encoding="utf-8")
    path = os.environ | {"PYTHONPATH": f"{installed(f'transformers=={version}')}:{ROOT}"}
    command = [sys.executable, "-m", "tests.outside.families", "--compute", str(asked)]
    done = subprocess.run(command, cwd=ROOT, env=path, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def imported(version: str, every: dict[str, Case], folder: Path) -> dict[str, Outcome]:
    """What becomes of the cases that a version writes, in folders in this one."""
    place = {name: str(folder / str(number)) for number, name in enumerate(every)}
    refused = with_version(version, {place[name]: case for name, case in every.items()})
    return {
        name: {"way": "no reference", "why": refused[place[name]]}
        if place[name] in refused
        else outcome(Path(place[name]), version == PINNED and exports(each)) | {"folder": place[name]}
        for name, each in every.items()
    }


def exports(case: Case) -> bool:
    """Whether what is imported is exported again: one of the two dialects."""
    return case["saved"] or "read" in case


def exported(version: str, outcomes: dict[str, Outcome]) -> dict[str, Outcome]:
    """What a version computes of the exports of what was imported, against the class that wrote the original."""
    from safetensors.torch import load_file

    place = {name: f"{found['folder']}/export" for name, found in outcomes.items() if found["way"] == "same"}
    place = {name: folder for name, folder in place.items() if Path(folder).is_dir()}
    refused = with_version(version, dict.fromkeys(place.values()))
    return {
        name: {"way": "refused", "why": refused[folder]}
        if folder in refused
        else judged(
            load_file(f"{folder}.logits"),
            load_file(f"{outcomes[name]['folder']}.logits"),
            LENGTH // 2 if name.split("|")[1] in ("dynamic", "longrope") else None,
        )
        for name, folder in place.items()
    }


def summary(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Of each family: how many are the same, with the largest difference, and the names of the others."""
    families: dict[str, Any] = {}
    for name, found in outcomes.items():
        family, _, case = name.partition("|")
        of_family = families.setdefault(family, {"same": 0, "difference": 0.0, "refused": [], "known": [], "WRONG": []})
        if found["way"] == "same":
            of_family["same"] += 1
            of_family["difference"] = max(of_family["difference"], float(f"{found['difference']:.1g}"))
        elif found["way"] in of_family:
            of_family[found["way"]].append(case)
    return families


def table(figures: dict[str, Any]) -> str:
    """The table of docs/interop.md. figures: docs/interop.json."""
    columns = list(figures)
    lines = ["| family | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for family in dict.fromkeys(family for column in columns for family in figures[column]):
        cells = [_cell(figures[column].get(family)) for column in columns]
        lines.append(f"| `{family}` | {' | '.join(cells)} |")
    return "\n".join([BEGIN, *lines, END])


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    parts = [f"{found['same']} ({found['difference']:.0e})" if found["same"] else "0"]
    parts += [f"{len(found['refused'])} refused"] if found["refused"] else []
    parts += [f"{len(found['known'])} known"] if found["known"] else []
    parts += [f"**{len(found['WRONG'])} WRONG**"] if found["WRONG"] else []
    return ", ".join(parts)


def page(figures: dict[str, Any]) -> str:
    """docs/interop.md with the table of these figures."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + table(figures) + rest.partition(END)[2]


def main(words: list[str]) -> int:
    from coca_train.hub.families import FAMILIES

    FOLDER.mkdir(exist_ok=True)
    asked = set(words) & set(FAMILIES) or set(FAMILIES)
    every = {name: case for name, case in cases().items() if name.split("|")[0] in asked}
    figures: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.is_file() else {}
    n_wrong = 0
    for version in [version for version in VERSIONS if version in words] or VERSIONS:
        with TemporaryDirectory() as folder:
            outcomes = imported(version, every, Path(folder))
            columns = {version: outcomes}
            if version == PINNED:
                columns |= {f"exports in {reader}": exported(reader, outcomes) for reader in READERS}
        for column, found in columns.items():
            for name, each in found.items():
                if each["way"] == "WRONG" and (column, name.split("|")[2]) in KNOWN:
                    each["way"] = "known"
            figures.setdefault(column, {}).update(summary(found))
            ways = Counter(each["way"] for each in found.values())
            print(f"{column}: {', '.join(f'{n} {way}' for way, n in ways.items())}")
            for name, each in found.items():
                if each["way"] != "same":
                    print(f"  {each['way']}  {name}: {each.get('why', each)}")
            n_wrong += ways["WRONG"]
        if "--docs" in words:
            publish(figures)
    return int(n_wrong > 0)


def publish(figures: dict[str, Any]) -> None:
    """Write the figures and the table, columns and rows in our order."""
    from coca_train.hub.families import FAMILIES

    order = [*VERSIONS, *(f"exports in {reader}" for reader in READERS)]
    figures = {
        column: {family: figures[column][family] for family in FAMILIES if family in figures[column]}
        for column in order
        if column in figures
    }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(figures), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compute"]:
        print(json.dumps(computed(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))))
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
