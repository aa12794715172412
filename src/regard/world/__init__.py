"""The miniature world: a synchronous grammar of English, French and German sentences with full annotation."""

from regard.world.lexicon import SENSES, SPLITS, Split, composition_split
from regard.world.world import (
    LANGUAGES,
    LECTURE_SENTENCES,
    Ambiguity,
    Rendering,
    Renderings,
    Sentence,
    World,
    find_lecture_sentence,
    translation_pairs,
)

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
