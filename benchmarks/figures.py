"""Tables of figures from benchmarks/results: all of them in docs/results.md, those that matter most in the README."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
START, STOP = "<!-- figures: python benchmarks/figures.py -->\n", "<!-- end of figures -->"
# the rows of the README, by how they begin
README_ROWS = (
    "runs killed with kill -9",
    "errors planted one at a time",
    "a GPU trains Transformer-base",
    "shipped translators",
    "two cores translate, Transformer-base",
    "a GPU's `Window(512)`",
)


def result(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(chosen: tuple[str, ...] = ("",)) -> str:
    """The rows that begin with one of these texts."""
    growth, states, maps, mutants = (result(name) for name in ("growth", "growth-states", "block_maps", "mutants"))
    ratio, machine = growth["window_against_full"], growth["machine"]
    slopes = {kind: slope["seconds"] for kind, slope in growth["exponents"].items()}
    full = slopes.pop("full")
    million = [row for row in maps["rows"] if row["tokens"] == 2**20]
    flex = max((row for row in maps["rows"] if row["who"] == "flex"), key=lambda row: row["tokens"])
    rows = [
        (
            f"`Window(512)` against full attention, {ratio['tokens']:,} tokens, forwards and backwards",
            f"{ratio['ratio']:.1f} times faster",
            growth["command"],
        ),
        (
            "time from 4k to 64k tokens grows as n to the power of",
            f"{full:.2f} full; " + ", ".join(f"{slope:.2f} {kind}" for kind, slope in slopes.items()),
            growth["command"],
        ),
        (
            "CPU time of states from 4k to 64k tokens, forwards and backwards, grows as n to the power of",
            ", ".join(f"{slope['cpu_seconds']:.2f} {kind}" for kind, slope in states["exponents"].items()),
            states["command"],
        ),
        (
            f"block maps of {len(million)} patterns at 1,048,576 tokens",
            f"at most {max(row['seconds'] for row in million):.0f} s and {max(row['mib'] for row in million):.0f} MiB "
            f"(FlexAttention's builder at {flex['tokens']:,}: {flex['seconds']:.0f} s and {flex['mib']:,.0f} MiB)",
            maps["command"],
        ),
        (
            "errors planted one at a time, and noticed by a test",
            f"{sum(bool(row['noticed_by']) for row in mutants['rows'])} of {len(mutants['rows'])}",
            mutants["command"],
        ),
    ]
    rows += (
        translation_rows()
        + shipped_rows()
        + task_rows()
        + speed_rows()
        + export_rows()
        + kernel_rows()
        + page_rows()
        + startup_rows()
        + api_rows()
    )
    cores = f"{machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}"
    elsewhere = "translation, other real corpora (IMDB apart) and what names a GPU on an NVIDIA H200"
    lines = [f"| measured on {cores}; {elsewhere} | | command |", "| --- | --- | --- |"]
    lines += [f"| {what} | {figure} | `{command}` |" for what, figure, command in rows if what.startswith(chosen)]
    return "\n".join(lines) + "\n"


# of recipes on real corpora, three seeds each
REAL = {
    "tagging-ud-ewt": "UD English-EWT, test, parts of speech of gold words, a bidirectional LSTM",
    "sequence_classification-sst2": "SST-2, test, a bidirectional LSTM with attention",
    "sequence_classification-imdb": "IMDB, test, words, bigrams and trigrams weighed by log-count ratios",
    "language_modeling-shakespeare": "tiny Shakespeare, validation loss of a character, in blocks as nanoGPT counts",
    "language_modeling-wikitext2": "WikiText-2, test, perplexity of a word, an LSTM with a continuous cache",
    "image_classification-mnist-vit": "MNIST, test, a Vision Transformer",
    "image_classification-mnist-cnn": "MNIST, test, a convolutional network with channel attention",
    "image_classification-cifar10-vit": "CIFAR-10 as JPEG, test, a Vision Transformer",
    "image_classification-cifar10-cnn": "CIFAR-10 as JPEG, test, a convolutional network with channel attention",
    "image_classification-fashion-mnist-vit": "Fashion-MNIST, test, a Vision Transformer",
    "image_classification-fashion-mnist-cnn": "Fashion-MNIST, test, a convolutional network with channel attention",
    "vqa-easy-vqa": "easy-VQA, test, words attend to patches by cross-attention",
}
# split and metric where they are not the accuracy on test
METRICS = {
    "language_modeling-shakespeare": ("valid", "loss_in_blocks"),
    "language_modeling-wikitext2": ("test", "perplexity_per_word_with_cache"),
}


def translation_rows() -> list[tuple[str, str, str]]:
    """What was measured on an H200: the ladder on a real corpus, the miniature world, and runs that were killed."""
    ladder = {kind: result(f"translation-multi30k-de-en-{kind}") for kind in ("plain", "bahdanau", "transformer")}
    scores = {kind: next(row["value"] for row in one["rows"] if row["split"] == "test") for kind, one in ladder.items()}
    worlds = {kind: result(f"world-{kind}")["rows"][0] for kind in ("gru", "bahdanau", "transformer")}
    longest = {kind: one["by_length"][-1] for kind, one in worlds.items()}
    sure = {kind: one["ambiguous"] for kind, one in worlds.items()}
    test = {
        name: {row["name"]: row["value"] for row in result(f"translation-{name}")["rows"] if row["split"] == "test"}
        for name in ("multi30k-en-de", "multi30k-en-de-cased", "tatoeba-en-fr", "tatoeba-en-de")
    }
    killed = [row for name in ("cuda", "cpu") for row in result(f"resume-{name}")["rows"] if row["run"] == "killed"]
    return [
        (
            "Multi30k German to English, test_2016_flickr, BLEU lower-cased and tokenised, beam 5",
            f"{scores['plain']:.1f} GRU without attention, {scores['bahdanau']:.1f} Bahdanau, "
            f"{scores['transformer']:.1f} Transformer",
            "python benchmarks/translation.py recipes/multi30k-de-en-transformer.toml --data FOLDER --test",
        ),
        (
            "Multi30k English to German, test_2016_flickr, the same BLEU; and sacreBLEU, cased and detokenised",
            f"{test['multi30k-en-de']['BLEU, lower-cased, tokenised']:.1f} Transformer; "
            f"{test['multi30k-en-de-cased']['BLEU']:.1f}",
            "python benchmarks/translation.py recipes/multi30k-en-de.toml --data FOLDER --test",
        ),
        (
            "Tatoeba, test, sacreBLEU, a small Transformer",
            f"{test['tatoeba-en-fr']['BLEU']:.1f} English to French, {test['tatoeba-en-de']['BLEU']:.1f} into German",
            "python benchmarks/translation.py recipes/tatoeba-en-fr.toml --data FOLDER --test",
        ),
        (
            f"the miniature world, held-out sentences of {longest['gru']['first']} to 30 words, BLEU",
            ", ".join(f"{one['bleu']:.1f} {kind}" for kind, one in longest.items()),
            "python benchmarks/world.py",
        ),
        (
            "its gold word alignments, error rate of the attention",
            ", ".join(f"{one['aer']:.3f} {kind}" for kind, one in worlds.items() if "aer" in one),
            "python benchmarks/world.py",
        ),
        (
            "its ambiguous words, translated right",
            ", ".join(f"{100 * one['right'] / one['of']:.1f} % {kind}" for kind, one in sure.items()),
            "python benchmarks/world.py",
        ),
        (
            f"runs killed with kill -9, {killed[0]['kills']} times each, on GPU and CPU, that ended with other bits",
            f"{sum(row['different'] > 0 for row in killed)} of {len(killed)}",
            "python benchmarks/resume.py",
        ),
    ]


def real_row(name: str, what: str) -> tuple[str, str, str]:
    """One recipe on a real corpus: mean and standard deviation of three seeds."""
    split, metric = METRICS.get(name, ("test", "accuracy"))
    found = result(name)["summary"][split][metric]
    digits = 1 if found["mean"] > 10 else 3
    shown = f"{found['mean']:.{digits}f} ± {found['spread']:.{digits + (digits == 1)}f}{' %' * (metric == 'accuracy')}"
    command = f"python benchmarks/task.py recipes/{name.split('-', 1)[1]}.toml --data FOLDER"
    return f"{what}, three seeds", shown, command + " --test" * (split == "test")


def shipped_rows() -> list[tuple[str, str, str]]:
    """The models of packages/regard-models, as their cards say; their alignments, and how fast one is."""
    folders = sorted((ROOT / "packages" / "regard-models" / "src" / "regard_models").glob("*/card.md"))
    cards = {path.parent.name: path.read_text(encoding="utf-8") for path in folders}
    tests = {
        name: dict(re.findall(r"(?m)^\| int8 \| (\w+), test \| [\d,]+ \| ([\d.]+) \|", card))
        for name, card in cards.items()
    }
    errors = {row["model"]: row["shipped"]["aer"] for row in result("shipped-alignments")["rows"]}
    speed = result("shipped")
    rates = {row["who"]: row["tokens_per_second"] for row in speed["rows"]}
    return [
        (
            f"shipped translators, {speed['bytes'] / 1e6:.0f} MB each: BLEU on Tatoeba's test set; on newstest2013",
            "; ".join(
                ", ".join(f"{one[corpus]} {name}" for name, one in tests.items()) for corpus in ("tatoeba", "newstest")
            ),
            "regard models build recipes/shipped/en-fr.toml --data FOLDER --out models --test",
        ),
        (
            "their word alignments, error rate on the miniature world's gold ones",
            ", ".join(f"{error:.3f} {name}" for name, error in errors.items()),
            "python benchmarks/shipped.py --alignments",
        ),
        (
            "two cores translate with a shipped model, beam 5, 1,000 sentences, target tokens a second",
            ", ".join(f"{rate:,.0f} {who}" for who, rate in rates.items()),
            speed["command"],
        ),
    ]


def task_rows() -> list[tuple[str, str, str]]:
    """The other tasks, as far as they are measured to the end."""
    rungs = {row["rung"]: row["accuracy"] for row in result("classify-world")["rows"]}
    places = {
        kind: {row["places"]: row["mean"] for row in result(f"trees-{kind}")["rows"]}
        for kind in ("world", "ud_english_ewt")
    }
    graphs: dict[str, list[float]] = {}
    for row in result("graphs")["rows"]:
        graphs.setdefault(row["kind"], []).append(100 * row["test"])
    bottlenecks = {
        (row["kind"], row["bottleneck"]): 100 * row["sentences"]
        for row in result("autoencoder")["rows"]
        if row["numbers"] == 128 and (row["bottleneck"] == "attention") == (row["latents"] > 1)
    }
    return [
        *(real_row(name, what) for name, what in REAL.items()),
        (
            "sentiment of the world's sentences, from counting to context, three seeds",
            ", ".join(f"{rungs[rung]:.1f} % {called}" for rung, called in RUNGS.items()),
            "python benchmarks/classify.py world",
        ),
        (
            "tags of words related by row and by gold tree, from 300 sentences of the world; from English-EWT's, valid",
            "; ".join(f"{one['row, relative']:.1f} %, {one['tree, relative']:.1f} %" for one in places.values()),
            "python benchmarks/trees.py",
        ),
        (
            "trades of a town's people, by themselves and by whom they know",
            "; ".join(f"{sum(some) / len(some):.0f} % {kind}" for kind, some in graphs.items()),
            "python benchmarks/graphs.py",
        ),
        (
            "sentences reconstructed exactly from a latent of 128 numbers",
            "; ".join(f"{value:.0f} % {kind}, {way}" for (kind, way), value in bottlenecks.items()),
            "python benchmarks/autoencoder.py",
        ),
    ]


RUNGS = {
    "words counted, by TF-IDF": "TF-IDF",
    "words counted, learned weights": "learned weights",
    "learned vectors, attention": "attention pooling",
    "Transformer, rotary, attention": "Transformer",
}


def speed_rows() -> list[tuple[str, str, str]]:
    """Speed of training and decoding, beside other toolkits or beside plain torch."""
    training, captured = result("training-speed"), result("capture")
    best = max(training["rows"], key=lambda row: row["tokens/s"])
    gains = [row["faster"] for row in captured["rows"] if "faster" in row]
    peers = result("bench-train-cpu")
    # "way" is the former key of "implementation"
    names = [(row.get("implementation") or row["way"], row["ratio"]) for row in peers["rows"]]
    ahead = ", ".join(f"{ratio:.1f} {name}" for name, ratio in names if ratio)
    decoding = {device: result(f"decoding-{device}") for device in ("cuda", "cpu")}
    run, imported = result("speedrun"), result("imported-decoding")

    def times(device: str, ours: str, theirs: str) -> str:
        """The ratio to the fastest configuration of theirs."""
        rows = [row for row in decoding[device]["rows"] if row["who"] == f"regard {ours}"]
        least = [min(ratio for name, ratio in row["times"].items() if name.startswith(theirs)) for row in rows]
        return ", ".join(f"{ratio:.2f} (batch {row['batch']})" for ratio, row in zip(least, rows, strict=True))

    kinds = dict.fromkeys(row["who"].split()[1] for row in imported["rows"] if row["times"])

    def times_imported(ours: str) -> str:
        rows = [row for row in imported["rows"] if row["who"] == f"regard {ours}"]
        return ", ".join(f"{row['times']['transformers float32']:.2f} (batch {row['batch']})" for row in rows)

    return [
        (
            "a GPU trains Transformer-base, tokens a second, and the share of its matrix-multiply rate",
            f"{best['tokens/s'] / 1e6:.2f} million, {100 * best['utilisation']:.0f} %",
            "python benchmarks/training_speed.py",
        ),
        (
            "a GPU's training steps captured in a CUDA graph, against kernels launched one by one, "
            f"{len(gains)} recipes",
            f"{min(gains):.1f} to {max(gains):.1f} times as fast, with the same bits where batches are the same",
            captured["command"],
        ),
        ("two cores train a small Transformer on Multi30k, times the speed of", ahead, peers["command"]),
        (
            "a GPU translates, Transformer-base, beam 4, bfloat16, times the speed of Hugging Face's generate",
            times("cuda", "bfloat16", "hugging face bfloat16"),
            decoding["cuda"]["command"],
        ),
        (
            "two cores translate, Transformer-base, beam 4, times the speed of CTranslate2 in the same precision",
            "; ".join(f"{kind} {times('cpu', kind, f'ctranslate2 {kind}')}" for kind in ("float32", "int8")),
            decoding["cpu"]["command"],
        ),
        (
            "two cores decode an imported Marian, OPUS-MT's size, beam 4, times the speed of transformers' generate",
            "; ".join(f"{kind} {times_imported(kind)}" for kind in kinds),
            imported["command"],
        ),
        (
            "a GPU learns to translate Multi30k English to German, from the process' start; BLEU as above, test",
            f"{run['seconds']:.0f} seconds; {run['test']:.1f}",
            "python benchmarks/speedrun.py --data FOLDER --test",
        ),
    ]


def export_rows() -> list[tuple[str, str, str]]:
    exported = result("export")
    names = {"ctranslate2": "CTranslate2", "onnx": "onnxruntime", "hf": "transformers"}
    checks = {names[row["engine"]]: row["checks"]["beam 4"] for row in exported["rows"]}
    (again,) = (row["imported_again_bit_identical"] for row in exported["rows"] if row["engine"] == "hf")
    same = ", ".join(
        f"{one['identical']} of {one['sentences']} {name} (log-probabilities within {one['largest_difference']:.1e})"
        for name, one in checks.items()
    )
    return [
        (
            "a translator exported, float32: sentences of beam 4 with identical tokens in the other engine; and what "
            "comes back from Hugging Face",
            f"{same}; weights {'bit-identical' if again else 'not the same'}",
            exported["command"],
        )
    ]


def kernel_rows() -> list[tuple[str, str, str]]:
    """Attention for which no fused kernel was at hand: ours on a GPU, forwards and backwards."""
    probes, additive, bias, window = (
        result(name) for name in ("probes-cuda", "additive-cuda", "relative_bias", "window")
    )
    every = {row["log_sum_exp"]: row for row in probes["rows"] if row["kind"] == "all"}
    given, alone = every["given"], every["found"]
    added = {row["way"]: row for row in additive["rows"] if row["dtype"] == "bfloat16"}
    learned = {row["way"]: row["ms"] for row in bias["rows"]}
    seen = [row for row in window["rows"] if (row["way"], row["pattern"]) == ("regard", "Window(512)")]
    return [
        (
            f"a GPU finds mass, entropy, largest weights, map, peaks, rows and columns of {given['tokens']:,} tokens",
            f"{given['ratio']:.2f} times cuDNN's forward pass if that has kept its log-sum-exp, "
            f"{alone['ratio']:.2f} if not; {given['mib_of_all']:,.0f} and {alone['mib_of_all']:,.0f} MiB "
            f"(the weights would be {given['mib_of_weights'] / 1024:,.0f} GiB)",
            probes["command"],
        ),
        (
            "a GPU's additive attention, 8 sentences of 1,024 × 1,024 tokens, width 512, bfloat16",
            f"{added['regard']['ms']:.1f} ms and {added['regard']['mib']:.0f} MiB (torch eager "
            f"{added['eager']['ms']:.1f} and {added['eager']['mib']:,.0f}, compiled {added['compiled']['ms']:.1f} and "
            f"{added['compiled']['mib']:,.0f})",
            additive["command"],
        ),
        (
            "a GPU's learned relative positions, 8,192 tokens, 12 heads of 64, bfloat16",
            f"{learned['ours, T5']:.1f} ms T5, {learned['ours, Shaw']:.1f} Shaw (cuDNN without any "
            f"{learned['cuDNN, no bias']:.1f})",
            bias["command"],
        ),
        (
            "a GPU's `Window(512)`, 12 heads of 64, bfloat16, times the speed of dense cuDNN",
            ", ".join(f"{row['times_dense']:.0f} ({row['tokens']:,} tokens)" for row in seen),
            window["command"],
        ),
        *family_rows(),
    ]


def family_rows() -> list[tuple[str, str, str]]:
    """Parts of newer papers against plain causal attention."""
    parts, alibi, blocks = (result(f"family-parts-{length}") for length in (8192, 32768, 131072))
    ratios = {row["part"]: row["times_plain_cuda_graph_ms"] for row in parts["rows"]}
    long = {row["part"]: row["ms"] for table in (alibi, blocks) for row in table["rows"] if "plain" not in row["part"]}
    dense = [table["rows"][0]["ms"] for table in (alibi, blocks)]
    shown = ("sinks", "soft cap", "QK-norm", "rotary", "partial rotary", "ALiBi")
    return [
        (
            "a GPU's parts of newer papers, 8,192 tokens, 12 heads of 64, bfloat16, times plain causal attention, both "
            "in a CUDA graph",
            ", ".join(f"{name} {ratios[name]:.2f}" for name in shown),
            parts["command"],
        ),
        (
            "a GPU's ALiBi, causal, 32,768 tokens, likewise; the same without a bias",
            f"{long['ALiBi']:.1f} ms; {dense[0]:.1f} ms",
            alibi["command"],
        ),
        (
            "a GPU's `TopBlocks(16, 64)`, 131,072 tokens, likewise; all of the past",
            f"{long['TopBlocks']:.1f} ms; {dense[1]:.0f} ms",
            blocks["command"],
        ),
    ]


def page_rows() -> list[tuple[str, str, str]]:
    seen, watched = result("microscope"), result("watching")
    costs = ", ".join(f"{row['ratio']['statistics']:.2f} {row['model']}" for row in watched["rows"])
    return [
        (
            f"a Hugging Face model watched for statistics, {watched['tokens']} tokens, times its own forward pass",
            costs,
            watched["command"],
        ),
        viewer_row(),
        (
            "the microscope, its own server and Chromium: " + "; ".join(row["what"] for row in seen["rows"]),
            "; ".join(f"{row['median']:.{0 if row['median'] > 9 else 1}f} {row['unit']}" for row in seen["rows"]),
            seen["command"],
        ),
    ]


def viewer_row() -> tuple[str, str, str]:
    """BertViz and the page in a file, at the largest length at which both hold all heads."""
    found = result("viewers")
    heads = found["layers"] * found["heads"]
    most = max(row["tokens"] for row in found["rows"] if row["who"] == "Regard" and row["heads"] == heads)
    both = {row["who"]: row for row in found["rows"] if row["tokens"] == most}
    sizes = {who: f"{row['bytes'] / 1e6:.0f} MB, {row['seconds']:.1f} s" for who, row in both.items()}
    longest = found["longest"]
    return (
        f"{heads} heads of BERT-base and {most} tokens in a file, and the longest text: the page; BertViz",
        f"{sizes['Regard']}, {longest['Regard']:,} (its server); {sizes['BertViz']}, {longest['BertViz']:,}",
        found["command"],
    )


def startup_rows() -> list[tuple[str, str, str]]:
    started = result("startup")
    shown = [row for row in started["rows"] if row["what"].startswith("regard") and "settings" not in row["what"]]
    commands = " and of ".join(f"`{row['what']}`" for row in shown)
    return [
        (
            f"processor time of {commands}, times that of a bare `import torch`",
            ", ".join(f"{row['ratio']:.2f}" for row in shown),
            started["command"],
        )
    ]


def api_rows() -> list[tuple[str, str, str]]:
    (row,) = result("api-load")["rows"]
    load, half, refused, lost = row["throughput"], row["half"], row["malformed"], row["term"]["lost"]
    return [
        (
            f"`regard api` with {load['clients']} clients, answers a second, times those of one client at a time; 99th "
            "percentile of the latency at half that load, times the median alone",
            f"{load['ratio']:.1f}; {half['p99_over_alone']:.1f} ({load['errors']} errors, {load['differing']} answers "
            f"that are not the command line's, {lost} lost by kill -TERM, {refused['server_errors']} server "
            f"errors of {refused['bodies']:,} malformed bodies)",
            "python benchmarks/api_load.py",
        )
    ]


def updated(page: str, figures: str) -> str:
    """A page with these figures between its marks."""
    before, rest = page.split(START)
    return before + START + figures + STOP + rest.split(STOP)[1]


def pages() -> dict[Path, str]:
    """Both pages as they should be."""
    tables = {ROOT / "README.md": table(README_ROWS), ROOT / "docs" / "results.md": table()}
    return {path: updated(path.read_text(encoding="utf-8"), figures) for path, figures in tables.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path)
