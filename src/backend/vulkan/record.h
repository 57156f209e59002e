/*
 * What the recording files share: record.c (one dispatch, barriers, command buffers),
 * record_steps.c (each kind of step as dispatches), record_product.c (products), record_experts.c
 * (routed experts) and record_state.c (operators with a state). A dispatch is begun, gets bindings
 * and push constants in the order of its shader's block, and is finished with pipeline and size.
 */
#pragma once

#include "backend/vulkan/vulkan_internal.h"

struct vk_touch {
    VkBuffer buffer;
    VkDeviceSize begin, end;
    bool write;
};
struct vk_dispatch {
    VkPipeline pipeline;
    const struct vk_layout *layout;
    struct vk_view views[VK_MAX_BINDINGS];
    bool bound[VK_MAX_BINDINGS], written[VK_MAX_BINDINGS];
    int32_t push[VK_MAX_PUSH];
    int n_push, grid;
    bool barrier; /* before it */
    size_t bytes; /* of weights */
};
struct vk_builder {
    struct vulkan *v;
    struct backend_segment *segment;
    int variant;
    int first, most; /* lines that dispatches are for now; most 0: all */
    struct vk_dispatch *items;
    size_t n, cap;
    struct vk_touch *touched; /* since the last barrier */
    size_t n_touched, cap_touched;
    const struct step *rounded; /* whose input stands in the work block in 8 bits, or NULL; */
    bool rounded_apart;         /* there behind the lines of all others */
    const struct step *rounds;  /* the product whose input the step being added rounds too; NULL */
};

/* A dispatch that is being put together: valid until the next one is begun. */
struct vk_dispatch *vk_start(struct vk_builder *b);
void vk_push_int(struct vk_dispatch *d, int64_t value);
void vk_push_float(struct vk_dispatch *d, float value);
/* Are the pushed words [begin, end) multiples of four? Offsets and strides that are let a shader
 * take four floats at a time. */
bool vk_in_fours(const struct vk_dispatch *d, int begin, int end);
void vk_bind(struct vk_dispatch *d, int binding, struct vk_view view, bool write);
/* Dispatches from now on are for lines [first, first + most); most 0: for all. */
void vk_set_lines(struct vk_builder *b, int first, int most);
/* How many of a span's lines a shader sees at once, at most all; UNSUPPORTED: not even one. */
MUST_CHECK ats_status vk_span_lines(const struct vk_builder *b, const struct span *s, bool rows,
                                    int *out);
/* Lines as round_lines of common.glsl takes them. */
void vk_push_from(const struct vk_builder *b, struct vk_dispatch *d, bool rows);
/* A span's lines as floats; pushes where column 0 of the first would stand, and the stride. */
MUST_CHECK ats_status vk_bind_span(struct vk_builder *b, struct vk_dispatch *d, int binding,
                                   const struct span *s, bool rows, bool write);
/* Where the executor's exchange is a copy: the columns of a span that a step reads or writes. */
void vk_note_exchange(struct vk_builder *b, const struct span *s, int begin, int end, bool rows,
                      bool write);
/* Ends a dispatch: its pipeline, its size, the barrier before it. */
MUST_CHECK ats_status vk_finish_grid(struct vk_builder *b, struct vk_dispatch *d,
                                     enum vk_shader shader,
                                     const int32_t constants[VK_MAX_CONSTANTS],
                                     struct vk_grid grid);
/* x work-groups for every `tile` lines. */
MUST_CHECK ats_status vk_finish(struct vk_builder *b, struct vk_dispatch *d, enum vk_shader shader,
                                const int32_t constants[VK_MAX_CONSTANTS], int x, bool rows,
                                int tile);
/* A lane a column; `constant` is the shader's own, if it has one. */
MUST_CHECK ats_status vk_finish_columns(struct vk_builder *b, struct vk_dispatch *d,
                                        enum vk_shader shader, int n_columns, bool rows,
                                        int constant);
static inline int vk_groups_of(int n, int size) {
    return (n + size - 1) / size;
}

/* record_steps.c */
/* What stands at steps[0], of which there are n_steps >= 1; *used: how many were taken. */
MUST_CHECK ats_status vk_add_steps(struct vk_builder *b, const struct step *steps, int n_steps,
                                   int *used);
/* Pushes a block's address if it has one, behind all else. */
void vk_push_address(struct vk_dispatch *d, const struct vk_block *block);

/* record_product.c */
/* Rows [begin, *end) of a matrix of a weight as one binding; begin stands on a group. */
MUST_CHECK ats_status vk_weight_window(const struct vulkan *v, const struct backend_weight *w,
                                       int matrix, int begin, struct vk_view *view, int *end);
/* A product as it is, with experts that lines chose, of two matrices and their activation. */
enum vk_product_kind { PRODUCT_PLAIN, PRODUCT_EXPERTS, PRODUCT_PAIR };
/* How a product is computed: rows and lines of a work-group; large: if it can, by large tiles,
 * which pairs cannot. */
struct vk_shape {
    enum vk_shader shader;
    int32_t constants[VK_MAX_CONSTANTS];
    int rows, tile;
};
struct vk_shape vk_product_shape(const struct vk_builder *b, const struct backend_weight *w,
                                 bool q8, bool bias, enum vk_product_kind kind, bool large);
/* A vector of floats, whole. */
MUST_CHECK ats_status vk_vector_view(const struct vulkan *v, const struct backend_weight *w,
                                     struct vk_view *view);
/* A product whose input is rounded to 8 bits before it. */
bool vk_takes_bytes(const struct step *s);
/* Where that input stands in 8 bits; pushes its first word and the words of a line. apart: one
 * line, behind those of all others, so that what rounds it may still read them. */
MUST_CHECK ats_status vk_bind_rounded(const struct vk_builder *b, struct vk_dispatch *d,
                                      int binding, const struct step *product, bool write,
                                      bool apart);
/* sum: what takes the product, alone (a copy) or besides another value, folded in; or NULL. */
MUST_CHECK ats_status vk_add_product(struct vk_builder *b, const struct step *s,
                                     const struct step *sum);

/* Are s[0] and s[1], and their activation s[2], one dispatch? Not in rounds of large tiles. */
bool vk_can_gate(const struct vk_builder *b, const struct step *s, int n_steps);
MUST_CHECK ats_status vk_add_gated_products(struct vk_builder *b, const struct step *s);

/* record_state.c */
MUST_CHECK ats_status vk_add_conv(struct vk_builder *b, const struct step *s);
MUST_CHECK ats_status vk_add_delta(struct vk_builder *b, const struct step *s);

/* record_experts.c */
MUST_CHECK ats_status vk_add_route(struct vk_builder *b, const struct step *s);
MUST_CHECK ats_status vk_add_experts(struct vk_builder *b, const struct step *s);
