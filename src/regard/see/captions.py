"""A name of the catalogue in; one line that says what it is out."""

RECIPE_LINES = {
    "dot": "The plain product q · k: the wider the head, the larger the scores and the harder the choice.",
    "scaled dot": "The Transformer's: q · k / √d keeps the spread of the scores whatever the width.",
    "luong general": "Luong's “general”: a learned matrix between query and key (here with fresh weights).",
    "bahdanau": "The aligner of 2014: a small network looks at query and key together (here with fresh weights).",
    "cosine": "Only directions count; loud keys gain nothing.",
    "causal": "The look-ahead mask: itself and the past, as a language model reads.",
    "strictly before": "The past alone, as the second lecture writes it; the first token sees nothing and gives 0.",
    "sliding window": "Itself and a few tokens before it, whatever the length.",
    "dilated window": "Every other token of a window: twice the reach for the same work.",
    "strided": "The Sparse Transformer: a window, and every so many tokens one further back.",
    "never itself": "Everybody but itself.",
    "prefix": "The prefix language model: all see the prefix, and after it only the past.",
    "documents": "Several texts packed in one row; none sees into another.",
    "local blocks": "The text cut into blocks that see nothing else.",
    "longformer": "A window, and one global token that sees all and is seen by all.",
    "random": "Each token and three random earlier ones, which see it in return.",
    "bigbird": "Blocks of tokens: neighbours, a global block, and random ones.",
    "relu": "Scores below 0 are dropped, the others stay as they are; the weights need not sum to 1.",
    "sigmoid": "Each key is weighed by itself; the weights need not sum to 1.",
    "sparsemax": "The nearest point of the simplex: small scores weigh exactly 0.",
    "top-k": "Only the three best keys of each row are seen.",
    "hard": "One key per row: the best one; while training, one drawn by its probability.",
    "hard, straight-through": "One key per row; while training, drawn forwards and soft backwards.",
    "linear": "φ(q) · φ(k) over its sum, which can be computed in linear time.",
    "causal linear": "Linear attention that looks back alone: a recurrent network in disguise.",
}

POSITION_LINES = {
    "none": "Nothing: order is unknown, and “man eats dinosaur” is “dinosaur eats man”.",
    "sinusoidal": "Waves of ever longer period, added to each token.",
    "learned": "A learned vector for each place, added to each token (here with fresh weights).",
    "rotary": "Query and key are turned by their places, so that q · k depends on the distance alone.",
    "alibi": "Far keys are dimmed, in each head by a slope of its own.",
    "t5": "A learned number per head and distance; far distances share one (here with fresh weights).",
    "shaw": "A learned key and value for each clipped distance; the picture shows which vector a pair reads.",
}


def line_for(name: str, lines: dict[str, str]) -> str:
    if name not in lines:
        raise ValueError(f"{name!r} has no caption; add its line to regard/see/captions.py")
    return lines[name]
