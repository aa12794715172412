"""Lexicon: words in English, French and German, their selectional restrictions, ambiguities, and splits of compositions.

An entry is one sense of a word in three languages at once. A key is the English word, with its sense after a dot where
the word has several (bat.animal, bat.club). Kinds are the selectional restrictions of verbs and adjectives; a noun's
own key is one of its kinds.
"""

# ruff: noqa: E501 (an entry is a line, however long)

from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Literal

from regard.world.splitmix import hash_text

CONSONANTS = frozenset("bcdfghjklmnpqrstvwxz")


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun, name or pronoun. German forms: nominative singular, plural, and the other cases of the singular."""

    key: str
    en: tuple[str, str]
    fr: tuple[str, str]
    fr_gender: str
    de: tuple[str, str, str]
    de_gender: str
    kinds: frozenset[str]
    upos: str = "NOUN"
    plural_only: bool = False
    first_person: bool = False

    @property
    def countable(self) -> bool:
        return self.en[1] != "-"


@dataclass(frozen=True, eq=False)
class Adjective:
    """French: masculine, feminine, masculine before a vowel. German: predicative form, stem of the inflected ones."""

    key: str
    en: str
    fr: tuple[str, str, str]
    precedes_noun: bool
    de: tuple[str, str]
    rank: int
    kinds: frozenset[str]
    gradable: bool = False
    predicative: bool = True
    valence: int = 0


@dataclass(frozen=True)
class Goal:
    """Goal of a verb of motion: the preposition in three languages (the German one with the dative) and the kinds."""

    en: str
    fr: str
    de: str
    kinds: frozenset[str]


@dataclass(frozen=True, eq=False)
class Verb:
    """English: base, third person, past. French: present of il, nous, ils; participle; stem of the future.

    German: separable prefix, infinitive and present without it, participle.
    """

    key: str
    en: tuple[str, str, str]
    particle: str
    fr: tuple[str, str, str, str, str]
    fr_aux: str
    de: tuple[str, str, str, str]
    de_aux: str
    subjects: frozenset[str]
    objects: frozenset[str]
    receives: bool = False
    goal: Goal | None = None
    features: frozenset[str] = field(default_factory=frozenset)
    valence: int = 0


def parse_nouns(table: str) -> tuple[Noun, ...]:
    """Lines such as `mouse/mice | souris f | Maus/Mäuse f | animal prey`."""
    return tuple(_noun(*[cell.strip() for cell in line.split("|")]) for line in table.strip().splitlines())


def parse_adjectives(table: str) -> tuple[Adjective, ...]:
    """Lines such as `beautiful | beau belle bel before | schön | 0 + very | person animal`."""
    return tuple(_adjective(*[cell.strip() for cell in line.split("|")]) for line in table.strip().splitlines())


def parse_verbs(table: str) -> tuple[Verb, ...]:
    """Lines such as `see saw | voit voyons voient vu verr | sehen sieht gesehen | person | thing | pace`."""
    return tuple(_verb(*[cell.strip() for cell in line.split("|")]) for line in table.strip().splitlines())


def french_plural(word: str) -> str:
    if word[-1] in "sxz":
        return word
    return word + ("x" if word.endswith("eau") else "s")


def _with_s(word: str) -> str:
    """An English word with its s: box, boxes; story, stories; go, goes."""
    if word.endswith("y") and word[-2] in CONSONANTS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "o")) else "s")


def _past(word: str) -> str:
    if word.endswith("y") and word[-2] in CONSONANTS:
        return word[:-1] + "ied"
    return word + ("d" if word.endswith("e") else "ed")


def _noun(english: str, french: str, german: str, kinds: str) -> Noun:
    key, _, plural = english.partition("/")
    word = key.split(".")[0]
    (fr, fr_gender), (de, de_gender) = french.split(), german.split()
    fr, _, fr_plural = fr.partition("/")
    forms = de.split("/")
    return Noun(
        key=key,
        en=(word, plural or _with_s(word)),
        fr=(fr, fr_plural or french_plural(fr)),
        fr_gender=fr_gender,
        de=(forms[0], forms[1], forms[2] if len(forms) > 2 else forms[0]),
        de_gender=de_gender,
        kinds=frozenset([key, *kinds.split()]),
    )


def _adjective(key: str, french: str, german: str, features: str, kinds: str) -> Adjective:
    rank, *flags = features.split()
    before = french.endswith(" before")
    forms = french.removesuffix(" before").split()
    predicative, *stem = german.split()
    return Adjective(
        key=key,
        en=key.split(".")[0],
        fr=(forms[0], forms[1], forms[2] if len(forms) > 2 else forms[0]),
        precedes_noun=before,
        de=(predicative, stem[0] if stem else predicative),
        rank=int(rank),
        kinds=frozenset(kinds.split()),
        gradable="very" in flags,
        predicative="attributive" not in flags,
        valence=("+" in flags) - ("-" in flags),
    )


def _french_verb(forms: list[str]) -> tuple[str, str, str, str, str]:
    """The five principal parts; a regular verb in -er gives them by its infinitive alone."""
    if len(forms) == 5:
        return forms[0], forms[1], forms[2], forms[3], forms[4]
    (infinitive,) = forms
    stem = infinitive.removesuffix("er")
    soft = stem[:-1] + "ç" if stem.endswith("c") else stem + "e" if stem.endswith("g") else stem
    return stem + "e", soft + "ons", stem + "ent", stem + "é", infinitive


def _verb(english: str, french: str, german: str, subjects: str, objects: str, features: str) -> Verb:
    key, *past = english.split()
    flags = features.split()
    base = key.split(".")[0].split("_")[0]
    french_forms, german_forms = french.split(), german.split()
    prefix, _, infinitive = german_forms[0].rpartition("~")
    goal, receives, accepted = None, False, objects.split()
    if accepted and accepted[0] == "whom":
        receives, accepted = True, accepted[1:]
    if accepted and accepted[0] in ("to", "from"):
        goal, accepted = Goal(*accepted[:3], kinds=frozenset(accepted[3:])), []
    return Verb(
        key=key,
        en=(base, _with_s(base), past[0] if past else _past(base)),
        particle=key.partition("_")[2],
        fr=_french_verb([form for form in french_forms if form != "être"]),
        fr_aux="être" if "être" in french_forms else "avoir",
        de=(prefix, infinitive, german_forms[1], german_forms[2]),
        de_aux="sein" if "sein" in german_forms else "haben",
        subjects=frozenset(subjects.split()),
        objects=frozenset(accepted),
        receives=receives,
        goal=goal,
        features=frozenset(flags) - {"+", "-"},
        valence=("+" in flags) - ("-" in flags),
    )


# --- nouns ---


# Nouns: English, French with gender, German with gender and plural, kinds.
# A third German form is the weak noun's (der Löwe, den Löwen). "-" for a plural: the word is used in the singular only.
# in, on, under, by: where something can be found. host, site: what can be found somewhere; a site is itself a place.
# unowned: my girl would be a daughter in French.
NOUNS = parse_nouns("""
man/men | homme m | Mann/Männer m | person host unowned
woman/women | femme f | Frau/Frauen f | person host unowned
boy | garçon m | Junge/Jungen/Jungen m | person host unowned
girl | fille f | Mädchen/Mädchen n | person host unowned
child/children | enfant m | Kind/Kinder n | person host
teacher | professeur m | Lehrer/Lehrer m | person host
doctor | médecin m | Arzt/Ärzte m | person host
farmer | fermier m | Bauer/Bauern/Bauern m | person host
king | roi m | König/Könige m | person host
queen | reine f | Königin/Königinnen f | person host
baker | boulanger m | Bäcker/Bäcker m | person host
friend | ami m | Freund/Freunde m | person host
neighbour | voisin m | Nachbar/Nachbarn/Nachbarn m | person host
student | étudiant m | Student/Studenten/Studenten m | person host
sister | sœur f | Schwester/Schwestern f | person host
brother | frère m | Bruder/Brüder m | person host
mother | mère f | Mutter/Mütter f | person host
father | père m | Vater/Väter m | person host
soldier | soldat m | Soldat/Soldaten/Soldaten m | person host
painter | peintre m | Maler/Maler m | person host
princess | princesse f | Prinzessin/Prinzessinnen f | person host
thief/thieves | voleur m | Dieb/Diebe m | person host
cook.noun | cuisinier m | Koch/Köche m | person host
cat | chat m | Katze/Katzen f | animal host
dog | chien m | Hund/Hunde m | animal host
mouse/mice | souris f | Maus/Mäuse f | animal prey host
bird | oiseau m | Vogel/Vögel m | animal prey wings host
horse | cheval/chevaux m | Pferd/Pferde n | animal host
cow | vache f | Kuh/Kühe f | animal host
lion | lion m | Löwe/Löwen/Löwen m | animal beast host
bear | ours m | Bär/Bären/Bären m | animal beast host
wolf/wolves | loup m | Wolf/Wölfe m | animal beast host
fox | renard m | Fuchs/Füchse m | animal host
elephant | éléphant m | Elefant/Elefanten/Elefanten m | animal beast host
monkey | singe m | Affe/Affen/Affen m | animal host
rabbit | lapin m | Kaninchen/Kaninchen n | animal prey host
goat | chèvre f | Ziege/Ziegen f | animal host
pig | cochon m | Schwein/Schweine n | animal host
hen | poule f | Henne/Hennen f | animal prey host
duck | canard m | Ente/Enten f | animal prey host
frog | grenouille f | Frosch/Frösche m | animal prey host
snake | serpent m | Schlange/Schlangen f | animal beast host
spider | araignée f | Spinne/Spinnen f | animal prey host
owl | hibou/hiboux m | Eule/Eulen f | animal wings host
hedgehog | hérisson m | Igel/Igel m | animal host
tiger | tigre m | Tiger/Tiger m | animal beast host
dinosaur | dinosaure m | Dinosaurier/Dinosaurier m | animal beast host
turtle | tortue f | Schildkröte/Schildkröten f | animal host
squirrel | écureuil m | Eichhörnchen/Eichhörnchen n | animal host
donkey | âne m | Esel/Esel m | animal host
bee | abeille f | Biene/Bienen f | animal wings host
bat.animal | chauve-souris/chauves-souris f | Fledermaus/Fledermäuse f | animal wings host
seal.animal | phoque m | Robbe/Robben f | animal host
fly.noun | mouche f | Fliege/Fliegen f | animal prey wings host
apple | pomme f | Apfel/Äpfel m | food fruit host
bread/- | pain m | Brot/Brote n | food solid host
cake | gâteau m | Kuchen/Kuchen m | food host
egg | œuf m | Ei/Eier n | food host
cheese | fromage m | Käse/Käse m | food host
banana | banane f | Banane/Bananen f | food fruit host
pear | poire f | Birne/Birnen f | food fruit host
carrot | carotte f | Karotte/Karotten f | food host
soup | soupe f | Suppe/Suppen f | food host
tomato | tomate f | Tomate/Tomaten f | food fruit host
strawberry | fraise f | Erdbeere/Erdbeeren f | food fruit host
cherry | cerise f | Kirsche/Kirschen f | food fruit host
nut.food | noix f | Nuss/Nüsse f | food fruit host
date.food | datte f | Dattel/Datteln f | food fruit host
box | boîte f | Kiste/Kisten f | thing opens hollow in host
key | clé f | Schlüssel/Schlüssel m | thing tool host
knife/knives | couteau m | Messer/Messer n | thing tool host
lamp | lampe f | Lampe/Lampen f | thing fragile mends burns glows host
candle | bougie f | Kerze/Kerzen f | thing burns glows host
cup | tasse f | Tasse/Tassen f | thing fragile hollow host
bottle | bouteille f | Flasche/Flaschen f | thing fragile hollow opens host
ball | ballon m | Ball/Bälle m | thing thrown host
bag | sac m | Tasche/Taschen f | thing opens hollow in host
basket | panier m | Korb/Körbe m | thing hollow in host
stone | pierre f | Stein/Steine m | thing thrown solid host
umbrella | parapluie m | Regenschirm/Regenschirme m | thing carried host
mirror | miroir m | Spiegel/Spiegel m | thing fragile host
hammer | marteau m | Hammer/Hämmer m | thing tool host
axe | hache f | Axt/Äxte f | thing tool host
saw.noun | scie f | Säge/Sägen f | thing tool mends host
harp | harpe f | Harfe/Harfen f | thing mends host
guitar | guitare f | Gitarre/Gitarren f | thing mends host
clock | horloge f | Uhr/Uhren f | thing mends host
spoon | cuillère f | Löffel/Löffel m | thing bends host
screw | vis f | Schraube/Schrauben f | thing bolt host
watch.noun | montre f | Armbanduhr/Armbanduhren f | thing mends carried host
hat | chapeau m | Hut/Hüte m | clothing carried host
coat | manteau m | Mantel/Mäntel m | clothing carried host
shirt | chemise f | Hemd/Hemden n | clothing host
shoe | chaussure f | Schuh/Schuhe m | clothing host
ring | bague f | Ring/Ringe m | thing carried host
bat.club | batte f | Schläger/Schläger m | club
spring.coil | ressort m | Feder/Federn f | coil bends mends
match.stick | allumette f | Streichholz/Streichhölzer n | stick burns
seal.stamp | sceau m | Siegel/Siegel n | stamp fragile
nut.bolt | écrou m | Schraubenmutter/Schraubenmuttern f | bolt
light.noun | lumière f | Licht/Lichter n | glows lighting
star | étoile f | Stern/Sterne m | glows star
table | table f | Tisch/Tische m | furniture on under by site
chair | chaise f | Stuhl/Stühle m | furniture on by site
bed | lit m | Bett/Betten n | furniture on under by site
cupboard | armoire f | Schrank/Schränke m | furniture opens in by site
door | porte f | Tür/Türen f | opens by
window | fenêtre f | Fenster/Fenster n | opens fragile by
wall | mur m | Mauer/Mauern f | built by on site
roof | toit m | Dach/Dächer n | mends on
bridge | pont m | Brücke/Brücken f | built mends on under by site
house | maison f | Haus/Häuser n | building built in by site
church | église f | Kirche/Kirchen f | building built in by site
school | école f | Schule/Schulen f | building built managed in by site
castle | château m | Schloss/Schlösser n | building built in by site
tower | tour f | Turm/Türme m | building built in by site
hospital | hôpital/hôpitaux m | Krankenhaus/Krankenhäuser n | building built managed in by site
shop | magasin m | Laden/Läden m | building managed in by site
hotel | hôtel m | Hotel/Hotels n | building built managed in by site
plant.factory | usine f | Fabrik/Fabriken f | built managed firm
company | entreprise f | Firma/Firmen f | managed firm
bank.money | banque f | Bank/Banken f | managed firm robbed
bank.river | rive f | Ufer/Ufer n | shore
garden | jardin m | Garten/Gärten m | place in by site
forest | forêt f | Wald/Wälder m | place in by site
village | village m | Dorf/Dörfer n | place town in by site
city | ville f | Stadt/Städte f | place town in by site
river | rivière f | Fluss/Flüsse m | water by site
lake | lac m | See/Seen m | water by site
island | île f | Insel/Inseln f | place shore on site
beach | plage f | Strand/Strände m | place shore
street | rue f | Straße/Straßen f | road
kitchen | cuisine f | Küche/Küchen f | room in by site
room | chambre f | Zimmer/Zimmer n | room in
park | parc m | Park/Parks m | place in by site
field | champ m | Feld/Felder n | place by site
car | voiture f | Auto/Autos n | vehicle mends in by site
bicycle | vélo m | Fahrrad/Fahrräder n | vehicle mends by
boat | bateau m | Boot/Boote n | vehicle mends built on by site
train | train m | Zug/Züge m | vehicle mends
tree | arbre m | Baum/Bäume m | plant under by site
flower | fleur f | Blume/Blumen f | plant gift host
rose | rose f | Rose/Rosen f | plant gift host
plant.green | plante f | Pflanze/Pflanzen f | plant
palm.tree | palmier m | Palme/Palmen f | plant
hand | main f | Hand/Hände f | body side
foot/feet | pied m | Fuß/Füße m | body side
eye | œil/yeux m | Auge/Augen n | body side
ear | oreille f | Ohr/Ohren n | body side
arm | bras m | Arm/Arme m | body side
leg | jambe f | Bein/Beine n | body side
knee | genou/genoux m | Knie/Knie n | body side
palm.hand | paume f | Handfläche/Handflächen f | body side
book | livre m | Buch/Bücher n | text written gift host
newspaper | journal/journaux m | Zeitung/Zeitungen f | text gift host
story | histoire f | Geschichte/Geschichten f | text written
poem | poème m | Gedicht/Gedichte n | text written
letter | lettre f | Brief/Briefe m | text written gift host
song | chanson f | Lied/Lieder n | text written heard
picture | image f | Bild/Bilder n | picture gift host
question | question f | Frage/Fragen f | question written
answer | réponse f | Antwort/Antworten f | question fact written
word | mot m | Wort/Wörter n | fact written
name | nom m | Name/Namen/Namen m | fact written
number | nombre m | Zahl/Zahlen f | fact written
problem | problème m | Problem/Probleme n | question
exercise | exercice m | Übung/Übungen f | question
date.day | date f | Datum/Daten n | fact written
film | film m | Film/Filme m | event show
concert | concert m | Konzert/Konzerte n | event show
party | fête f | Fest/Feste n | event
race | course f | Rennen/Rennen n | event game
match.game | match/matchs m | Spiel/Spiele n | event game
play.noun | pièce f | Theaterstück/Theaterstücke n | event show written
spring.season/- | printemps m | Frühling/Frühlinge m | season
summer/- | été m | Sommer/Sommer m | season
autumn/- | automne m | Herbst/Herbste m | season
winter/- | hiver m | Winter/Winter m | season
""")


# --- adjectives ---


# English puts the lower rank first: opinion 0, size 1, quality 2, age 3, colour 4, side 5. Only a quality
# disambiguates a noun. A French adjective follows its noun unless it says "before"; a third form is used before a vowel.
# "very": it is gradable.
ADJECTIVES = parse_adjectives("""
good | bon bonne before | gut | 0 + very | teacher doctor king queen cook.noun friend baker painter student neighbour soldier animal food text show party fruit
bad | mauvais mauvaise before | schlecht | 0 - very | text show game question party food
beautiful | beau belle bel before | schön | 0 + very | person animal thing clothing building town plant picture text season place star lighting name word water bridge fruit cake field street window door party
pretty | joli jolie before | hübsch | 0 + very | woman girl child princess queen cat dog bird prey clothing plant house garden room picture
ugly | laid laide | hässlich | 0 - very | person beast thing clothing building vehicle picture roof wall door bridge street park
wonderful | merveilleux merveilleuse | wunderbar | 0 + | person text show place building season party water game lighting cake soup name
terrible | terrible terrible | schrecklich | 0 - | beast show game question party winter word
interesting | intéressant intéressante | interessant | 0 + very | person text show question town
boring | ennuyeux ennuyeuse | langweilig | 0 - very | person text show game town party
exciting | passionnant passionnante | spannend | 0 + very | text show game
funny | drôle drôle | lustig | 0 + very | person animal text film
delicious | délicieux délicieuse | köstlich | 0 + | food
important | important importante | wichtig | 2 very | person question fact text game bridge
small | petit petite before | klein | 1 very | person animal food thing clothing furniture opens building firm place room vehicle plant body picture star water club coil bolt stamp stick glows number party field
big | grand grande before | groß | 1 very | animal thing clothing furniture opens building built firm place room vehicle plant body picture water stamp bolt star number party
long | long longue before | lang | 1 very | text show road coat winter question bridge party number match.stick race match.game summer street
old | vieux vieille vieil before | alt | 3 very | man woman teacher doctor farmer king queen baker friend neighbour soldier painter cook.noun thief animal thing clothing furniture building built vehicle tree book newspaper letter roof firm club stamp coil bolt opens bridge wall name friend field park
young | jeune jeune before | jung | 3 very | person animal
new | nouveau nouvelle nouvel before | neu | 3 attributive | thing clothing furniture building built firm vehicle text film roof teacher friend neighbour club stamp coil bolt opens name date.day number word street park
modern | moderne moderne | modern | 2 very | furniture building built firm kitchen
black | noir noire | schwarz | 4 | animal thing clothing furniture vehicle
white | blanc blanche | weiß | 4 | animal thing clothing furniture building vehicle flower rose wall opens lighting star boat
red | rouge rouge | rot | 4 | thing clothing furniture fruit vehicle flower rose roof door stamp lighting
green | vert verte | grün | 4 | thing clothing furniture frog snake apple pear vehicle door opens lighting
blue | bleu bleue | blau | 4 | thing clothing furniture vehicle flower bird opens lighting house boat
yellow | jaune jaune | gelb | 4 | thing clothing banana flower rose house
grey | gris grise | grau | 4 | cat mouse horse donkey elephant wolf clothing stone wall house
brown | brun brune | braun | 4 | horse bear dog cow hen clothing furniture bag bread egg door
hungry | affamé affamée | hungrig | 2 very | person animal
tired | fatigué fatiguée | müde müd | 2 very | person animal
happy | heureux heureuse | glücklich | 2 + very | person animal
sad | triste triste | traurig | 2 - very | person animal story poem song film
angry | furieux furieuse | wütend | 2 - very | person beast
kind | gentil gentille | freundlich | 2 + very | person
cruel | cruel cruelle | grausam | 2 - very | person beast
clever | intelligent intelligente | klug | 2 + very | person animal
stupid | stupide stupide | dumm | 2 - very | person question
lazy | paresseux paresseuse | faul | 2 - very | person cat dog donkey
brave | courageux courageuse | mutig | 2 + very | person dog lion horse mouse
rich | riche riche | reich | 2 very | person firm town
strong | fort forte | stark | 2 very | person horse beast body coil bridge wall
weak | faible faible | schwach | 2 very | person animal body
sick | malade malade | krank | 2 - very | person animal
famous | célèbre célèbre | berühmt | 2 very | person text show building picture town name bridge park race play.noun river
dangerous | dangereux dangereuse | gefährlich | 2 - very | beast tool road thief soldier bridge water race
wild | sauvage sauvage | wild | 2 very | beast horse rabbit duck cat bee goat pig
fast | rapide rapide | schnell | 2 very | vehicle horse dog rabbit race game train
slow | lent lente | langsam | 2 very | turtle donkey vehicle cook.noun student painter
heavy | lourd lourde | schwer | 2 very | thing furniture coat club bolt opens
light.adj | léger légère | leicht | 2 very | thing clothing chair bicycle club
round | rond ronde | rund | 2 | table stone ball mirror tower cake box basket stamp window bread cheese egg
clean | propre propre | sauber | 2 very | clothing hollow vehicle room street body knife table window cup spoon
dirty | sale sale | schmutzig | 2 - very | clothing hollow vehicle room street body knife pig window stone wall door
cold | froid froide | kalt | 2 very | soup season room water body lighting
warm | chaud chaude | warm | 2 very | soup season room clothing bread body lighting
sweet | sucré sucrée | süß | 2 very | fruit cake
fresh | frais fraîche | frisch | 2 very | food
ripe | mûr mûre | reif | 2 | fruit
expensive | cher chère | teuer teur | 2 very | thing clothing furniture vehicle hotel house ring
empty | vide vide | leer | 2 | hollow building room street train
full | plein pleine | voll | 2 | hollow train hotel
sharp | tranchant tranchante | scharf | 2 very | knife axe saw.noun
rusty | rouillé rouillée | rostig | 2 very | tool bolt coil bicycle car door screw
muddy | boueux boueuse | schlammig | 2 very | bank.river road field river shoe
dark | sombre sombre | dunkel dunkl | 2 very | room forest building road
bright | clair claire | hell | 2 very | glows room kitchen
wet | mouillé mouillée | nass | 2 very | clothing dog cat bag match.stick umbrella wall stone roof street
hard.solid | dur dure | hart | 2 very | solid bed chair cheese
hard.difficult | difficile difficile | schwierig | 2 very | question word
easy | facile facile | einfach | 2 very | question word
right.correct | bon bonne before | richtig | 2 attributive | fact key train
right.side | droit droite | recht | 5 attributive | side shoe
left.side | gauche gauche | link | 5 attributive | side shoe
""")


# --- verbs ---


# French: the infinitive of a regular verb, or il, nous, ils, participle, stem of the future. German: infinitive
# (a separable prefix stands before ~), er, participle. être and sein name the auxiliary where it is not avoir, haben.
# Objects: "whom" if there is a recipient too; "to" or "from" with its French and German, if the verb takes a goal.
# Last: adverbs it takes (pace, skill, mood, care, often), place if it takes a location, valence, "loose" if its arguments
# do not disambiguate a noun (one may see either bat, but only feed the one that eats), "lost" if its goal is obligatory.
VERBS = parse_verbs("""
sleep slept | dort dormons dorment dormi dormir | schlafen schläft geschlafen | person animal | | skill often place
work | travailler | arbeiten arbeitet gearbeitet | person | | pace skill often place
sing sang | chanter | singen singt gesungen | person | | skill mood often place
dance | danser | tanzen tanzt getanzt | person | | skill mood pace often place
laugh | rit rions rient ri rir | lachen lacht gelacht | person | | often place
cry | pleurer | weinen weint geweint | person | | often place
smile | sourit sourions sourient souri sourir | lächeln lächelt gelächelt | person | | mood often
swim swam | nager | schwimmen schwimmt geschwommen sein | person animal | to vers zu shore | pace skill often
go went | va allons vont allé ir être | gehen geht gegangen sein | person | to à zu building garden forest park river lake field beach | often lost
come came | vient venons viennent venu viendr être | kommen kommt gekommen sein | person | from de aus town forest house castle church school hospital garden kitchen room park | pace often
return | revient revenons reviennent revenu reviendr être | zurück~kommen kommt zurückgekommen sein | person animal | | pace often
arrive | arriver être | an~kommen kommt angekommen sein | person vehicle | | place
fall fell | tomber être | fallen fällt gefallen sein | person thing animal | | often loose
stay | rester être | bleiben bleibt geblieben sein | person animal | | often place
die | meurt mourons meurent mort mourr être | sterben stirbt gestorben sein | person animal plant | | - pace place
wait | attend attendons attendent attendu attendr | warten wartet gewartet | person animal | | often place
travel travelled | voyager | reisen reist gereist sein | person | | often
run.move ran | court courons courent couru courr | laufen läuft gelaufen sein | person animal | | pace often
fly.verb flew | voler | fliegen fliegt geflogen sein | wings | | pace often
grow grew | pousser | wachsen wächst gewachsen sein | plant | | pace skill place
shine shone | briller | leuchten leuchtet geleuchtet | glows | | often
begin began | commencer | beginnen beginnt begonnen | event season | |
end | finit finissons finissent fini finir | enden endet geendet | event season | |
play.verb | jouer | spielen spielt gespielt | person | | skill mood often place
cook.verb | cuisiner | kochen kocht gekocht | person | | skill pace often place
eat.person ate | manger | essen isst gegessen | person | food | pace often
eat.animal ate | manger | fressen frisst gefressen | animal | food prey | pace often
see saw | voit voyons voient vu verr | sehen sieht gesehen | person animal | person animal thing clothing furniture building place vehicle plant water star room road built opens lighting roof picture | often loose
watch.verb | regarder | beobachten beobachtet beobachtet | person animal | person animal star | often
find found | trouver | finden findet gefunden | person | animal thing clothing food text picture fact | pace often loose
love | aimer | lieben liebt geliebt | person | person animal season text place fruit water picture | + loose
hate | détester | hassen hasst gehasst | person | person animal winter question town party | - loose
like | apprécie apprécions apprécient apprécié apprécier | mögen mag gemocht | person | person animal text show town building plant season place party game room road | + loose
admire | admirer | bewundern bewundert bewundert | person | person building picture star beast | + often
fear | craint craignons craignent craint craindr | fürchten fürchtet gefürchtet | person animal | beast thief king soldier winter | -
buy bought | achète achetons achètent acheté achèter | kaufen kauft gekauft | person firm | thing clothing food vehicle text furniture picture house castle hotel flower rose | pace often loose
sell sold | vend vendons vendent vendu vendr | verkaufen verkauft verkauft | person firm | thing clothing food vehicle furniture picture house castle hotel book newspaper flower rose horse cow | pace often loose
open | ouvre ouvrons ouvrent ouvert ouvrir | öffnen öffnet geöffnet | person | opens letter | pace often
close | fermer | schließen schließt geschlossen | person | opens | pace often
break broke | casser | zerbrechen zerbricht zerbrochen | person animal | fragile guitar bat.club ring | often
throw threw | lancer | werfen wirft geworfen | person | thrown bat.club shoe apple | pace often
repair | réparer | reparieren repariert repariert | person | mends chair table shoe wall door window bat.club road | skill care pace often
carry | porter | tragen trägt getragen | person | thing furniture food | often loose
wear wore | porter | tragen trägt getragen | person | clothing carried | often
wash | laver | waschen wäscht gewaschen | person | clothing body car dog horse cup | care pace often
examine | examiner | untersuchen untersucht untersucht | person | body animal person | care often loose
write wrote | écrit écrivons écrivent écrit écrir | schreiben schreibt geschrieben | person | written | pace skill often
forget forgot | oublier | vergessen vergisst vergessen | person | fact carried key bag book letter question | often
understand understood | comprend comprenons comprennent compris comprendr | verstehen versteht verstanden | person | question word text person | skill pace
draw drew | dessiner | zeichnen zeichnet gezeichnet | person | person animal building flower rose tree star side wall bridge | skill pace often loose
build built | construit construisons construisent construit construir | bauen baut gebaut | person firm | built | pace skill
destroy | détruit détruisons détruisent détruit détruir | zerstören zerstört zerstört | person beast | building built vehicle picture | - often loose
light.verb lit | allumer | an~zünden zündet angezündet | person | burns | often
turn_off | éteint éteignons éteignent éteint éteindr | aus~schalten schaltet ausgeschaltet | person | lighting lamp | often pace
win won | gagner | gewinnen gewinnt gewonnen | person firm | game | + often
lose lost | perd perdons perdent perdu perdr | verlieren verliert verloren | person | tool clothing carried race ball bag | - often
reach | atteint atteignons atteignent atteint atteindr | erreichen erreicht erreicht | person animal vehicle | shore town forest river lake bridge field | pace loose
leave left | quitter | verlassen verlässt verlassen | person animal | building town garden forest room | pace often
visit | visiter | besuchen besucht besucht | person | building town park island castle | often
meet met | rencontrer | treffen trifft getroffen | person | person | often
kiss | embrasser | küssen küsst geküsst | person | person | often
hear heard | entend entendons entendent entendu entendr | hören hört gehört | person animal | person animal heard concert train | skill often
catch caught | attraper | fangen fängt gefangen | person animal | prey thief ball rabbit | pace often
chase | chasser | jagen jagt gejagt | animal | animal thief | often
feed fed | nourrit nourrissons nourrissent nourri nourrir | füttern füttert gefüttert | person | animal | skill often
save | sauver | retten rettet gerettet | person | person animal | + often
kill | tuer | töten tötet getötet | soldier king farmer beast snake thief | animal person | - pace
steal stole | voler | stehlen stiehlt gestohlen | person monkey fox | thing clothing food vehicle picture | - often loose
rob robbed | dévaliser | aus~rauben raubt ausgeraubt | person | robbed shop hotel church | - often
run.manage ran | diriger | leiten leitet geleitet | person | managed | skill
water | arroser | gießen gießt gegossen | person | plant | often
tighten | serrer | fest~ziehen zieht festgezogen | person | bolt | care pace
loosen | desserrer | lockern lockert gelockert | person | bolt | care pace
bend bent | plier | biegen biegt gebogen | person beast | bends | pace
produce | produit produisons produisent produit produir | her~stellen stellt hergestellt | firm | thing clothing furniture vehicle cheese | pace often
hire | embaucher | ein~stellen stellt eingestellt | firm | cook.noun doctor painter teacher student friend woman man neighbour | often
describe | décrit décrivons décrivent décrit décrir | beschreiben beschreibt beschrieben | person | person animal building town picture show party place road | care skill loose
raise | lève levons lèvent levé lèver | heben hebt gehoben | person | hand arm leg foot | pace often
touch | toucher | berühren berührt berührt | person animal | body thing animal plant wall | care often loose
translate | traduit traduisons traduisent traduit traduir | übersetzen übersetzt übersetzt | person | text word answer question name | pace skill care often
publish | publier | veröffentlichen veröffentlicht veröffentlicht | person firm | book poem story picture letter song answer newspaper | often
solve | résout résolvons résolvent résolu résoudr | lösen löst gelöst | person | problem exercise | + pace often
explain | expliquer | erklären erklärt erklärt | person | question fact text picture game | skill care often
organise | organiser | organisieren organisiert organisiert | person firm | concert party game | skill care often
cross | traverser | überqueren überquert überquert | person animal vehicle | road bridge river field | pace often
give gave | donner | geben gibt gegeben | person | whom gift thing food clothing animal | often loose
show | montrer | zeigen zeigt gezeigt | person | whom gift thing clothing animal building town room vehicle question | often loose
send sent | envoie envoyons envoient envoyé enverr | schicken schickt geschickt | person firm | whom gift thing clothing | often loose
bring brought | apporter | bringen bringt gebracht | person | whom gift thing clothing food | pace often loose
""")


# --- function words ---


@dataclass(frozen=True, eq=False)
class Determiner:
    """English singular and plural ("" where there is none); French masculine, feminine, plural and both before a vowel.

    German: how it bends (der, dies, ein, einig, or zwei for not at all) and its stem.
    """

    en: tuple[str, str]
    upos: str
    fr: tuple[str, str, str, str, str]
    declension: str
    de: str
    definite: bool = False


@dataclass(frozen=True, eq=False)
class Preposition:
    """The kinds it governs, the kinds it modifies ("" if it can also modify a verb), and the German case."""

    en: str
    fr: tuple[str, ...]
    de: str
    case: str
    kinds: frozenset[str]
    hosts: frozenset[str]
    adverbial: bool = True


@dataclass(frozen=True, eq=False)
class Adverb:
    """`group` must be among the verb's features; `tenses` are those it goes with; French may put it next to the verb."""

    en: str
    fr: str
    de: str
    group: str
    tenses: tuple[str, ...] = ("present", "past", "future")
    beside_verb: bool = False
    valence: int = 0


