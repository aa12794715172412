/* Beam search on a CPU: what stands between two steps of the network, sentence by sentence.

   Each function does what the torch (or NumPy) operations of its name in beam.py, kv_cache.py and beam_decoder.py do, bit by
   bit. Those are hundreds of small ones a step, each of which takes longer than the numbers of a sentence here.
*/
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "avx512.h"

/* --- candidates --- */

typedef struct {
    double total, value;
    int64_t token;
    long place; /* beam × candidates of a beam + candidate */
} Candidate;

/* Higher totals first, and as torch sorts them what is not a number above all. Of ties the lower token, then the lower
   beam. */
static int precedes(const Candidate *one, const Candidate *other) {
    int none = isnan(one->total), other_none = isnan(other->total);
    if (none != other_none) return none;
    if (!none && one->total != other->total) return one->total > other->total;
    return one->token != other->token ? one->token < other->token : one->place < other->place;
}

/* The best `kept` of a sentence's candidates, best first. */
static void best_candidates(
    const double *totals, const float *values, const int64_t *tokens, const int64_t *rows, long k, long c, long kept,
    Candidate *found
) {
    long count = 0;
    for (long place = 0; place < k * c; place++) {
        long row = rows[place / c], at = row * c + place % c;
        double value = row < 0 ? -INFINITY : values[at];
        Candidate one = {totals[place / c] + value, value, row < 0 ? 0 : tokens[at], place};
        if (count == kept && !precedes(&one, found + kept - 1)) continue;
        long to = count < kept ? count++ : kept - 1;
        for (; to > 0 && precedes(&one, found + to - 1); to--) found[to] = found[to - 1];
        found[to] = one;
    }
}

/* Beams as in BeamState, k of each of b sentences; values and tokens: of the `lives` beams in `live`, or of all, c of each.
   steps: how many tokens the beams have, of each sentence or with `shared` of all. The candidates of a step are recorded in
   the history of `most` steps, whose steps and sentences are so many numbers apart. Returns whether it has room for them. */
int select_candidates(
    const float *values, const int64_t *candidates, const int64_t *live, long lives, const int64_t *steps, long shared,
    int64_t *tokens, int64_t *parents, double *totals, double *best_finished, int64_t *finished_step,
    const int64_t *max_lengths, const double *max_length_penalty, const double *penalties, int64_t *history_tokens,
    int64_t *history_parents, double *history_values, double *history_scores, long most, long step_stride,
    long sentence_stride, long b, long k, long c, long kept, long best, int64_t eos, int64_t empty, int prune
) {
    for (long n = 0; n < (shared ? 1 : b); n++)
        if (steps[n] < 0 || steps[n] >= most) return 0;
    int64_t *rows = reserve(b * k * sizeof(int64_t) + kept * sizeof(Candidate));
    Candidate *found = (Candidate *)(rows + b * k);
    for (long beam = 0; beam < b * k; beam++) rows[beam] = live ? -1 : beam;
    for (long row = 0; live && row < lives; row++) rows[live[row]] = row;
    for (long n = 0; n < b; n++, tokens += k, parents += k, totals += k, best_finished += best) {
        int64_t step = steps[shared ? 0 : n];
        best_candidates(totals, values, candidates, rows + n * k, k, c, kept, found);
        for (long rank = 0, at = step * step_stride + n * sentence_stride; rank < kept; rank++, at++) {
            Candidate *one = found + rank;
            double score = one->total / penalties[step];
            if (!(one->total > -INFINITY)) one->token = -1;
            history_tokens[at] = one->token;
            history_parents[at] = one->place / c;
            history_values[at] = one->value;
            history_scores[at] = score;
            if (one->token != eos || rank >= k) continue;
            for (long place = 0; place < best; place++)
                if (score > best_finished[place]) {
                    double worse = best_finished[place];
                    best_finished[place] = score;
                    score = worse;
                }
        }
        double least = best_finished[best - 1], hope = -INFINITY;
        for (long rank = 0; !prune && rank < kept; rank++)
            if (found[rank].token != -1 && found[rank].token != eos && found[rank].total > hope)
                hope = found[rank].total;
        long going = 0;
        for (long rank = 0; rank < kept && going < k; rank++) {
            Candidate one = found[rank];
            double bound = (prune ? one.total : hope) / max_length_penalty[n];
            if (one.token == -1 || one.token == eos || (least > -INFINITY && least >= bound)) continue;
            totals[going] = one.total;
            tokens[going] = one.token;
            parents[going++] = one.place / c;
        }
        int over = going == 0 || step + 1 == max_lengths[n];
        for (; going < k; going++) {
            totals[going] = -INFINITY;
            tokens[going] = empty;
            parents[going] = 0;
        }
        if (over && finished_step[n] < 0) finished_step[n] = step;
    }
    return 1;
}

/* --- slots of the KV cache --- */

/* The slots of the beams' new tokens, and the mask: 0 where a beam sees a slot of c, -∞ elsewhere. Returns how many slots
   are in use up to the last one, -1 if there are too few. */
