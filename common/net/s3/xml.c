#include "common/net/s3/xml.h"

#include <expat.h>

#define NAME_MAX_BYTES 64

struct reading {
    XML_Parser parser;
    s3_xml_fn *fn;
    void *arg;
    int rc;
    unsigned depth;
    char names[S3_XML_DEPTH][NAME_MAX_BYTES];
    bool leaf; /* the open element has no children so far */
    char text[S3_XML_TEXT_MAX];
    size_t len;
};

static void stop(struct reading *r, int rc)
{
    r->rc = rc;
    (void)XML_StopParser(r->parser, XML_FALSE);
}

static void on_start(void *arg, const char *name, const char **attributes)
{
    struct reading *r = arg;
    if (r->depth == S3_XML_DEPTH || !str_copy(r->names[r->depth], NAME_MAX_BYTES, name)) {
        stop(r, -ERR_FORMAT);
        return;
    }
    r->depth++;
    r->leaf = true;
    r->len = 0;
}

static void on_text(void *arg, const char *text, int len)
{
    struct reading *r = arg;
    if (!r->leaf)
        return;
    if ((size_t)len >= sizeof(r->text) - r->len) {
        stop(r, -ERR_FORMAT);
        return;
    }
    memcpy(r->text + r->len, text, (size_t)len);
    r->len += (size_t)len;
}

static void on_end(void *arg, const char *name)
{
    struct reading *r = arg;
    if (r->rc != 0)
        return; /* the end of an empty element comes even after its beginning has stopped the
                   reading */
    r->depth--;
    r->text[r->len] = '\0';
    const int rc = r->fn(r->arg, r->depth > 0 ? r->names[r->depth - 1] : "", r->names[r->depth],
                         r->leaf ? r->text : NULL);
    r->leaf = false;
    r->len = 0;
    if (rc != 0)
        stop(r, rc);
}

static void on_doctype(void *arg, const char *name, const char *system, const char *public, int own)
{
    stop(arg, -ERR_FORMAT);
}

int s3_xml_read(const char *data, size_t len, s3_xml_fn *fn, void *arg)
{
    struct reading r = {.fn = fn, .arg = arg};
    if (len > INT_MAX || !(r.parser = XML_ParserCreate("UTF-8")))
        return -ERR_FORMAT;
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, on_start, on_end);
    XML_SetCharacterDataHandler(r.parser, on_text);
    XML_SetStartDoctypeDeclHandler(r.parser, on_doctype);
    if (XML_Parse(r.parser, data, (int)len, 1) != XML_STATUS_OK && r.rc == 0)
        r.rc = -ERR_FORMAT;
    XML_ParserFree(r.parser);
    return r.rc;
}

struct search {
    const char *name;
    char *ret;
    size_t cap;
};

static int look(void *arg, const char *parent, const char *name, const char *text)
{
    struct search *s = arg;
    if (!text || strcmp(name, s->name) != 0)
        return 0;
    return str_copy(s->ret, s->cap, text) ? 1 : -ERR_LIMIT;
}

bool s3_xml_find(const char *data, size_t len, const char *name, char *ret, size_t cap)
{
    return s3_xml_read(data, len, look, &(struct search){name, ret, cap}) == 1;
}
