/* What all products share: their numbers, and which lines a work-group has. With EXPERTS, lines are
 * pairs of a line and an expert that it chose: pair i is the choice i % n_used of line i / n_used. With
 * PAIR, two matrices make act(first) * second. */
layout(push_constant) uniform Push {
    int from, most;     /* round_lines of the window's lines, and how many they are at most */
    int n_rows, n_cols; /* of the window of the weight */
    int unit_words;     /* from group to group of 16 rows; of plain types: from row to row */
    int in_off, in_stride, out_off, out_stride;
    int bias_off; /* of the window's first row */
#if defined(PAIR)
    int bytes_off, bytes_stride;
#elif !defined(EXPERTS)
    int add_off, add_stride;
#else
    int matrix_words, bias_words; /* from expert to expert */
    int expert_begin, expert_end; /* of the window */
    int list_off;
    int per_line; /* pairs that share a line of the input */
#endif
} p;
layout(std430, set = 0, binding = 3) writeonly buffer Out {
    float out_[];
};
#ifndef PAIR
layout(std430, set = 0, binding = 4) readonly buffer Bias {
    float bias[];
};
#endif
#if defined(PAIR)
layout(constant_id = 6) const int ACT = 0;
#elif !defined(EXPERTS)
layout(constant_id = 6) const bool ADD = false;
layout(std430, set = 0, binding = 5) readonly buffer Add { /* may be Out */
    float add[];
};
#else
layout(constant_id = 6) const bool LISTED = false;
layout(std430, set = 0, binding = 5) readonly buffer List {
    uint list[]; /* LISTED: experts_sort.comp; else the only line's ids */
};
#endif

/* The work-group's lines: n from the first on. False: there is nothing to do. matrix: word where the
 * weights begin; bias_at: of the first row. */
bool open_tile(out int first, out int n, out int matrix, out int bias_at) {
    int tile = int(gl_WorkGroupID.y);
#ifdef EXPERTS
    int expert;
    first = tile;
    n = 1;
    if (LISTED) {
        int at = p.list_off + 2 + 3 * tile;
        if (tile >= int(list[p.list_off])) return false;
        expert = int(list[at]);
        first = p.list_off + int(list[p.list_off + 1] + list[at + 1]);
        n = int(list[at + 2]);
    } else {
        float id = uintBitsToFloat(list[p.list_off + tile]);
        if (!(id >= float(p.expert_begin) && id < float(p.expert_end))) return false;
        expert = int(id);
    }
    if (expert < p.expert_begin || expert >= p.expert_end) return false;
    matrix = (expert - p.expert_begin) * p.matrix_words;
    bias_at = p.bias_off + (expert - p.expert_begin) * p.bias_words;
#else
    first = tile * TILE;
    n = min(round_lines(p.from), p.most) - first;
    matrix = 0;
    bias_at = p.bias_off;
#endif
    return true;
}

/* Line t of a tile, from n on the last one: a line, or a pair. */
int tile_line(int first, int n, int t) {
#ifdef EXPERTS
    return LISTED ? int(list[first + min(t, n - 1)]) : first;
#else
    return first + min(t, n - 1);
#endif
}
int in_at(int line) {
#ifdef EXPERTS
    line /= p.per_line;
#endif
    return p.in_off + line * p.in_stride;
}
int out_at(int line) { return p.out_off + line * p.out_stride; }

/* The same with where each line begins in In and Out. */
bool begin(out int n, out int from[TILE], out int to[TILE], out int matrix, out int bias_at) {
    int first;
    if (!open_tile(first, n, matrix, bias_at)) return false;
    for (int t = 0; t < TILE; t++) {
        int line = tile_line(first, n, t);
        from[t] = in_at(line);
        to[t] = out_at(line);
    }
    return true;
}

/* What a row of the tile's line t comes to: with its bias, and added to what the sum that follows
 * takes besides, if that was folded in. */
float result(float sum, int bias_at, int t, int row) {
#ifndef PAIR
    if (BIAS) sum += bias[bias_at + row];
#endif
#if !defined(EXPERTS) && !defined(PAIR)
    if (ADD) sum += add[p.add_off + (int(gl_WorkGroupID.y) * TILE + t) * p.add_stride + row];
#endif
    return sum;
}
