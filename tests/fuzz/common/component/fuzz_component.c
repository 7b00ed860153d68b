/* Any bytes as a component's folder: two bytes say how long config.json is, the rest is the
 * weights.  Refused with a sentence, or every tensor of it can be looked up and read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/component/component.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fuzz_folder_make();
    return 0;
}

static void put(const char *name, const uint8_t *data, size_t len)
{
    char *path = file_join(fuzz_folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, len, f) != len || fclose(f) != 0)
        abort();
    mem_free(path);
}

static void read_all(const struct component *c)
{
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct component_tensor *t = &c->tensors[i];
        float *values = mem_try_array(t->count, sizeof *values);
        if (component_find(c, t->name) != t)
            abort();
        if (values && component_read(c, t, values, NULL) == 0)
            for (uint64_t k = 0; k < t->count; k++)
                if (!isfinite(values[k]))
                    abort();
        mem_free(values);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct component *c = NULL;
    struct err err = {0};
    if (size < 2)
        return 0;
    size_t config = (size_t)data[0] | (size_t)data[1] << 8;
    config = config < size - 2 ? config : size - 2;
    put("config.json", data + 2, config);
    put("model.safetensors", data + 2 + config, size - 2 - config);
    if (component_open(fuzz_folder, COMPONENT_ANY, &c, &err) == 0)
        read_all(c);
    else if (!err.msg[0])
        abort();
    component_close(c);
    return 0;
}
