// What each chapter of the walk says and asks: text, so it stands in lecture.json; the numbers are in lecture_example.js.

const found = await fetch(new URL("../../lecture.json", import.meta.url));

export const CHAPTERS = await found.json();
