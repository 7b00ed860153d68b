/* Join tokens as people paste them; what parses must survive a round trip. */
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/net/token.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint8_t secret[KEYS_SECRET_BYTES];
    char *text = mem_alloc(len + 1), again[TOKEN_STRING_MAX];
    struct token t, u;
    struct err err;
    memcpy(text, data, len);
    if (token_parse(text, &t, &err) == 0 &&
        (token_format(&t, again, &err) < 0 || token_parse(again, &u, &err) < 0))
        abort();
    (void)token_bearer_read(text, secret); /* must only not crash */
    mem_free(text);
    return 0;
}
