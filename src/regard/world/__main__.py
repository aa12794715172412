"""Sample sentences on the screen, for a person to read: python -m regard.world [how many] [shortest] [longest]."""

import sys

from regard.world import LANGUAGES, LECTURE, Sentence, World

FEELING = {-1: "negative", 0: "neutral", 1: "positive"}


def card(sentence: Sentence) -> str:
    """A sentence with all that is known about it."""
    lines = [f"{sentence.text()}   ({FEELING[sentence.sentiment]})"]
    for language in LANGUAGES:
        rendering = sentence.into[language]
        links = " ".join(
            f"{sentence.words[here]}–{rendering.words[there]}" for here, there in sorted(rendering.alignment)
        )
        lines += [f"  {language}  {sentence.text(language)}", f"      {links}"]
    tagged = zip(sentence.words, sentence.tags, sentence.heads, strict=True)
    lines.append("      " + " ".join(f"{word}/{tag}/{head}" for word, tag, head in tagged))
    for ambiguity in sentence.ambiguities:
        word, decider = sentence.words[ambiguity.at], sentence.words[ambiguity.decider]
        lines.append(f"      {word} is {ambiguity.reading}, because of {decider}")
    return "\n".join(lines)


def main(count: int = 40, shortest: int = 3, longest: int = 12):
    world = World(shortest=shortest, longest=longest)
    for sentence in (*LECTURE, *[world.sentence(number) for number in range(count)]):
        print(card(sentence), end="\n\n")


if __name__ == "__main__":
    main(*[int(argument) for argument in sys.argv[1:]])