@dataclass(frozen=True, eq=False)
class Conjunction:
    """Joins clauses. `final`: the German verb goes last; `comma`: German puts a comma before it."""

    en: str
    upos: str
    fr: tuple[str, ...]
    de: str
    comma: bool
    final: bool


def _number(en: str, fr: str, de: str) -> Determiner:
    return Determiner(("", en), "NUM", ("", "", fr, "", ""), "zwei", de)


A = Determiner(("a", ""), "DET", ("un", "une", "", "un", "une"), "ein", "ein")
THE = Determiner(("the", "the"), "DET", ("le", "la", "les", "l'", "l'"), "der", "", definite=True)
THIS = Determiner(("this", "these"), "DET", ("ce", "cette", "ces", "cet", "cette"), "dies", "dies", definite=True)
MY = Determiner(("my", "my"), "PRON", ("mon", "ma", "mes", "mon", "mon"), "ein", "mein", definite=True)
HIS = Determiner(("his", "his"), "PRON", ("son", "sa", "ses", "son", "son"), "ein", "sein", definite=True)
HER = Determiner(("her", "her"), "PRON", ("son", "sa", "ses", "son", "son"), "ein", "ihr", definite=True)
OUR = Determiner(("our", "our"), "PRON", ("notre", "notre", "nos", "notre", "notre"), "ein", "unser", definite=True)
EVERY = Determiner(("every", ""), "DET", ("chaque", "chaque", "", "chaque", "chaque"), "dies", "jed")
SOME = Determiner(("", "some"), "DET", ("", "", "quelques", "", ""), "einig", "einig")
SEVERAL = Determiner(("", "several"), "ADJ", ("", "", "plusieurs", "", ""), "einig", "mehrer")
NUMBERS = tuple(
    _number(*words)
    for words in [
        ("two", "deux", "zwei"),
        ("three", "trois", "drei"),
        ("four", "quatre", "vier"),
        ("five", "cinq", "fünf"),
        ("six", "six", "sechs"),
        ("seven", "sept", "sieben"),
        ("eight", "huit", "acht"),
        ("ten", "dix", "zehn"),
    ]
)
# Repeated by their weight.
SINGULAR = (*[THE] * 9, *[A] * 5, THIS, THIS, MY, MY, HIS, HER, OUR, EVERY)
PLURAL = (*[THE] * 8, THIS, THIS, MY, MY, HIS, HER, OUR, SOME, SOME, SEVERAL, *NUMBERS)
OWNERS = (MY, HIS, HER, OUR)
DEFINITE = (*[THE] * 8, THIS, THIS, MY, MY, HIS, HER, OUR)


