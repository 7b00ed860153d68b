#include "common/base/buf.h"

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_release(struct buf *b)
{
    mem_free(b->data);
    buf_init(b, b->max);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = '\0';
}

/* Makes room for `more` bytes and the terminator. */
static int grow(struct buf *b, size_t more)
{
    size_t need;
    if (!mem_add(b->len, more, &need) || need > b->max || !mem_add(need, 1, &need))
        return -ERR_LIMIT;
    if (need <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (cap > b->max && need - 1 <= b->max)
        cap = b->max + 1 > need ? b->max + 1 : need;
    uint8_t *data = mem_try_realloc(b->data, cap);
    if (!data)
        return -ENOMEM;
    b->data = data;
    b->cap = cap;
    return 0;
}

int buf_append(struct buf *b, const void *data, size_t len)
{
    int rc = grow(b, len);
    if (rc < 0)
        return rc;
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
    return 0;
}

int buf_append_str(struct buf *b, const char *s)
{
    return buf_append(b, s, strlen(s));
}

int buf_append_byte(struct buf *b, uint8_t byte)
{
    return buf_append(b, &byte, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, count;
    va_start(ap, fmt);
    va_copy(count, ap);
    int n = vsnprintf(NULL, 0, fmt, count);
    va_end(count);
    int rc = n < 0 ? -EINVAL : grow(b, (size_t)n);
    if (rc == 0) {
        (void)vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, ap); /* n is its result */
        b->len += (size_t)n;
    }
    va_end(ap);
    return rc;
}

int buf_reserve(struct buf *b, size_t len, uint8_t **ret)
{
    int rc = grow(b, len);
    if (rc < 0)
        return rc;
    *ret = b->data + b->len;
    return 0;
}

void buf_commit(struct buf *b, size_t len)
{
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_consume(struct buf *b, size_t n)
{
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = '\0';
}

void buf_cut(struct buf *b, size_t len)
{
    if (len == b->len)
        return;
    b->len = len;
    b->data[len] = '\0';
}

uint8_t *buf_take(struct buf *b, size_t *ret_len)
{
    uint8_t *data = b->data ? b->data : mem_alloc(1);
    if (ret_len)
        *ret_len = b->len;
    buf_init(b, b->max);
    return data;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? (const char *)b->data : "";
}
