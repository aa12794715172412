"""A task in a folder of its own: is a sentence short or long? Nothing in regard names it."""
