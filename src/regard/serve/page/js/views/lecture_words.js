// What each chapter of the walk says and asks; the numbers stand in lecture_example.js.

export const CHAPTERS = [
  {
    name: "x",
    title: "The inputs",
    formula: "x",
    prose:
      "Each input is a row of numbers: a word's embedding. These are the second lecture's. Change any of them: everything that follows is computed again.",
    question: "Two inputs have the same row. Which of their results will be the same?",
    answer:
      "All of them. Query, key and value are made from the row alone, so the two ask, match and answer alike. Only a position added to x, or a mask, can tell them apart.",
  },
  {
    name: "q, k, v",
    title: "Queries, keys and values",
    formula: "q = x W_q     k = x W_k     v = x W_v",
    prose:
      "A query says what an input looks for, a key what it can be found by, a value what it hands over. Each number is a row of x times a column of a matrix: look left and up from a cell.",
    question: "Why three matrices and not one?",
    answer:
      "With one matrix for queries and keys, the scores would be symmetric: input 1 would matter to input 2 exactly as 2 to 1, and most rows would look at themselves. A matrix of its own for the values lets an input hand over something else than what it was found by.",
  },
  {
    name: "scores",
    title: "Scores",
    formula: "scores = q k^T",
    prose: "Every query meets every key. Their dot product says how well they match.",
    question: "In the lectures' numbers all three queries like key 2. What makes it so popular?",
    answer:
      "Its length. Key 2 is (4, 4, 0), and a dot product grows with the length of a key as well as with its direction. Cosine attention would ask for the direction alone.",
  },
  {
    name: "scale",
    title: "Scale",
    formula: "scaled = scores / √d",
    prose:
      "Wide rows make large dot products, and softmax of large numbers is all or nothing. Dividing by the root of the width keeps their spread. The second lecture's example does not divide yet; its third training trick does.",
    question: "Why divide by √d and not by d?",
    answer:
      "The dot product of two independent rows of d numbers, each of variance 1, has variance d: its spread is √d. Dividing by √d makes the spread 1 at any width; dividing by d would make it vanish.",
  },
  {
    name: "mask",
    title: "Mask",
    formula: "masked = scaled where j may be seen, else −∞",
    prose:
      "■ may look, · is hidden. Switch cells one by one, or take a pattern. A hidden score becomes −∞, so that its weight is exactly 0.",
    question: "The lectures hide every j ≥ i. What does the first row see then?",
    answer:
      "Nothing at all. Softmax would have to divide 0 by 0; here such a row weighs 0 everywhere and gives 0. Most decoders hide j > i only, so that a token sees itself.",
  },
  {
    name: "softmax",
    title: "Softmax",
    formula: "weights = exp(s) / Σ exp(s)",
    prose:
      "Each row becomes weights that are positive and sum to 1. The row's largest score is taken away first, so that no exponential overflows.",
    question: "Add 5 to every score of a row. What happens to its weights?",
    answer:
      "Nothing. exp(s + 5) = exp(5) · exp(s), and exp(5) cancels in the division. That is why taking the largest score away changes no weight.",
  },
  {
    name: "sum",
    title: "Weighted sum",
    formula: "z = weights v",
    prose: "Each output is a mixture of all values: a row of weights times a column of v.",
    question: "Can an output be larger than every value in its column?",
    answer:
      "No. The weights are positive and sum to 1, so each output lies between the smallest and the largest value of its column. Attention alone only averages; that is why a feed-forward layer follows it.",
  },
  {
    name: "heads",
    title: "Heads",
    formula: "head_n = attention(x W_q^n, x W_k^n, x W_v^n)",
    prose:
      "A second head has matrices of its own and looks for something else. The lectures give one head; ours has the same matrices with the keys' sign turned, so it likes what the first dislikes. Change it below.",
    question: "Two heads of width 3, or one of width 6: what is the difference?",
    answer:
      "The number of softmaxes. Two heads can look at two places at once and keep what they found apart; one head must blend both into one average. The cost is the same.",
  },
  {
    name: "output",
    title: "Output",
    formula: "output = concat(head_1, head_2) W_o",
    prose:
      "The heads stand side by side and one more matrix brings them back to the width of x. Ours hands the first head through, so that its numbers can be recognised, and adds up the second in the last column.",
    question: "Why multiply by W_o at all, once the heads are joined?",
    answer:
      "Side by side the heads never touch. W_o mixes what they found, and brings it to the width of x, so that it can be added to x and read by the next layer.",
  },
  {
    name: "Bahdanau, Luong",
    title: "Bahdanau and Luong",
    formula: "context = softmax(score(q, k)) v",
    prose:
      "Before the Transformer a decoder's state was the query and the encoder's states were keys and values. Four scores compare the same q with the same k; softmax and sum are as before.",
    question: "Bahdanau's score and Luong's concat give the same numbers. What is the difference?",
    answer:
      "Where the query comes from. Luong writes W_a and U_a side by side as one matrix: W[q; k] = W_a q + U_a k. But Bahdanau asks with the decoder's state before the step, s_{t−1}, and Luong with the state of the step, h_t.",
  },
];
