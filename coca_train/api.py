"""A trained model in Python: open it, generate from it, vary it, evaluate it. docs/api.md shows how; the names in
`__all__` are stable.

    from coca_train.api import open_model

    model = open_model("runs/quickstart")
    model.generate("def main(", max_new_tokens=32)

Everything a user can fix is a UserError with a code and a fix (docs/errors.md), never an exit. Nothing that is opened
is executed: weights are safetensors, configurations are typed values. torch is imported when a model is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coca_train.runtime.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from coca_train.attention import PatternSettings
    from coca_train.config.schema import Config
    from coca_train.data.tokenizer import SpecialTokensInText, Tokenizer
    from coca_train.evaluation.subject import Opened
    from coca_train.models.transformer import Transformer
    from coca_train.positions import SchemeSettings

__all__ = ["Model", "UserError", "open_model"]


def open_model(
    path: str | Path,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
) -> Model:
    """Return the model of a run directory (its newest verified checkpoint), an export, or a Hugging Face folder.

    device: auto is cuda where there is a GPU. dtype: of the weights; auto is as they are stored, float32 for float16 on
    a CPU. A folder without a tokenizer opens too; what needs text then raises E-EVAL-03. Raises UserError and its kin:
    E-IOP-* for a folder that holds no model that is covered, E-CKP-* and E-RUN-* for a run without a whole checkpoint,
    E-TKN-* for its tokenizer.
    """
    from coca_train.evaluation.subject import open_folder

    for name, value, choices in (
        ("device", device, ("auto", "cpu", "cuda")),
        ("dtype", dtype, ("auto", "fp32", "bf16", "fp16")),
    ):
        if value not in choices:
            raise UserError(f"E-API-01 {name}={value!r}: no such {name}. Fix: one of {', '.join(choices)}")
    return Model(str(path), open_folder(str(path), device, dtype))


class Model:
    """A trained model with its tokenizer. Made by `open_model`.

    network: the Transformer, in evaluation mode. config: of its training, with what `vary` exchanged. step: optimizer
    steps it was trained for, None where unknown. training_window [tokens].
    """

    def __init__(self, path: str, opened: Opened) -> None:
        self.path, self._opened = path, opened
        self.network: Transformer = opened.model
        self.config: Config = opened.config
        self.step: int | None = opened.step
        self.training_window: int = opened.config.train.seq_len

    def __repr__(self) -> str:
        without = ", no tokenizer" if self._opened.tokenizer is None else ""
        return f"Model({self.path!r}, {self.scheme}, training window {self.training_window:,} tokens{without})"

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer. Raises DataError E-EVAL-03 where the folder has none; `logits` takes token ids."""
        from coca_train.evaluation.subject import no_tokenizer

        if self._opened.tokenizer is None:
            raise no_tokenizer(Path(self.path))
        return self._opened.tokenizer

    @property
    def scheme(self) -> str:
        """The position scheme, as configs/position names it."""
        return self.config.position.scheme

    @property
    def position(self) -> SchemeSettings:
        """Settings of the position scheme, its frequencies among them: a frozen dataclass."""
        return self.config.position

    @property
    def attention_pattern(self) -> PatternSettings:
        """Settings of which keys a query sees: a frozen dataclass."""
        return self.config.attention_pattern

    def inv_freq(self, length: int) -> dict[str, Tensor]:
        """Return rotary frequencies in a text of this length [tokens], inv_freq_J [radians per token], float32.

        By layer type ("default" unless `layers` has others); only those that rotate, so {} for a scheme that does not.
        """
        network, spectra = self.network, {}
        for layer_type in dict.fromkeys(network.layer_types):
            if (rope_scaling := getattr(network.position_of(layer_type), "rope_scaling", None)) is not None:
                spectrum = rope_scaling(network.attention_patterns[layer_type].length(length))
                spectra[layer_type] = spectrum.inv_freq_J.detach().clone()
        return spectra

    def vary(self, *words: str) -> Model:
        """Exchange frequencies, attention pattern and logit scale on the same weights, in place; returns itself.

        words: as in a training: "position/rope_scaling=yarn", "position.rope_scaling.factor=8",
        "attention_pattern=segments", "model.logit_scale.name=log".
        They begin from what the model was trained with, so a call without any gives that back. The base theta stays
        unless named. Raises UserError (E-CFG-*) for what the weights cannot have; the model is then as it was.
        """
        from coca_train.vary import vary

        config = vary(self._opened.config, list(words))
        self.network.set_position(config.position)
        self.network.set_attention_pattern(config.attention_pattern)
        self.network.set_logit_scale(config.model.logit_scale)
        self.config = config
        return self

    def encode(self, text: str, special_tokens: SpecialTokensInText = "text") -> list[int]:
        """Return token ids, after the tokens that begin texts where the model was trained with some.

        special_tokens: what <|im_start|> and the like in the text become: "text", or the "tokens" of that name.
        """
        return [*self._opened.begins, *self.tokenizer.encode(text, special_tokens)]

    def logits(self, text: str | Sequence[int]) -> Tensor:
        """Return logits_TV, float32: row t is of the token after the first t + 1; of an encoder, of token t itself,
        where the mask is read in its place. text: words, or token ids as they are.

        Dynamic frequencies see T. All T x V numbers are held at once. Raises UserError E-API-02 for no token, one that
        the model has no embedding for, or more tokens than it has positions.
        """
        import torch

        tokens = self.encode(text) if isinstance(text, str) else list(text)
        self._check(tokens, 0)
        device = self.network.embed.weight.device
        with torch.no_grad():
            return self.network(torch.tensor([tokens], device=device))[0].float()

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 64,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> str:
        """Return the text that the model generates after the prompt, without it; shorter where the model ends the text.

        prompt: words, or token ids as they are. temperature 0: greedy. top_k, top_p: sample among the k likeliest
        tokens (0: all), among the fewest whose probabilities reach p. Dynamic frequencies see prompt and new tokens
        throughout. Raises UserError E-API-02 for options out of range, or more tokens than there are positions.
        """
        import torch

        from coca_train.models.generation import check_options, generate, require_causal

        require_causal(self.network, f"generate on {self.path}")
        tokens = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        try:
            check_options(tokens, max_new_tokens, temperature, top_k, top_p)
        except ValueError as error:
            raise UserError(f"E-API-02 generate: {error}. Fix: change that argument") from error
        self._check(tokens, max_new_tokens)
        new = generate(
            self.network,
            tokens,
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=torch.Generator().manual_seed(seed),
            eod=self.tokenizer.eod,
        )
        return self.tokenizer.decode(new)

    def evaluate(
        self,
        suite: str,
        point: int | str,
        *,
        files: Sequence[str | Path] = (),
        rope_scaling: str = "trained",
        attention_pattern: str = "trained",
        logit_scale: str = "trained",
        **options: Any,
    ) -> Mapping[str, Any]:
        """Return the result of one cell, the same numbers as `python -m coca_train evaluate +eval=<suite>`, as plain
        values.

        point: a length [tokens], or as the suite names it: "needle@4096". files: of text (.jsonl, .jsonl.gz,
        .jsonl.zst, .parquet, .txt); none: what the run held out. frequencies, attention pattern, logit_scale: as in
        `grid`, such as "yarn@factor:8"; trained: as trained. options: the suite's own, such as stride=512. What `vary`
        exchanged is back afterwards. Raises UserError: E-CFG-* and E-EVAL-* for options, text and names, E-API-03 for a
        point the suite does not have, E-API-04 for a cell without a result, with the reason, E-API-05 for a suite of
        suites.
        """
        from coca_train.evaluation.configuration import build
        from coca_train.evaluation.grid import Progress, measure_cells
        from coca_train.evaluation.pipeline import setup_of
        from coca_train.evaluation.subject import subject_of
        from coca_train.evaluation.suite import suite_of
        from coca_train.evaluation.variants import Choice

        text = {"files": [str(file) for file in files]}
        config = build(suite, options, grid={"checkpoints": [self.path]}, text=text)
        chosen = suite_of(config.eval)
        if (parts := chosen.parts()) != [chosen]:
            names = ", ".join(part.settings.suite for part in parts)
            raise UserError(
                f"E-API-05 evaluate: suite {suite} is made of others and has no result of its own. Fix: one of {names}"
            )
        length = str(point).rpartition("@")[2]
        points = chosen.points([int(length)] if length.isdecimal() else [])
        if point not in points:
            raise UserError(
                f"E-API-03 evaluate: suite {suite} has no point {point!r}. Fix: a length in tokens"
                + (f", or one of {', '.join(map(str, points))}" if points else "")
            )
        setup = setup_of(config, (point,), [self.path], enough=False)
        with self.network.restored():
            tried = [Choice(rope_scaling, attention_pattern, logit_scale)]
            subject = subject_of(self._opened, self.path, suite, tried, config.text.begin)
            cell = measure_cells([(parts[0], setup)], subject, None, Progress(shown=False))[0]
        if cell.result is None:
            raise UserError(f"E-API-04 evaluate: {suite} at {point}: {cell.reason}. Fix: another point or variant")
        return cell.result

    def reach(self, *lengths: int, files: Sequence[str | Path] = ()) -> list[str]:
        """Return how far the context reaches as it was trained, in the sentences that a report and `python -m
        coca_train evaluate` begin with.

        lengths [tokens]; none: 1 to 16 training windows. files: as in `evaluate`; none: what the run held out, and what
        its report measured is not measured again. What `vary` exchanged is back afterwards. Raises UserError: E-EVAL-*
        for text and lengths, E-API-04 where no length could be measured.
        """
        from coca_train.evaluation.configuration import build
        from coca_train.evaluation.grid import Progress, Store, kept_in_reports, measure_cells
        from coca_train.evaluation.perplexity_page import page
        from coca_train.evaluation.pipeline import by_multiples, setup_of
        from coca_train.evaluation.pipeline import lengths as in_tokens
        from coca_train.evaluation.results import Evaluation
        from coca_train.evaluation.subject import subject_of
        from coca_train.evaluation.suite import suite_of
        from coca_train.evaluation.variants import Choice

        grid: dict[str, object] = {"checkpoints": [self.path]}
        grid |= {"lengths": [str(length) for length in lengths]} if lengths else {}
        config = build("perplexity", {}, grid=grid, text={"files": [str(file) for file in files]})
        setup = setup_of(config, in_tokens(config), [self.path], enough=by_multiples(config))
        store, name = Store(None, also=kept_in_reports([Path(self.path)])), Path(self.path).resolve().name
        with self.network.restored():
            subject = subject_of(self._opened, self.path, name, [Choice()], config.text.begin)
            suite_parts = [(part, setup) for part in suite_of(config.eval).parts()]
            cells = measure_cells(suite_parts, subject, store, Progress(shown=False))
        evaluation = Evaluation(
            suite="perplexity",
            name=name,
            settings=asdict(config.eval),
            subjects=(subject.facts,),
            points=setup.points,
            cells=tuple(cells),
            facts=(),
            command="",
        )
        if not (said := list(page(evaluation).finding)):
            raise UserError(f"E-API-04 reach: {evaluation.absences()[0]}. Fix: other lengths or files")
        return said

    def _check(self, tokens: Sequence[int], max_new_tokens: int) -> None:
        from coca_train.models.generation import check_positions

        rows = self.network.embed.num_embeddings
        if not tokens or not all(0 <= token < rows for token in tokens):
            raise UserError(f"E-API-02 text: one or more tokens from 0 to {rows - 1} are needed. Fix: give some text")
        try:
            check_positions(self.network, len(tokens), max_new_tokens)
        except ValueError as error:
            raise UserError(
                f"E-API-02 text: {error}. Fix: a shorter text, or vary('attention_pattern=segments')"
            ) from error
