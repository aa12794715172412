"""Models whose attention goes to a runner, so that any task or search can run them with edits or recording."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from einops import rearrange
from torch import Tensor

from regard.attention import Padding
from regard.layers.bottleneck import AttentionBottleneck, PooledBottleneck
from regard.models.autoencoder import Autoencoder, TransformerLatentDecoder
from regard.models.convolution import ChannelCNN
from regard.models.encoder import SequenceClassifier, TokenClassifier
from regard.models.graph import GraphNetwork
from regard.models.language_model import LanguageModel, TransformerLM
from regard.models.rnn_decoders import RNNAttentionSeq2Seq
from regard.models.rnn_seq2seq import RNNSeq2Seq
from regard.models.seq2seq import Memory, Seq2Seq
from regard.models.tfidf import BagOfWordsClassifier
from regard.models.transformer import EncoderLayer, KeysValues, KVCaches, Transformer, cross_keys_values
from regard.models.vision import VisionTransformer
from regard.models.vqa import VQAModel
from regard.see import walks
from regard.see.trace.recorder import AttentionRunner, run_heads
from regard.see.trace.sites import SiteName
from regard.see.walks import Lengths, Tokens, X, decoder_layers, encoder, encoder_layer, feed, pooled, reading_on


def walked_model(model: Any, runner: AttentionRunner) -> Any:
    """What stands for the model and hands every attention to the runner; a model that nobody walks runs as it is."""
    match model:
        case LanguageModel():
            return WalkedWriter(model, runner)
        case Seq2Seq():
            return Walked(model, runner)
        case TokenClassifier():
            return partial(walks.tagger, model, runner)
        case SequenceClassifier() | BagOfWordsClassifier():
            return partial(walks.classifier, model, runner)
        case VisionTransformer() | ChannelCNN():
            return partial(walks.picture, model, runner)
        case VQAModel():
            return partial(walks.answering, model, runner)
        case GraphNetwork():
            return partial(walks.graph, model, runner)
    return model


@dataclass(frozen=True, eq=False)
class WalkedWriter:
    """A language model whose attention goes to `attending`; for `decode.generation.generate` a model like any other."""

    model: LanguageModel
    attending: AttentionRunner

    @property
    def embedding(self) -> Any:
        return self.model.embedding

    def start(self, batch: int) -> Any:
        return self.model.start(batch)

    def decode_hidden(self, tokens: Tokens, state: Any) -> tuple[X, Any]:
        past = self.model.backbone
        if not isinstance(past, TransformerLM):
            return self.model.decode_hidden(tokens, state)
        x, caches = past.dropout(past.positions(self.model.embed(tokens), state.layers[0].length)), []
        for n, layer in enumerate(past.layers):
            assert isinstance(layer, EncoderLayer)
            x, after = reading_on(layer, x, state.layers[n], SiteName(f"blocks.{n}", "text", "text"), self.attending)
            x = feed(layer, x)
            caches.append(after)
        return self.model.output_projection(self.model.output_dropout(past.norm(x))), KVCaches(tuple(caches))

    def logits(self, x: X) -> Tensor:
        return self.model.logits(x)

    def memory_grows(self, state: Any) -> bool:
        return isinstance(self.model.backbone, TransformerLM)

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
    attending: AttentionRunner

    def encode(self, source: Tokens, lengths: Lengths) -> Any:
        model, attending = self.model, self.attending
        if isinstance(model, Autoencoder):
            return model.memory_from_latent(self.latent(model, source, lengths))
        if not isinstance(model, Transformer):
            return model.encode(source, lengths)  # recurrent: nobody attends
        x = model.dropout(model.source_positions(model.embeddings.embed_source(source), 0))
        for n, layer in enumerate(model.encoder):
            assert isinstance(layer, EncoderLayer)
            x = encoder_layer(
                layer, x, SiteName(f"encoder.{n}", "source", "source"), attending, padding=Padding(lengths)
            )
        x = model.encoder_norm(x)
        return Remembered(cross_keys_values(model.decoder, x), lengths, x)

    def latent(self, model: Autoencoder, source: Tokens, lengths: Lengths) -> Tensor:
        x, narrow = encoder(model.encoder, source, lengths, self.attending, axis="source"), model.bottleneck
        if isinstance(narrow, AttentionBottleneck):
            spot = SiteName("bottleneck", "latents", "source")
            asked = narrow.expand_queries(x)
            return run_heads(narrow.attention, asked, spot, self.attending, memory=x, pattern=Padding(lengths))
        assert isinstance(narrow, PooledBottleneck)
        one = pooled(narrow.pooling, x, source, lengths, self.attending, "source", "bottleneck")
        return rearrange(narrow.squeeze(one), "b (k m) -> b k m", k=narrow.latents)

    def start(self, memory: Any) -> Any:
        return self.model.start(memory)

    def step(self, tokens: Tokens, state: Any, memory: Any) -> tuple[Tensor, Any]:
        model = self.model
        if isinstance(model, Transformer):
            x = model.dropout(model.target_positions(model.embeddings.embed_target(tokens), state.layers[0].length))
            read = memory.x if isinstance(memory, Remembered) else None
            x, after = decoder_layers(model.decoder, x, state, memory, self.attending, "source", read)
            return model.logits(model.decoder_norm(x)), after
        if isinstance(model, Autoencoder) and isinstance(latent := model.decoder, TransformerLatentDecoder):
            words = model.dropout(model.encoder.embedding.embed(tokens))
            x = latent.dropout(latent.positions(words, state.layers[0].length))
            x, after = decoder_layers(latent.layers, x, state, memory, self.attending, "latents")
            return model.logits(model.dropout(latent.norm(x))), after
        assert isinstance(model, (RNNAttentionSeq2Seq, RNNSeq2Seq, Autoencoder))
        again = isinstance(model, Autoencoder)
        spot = SiteName("decoder.attention" if again else "attention", "written", "latents" if again else "source")

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
