"""A text or a node, and a model that labels it, in; the scene out: taggers, classifiers, labellers of nodes."""

from regard.decode.model import at_rest
from regard.see import walks
from regard.see.attending import Tracing
from regard.see.scene import Asked, Axis, Outcome, Scene, sites_of
from regard.see.swaps import refuse_swaps, swapped
from regard.see.tokens import named
from regard.tasks.classify import TextClassifier, terms_of
from regard.tasks.classify import collate as texts_together
from regard.tasks.graph import Labeller, trained_on
from regard.tasks.tag import Tagger, collate
from regard.text.conllu import NONE, Tagged
from regard.world import known


def tagged(asked: Asked, tagger: Tagger) -> Scene:
    """Words between blanks; a sentence of the lectures comes with its tree, which some models want."""
    text = " ".join(swapped(asked.text, asked.edits).split())
    words, gold = tuple(text.split()), known(text)
    heads = gold.heads if gold and gold.words == words else None
    if heads is None and tagger.model.encoder.wants_heads:
        raise ValueError(
            "this model wants the words' dependency heads, which are known of the lectures' sentences alone"
        )
    example, tracing = tagger.example(Tagged(words, (NONE,) * len(words), heads)), Tracing(asked.edits)
    asked.refuse_long(len(example.pieces.ids))
    with at_rest(tagger.model):
        batch = collate([example]).to(next(tagger.model.parameters()).device)
        logits = walks.tagger(tagger.model, tracing, *batch.read)[0].float()  # type: ignore[arg-type]
    tags = [tagger.labels.name(n) for n in logits.argmax(-1).tolist()]
    labels = tuple(named(tagger.words, one) for one in example.pieces.ids)
    return Scene(
        asked,
        "tag",
        " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)),
        {"text": Axis(labels, words, tuple(example.pieces.word_of))},
        sites_of(tracing),
        Outcome(words, logits, tagger.labels.name),
    )


def classified(asked: Asked, classifier: TextClassifier) -> Scene:
    text, tracing = swapped(classifier.words.normal.apply(asked.text), asked.edits), Tracing(asked.edits)
    asked.refuse_long(len(terms := classifier.terms(text)))
    with at_rest(classifier.model):
        batch = texts_together([(terms, 0)]).to(next(classifier.model.parameters()).device)
        logits = walks.classifier(classifier.model, tracing, batch.terms, batch.lengths).float()
    said = classifier.labels.name(int(logits.argmax()))
    outcome = Outcome(("label",), logits, classifier.labels.name)
    return Scene(asked, "classify", said, {"text": axis_of(classifier, text)}, sites_of(tracing), outcome)


def axis_of(classifier: TextClassifier, text: str) -> Axis:
    """The words of a text and, where they are read too, runs of several, which belong to no single word."""
    pieces, owners = classifier.words.tokens(text) or ["<unk>"], classifier.words.word_of(text)
    kept = classifier.places(len(pieces))
    labels, word_of = [], []
    for place in terms_of(classifier.words, classifier.settings.words).places(len(kept)):
        labels.append(" ".join(pieces[kept[one]] for one in place))
        word_of.append(owners[kept[place.start]] if len(place) == 1 and owners else None)
    return Axis(tuple(labels), tuple(classifier.words.normal.apply(text).split()), tuple(word_of))


def labelled(asked: Asked, labeller: Labeller) -> Scene:
    """One node of the graph that was trained on; the sites are those of the whole graph."""
    refuse_swaps(asked.edits, "a graph")
    graph, tracing = trained_on(labeller.settings.data), Tracing(asked.edits)
    number = graph.index(asked.text)
    with at_rest(labeller.model):
        logits = walks.graph(labeller.model, tracing, *labeller.whole(graph).read)[number, None].float()
    said = labeller.labels.name(int(logits.argmax()))
    axes = {"nodes": Axis(tuple(node.name for node in graph.nodes))}
    return Scene(asked, "graph", said, axes, sites_of(tracing), Outcome((asked.text,), logits, labeller.labels.name))
