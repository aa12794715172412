"""Samples of the miniature world with their annotation: python -m regard.world [count] [shortest] [longest]."""

import sys

from regard.world import LANGUAGES, LECTURE_SENTENCES, Sentence, World

SENTIMENT = {-1: "negative", 0: "neutral", 1: "positive"}


def format_sentence(sentence: Sentence) -> str:
    """A sentence with its translations, alignments, tags, governors and ambiguities."""
    lines = [f"{sentence.text()}   ({SENTIMENT[sentence.sentiment]})"]
    for language in LANGUAGES:
        rendering = sentence.renderings[language]
        links = " ".join(
            f"{sentence.words[here]}–{rendering.words[there]}" for here, there in sorted(rendering.alignment)
        )
        lines += [f"  {language}  {sentence.text(language)}", f"      {links}"]
    tagged = zip(sentence.words, sentence.tags, sentence.governors, strict=True)
    lines.append("      " + " ".join(f"{word}/{tag}/{governor}" for word, tag, governor in tagged))
    for ambiguity in sentence.ambiguities:
        word, decider = sentence.words[ambiguity.index], sentence.words[ambiguity.decider]
        lines.append(f"      {word} is {ambiguity.sense}, because of {decider}")
    return "\n".join(lines)


def main(count: int = 40, shortest: int = 3, longest: int = 12):
    world = World(min_length=shortest, max_length=longest)
    for sentence in (*LECTURE_SENTENCES, *[world.sentence(number) for number in range(count)]):
        print(format_sentence(sentence), end="\n\n")


if __name__ == "__main__":
    main(*[int(argument) for argument in sys.argv[1:]])
