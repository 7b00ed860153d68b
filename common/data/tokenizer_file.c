/* Opens a tokenizer's file, whose first byte tells its kind. */
#include "common/base/file.h"
#include "common/data/tokenizer_build.h"

/* A SentencePiece model begins with field 1 of type bytes, which looks like an empty line. */
static bool is_spm(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && strchr(" \t\r\n", text[n]) && text[n])
        n++;
    return n > 0 && text[0] == '\n' && (n == len || text[n] != '{');
}

int tokenizer_parse(const void *data, size_t len, const char *name, struct tokenizer **ret,
                    struct err *err)
{
    struct build b;
    if (len > TOKENIZER_FILE_MAX)
        return err_set(err, -ERR_LIMIT, "tokenizer %s has %zu bytes, at most %u are possible", name,
                       len, TOKENIZER_FILE_MAX);
    int rc = file_check_placeholder(name, data, len, err);
    if (rc < 0)
        return rc;
    build_open(&b, name, err);
    rc = is_spm(data, len) ? tokenizer_read_spm(&b, data, len) : tokenizer_read_json(&b, data, len);
    if (rc == 0)
        rc = build_finish(&b);
    return build_close(&b, rc, ret);
}

int tokenizer_open(const char *path, struct tokenizer **ret, struct err *err)
{
    struct buf text;
    int rc = file_read(path, TOKENIZER_FILE_MAX, &text, err);
    if (rc < 0)
        return rc;
    rc = tokenizer_parse(buf_str(&text), text.len, path, ret, err);
    buf_release(&text);
    return rc;
}
