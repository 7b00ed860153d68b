/* Query strings as anybody may send them: none may pass without the key. */
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/net/ticket.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const uint8_t key[TICKET_KEY_BYTES] = {1, 2, 3}, sha256[32];
    char *query = mem_alloc(len + 1);
    struct ticket t;
    struct err err;
    memcpy(query, data, len);
    if (ticket_check(key, TICKET_GET, sha256, query, 0, &t, &err) == 0)
        abort();
    mem_free(query);
    return 0;
}
