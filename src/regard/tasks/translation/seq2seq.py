"""Sequence-to-sequence tasks: one source, one target, and the search between them, for a trace."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from regard.data.tokenizers.base import Tokenizer
from regard.decode.model import decoder_inputs, encode_sources
from regard.decode.search import LengthLimit
from regard.decode.word_alignment import TokenizedText
from regard.tasks.protocol import (
    EncodedInput,
    GenerationInput,
    InputSpec,
    Predictions,
    Task,
    TaskInput,
    TokenAxis,
)
from regard.tasks.tokenizers import group_into_words, token_label

NEWLINES_TO_SPACES = str.maketrans("\n\r", "  ")


@dataclass(frozen=True)
class TargetText:
    """A target: its ids and their labels, its words, and how it ends."""

    ids: tuple[int, ...]
    labels: tuple[str, ...]
    words: tuple[str, ...]
    word_ids: tuple[int, ...]
    end: str


class Seq2SeqTask(Task):
    """Abstract: writes a target for a source, token by token."""

    inputs = InputSpec(options=("target", "beam"))
    beam: ClassVar[int]  # hypotheses of the search, unless others are asked for

    @abstractmethod
    def pair(self, task_model: Any) -> tuple[Tokenizer, Tokenizer]:
        """The tokenisers of the source and of the target."""

    def extra_axes(self, task_model: Any) -> dict[str, TokenAxis]:
        return {}

    def gold_alignment(self, task_model: Any, source: TokenAxis, target: TokenAxis) -> frozenset[tuple[int, int]]:
        return frozenset()

    def texts(self, task_model: Any, given: TaskInput) -> list[tuple[Tokenizer, str]]:
        return list(zip(self.pair(task_model), (given.text, given.target or ""), strict=True))

    def normalize(self, task_model: Any, text: str) -> str:
        return self.pair(task_model)[0].normalizer.apply(text)

    def generation(self, task_model: Any, given: TaskInput) -> GenerationInput:
        source, target = self.pair(task_model)
        ids = TokenizedText.of(source, given.text).ids
        given.refuse_long(len(ids))
        beam = self.beam if given.beam is None else given.beam
        return GenerationInput(target, ids, given.prefix, LengthLimit().of(len(ids)), beam, beam, 0, "written")

    def encode(self, task_model: Any, given: TaskInput) -> EncodedInput:
        """One forward pass over the target that is given, or that a search has found."""
        tokenizer, _ = self.pair(task_model)
        source = TokenizedText.of(tokenizer, given.text)
        given.refuse_long(len(source.ids))
        text = self.target_text(task_model, given)
        axes = {
            "source": TokenAxis((*source_labels(tokenizer, source), "</s>"), source.words, (*source.word_ids, None)),
            "read": TokenAxis(("<s>", *text.labels), text.words, (None, *text.word_ids)),
            "written": TokenAxis((*text.labels, text.end), text.words, (*text.word_ids, None)),
            **self.extra_axes(task_model),
        }
        longest = LengthLimit().of(len(source.ids))
        rows = axes["written"].labels
        return EncodedInput(
            ([source.ids], decoder_inputs([text.ids])),
            axes,
            rows,
            output_ids=text.ids,
            forced_steps=0 if given.target is None else len(rows),
            max_queries={"read": longest, "written": longest} if given.searched else {},
            gold_alignment=self.gold_alignment(task_model, axes["source"], axes["written"]),
        )

    def target_text(self, task_model: Any, given: TaskInput) -> TargetText:
        _, target = self.pair(task_model)
        if given.target is not None and given.target.strip():
            read = TokenizedText.of(target, given.target)
            given.refuse_long(len(read.ids))
            return TargetText(read.ids, source_labels(target, read), read.words, read.word_ids, "</s>")
        ids = () if given.target is not None else given.ids
        assert ids is not None, "a search finds the target before it is encoded"
        labels = tuple(token_label(target, one) for one in ids)
        return TargetText(ids, labels, *group_into_words(target, ids), "</s>" if given.finished else "…")

    def forward(self, model: Any, encoded: EncodedInput) -> Float[Tensor, "rows options"]:
        sources, inputs = encoded.model_inputs
        memory, lengths = encode_sources(model, sources)
        logits, _ = model.step(inputs.to(lengths.device), model.start(memory), memory)
        return logits[0]

    def option_name(self, task_model: Any, option: int) -> str:
        return token_label(self.pair(task_model)[1], option)

    def output_text(self, task_model: Any, given: TaskInput, predictions: Predictions) -> str:
        _, target = self.pair(task_model)
        ids = self.target_text(task_model, given).ids
        return target.normalizer.detokenize(target.decode(ids)).translate(NEWLINES_TO_SPACES)


def source_labels(tokenizer: Tokenizer, read: TokenizedText) -> tuple[str, ...]:
    """One for each id; of a word that is not known, the word itself."""
    of_text = tokenizer.tokens(" ".join(read.words))
    plain = [token_label(tokenizer, one) for one in read.ids]
    return tuple(of_text if len(of_text) == len(plain) else plain)  # several spaces are tokens of their own
