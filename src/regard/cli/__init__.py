"""The `regard` command: its subcommands. Each imports torch only when it runs, so that --help is instant."""

from regard.cli.answer import answer
from regard.cli.autoencode import autoencode
from regard.cli.bench import bench
from regard.cli.classify import classify
from regard.cli.data import data
from regard.cli.demo import demo, ladder, lecture
from regard.cli.evaluate import evaluate
from regard.cli.generate import generate
from regard.cli.graph import graph
from regard.cli.image import image
from regard.cli.main import app
from regard.cli.tag import tag
from regard.cli.train import train
from regard.cli.translate import translate
from regard.cli.vectors import vectors
from regard.cli.visualize import draw, explain, gallery, look, serve

for command in (
    demo,
    train,
    translate,
    tag,
    classify,
    generate,
    image,
    answer,
    graph,
    autoencode,
    evaluate,
    look,
    serve,
):
    app.command()(command)
for former_name, command in {"write": generate, "picture": image, "rebuild": autoencode}.items():
    app.command(former_name, hidden=True)(command)
app.add_typer(data, name="data")
app.add_typer(vectors, name="vectors")
for command in (ladder, lecture, draw, explain, gallery, bench):
    app.command()(command)