def _name(name: str, gender: str) -> Noun:
    kinds = frozenset([name, "person"])
    return Noun(name, (name, "-"), (name, "-"), gender, (name, "-", name), gender, kinds, upos="PROPN")


NAMES = tuple(
    [_name(name, "f") for name in ("Anna", "Clara", "Emma", "Julia", "Laura", "Marie", "Nina", "Sophie")]
    + [_name(name, "m") for name in ("Felix", "Lucas", "Martin", "Max", "Oscar", "Paul", "Simon", "Thomas")]
)


def _pronoun(en: str, fr: str, de: str, gender: str, number: str) -> Noun:
    """A pronoun as a subject. Only its plural form is filled where it has no singular."""
    return Noun(
        key=en,
        en=(en, en),
        fr=(fr, fr),
        fr_gender=gender,
        de=(de, de, de),
        de_gender=gender,
        kinds=frozenset([en, "person"]),
        upos="PRON",
        plural_only=number == "plural",
        first_person=en == "we",
    )


PRONOUNS = (
    _pronoun("he", "il", "er", "m", "singular"),
    _pronoun("she", "elle", "sie", "f", "singular"),
    _pronoun("they", "ils", "sie", "m", "plural"),
    _pronoun("we", "nous", "wir", "m", "plural"),
)

