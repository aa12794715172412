"""Language modeling: blocks of text, the loss, the training job, and the TextGenerator."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.data.lm_blocks import LMBlock, LMBlocks, encode_stream
from regard.data.tokenizers.base import BOS, EOS, CharTokenizer, LosslessTokenizer, Tokenizer, WordTokenizer
from regard.data.tokenizers.tokenizer_io import load_tokenizer
from regard.models.config import RNN_KINDS
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import Tokens, map_tensors
from regard.tasks.corpus import to_device_async
from regard.tasks.language_modeling.data import LanguageModelingSettings
from regard.tasks.language_modeling.neural_cache import NeuralCache
from regard.tasks.language_modeling.token_nll import EvaluationContext, RecurrentContext, SlidingWindows, total_nats
from regard.tasks.pretrained import PretrainedModel, load_settings
from regard.tasks.protocol import TrainingJob
from regard.tasks.run_folder import resolve_run
from regard.tasks.tokenizer_training import train_text_tokenizer

UNSCORED = -100
ROWS = 64  # parts of a held-out text that a recurrent model reads at once while it is trained
LEAST = 1000  # tokens of each


# --- learning ---


@dataclass(frozen=True, eq=False)
class BlockStream:
    """The blocks of a text, for every step; with each the number of its targets and of the columns that only lead."""

    blocks: LMBlocks
    device: str = "cpu"

    def steps(self, epoch: int) -> int:
        return self.blocks.steps(epoch)

    def at(self, epoch: int, index: int) -> list[tuple[LMBlock, int, int]]:
        blocks = self.blocks.at(epoch, index)
        return [
            (map_tensors(lambda part: to_device_async(part, self.device), one), one.tokens, one.context_length)
            for one in blocks
        ]


@dataclass(frozen=True)
class LanguageModelingLoss:
    """Cross-entropy summed over the targets that count, a share `smoothing` of it against the uniform distribution.

    With `rdrop`, of two passes under different dropout, and how far they disagree: as in translation.
    """

    smoothing: float = 0.0
    rdrop: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[LMBlock, int, int]) -> tuple[Tensor, int]:
        assert isinstance(model, LanguageModel)
        block, tokens, lead = batch
        inputs, wanted = block.inputs, block.targets.masked_fill(~block.loss_mask, UNSCORED)[:, lead:]
        if self.rdrop:
            inputs, wanted = (repeat(each, "b t -> (two b) t", two=2) for each in (inputs, wanted))
        table, x = model.output or model.embedding, hidden_after_context(model, inputs, lead)
        agree = self.rdrop or None
        return table.loss(x, model.bias, wanted, smoothing=self.smoothing, ignore_index=UNSCORED, rdrop=agree), tokens


def hidden_after_context(model: LanguageModel, inputs: Tokens, lead: int) -> Float[Tensor, "b rest model"]:
    """The hidden states behind the first `lead` tokens, which give context and no loss.

    A state carried over from the step before would come of older weights, and could not be had again after an
    interruption; this one is a function of the step.
    """
    state = model.start(len(inputs))
    if lead:
        # not under no_grad: autocast would keep the weights it casts there, and no gradient would pass them later
        state = model.decode_hidden(inputs[:, :lead], state)[1].detach()
    return model.decode_hidden(inputs[:, lead:], state)[0]


@dataclass(frozen=True, eq=False)
class TextGenerator(PretrainedModel):
    """A language model with the vocabulary it reads and writes, and a cache if one was chosen for it."""

    model: LanguageModel
    tokenizer: Tokenizer
    settings: LanguageModelingSettings
    neural_cache: NeuralCache | None = None

    @staticmethod
    def from_examples(lines: Sequence[str], settings: LanguageModelingSettings) -> "TextGenerator":
        """A vocabulary from the lines, and a model with new weights."""
        return TextGenerator.of(train_text_tokenizer(lines, settings.text), settings)

    @staticmethod
    def of(words: Tokenizer, settings: LanguageModelingSettings) -> "TextGenerator":
        torch.manual_seed(settings.train.seed)
        return TextGenerator(LanguageModel(settings.model, words.size), words, settings)

    def ids(self, lines: Sequence[str]) -> Int[Tensor, " n"]:
        """The text as a stream; a model of words reads an end behind every line."""
        return encode_stream(self.tokenizer, lines)

    def encode_prompt(self, text: str) -> tuple[list[int], list[int]]:
        """What is read before a text that is to be gone on with, and its ids; its last line has no end yet.

        Before it stands the end of a line: the beginning of all text is seen once in an epoch, and hardly learnt.
        """
        if isinstance(self.tokenizer, WordTokenizer):
            *lines, rest = text.split("\n")
            return [EOS], [*self.ids(lines).tolist(), *self.tokenizer.encode(rest)]
        if (
            isinstance(self.tokenizer, CharTokenizer) and "\n" not in self.tokenizer.vocabulary
        ):  # the text had but one line
            return [BOS], self.tokenizer.encode(text)
        assert isinstance(self.tokenizer, LosslessTokenizer)
        ids = self.tokenizer.encode(f"\n{text}")
        ends = accumulate(map(len, self.tokenizer.ids_to_bytes(ids)))
        opening = 1 + sum(end < len(self.tokenizer.prefix) + 1 for end in ends)
        return ids[:opening], ids[opening:]

    def job(self, lines: Sequence[str], held_out: Sequence[str], device: str = "cpu", /) -> TrainingJob:
        train, held = self.settings.train, self.ids(held_out)
        rows = train.tokens // train.longest
        blocks = LMBlocks(
            self.ids(lines),
            train.longest,
            rows=rows * train.accumulate,
            micro_batch_rows=rows,
            seed=train.seed,
            context_length=self.settings.data.lead,
        )
        return TrainingJob(
            self.model.to(device),
            BlockStream(blocks, device),
            LanguageModelingLoss(train.smoothing, train.rdrop),
            lambda model: validation(model, held, self.validation_context(len(held))),
            train,
            self.settings.model.model,
            self.describe,
            capture_objection="",
        )

    # --- measuring ---

    @property
    def context_length(self) -> int:
        """How many tokens a block and its lead have: more of a text it never learnt from at once."""
        return self.settings.data.lead + self.settings.train.longest

    @property
    def evaluation_context(self) -> EvaluationContext:
        """How a text is measured."""
        stride = self.settings.measure.stride or max(1, self.context_length // 2)
        return RecurrentContext() if self.recurrent else SlidingWindows(self.context_length, stride)

    def validation_context(self, tokens: int) -> EvaluationContext:
        """How it is measured again and again while the model is trained: a little dearer, since less stands before."""
        rows = max(1, min(ROWS, tokens // LEAST))
        return (
            RecurrentContext(rows)
            if self.recurrent
            else SlidingWindows(self.context_length, self.settings.train.longest)
        )

    @property
    def recurrent(self) -> bool:
        return self.settings.model.kind in RNN_KINDS

    # --- keeping ---

    @property
    def parts(self) -> dict[str, Tokenizer]:
        return {"words": self.tokenizer}

    @classmethod
    def from_description(cls, folder):
        return TextGenerator.of(load_tokenizer(folder / "words.json"), load_settings(folder, LanguageModelingSettings))

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", checkpoint: str | int | None = None) -> "TextGenerator":
        return replace(
            super().load(folder, device, checkpoint), neural_cache=NeuralCache.load(resolve_run(Path(folder))[0])
        )


def validation(model: nn.Module, ids: Int[Tensor, " n"], context: EvaluationContext) -> dict[str, float]:
    """The mean cost of a held-out token in nats, and its perplexity."""
    assert isinstance(model, LanguageModel)
    loss = total_nats(context.token_nlls(model, ids)) / len(ids)
    return {"loss": loss, "perplexity": math.exp(min(loss, 100.0))}
