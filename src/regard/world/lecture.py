"""The sentences of the lectures, known word by word."""

from regard.world.adjectives import ADJECTIVES
from regard.world.derive import sentence
from regard.world.nouns import NOUNS
from regard.world.sentence import Ambiguity, Rendering, Renderings, Sentence
from regard.world.small import PRONOUNS, THE, THIS
from regard.world.tree import Clause, Quality, Tense, Thing, Whole
from regard.world.verbs import VERBS

_NOUNS = {noun.key: noun for noun in (*NOUNS, *PRONOUNS)}
_VERBS = {verb.key: verb for verb in VERBS}
_ADJECTIVES = {adjective.key: adjective for adjective in ADJECTIVES}


def _the(noun: str, *adjectives: str) -> Thing:
    return Thing(_NOUNS[noun], THE, qualities=tuple(Quality(_ADJECTIVES[adjective]) for adjective in adjectives))


def _deed(subject: Thing, verb: str, thing: Thing, *, tense: Tense = "past") -> Sentence:
    return sentence(Whole((Clause(_VERBS[verb], tense, subject=subject, object=thing),)))


def _state(subject: Thing, adjective: str, *, very: bool = False) -> Sentence:
    return sentence(Whole((Clause(None, "present", subject=subject, quality=Quality(_ADJECTIVES[adjective], very)),)))


def _rendering(words: str, links: str) -> Rendering:
    """Links as people write them: English index, hyphen, index here."""
    pairs = [link.split("-") for link in links.split()]
    return Rendering(tuple(words.split()), frozenset((int(here), int(there)) for here, there in pairs))


# Three sentences of the lectures are no statements of the grammar (a request, a headline, "to carry"), so they are
# written out.
_REQUEST = Sentence(
    words=("please", "turn", "off", "the", "light"),
    tags=("INTJ", "VERB", "ADP", "DET", "NOUN"),
    heads=(2, 0, 2, 5, 2),
    sentiment=0,
    ambiguities=(Ambiguity(4, "light.noun", ("light.noun", "light.verb", "light.adj"), 1, ("fr", "de")),),
    compositions=(("turn_off", "light.noun"),),
    into=Renderings(
        fr=_rendering("éteignez la lumière s' il vous plaît", "1-0 2-0 3-1 4-2 0-3 0-4 0-5 0-6"),
        de=_rendering("bitte schalten Sie das Licht aus", "0-0 1-1 1-2 3-3 4-4 2-5"),
    ),
)
_HEADLINE = Sentence(
    words=("man", "eats", "small", "dinosaur"),
    tags=("NOUN", "VERB", "ADJ", "NOUN"),
    heads=(2, 0, 4, 2),
    sentiment=0,
    ambiguities=(Ambiguity(1, "eat.person", ("eat.person", "eat.animal"), 0, ("de",)),),
    compositions=(("small", "dinosaur"), ("eat.person", "dinosaur")),
    into=Renderings(
        fr=_rendering("un homme mange un petit dinosaure", "0-0 0-1 1-2 3-3 2-4 3-5"),
        de=_rendering("Mann isst kleinen Dinosaurier", "0-0 1-1 2-2 3-3"),
    ),
)
_TO_CARRY = Sentence(
    words=("this", "box", "is", "very", "light", "to", "carry"),
    tags=("DET", "NOUN", "AUX", "ADV", "ADJ", "PART", "VERB"),
    heads=(2, 5, 5, 5, 0, 7, 5),
    sentiment=0,
    ambiguities=(Ambiguity(4, "light.adj", ("light.noun", "light.verb", "light.adj"), 1, ("fr", "de")),),
    compositions=(("light.adj", "box"),),
    into=Renderings(
        fr=_rendering("cette boîte est très légère à porter", "0-0 1-1 2-2 3-3 4-4 5-5 6-6"),
        de=_rendering("diese Kiste ist sehr leicht zu tragen", "0-0 1-1 2-2 3-3 4-4 5-5 6-6"),
    ),
)

LECTURE: tuple[Sentence, ...] = (
    _deed(_the("cat", "black"), "eat.animal", _the("mouse")),
    _HEADLINE,
    _deed(_the("man"), "see", _the("dinosaur", "small")),
    _REQUEST,
    _TO_CARRY,
    _deed(Thing(_NOUNS["she"]), "turn_off", _the("light.noun")),
    _deed(Thing(_NOUNS["he"]), "light.verb", _the("lamp")),
    _state(Thing(_NOUNS["box"], THIS), "light.adj", very=True),
    _deed(_the("man"), "carry", _the("box", "light.adj"), tense="present"),
)


def known(text: str) -> Sentence | None:
    """The lectures' sentence that reads so, in capitals or not, with a full stop or not; None if they have none."""
    wanted = " ".join(text.lower().replace(".", " ").split())
    return next((found for found in LECTURE if " ".join(found.words) == wanted), None)
