/* Memory by its address: a KV cache that is larger than a binding may be. The names are those that
 * the bindings have otherwise. */
layout(buffer_reference, std430, buffer_reference_align = 4) buffer AddressedFloats {
    float items[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer AddressedInts {
    int items[];
};
layout(buffer_reference, std430, buffer_reference_align = 2) buffer AddressedHalves {
    uint16_t items[];
};
#define FLOATS_AT(address) AddressedFloats(address).items
#define INTS_AT(address) AddressedInts(address).items
#define HALVES_AT(address) AddressedHalves(address).items
