"""The miniature world: a synchronous grammar of English, French and German sentences with full annotation."""

from regard.world.lexicon import SENSES, SPLITS, Split, composition_split
from regard.world.sentence import LANGUAGES, Ambiguity, Rendering, Renderings, Sentence
from regard.world.world import LECTURE_SENTENCES, World, find_lecture_sentence, translation_pairs

__all__ = [
    "LANGUAGES",
    "LECTURE_SENTENCES",
    "SENSES",
    "SPLITS",
    "Ambiguity",
    "Rendering",
    "Renderings",
    "Sentence",
    "Split",
    "World",
    "composition_split",
    "find_lecture_sentence",
    "translation_pairs",
]
