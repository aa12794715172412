"""Sequence-to-sequence tasks: their losses, their training job, and one source with its target for a trace."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.attention import LatentKV, MultiHeadAttention
from regard.attention.sparse_patterns import is_content
from regard.data.batching import Batch, Example, collate, pair_lengths
from regard.data.token_files import CorpusMixture
from regard.data.tokenizers.base import PAD, TokenizedText, Tokenizer
from regard.decode.search import LengthLimit
from regard.models.seq2seq import PackableModel, Seq2Seq, decoder_inputs, encode_sources
from regard.models.transformer import Transformer
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import (
    EncodedInput,
    GenerationInput,
    InputSpec,
    Predictions,
    Task,
    TaskInput,
    TokenAxis,
    token_label,
)
from regard.tasks.splits import drop_long, iterate_batches
from regard.training.config import VARIABLE_SHAPES, TrainingJob, TrainSettings
from regard.training.corpus import Corpus, PrefetchedMixture
from regard.training.packed_corpus import PackedCorpus, PackedMixture, PackedPairs
from regard.training.run import flops

MEASURED_EXAMPLES = 100_000  # whose lengths say what a token takes
NEWLINES_TO_SPACES = str.maketrans("\n\r", "  ")


# --- training ---


@dataclass(frozen=True)
class LabelSmoothingLoss:
    """Cross-entropy summed over the target tokens, a share `smoothing` of it against the uniform distribution."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[Batch | PackedPairs, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        assert isinstance(model, Seq2Seq)
        x, wanted = decoder_states(model, given)
        return model.loss(x, wanted, smoothing=self.smoothing, ignore_index=PAD), tokens


