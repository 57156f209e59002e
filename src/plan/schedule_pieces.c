/* What is larger than a slot passes through several, or through one several times, in pieces. */
#include <math.h>

#include "plan/schedule.h"

#define ROUNDING 1e-9

int schedule_pieces(const struct items *items, int first, int n, double share, double slot_bytes) {
    const struct item *item = &items->items[first];
    double bytes = 0;
    if (slot_bytes <= 0) return 1;
    for (int i = first; i < first + n; i++)
        bytes += (double)items->items[i].weight_bytes;
    double pieces = share * bytes / slot_bytes;
    if (item->n_experts > 0 && pieces > 1) {
        int units = items->blocks[item->block].n_units;
        if (units < 2) units = item->n_experts;
        pieces = share * units / floor(fmax(1, slot_bytes * units / bytes) + ROUNDING);
    }
    return max_int(1, (int)ceil(pieces - ROUNDING));
}

double schedule_least_slot_bytes(const struct items *items, int n_pieces, bool experts) {
    double least = 0;
    for (int i = 0; i < items->n_items; i++) {
        const struct item *item = &items->items[i];
        int n = max_int(1, item->n_experts);
        if (item->n_experts > 0 && !experts) continue;
        double share =
            item->n_experts > 0 ? ceil((double)n / n_pieces) / n : 1.0 / (double)n_pieces;
        least = fmax(least, share * (double)item->weight_bytes);
    }
    return least;
}
