/* Token ids of texts, for comparison with other implementations (tests/latents):
 *
 *    token_probe captions DIR MOST    a folder's caption tokenizer: "LENGTH ID ID ...", MOST ids
 *    token_probe text FILE            a tokenizer of texts: "ID ID ..."
 *
 * A text a line on stdin, as hexadecimal digits (texts hold any character); one line each out. */
#include <stdio.h>

#include "common/data/caption_tokenizer.h"

static unsigned digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a' + 10);
}

static size_t from_hex(const char *line, size_t len, uint8_t *out)
{
    size_t n = 0;
    for (; 2 * n + 1 < len && line[2 * n] >= '0'; n++)
        out[n] = (uint8_t)(digit(line[2 * n]) << 4 | digit(line[2 * n + 1]));
    return n;
}

static int caption(const struct caption_tokenizer *c, const uint8_t *text, size_t len, int most,
                   struct err *err)
{
    int32_t ids[CAPTION_TOKENS_MAX];
    int n = 0;
    int rc = caption_tokenizer_encode(c, text, len, most, ids, &n, err);
    printf("%d", n);
    for (int i = 0; rc == 0 && i < most; i++)
        printf(" %" PRId32, ids[i]);
    printf("\n");
    return rc;
}

static int plain(const struct tokenizer *t, const uint8_t *text, size_t len, struct err *err)
{
    struct tokens ids = {0};
    int rc = tokenizer_encode(t, text, len, TOKENIZER_SPECIAL, &ids, err);
    for (size_t i = 0; i < ids.n; i++)
        printf(" %" PRIu32, ids.ids[i]);
    printf("\n");
    tokens_release(&ids);
    return rc;
}

int main(int argc, char **argv)
{
    const bool captions = argc == 4 && strcmp(argv[1], "captions") == 0;
    struct caption_tokenizer *c = NULL;
    struct tokenizer *t = NULL;
    struct err err = {0};
    char *line = NULL;
    size_t cap = 0;
    int rc = -EINVAL;
    if (captions)
        rc = caption_tokenizer_open(argv[2], &c, &err);
    else if (argc == 3)
        rc = tokenizer_open(argv[2], &t, &err);
    if (rc == 0 && captions)
        printf("%s %u %u %d\n", caption_kind_name(caption_tokenizer_kind(c)),
               caption_tokenizer_vocab(c), caption_tokenizer_length(c), caption_tokenizer_pad(c));
    for (ssize_t n; rc == 0 && (n = getline(&line, &cap, stdin)) >= 0;) {
        uint8_t *text = mem_alloc((size_t)n);
        const size_t len = from_hex(line, (size_t)n, text);
        rc = captions ? caption(c, text, len, atoi(argv[3]), &err) : plain(t, text, len, &err);
        mem_free(text);
    }
    free(line);
    caption_tokenizer_free(c);
    tokenizer_free(t);
    if (rc < 0)
        fprintf(stderr, "token_probe: %s\n", err.msg);
    return rc < 0;
}
