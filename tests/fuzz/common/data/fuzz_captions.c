/* Any bytes as a file of captions, and as metadata.jsonl. */
#include <stdint.h>
#include <stdlib.h>

#include "common/data/captions.h"
#include "common/data/dataset_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Each of them, one after the other, is the whole text. */
static void check(const char *text, size_t len)
{
    size_t n, at = 0;
    const unsigned count = captions_count(text, len);
    if (!captions_are_valid(text, len))
        abort();
    for (unsigned i = 0; i < count; i++) {
        if (captions_get(text, len, i, &n) != text + at || n == 0)
            abort();
        at += n + 1;
    }
    if (at != len + 1)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dataset_metadata m = {0};
    struct buf all;
    bool cut = false;
    buf_init(&all, CAPTIONS_MAX);
    int rc = captions_add_lines(&all, (const char *)data, size, &cut);
    if (all.len ? rc < 0 : cut)
        abort();
    if (all.len)
        check(buf_str(&all), all.len);
    buf_release(&all);
    if (dataset_metadata_parse(&m, data, size, "fuzz", NULL) == 0)
        for (size_t i = 0; i < m.n; i++)
            if (m.lines[i].captions)
                check(m.lines[i].captions, m.lines[i].len);
    dataset_metadata_release(&m);
    return 0;
}