_HOSTS = frozenset(["host"])
_HOSTS_AND_SITES = frozenset(["host", "site"])
_PEOPLE = frozenset(["person"])
IN = Preposition("in", ("dans",), "in", "dative", frozenset(["in"]), _HOSTS)
ON = Preposition("on", ("sur",), "auf", "dative", frozenset(["on"]), _HOSTS)
UNDER = Preposition("under", ("sous",), "unter", "dative", frozenset(["under"]), _HOSTS)
BEHIND = Preposition("behind", ("derrière",), "hinter", "dative", frozenset(["by"]), _HOSTS_AND_SITES)
BESIDE = Preposition("beside", ("à", "côté", "de"), "neben", "dative", frozenset(["by"]), _HOSTS_AND_SITES)
WITH = Preposition(
    "with", ("avec",), "mit", "dative", frozenset(["carried", "dog", "cat", "bag", "horse"]), _PEOPLE, adverbial=False
)
WITHOUT = Preposition(
    "without", ("sans",), "ohne", "accusative", frozenset(["carried", "bag"]), _PEOPLE, adverbial=False
)
PREPOSITIONS = (IN, IN, ON, UNDER, BEHIND, BESIDE, WITH, WITHOUT)

ADVERBS = (
    Adverb("quickly", "rapidement", "schnell", "pace"),
    Adverb("slowly", "lentement", "langsam", "pace"),
    Adverb("well", "bien", "gut", "skill", beside_verb=True, valence=1),
    Adverb("badly", "mal", "schlecht", "skill", beside_verb=True, valence=-1),
    Adverb("happily", "joyeusement", "fröhlich", "mood", valence=1),
    Adverb("sadly", "tristement", "traurig", "mood", valence=-1),
    Adverb("carefully", "soigneusement", "sorgfältig", "care"),
    Adverb("often", "souvent", "oft", "often", beside_verb=True),
)
TIMES = (
    Adverb("yesterday", "hier", "gestern", "time", ("past",)),
    Adverb("tomorrow", "demain", "morgen", "time", ("future",)),
    Adverb("now", "maintenant", "jetzt", "time", ("present",)),
    Adverb("today", "aujourd'hui", "heute", "time"),
)

