/* Recurrent operators: the runs of a round and their states. A work-group walks the tokens of one
 * run in order, those of this dispatch's window; what is left after them is the state of the slot
 * that the run names, with which the next window goes on. Includes common.glsl, and needs of the
 * push constants `first`, `last` (tokens of the window) and, BY_ADDRESS, `low` and `high`. */
#ifdef BY_ADDRESS
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
layout(buffer_reference, std430, buffer_reference_align = 4) buffer AddressedStates {
    float items[];
};
#define STATES AddressedStates(uvec2(p.low, p.high)).items
#else
layout(std430, set = 0, binding = 1) buffer States {
    float states[];
};
#define STATES states
#endif

struct walk {
    int begin, end;   /* tokens of the round; none: begin >= end */
    int from, to;     /* slots; from negative: zeros */
};
walk walk_run(int index, int first, int last) {
    ivec4 run = round_run(index);
    walk w;
    w.begin = max(run.x, first);
    w.end = min(run.x + run.y, last);
    w.from = w.begin == run.x ? run.z : run.w;
    w.to = run.w;
    return w;
}
