"""The table of verbs: English, French and German forms, who does it, to what, and how it can be done."""
# ruff: noqa: E501 (an entry is a line, however long)

from regard.world.entries import verbs

# French: the infinitive of a regular verb, or il, nous, ils, participle, stem of the future. German: infinitive
# (a prefix that parts stands before ~), er, participle. être and sein name the auxiliary where it is not avoir, haben.
# Objects: "whom" if there is a receiver too; "to" or "from" with its French and German, if the verb leads somewhere.
# Last: adverbs it takes (pace, skill, mood, care, often), place if it can happen somewhere, feeling, and loose if what
# it takes tells too little to settle an ambiguous noun (one may see either bat, but only feed the one that eats), lost if it
# makes no sense without its goal.
VERBS = verbs("""
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
