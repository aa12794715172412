// Loads the prose of the chapters from lecture.json.

const found = await fetch(new URL("../../lecture.json", import.meta.url));

export const CHAPTERS = await found.json();
