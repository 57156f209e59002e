/* Numbers of enum dtype (model/dtype.h), kv_type, activation (graph.h); pipelines.c asserts them. */
#define F32    0
#define F16    1
#define BF16   2
#define Q8_0   3
#define Q4_0   4
#define Q4_1   5
#define Q5_0   6
#define Q5_1   7
#define Q2_K   8
#define Q3_K   9
#define Q4_K   10
#define Q5_K   11
#define Q6_K   12
#define IQ4_NL 13
#define IQ4_XS 14
#define MXFP4  15

#define KV_F32  0
#define KV_F16  1
#define KV_Q8_0 2

/* Largest absolute value of 32 inputs below which they are zeros: its inverse is no float. */
#define Q8_MIN_MAX 1.504632769052528e-36

#define ACT_SILU    0
#define ACT_GELU    1
#define ACT_CLAMPED 2
#define ACT_SIGMOID 3
#define ACT_CLAMPED_LIMIT 7.0
#define ACT_CLAMPED_SLOPE 1.702

#define GATING_SOFTMAX 0
#define GATING_SOFTMAX_CHOSEN 1
#define GATING_SIGMOID 2