AND = Conjunction("and", "CCONJ", ("et",), "und", comma=False, final=False)
BUT = Conjunction("but", "CCONJ", ("mais",), "aber", comma=True, final=False)
BECAUSE = Conjunction("because", "SCONJ", ("parce", "que"), "weil", comma=True, final=True)


# --- selection, ambiguity and splits ---


Split = Literal["train", "valid", "test"]
"""A part of the world: train, valid or test.

Examples:
    >>> split: Split = "test"
    >>> World(seed=0).sentence(0, split).text()
    'this car that arrives is very clean'
"""
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
"""The parts of the world: what is held out of train is the same in every world.

Examples:
    >>> SPLITS
    ('train', 'valid', 'test')
"""
Entry = Noun | Verb | Adjective
QUALITY = 2
# A noun that few verbs select is drawn more often, up to a bound.
COMMON = 60_000
MAX_DRAW_WEIGHT = 48


def check_request(number: int, split: str, things: str) -> None:
    """Of a thing by number and split; `things` names it in the message."""
    if split not in SPLITS:
        raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split!r}")
    if number < 0:
        raise ValueError(f"{things} are counted from 0, not from {number}")


def english_forms(entry: Entry) -> tuple[str, ...]:
    """The English words of an entry."""
    if isinstance(entry, Adjective):
        return (entry.en,)
    return entry.en if isinstance(entry, Verb) or entry.countable else entry.en[:1]


