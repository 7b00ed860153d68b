#include "common/base/base.h"

/* Escapes control bytes, so that a hostile file name cannot forge log lines,
 * and cuts with "...". */
static void copy_clean(char *dst, size_t size, const char *src)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0, left = 0; /* hex digits of a control character */
    for (; *src; src++) {
        unsigned char c = (unsigned char)*src;
        if (left == 0)
            left = str_control(src);
        bool control = left > 0;
        left -= control;
        size_t need = control ? 4 : 1;
        if (n + need >= size) {
            if (n > size - 4)
                n = size - 4;
            memcpy(dst + n, "...", 3);
            n += 3;
            break;
        }
        if (!control) {
            dst[n++] = (char)c;
            continue;
        }
        dst[n++] = '\\';
        dst[n++] = 'x';
        dst[n++] = hex[c >> 4];
        dst[n++] = hex[c & 15];
    }
    dst[n] = '\0';
}

int err_set(struct err *err, int code, const char *fmt, ...)
{
    if (!err)
        return code;
    /* Through a copy: an argument may be err->msg itself. */
    char text[sizeof(err->msg) * 2];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap); /* cut text is still text */
    va_end(ap);
    err->code = code;
    copy_clean(err->msg, sizeof(err->msg), text);
    return code;
}

int err_errno(struct err *err, const char *fmt, ...)
{
    int saved = errno ? errno : EIO;
    if (!err)
        return -saved;
    char text[sizeof(err->msg)];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(err, -saved, "%s: %s", text, err_text(-saved));
}

int err_wrap(struct err *err, const char *fmt, ...)
{
    if (!err)
        return -EIO;
    char text[sizeof(err->msg)];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(err, err->code, "%s: %s", text, err->msg);
}

const char *err_text(int code)
{
    if (code == 0)
        return "success";
    if (code > 0)
        code = -code;
    switch (-code) {
#define X(num, name, text)                                                                         \
    case num:                                                                                      \
        return text;
        ERR_MAP(X)
#undef X
    default:
        break;
    }
    const char *text = code > -1000 ? strerrordesc_np(-code) : NULL;
    return text ? text : "unknown error";
}
