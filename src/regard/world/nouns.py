"""The table of nouns: English, French with gender, German with gender, plural and weak forms, kinds."""

from regard.world.entries import nouns

# A third German form is the weak noun's (der Löwe, den Löwen). "-" for a plural: the word is used in the singular only.
# in, on, under, by: where something can be found. host, site: what can be found somewhere; a site is itself a place.
# unowned: my girl would be a daughter in French.
NOUNS = nouns("""
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