long follow_parents(
    uint8_t *seen, const int64_t *parents, int64_t *slots, float *mask, long b, long k, long c
) {
    uint8_t *before = reserve((k + 1) * c), *taken = before + k * c;
    long used = 0;
    for (long n = 0; n < b; n++, seen += k * c, parents += k, slots += k, mask += k * c) {
        memcpy(before, seen, k * c);
        memset(taken, 0, c);
        for (long beam = 0; beam < k; beam++) {
            memcpy(seen + beam * c, before + parents[beam] * c, c);
            for (long slot = 0; slot < c; slot++) taken[slot] |= seen[beam * c + slot];
        }
        for (long beam = 0, slot = 0; beam < k; beam++, slot++) {
            while (slot < c && taken[slot]) slot++;
            if (slot == c) return -1;
            slots[beam] = slot;
            seen[beam * c + slot] = 1;
        }
        for (long i = 0; i < k * c; i++) mask[i] = seen[i] ? 0.0f : -INFINITY;
        for (long slot = used; slot < c; slot++)
            for (long beam = 0; beam < k; beam++)
                if (seen[beam * c + slot]) used = slot + 1;
    }
    return used;
}

/* Each beam's key and value, (b g k d) by their strides, into its slot of (b g c d). */
void write_slots(
    float *keys, float *values, const float *key, const float *value, const int64_t *slots, long new_b, long new_g,
    long new_k, long b, long g, long k, long c, long d
) {
    for (long n = 0; n < b; n++)
        for (long group = 0; group < g; group++)
            for (long beam = 0; beam < k; beam++) {
                long to = ((n * g + group) * c + slots[n * k + beam]) * d;
                long from = n * new_b + group * new_g + beam * new_k;
                memcpy(keys + to, key + from, d * sizeof(float));
                memcpy(values + to, value + from, d * sizeof(float));
            }
}

/* --- hypotheses --- */

typedef struct {
    long step, rank;
    double score;
    int cut; /* truncated, not finished */
} Ending;

/* Finished before truncated ones, then higher scores; what is not a number comes last. */
static int ranks_before(const Ending *one, const Ending *other) {
    if (one->cut != other->cut) return other->cut;
    return one->score > other->score || (!isnan(one->score) && isnan(other->score));
}

/* The hypotheses of some rows of the history, which are done: of each the `best` at most. Each is as many tokens and values
   as `lengths` says, the last of which is the end of a finished one. Returns whether the history is one: a sentence is done
   within its steps, and parents are beams. */
int backtrack(
    const int64_t *tokens, const int64_t *parents, const double *values, const double *scores, long step_stride,
    long sentence_stride, const int64_t *finished_step, const int64_t *rows, long count, long steps, long k, long kept,
    long best, int64_t eos, int64_t *counts, int64_t *lengths, uint8_t *finished, double *ranked_by, int64_t *found_tokens,
    double *found_values
) {
    int32_t *front = reserve(steps * kept * sizeof(int32_t) + best * sizeof(Ending) + 64);
    Ending *endings = (Ending *)(((uintptr_t)(front + steps * kept) + 63) / 64 * 64);
    for (long n = 0; n < count; n++) {
        const long first = rows[n] * sentence_stride, ended = finished_step[rows[n]];
        long found = 0, last = ended - 1;
        if (ended < 0 || ended >= steps) return 0;
        for (long rank = 0; rank < kept; rank++)
            if (tokens[first + ended * step_stride + rank] >= 0) last = ended;
        for (long step = 0; step <= ended; step++) {
            const int64_t *said = tokens + first + step * step_stride;
            long going = 0, place = 0;
            int32_t *beams = front + step * kept;
            for (long rank = 0; rank < kept; rank++) going += said[rank] >= 0 && said[rank] != eos && going < k;
            for (long rank = 0, left = going; rank < kept; rank++) {
                int goes = said[rank] >= 0 && said[rank] != eos && place < left;
                if (goes)
                    beams[place++] = rank;
                else
                    beams[going++] = rank;
                int ends = said[rank] == eos && rank < k, cut = goes && step == last;
                if (!ends && !cut) continue;
                Ending one = {step, rank, scores[first + step * step_stride + rank], cut};
                if (found == best && !ranks_before(&one, endings + best - 1)) continue;
                long to = found < best ? found++ : best - 1;
                for (; to > 0 && ranks_before(&one, endings + to - 1); to--) endings[to] = endings[to - 1];
                endings[to] = one;
            }
        }
        counts[n] = last < 0 ? -1 : found;
        for (long i = 0; i < found; i++) {
            long out = n * best + i, rank = endings[i].rank;
            lengths[out] = endings[i].step + 1;
            finished[out] = !endings[i].cut;
            ranked_by[out] = endings[i].score;
            for (long step = endings[i].step; step >= 0; step--) {
                long at = first + step * step_stride + rank;
                found_tokens[out * steps + step] = tokens[at];
                found_values[out * steps + step] = values[at];
                if (step && (parents[at] < 0 || parents[at] >= kept)) return 0;
                if (step) rank = front[(step - 1) * kept + parents[at]];
            }
        }
    }
    return 1;
}