def _senses() -> MappingProxyType[str, tuple[Entry, ...]]:
    senses: dict[str, list[Entry]] = {}
    for entry in (*NOUNS, *VERBS, *ADJECTIVES):
        for form in dict.fromkeys(english_forms(entry)):
            senses.setdefault(form, []).append(entry)
    return MappingProxyType({form: tuple(entries) for form, entries in senses.items() if len(entries) > 1})


# Every ambiguous English form with its entries.
SENSES = _senses()
"""English words with several senses, each sense by its entry in the lexicon.

Examples:
    >>> [sense.key for sense in SENSES["light"]]
    ['light.noun', 'light.verb', 'light.adj']
"""


# The keys of all ambiguous entries.
AMBIGUOUS = frozenset(entry.key for entries in SENSES.values() for entry in entries)


@cache
def composition_split(first: str, second: str) -> Split:
    """Where a composition may occur. One in ten is held out for each of valid and test, in every world alike.

    None with an ambiguous word is held out: its sense could not be learnt.

    Examples:
        >>> composition_split("black", "cat"), composition_split("black", "dog")
        ('valid', 'train')
    """
    if {first, second} & AMBIGUOUS:
        return "train"
    return split_by_hash(f"{first} + {second}")


def split_by_hash(text: str) -> Split:
    """One text in ten for each of valid and test."""
    draw = hash_text(text) % 10
    return "test" if draw == 0 else "valid" if draw == 1 else "train"


