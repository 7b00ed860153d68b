/* Any bytes as a safetensors file: refused, or a header whose tensors tile it. */
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/st/st.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st st;
    struct err err = {0};
    if (st_parse(data, size, size, "fuzz", &st, &err) < 0) {
        if (err.code == 0 || err.msg[0] == '\0')
            abort();
        return 0;
    }
    uint64_t at = st.payload;
    for (size_t i = 0; i < st.n_tensors; i++) {
        const struct st_tensor *t = &st.tensors[i];
        if (t->offset != at || t->bytes != t->count * st_dtype_bytes(t->dtype))
            abort();
        at += t->bytes;
    }
    if (at != size)
        abort();
    st_release(&st);
    return 0;
}
