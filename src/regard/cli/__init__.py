"""The command line. Torch takes seconds to start, so each command imports what it needs by itself: help is instant."""

from regard.cli.answer import answer
from regard.cli.bench import bench
from regard.cli.classify import classify
from regard.cli.data import data
from regard.cli.demo import demo, lecture
from regard.cli.evaluate import evaluate
from regard.cli.graph import graph
from regard.cli.group import app
from regard.cli.ladder import ladder
from regard.cli.look import look
from regard.cli.picture import picture
from regard.cli.pictures import draw, explain, gallery
from regard.cli.rebuild import rebuild
from regard.cli.serve import serve
from regard.cli.tag import tag
from regard.cli.train import train
from regard.cli.translate import translate
from regard.cli.vectors import vectors
from regard.cli.write import write

for command in (demo, train, translate, tag, classify, write, picture, answer, graph, rebuild, evaluate, look, serve):
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(vectors, name="vectors")
for command in (ladder, lecture, draw, explain, gallery, bench):
    app.command()(command)
