"""Visual question answering on the command line: accuracy, and views of attention over patches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from einops import reduce

from regard import see
from regard.attention import record_attention
from regard.cli.options import with_progress
from regard.data.batching import pad_rows
from regard.data.images.labelled_images import LabelledImage, read_image
from regard.see.plots.panels import View
from regard.tasks.image_classification.cli import parse_head
from regard.tasks.image_classification.task import AT_ONCE
from regard.tasks.registry import Task, ViewRequest
from regard.tasks.vqa.data import ImageQuestion, VQASettings, read_image_questions
from regard.tasks.vqa.task import QuestionAnswerer, chunk_questions


@dataclass(frozen=True)
class VQAMetrics:
    """Which answers were right, by kind of question where it is known, else by what the answer should have been."""

    pictures: int
    by: str
    wanted: Counter[str]
    right: Counter[str]
    outputs: tuple[str, ...] = field(repr=False)

    @property
    def accuracy(self) -> float:
        return 100 * self.right.total() / self.wanted.total()

    @property
    def signature(self) -> str:
        return f"questions:{self.wanted.total()}|pictures:{self.pictures}"

    def table(self) -> str:
        wide = max(map(len, self.wanted))
        lines = [f"accuracy {self.accuracy:.2f} %   {self.signature}", ""]
        lines += [f"{one:<{wide}} {100 * self.right[one] / n:6.2f} %  of {n:,}" for one, n in self.wanted.most_common()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        counts = {one: {"questions": n, "right": self.right[one]} for one, n in self.wanted.most_common()}
        return {"accuracy": self.accuracy, "signature": self.signature, f"by_{self.by}": counts}

    def lines(self) -> list[str]:
        return list(self.outputs)


def evaluate_vqa(answerer: QuestionAnswerer, questions: Sequence[ImageQuestion]) -> VQAMetrics:
    answerer.label_ids(questions)  # refuses an answer that the model does not know
    batches = with_progress(chunk_questions(questions), "answering", -(-len(questions) // AT_ONCE))
    found = torch.cat([answerer.probabilities(some) for some in batches]).argmax(-1).tolist()
    answers = tuple(answerer.labels.name(n) for n in found)
    by = "kind" if all(one.kind for one in questions) else "answer"
    kinds = [one.kind if by == "kind" else one.answer for one in questions]
    right = (kind for kind, one, said in zip(kinds, questions, answers, strict=True) if one.answer == said)
    return VQAMetrics(len({one.picture for one in questions}), by, Counter(kinds), Counter(right), answers)


def view_question(answerer: QuestionAnswerer, folder: Path, text: str, asked: ViewRequest) -> tuple[str, View]:
    """`text` is the path of a picture. Each word of the question, and where it looked in the last layer."""
    if refused := [name for name in ("word", "target") if getattr(asked, name) is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a question about a picture; leave it out")
    if asked.question is None:
        raise ValueError(f'{folder} answers questions: regard look {folder} {text} "what colour is the circle"')
    pixels = answerer.sight.fit(read_image(text, mode="RGB" if answerer.sight.channels == 3 else "L"))
    question = ImageQuestion(LabelledImage(pixels, "", text), asked.question)
    best = answerer.probabilities([question])[0].topk(min(3, len(answerer.labels)))
    named = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    said = ", ".join(f"{answerer.labels.name(n)} {100 * p:.1f} %" for n, p in named)
    model, device = answerer.model, next(answerer.model.parameters()).device
    tokens, lengths = (part.to(device) for part in pad_rows([answerer.ids(question.text)]))
    with torch.inference_mode(), record_attention(model) as record:
        model(answerer.sight.normalize(pixels[None].to(device)), tokens, lengths)
        names = [site.name for site in record.sites if (site.queries, site.keys) == ("text", "patches")]
        layers = [model.to_grid(record.weights(name))[0].cpu() for name in names]
    words = answerer.tokenizer.tokens(question.text)
    if asked.all_heads:
        rows = {f"layer {n}: {word}": layer[:, t] for n, layer in enumerate(layers) for t, word in enumerate(words)}
        return said, see.overlay_heads_view(pixels / 255, rows, title="where each word looked, head by head")
    if asked.head is not None:
        layer, head = parse_head(asked.head, [len(heads) for heads in layers])
        seen, which = layers[layer][head], f"layer {layer}, head {head}"
    else:
        seen, which = reduce(layers[-1], "h t y x -> t y x", "mean"), "last layer"
    looks = list(zip(words, seen, strict=True))
    return said, see.overlay_view(pixels / 255, looks, title=f"where each word looked ({which})")


VQA = Task(
    settings=VQASettings,
    examples="questions",
    read=lambda settings, split, folder: read_image_questions(settings.data, split, folder),
    from_examples=QuestionAnswerer.from_examples,
    from_description=QuestionAnswerer.from_description,
    load=QuestionAnswerer.load,
    token_ids=lambda answerer, questions: answerer.tokenizer.encode_batch(one.text for one in questions),
    evaluate=evaluate_vqa,
    view=view_question,
    input_description="the file of a picture and a question",
    suggested_command=lambda folder: ("evaluate", folder),
)