def _lemma(entry: Entry, language: str) -> str:
    if isinstance(entry, Verb):
        return entry.fr[4] if language == "fr" else entry.de[0] + entry.de[1]
    return entry.fr[0] if language == "fr" else entry.de[0]


@cache
def distinguishing_languages(form: str) -> tuple[str, ...]:
    """The languages that translate the senses of an English form by different words."""
    return tuple(
        language
        for language in ("fr", "de")
        if len({(type(entry), _lemma(entry, language)) for entry in SENSES[form]}) == len(SENSES[form])
    )


@cache
def homographs(noun: Noun) -> tuple[Noun, ...]:
    """Other nouns with the same English form."""
    return tuple(other for other in NOUNS if other.en[0] == noun.en[0] and other is not noun)


def _one_sense(kinds: frozenset[str], noun: Noun) -> bool:
    return not any(kinds & other.kinds for other in homographs(noun))


@cache
def nouns_for(kinds: frozenset[str], *, disambiguates: bool) -> tuple[Noun, ...]:
    """The nouns that suit a slot and have one sense there; a slot that disambiguates nothing takes unambiguous ones."""
    suited = (noun for noun in NOUNS if kinds & noun.kinds)
    return tuple(noun for noun in suited if not homographs(noun) or (disambiguates and _one_sense(kinds, noun)))