@dataclass(frozen=True)
class RDropLoss:
    """The loss of two passes under different dropout, and how far they disagree (R-Drop, Liang et al. 2021).

    Per token: the mean of both cross-entropies + weight · ½ (KL(p ‖ q) + KL(q ‖ p)). Small corpora gain most.
    """

    smoothing: float
    weight: float

    def __call__(self, model: nn.Module, batch: tuple[Batch | PackedPairs, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        assert isinstance(model, Seq2Seq)
        x, wanted = decoder_states(model, repeat_batch(given))
        return model.loss(x, wanted, smoothing=self.smoothing, ignore_index=PAD, rdrop=self.weight), tokens


def decoder_states(model: Seq2Seq, given: Batch | PackedPairs) -> tuple[Float[Tensor, "b t model"], Int[Tensor, "b t"]]:
    """The decoder's hidden states, and the labels."""
    if isinstance(given, Batch):
        return model.hidden_states(given.source, given.source_lengths, given.target[:, :-1]), given.target[:, 1:]
    assert isinstance(model, PackableModel)  # or it objected
    return model.packed_hidden_states(given.source, given.target), given.labels


def repeat_batch(given: Batch | PackedPairs) -> Batch | PackedPairs:
    """Every sentence two times, first all of them, then all again."""
    if isinstance(given, PackedPairs):
        return given.repeated()
    parts = (given.source, given.source_lengths, given.target, given.target_lengths)
    return Batch(*(repeat(part, "b ... -> (two b) ...", two=2) for part in parts))


def build_loss(settings: TrainSettings) -> LabelSmoothingLoss | RDropLoss:
    if settings.rdrop:
        return RDropLoss(settings.label_smoothing, settings.rdrop)
    return LabelSmoothingLoss(settings.label_smoothing)


def packing_objections(model: nn.Module) -> list[str]:
    """Why a model cannot be trained on packed texts; empty if it can."""
    if not isinstance(model, PackableModel):
        return [f"{type(model).__name__} reads token after token, not all texts at once"]
    layers = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    mixing = {layer.form for layer in layers if not isinstance(layer.form, LatentKV | None)}
    mixing |= {layer.recipe.pattern for layer in layers if is_content(layer.recipe.pattern)}
    return [f"{part} mixes the tokens of a row, and so those of several texts" for part in mixing]


def validation(
    model: nn.Module, examples: Sequence[Example], *, tokens: int = 8192, device: str = "cpu"
) -> dict[str, float]:
    """The mean negative log-probability of a held-out target token."""
    total, count = 0.0, 0
    for _, batch, predictions in iterate_batches(examples, pair_lengths, collate, tokens=tokens, device=device):
        summed, _ = LabelSmoothingLoss()(model, (batch, predictions))
        total, count = total + summed.item(), count + predictions
    return {"loss": total / count}


def seq2seq_job(
    task_model: PretrainedModel, examples: Sequence[Example], held_out: Sequence[Example], device: str
) -> TrainingJob:
    """The training of whatever writes a target for a source."""
    train = task_model.settings.train
    if train.packed and (why := packing_objections(task_model.model)):
        raise ValueError(f"train.packed = true cannot be had: {'; '.join(why)}; leave it out")
    if not train.packed:
        corpus = Corpus.of(examples, pair_lengths, collate, train, device)
    elif isinstance(examples, CorpusMixture):
        corpus = PackedMixture.of(examples, train, device)
        corpus = corpus if device == "cpu" else PrefetchedMixture(corpus)
    else:
        corpus = PackedCorpus.of(examples, train, device)
    held = drop_long(held_out, pair_lengths, train)
    if train.compile and isinstance(task_model.model, Transformer):
        for layer in (*task_model.model.encoder, *task_model.model.decoder):
            layer.compile(dynamic=False)  # one graph for all layers of a stack
    return task_model.training_job(
        corpus,
        build_loss(train),
        lambda model: validation(model, held, device=device),
        device,
        left_out=corpus.left_out + len(held_out) - len(held),
        flops=flops_per_token(task_model.model, examples, train),
        capture_objection="" if train.packed else VARIABLE_SHAPES,
    )


def flops_per_token(model: nn.Module, examples: Sequence[Example], train: TrainSettings) -> float | None:
    """FLOPs for each target token; R-Drop passes twice."""
    if not isinstance(model, Transformer):
        return None
    every = max(1, len(examples) // MEASURED_EXAMPLES)  # those of a prepared corpus stand in the order of their lengths
    lengths = [
        (len(source) + 1, len(target) + 1)
        for source, target in map(examples.__getitem__, range(0, len(examples), every))
    ]
    return flops(model, lengths) / sum(target for _, target in lengths) * (2 if train.rdrop else 1)


# --- the task ---


@dataclass(frozen=True)
class TargetText:
    """A target: its ids and their labels, its words, and how it ends."""

    ids: tuple[int, ...]
    labels: tuple[str, ...]
    words: tuple[str, ...]
    word_ids: tuple[int | None, ...]
    end: str


class Seq2SeqTask(Task):
    """Abstract: writes a target for a source, token by token."""

    inputs = InputSpec(options=("target", "beam"))
    takes_batches = True
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
        longest = LengthLimit().of(len(ids))
        prefix = given.prefix or target.first_ids
        return GenerationInput(task_model.model, target, ids, prefix, longest, beam, beam, 0, "written")

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
        axis = TokenAxis.of(target, ids)
        return TargetText(ids, axis.labels, axis.words, axis.word_ids, "</s>" if given.finished else "…")

    def forward_batch(self, model: Any, encoded: Sequence[EncodedInput]) -> list[Float[Tensor, "rows options"]]:
        memory, lengths = encode_sources(model, [source for one in encoded for source in one.model_inputs[0]])
        inputs = pad_sequence([one.model_inputs[1][0] for one in encoded], batch_first=True, padding_value=PAD)
        logits, _ = model.step(inputs.to(lengths.device), model.start(memory), memory)
        return [x[: len(one.rows)] for x, one in zip(logits, encoded, strict=True)]

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
