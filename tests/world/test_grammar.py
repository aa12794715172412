"""Worked examples that a person who knows the languages can check: one construction each."""

import pytest

from regard.world.grammar import Clause, Coordination
from regard.world.lexicon import AND, BECAUSE, BUT, EVERY, HER, MY, NUMBERS, OUR, SOME, THIS, A
from tests.world.derivations import VERB, a, at, does, is_, say

TWO = NUMBERS[0]
ATE = does(None, "eat.animal", a("mouse"), gap="subject")
EATEN = Clause(VERB["eat.animal"], "past", subject=a("cat"), gap="object")

WORKED = [
    (
        say(does(a("tree", "old", by=A), "grow", tense="present")),
        "an old tree grows",
        "un vieil arbre pousse",
        "ein alter Baum wächst",
    ),
    (
        say(does(a("she"), "see", a("man", "beautiful", by=A))),
        "she saw a beautiful man",
        "elle a vu un bel homme",
        "sie hat einen schönen Mann gesehen",
    ),
    (
        say(does(a("woman"), "go", goal=a("garden"))),
        "the woman went to the garden",
        "la femme est allée au jardin",
        "die Frau ist zum Garten gegangen",
    ),
    (
        say(does(a("girl"), "go", tense="present", goal=a("school"))),
        "the girl goes to the school",
        "la fille va à l'école",
        "das Mädchen geht zur Schule",
    ),
    (
        say(does(a("girl", plural=True), "come", goal=a("village"))),
        "the girls came from the village",
        "les filles sont venues du village",
        "die Mädchen sind aus dem Dorf gekommen",
    ),
    (
        say(does(a("owl"), "sleep", tense="present", place=at("beside", a("church")))),
        "the owl sleeps beside the church",
        "le hibou dort à côté de l'église",
        "die Eule schläft neben der Kirche",
    ),
    (
        say(does(a("mouse", relative=EATEN), "sleep")),
        "the mouse that the cat ate slept",
        "la souris que le chat a mangée a dormi",
        "die Maus, die die Katze gefressen hat, hat geschlafen",
    ),
    (
        say(does(a("dog"), "see", a("cat", relative=ATE), negated=True)),
        "the dog did not see the cat that ate the mouse",
        "le chien n'a pas vu le chat qui a mangé la souris",
        "der Hund hat die Katze, die die Maus gefressen hat, nicht gesehen",
    ),
    (
        say(does(a("Anna"), "give", a("apple", "red", by=A), receiver=a("neighbour"))),
        "Anna gave a red apple to the neighbour",
        "Anna a donné une pomme rouge au voisin",
        "Anna hat dem Nachbarn einen roten Apfel gegeben",
    ),
    (
        say(does(a("he"), "turn_off", a("lamp", by=MY), tense="present", adverb="today", fronted=True)),
        "today he turns off my lamp",
        "aujourd'hui il éteint ma lampe",
        "heute schaltet er meine Lampe aus",
    ),
    (
        say(does(a("we"), "eat.person", a("cake", plural=True, by=THIS), tense="future", adverb="tomorrow")),
        "we will eat these cakes tomorrow",
        "nous mangerons ces gâteaux demain",
        "wir werden morgen diese Kuchen essen",
    ),
    (
        say(is_(a("film"), "good", tense="past", negated=True)),
        "the film was not good",
        "le film n'était pas bon",
        "der Film war nicht gut",
    ),
    (
        say(
            does(a("he"), "swim", tense="present"), BECAUSE, does(a("they"), "light.verb", a("candle"), tense="present")
        ),
        "he swims because they light the candle",
        "il nage parce qu'ils allument la bougie",
        "er schwimmt, weil sie die Kerze anzünden",
    ),
    (
        say(does(a("child"), "arrive"), BUT, does(a("Paul"), "sing", adverb="well")),
        "the child arrived but Paul sang well",
        "l'enfant est arrivé mais Paul a bien chanté",
        "das Kind ist angekommen, aber Paul hat gut gesungen",
    ),
    (
        say(is_(Coordination(a("cow"), a("goat", by=HER)), "white")),
        "the cow and her goat are white",
        "la vache et sa chèvre sont blanches",
        "die Kuh und ihre Ziege sind weiß",
    ),
    (
        say(does(a("friend", by=MY), "like", a("cat", "small", "black", by=TWO, plural=True), tense="present")),
        "my friend likes two small black cats",
        "mon ami apprécie deux petits chats noirs",
        "mein Freund mag zwei kleine schwarze Katzen",
    ),
    (
        say(
            does(a("spider", by=MY), "wait", tense="present", place=at("under", a("tree", "old", by=SOME, plural=True)))
        ),
        "my spider waits under some old trees",
        "mon araignée attend sous quelques vieux arbres",
        "meine Spinne wartet unter einigen alten Bäumen",
    ),
    (
        say(does(a("king", "very clever", place=at("without", a("hat", by=OUR))), "fear", a("lion", by=EVERY))),
        "the very clever king without our hat feared every lion",
        "le roi très intelligent sans notre chapeau a craint chaque lion",
        "der sehr kluge König ohne unseren Hut hat jeden Löwen gefürchtet",
    ),
    (
        say(does(a("man"), "lose", a("shoe", "left.side"), tense="present")),
        "the man loses the left shoe",
        "l'homme perd la chaussure gauche",
        "der Mann verliert den linken Schuh",
    ),
    (
        say(
            does(a("student"), "write", a("answer", "right.correct")),
            AND,
            does(a("he"), "raise", a("hand", "right.side")),
        ),
        "the student wrote the right answer and he raised the right hand",
        "l'étudiant a écrit la bonne réponse et il a levé la main droite",
        "der Student hat die richtige Antwort geschrieben und er hat die rechte Hand gehoben",
    ),
    (
        say(does(a("cat", "hungry", "black"), "sleep", tense="present", place=at("in", a("room", "dark")))),
        "the hungry black cat sleeps in the dark room",
        "le chat noir affamé dort dans la chambre sombre",
        "die hungrige schwarze Katze schläft im dunklen Zimmer",
    ),
]


