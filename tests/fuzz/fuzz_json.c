/* Whatever JSON is accepted prints as JSON that reads back equal; any bytes become UTF-8. */
#include "base/buf.h"
#include "base/json.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    json_t *value, *again;
    const char *text = (const char *)data;
    if (json_parse(text, n_bytes, &value) == ATS_OK) {
        for (int pretty = 0; pretty < 2; pretty++) {
            char *printed = json_print(value, pretty);
            REQUIRE(json_parse(printed, strlen(printed), &again) == ATS_OK);
            REQUIRE(json_equal(value, again));
            json_decref(again);
            free(printed);
        }
        json_decref(value);
    } else {
        REQUIRE(utf8_valid(error_text(), strlen(error_text())));
    }
    struct buf replaced = {0};
    utf8_add_replaced(&replaced, text, n_bytes);
    REQUIRE(utf8_valid(buf_str(&replaced), replaced.len));
    buf_free(&replaced);
    return 0;
}