@cache
def weighted_nouns_for(kinds: frozenset[str], *, disambiguates: bool) -> tuple[Noun, ...]:
    """The same nouns, each repeated by its weight."""
    return tuple(noun for noun in nouns_for(kinds, disambiguates=disambiguates) for _ in range(_draw_weight(noun)))


@cache
def _draw_weight(noun: Noun) -> int:
    """More for a noun that few verbs and adjectives select, so that none is rare; and more for an ambiguous one.

    Whole numbers throughout: the rounding of a sum of floats differs between versions of Python.
    """
    selected = [verb.objects for verb in VERBS] + [verb.subjects for verb in VERBS]
    selected += [adjective.kinds for adjective in ADJECTIVES if adjective.predicative]
    frequency = sum(10_000 // len(nouns_for(kinds, disambiguates=False)) for kinds in selected if kinds & noun.kinds)
    return min(MAX_DRAW_WEIGHT, max(2, COMMON // max(1, frequency))) * (2 if noun.en[0] in SENSES else 1)


@cache
def ambiguous_nouns_for(kinds: frozenset[str], *, disambiguates: bool) -> tuple[Noun, ...]:
    """The nouns that suit a slot but need an adjective to disambiguate them."""
    unambiguous = nouns_for(kinds, disambiguates=disambiguates)
    return tuple(
        noun for noun in NOUNS if kinds & noun.kinds and noun not in unambiguous and disambiguating_adjectives(noun)
    )


@cache
def disambiguating_adjectives(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that leave an ambiguous noun one sense. Opinions, sizes, ages and colours suit anything."""
    return tuple(word for word in adjectives_for(noun) if word.rank == QUALITY and _one_sense(word.kinds, noun))


@cache
def names_for(kinds: frozenset[str]) -> tuple[Noun, ...]:
    return tuple(name for name in NAMES if kinds & name.kinds)


@cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that suit a noun."""
    return tuple(adjective for adjective in ADJECTIVES if adjective.kinds & noun.kinds)


@cache
def verbs_with_subject(noun: Noun) -> tuple[Verb, ...]:
    """The verbs that the noun can be the subject of, except "die": the sentence may go on about it."""
    return tuple(verb for verb in VERBS if verb.subjects & noun.kinds and verb.key != "die")


@cache
def verbs_with_object(noun: Noun) -> tuple[Verb, ...]:
    """The verbs that the noun can be the object of."""
    return tuple(verb for verb in VERBS if verb.objects & noun.kinds and not verb.receives)
