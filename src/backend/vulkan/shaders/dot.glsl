/* Sum of the products of four signed bytes. */
#ifdef IDOT
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int packed_dot(uint a, uint b, spirv_literal int format);
#define dot4(a, b) packed_dot(a, b, 0)
#else
int dot4(uint a, uint b) {
    int sum = 0;
    for (int i = 0; i < 32; i += 8)
        sum += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
    return sum;
}
#endif

/* One half of a block of a chain: the integer sum over 16 columns times its scale, and the sum of
 * these inputs times the least weight. Precise: no driver may put terms together where it sees that
 * both halves have one scale, as it does in one shader and not in another. */
float add_half(float block, float scale, float least, int sum, int inputs, bool first, bool has_min) {
    precise float with_scale = first ? scale * float(sum) : fma(scale, float(sum), block);
    precise float with_least = has_min ? fma(least, float(inputs), with_scale) : with_scale;
    return with_least;
}
int half_sum(uint sums, int h) { return bitfieldExtract(int(sums), 16 * h, 16); }
