"""The table of adjectives: French forms and place, German stem, rank before the noun, feeling, kinds of noun."""
# ruff: noqa: E501 (an entry is a line, however long)

from regard.world.entries import adjectives

# English puts the lower rank first: opinion 0, size 1, quality 2, age 3, colour 4, side 5. Only a quality settles what
# an ambiguous noun means. A French adjective stands
# behind its noun unless it says "before"; a third form stands before a vowel. "very": it can be strengthened.
ADJECTIVES = adjectives("""
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