@pytest.mark.parametrize(("sentence", "english", "french", "german"), WORKED, ids=[entry[1] for entry in WORKED])
def test_a_person_can_check_it(sentence, english, french, german):
    assert sentence.text() == english
    assert sentence.text("fr") == french
    assert sentence.text("de") == german


def words_for(sentence, word, language):
    rendering, source = sentence.renderings[language], sentence.words.index(word)
    return {rendering.words[target] for start, target in rendering.alignment if start == source}


def test_helpers_meet_their_counterparts_and_melted_words_meet_both():
    denied = say(does(a("dog"), "see", a("cat"), negated=True))
    assert words_for(denied, "did", "fr") == {"a"}
    assert words_for(denied, "not", "fr") == {"n'", "pas"}
    assert words_for(denied, "see", "de") == {"gesehen"}
    future = say(does(a("cat"), "sleep", tense="future"))
    assert words_for(future, "will", "fr") == words_for(future, "sleep", "fr") == {"dormira"}
    assert words_for(future, "will", "de") == {"wird"}
    gone = say(does(a("she"), "go", goal=a("garden")))
    assert words_for(gone, "to", "fr") == words_for(gone, "the", "fr") == {"au"}
    assert words_for(gone, "to", "de") == words_for(gone, "the", "de") == {"zum"}


def test_german_commas_meet_the_word_that_demands_them():
    sentence = say(does(a("mouse", relative=EATEN), "sleep"))
    assert words_for(sentence, "that", "de") == {",", "die"}


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        (is_(a("film"), "good"), 1),
        (is_(a("film"), "good", negated=True), -1),
        (is_(a("film"), "bad", negated=True), 1),
        (does(a("he"), "love", a("cat"), negated=True), -1),
        (does(a("he"), "see", a("cat", "beautiful"), negated=True), 1),
        (does(a("she"), "sing", adverb="badly"), -1),
        (does(a("she"), "see", a("cat", "black")), 0),
        (does(a("she"), "hate", a("cat", "beautiful")), 0),
    ],
)
def test_not_turns_what_is_said_but_not_what_is_named(clause, expected):
    assert say(clause).sentiment == expected
