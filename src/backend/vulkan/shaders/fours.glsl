/* Floats of a value, of which up to four neighbours are taken at a time: at once if WIDE, a constant
 * of the pipeline which says that everything begins on four words. Each buffer needs its LOADER. */
#define FLOATS(access, number, name, Name)                                          \
    layout(std430, set = 0, binding = number) access buffer Name { float name[]; }; \
    layout(std430, set = 0, binding = number) access buffer Name##Fours { vec4 name##4[]; }
/* Columns [at, at + n), n up to 4; WIDE: 4. */
#define LOAD(name, at, n) (WIDE ? name##4[(at) >> 2] : load_##name(at, n))
#define LOADER(name)                  \
    vec4 load_##name(int at, int n) { \
        vec4 y = vec4(0);             \
        for (int j = 0; j < n; j++)   \
            y[j] = name[at + j];      \
        return y;                     \
    }
#define STORE(name, at, n, y)            \
    if (WIDE) name##4[(at) >> 2] = y;    \
    for (int j = 0; !WIDE && j < n; j++) \
    name[(at) + j] = y[j]
