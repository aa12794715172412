"""A model that writes in; the same model out, its attention handed to `attending`: any search can run it."""

from dataclasses import dataclass
from typing import Any

from einops import rearrange
from torch import Tensor

from regard.attention import Padding
from regard.layers.bottleneck import Asked, Squeezed
from regard.models.aligning import WithAttention
from regard.models.autoencoder import Autoencoder
from regard.models.from_latent import Crossing
from regard.models.recurrent import WithoutAttention
from regard.models.seq2seq import Memory, Seq2Seq
from regard.models.transformer import Caches, EncoderLayer, KeysValues, Transformer
from regard.models.writer import LookingBack, Writer
from regard.see.attending import Attending, heads_of
from regard.see.trace import Spot
from regard.see.walks import Lengths, Tokens, X, decoder_layers, encoder, encoder_layer, pooled, reading_on


@dataclass(frozen=True, eq=False)
class WalkedWriter:
    """A language model whose attention goes to `attending`; for `decode.writing.write` a model like any other."""

    model: Writer
    attending: Attending

    @property
    def words(self) -> Any:
        return self.model.words

    def start(self, batch: int) -> Any:
        return self.model.start(batch)

    def read(self, tokens: Tokens, state: Any) -> tuple[X, Any]:
        past = self.model.past
        if not isinstance(past, LookingBack):
            return self.model.read(tokens, state)
        x, caches = past.dropout(past.places(self.model.embedded(tokens), state.layers[0].seen)), []
        for n, layer in enumerate(past.layers):
            assert isinstance(layer, EncoderLayer)
            x, after = reading_on(layer, x, state.layers[n], Spot(f"blocks.{n}", "text", "text"), self.attending)
            x = layer.around_feed_forward(x, layer.feed_forward)
            caches.append(after)
        return self.model.back(self.model.output_dropout(past.norm(x))), Caches(tuple(caches))

    def logits(self, x: X) -> Tensor:
        return self.model.logits(x)

    def grows(self, state: Any) -> bool:
        return isinstance(self.model.past, LookingBack)

    def eval(self) -> Any:
        return self.model.eval()

    def modules(self) -> Any:
        return self.model.modules()


@dataclass(frozen=True, eq=False)
class Remembered(Memory):
    """As the model's own memory, and the vectors that its keys and values were made from."""

    layers: tuple[KeysValues, ...]
    lengths: Lengths
    x: X


@dataclass(frozen=True, eq=False)
class Walked:
    """A sequence-to-sequence model whose attention goes to `attending`; for a search, a model like any other."""

    model: Seq2Seq
    attending: Attending

    def encode(self, source: Tokens, lengths: Lengths) -> Any:
        model, attending = self.model, self.attending
        if isinstance(model, Autoencoder):
            return model.remember(self.latent(model, source, lengths))
        if not isinstance(model, Transformer):
            return model.encode(source, lengths)  # recurrent: nobody attends
        x = model.dropout(model.source_places(model.words.source(source), 0))
        for n, layer in enumerate(model.encoder):
            assert isinstance(layer, EncoderLayer)
            x = encoder_layer(layer, x, Spot(f"encoder.{n}", "source", "source"), attending, padding=Padding(lengths))
        x = model.encoder_norm(x)
        return Remembered(tuple(layer.remember(x) for layer in model.decoder), lengths, x)  # type: ignore[operator]

    def latent(self, model: Autoencoder, source: Tokens, lengths: Lengths) -> Tensor:
        x, narrow = encoder(model.encoder, source, lengths, self.attending, axis="source"), model.bottleneck
        if isinstance(narrow, Asked):
            spot = Spot("bottleneck", "latents", "source")
            asked = narrow.asked(x)
            return heads_of(narrow.attention, asked, spot, self.attending, memory=x, pattern=Padding(lengths))
        assert isinstance(narrow, Squeezed)
        one = pooled(narrow.pooling, x, source, lengths, self.attending, "source", "bottleneck")
        return rearrange(narrow.squeeze(one), "b (k m) -> b k m", k=narrow.latents)

    def start(self, memory: Any) -> Any:
        return self.model.start(memory)

    def step(self, tokens: Tokens, state: Any, memory: Any) -> tuple[Tensor, Any]:
        model = self.model
        if isinstance(model, Transformer):
            x = model.dropout(model.target_places(model.words.target(tokens), state.layers[0].seen))
            read = memory.x if isinstance(memory, Remembered) else None
            x, after = decoder_layers(model.decoder, x, state, memory, self.attending, "source", read)
            return model.logits(model.decoder_norm(x)), after
        if isinstance(model, Autoencoder) and isinstance(latent := model.decoder, Crossing):
            words = model.dropout(model.encoder.words.read(tokens))
            x = latent.dropout(latent.places(words, state.layers[0].seen))
            x, after = decoder_layers(latent.layers, x, state, memory, self.attending, "latents")
            return model.logits(model.dropout(latent.norm(x))), after
        assert isinstance(model, (WithAttention, WithoutAttention, Autoencoder))
        again = isinstance(model, Autoencoder)
        spot = Spot("decoder.attention" if again else "attention", "written", "latents" if again else "source")

        def asks(q, k, v, recipe, at):
            return self.attending.attend(spot, q, k, v, recipe, at=at), None

        logits, after, _ = model.read(tokens, state, memory, asks)
        return logits, after

    def look(self, tokens: Tokens, state: Any, memory: Any) -> Any:
        raise ValueError("a search with a coverage penalty looks at the model as it is; use none with edits")

    def eval(self) -> Any:
        return self.model.eval()

    def modules(self) -> Any:
        return self.model.modules()

    def parameters(self, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  (torch's own)
        return self.model.parameters(recurse)
