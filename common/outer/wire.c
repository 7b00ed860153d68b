#include "common/outer/wire.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/outer/layout.h"

#define SCALE_SUFFIX ".scale"

static const char *kind_name(enum wire_kind kind)
{
    return kind == WIRE_DELTA ? "delta" : "contribution";
}

/* The dtype and shape that tensor t of the layout has in a blob. */
struct shape {
    enum st_dtype dtype;
    unsigned rank;
    uint64_t dims[ST_RANK_MAX];
};

static struct shape payload_shape(enum codec codec, const struct st_tensor *tensor)
{
    struct shape s = {.dtype = coding_dtype(codec), .rank = 1};
    if (codec_is_packed(codec)) {
        s.dims[0] = codec_payload_bytes(codec, tensor->count);
        return s;
    }
    s.rank = tensor->rank;
    memcpy(s.dims, tensor->shape, sizeof s.dims);
    return s;
}

static struct shape scale_shape(enum codec codec, const struct st_tensor *tensor)
{
    return (struct shape){
        .dtype = ST_BF16, .rank = 1, .dims = {codec_scales(codec, (size_t)tensor->count)}};
}

/* ---- metadata ---- */

static int meta_text(const struct st *st, const char *path, const char *key, const char **ret,
                     struct err *err)
{
    const char *value = st_meta_get(st, key);
    if (!value)
        return err_set(err, -ERR_FORMAT, "%s has no %s in its metadata: it is not a blob of Skerry",
                       path, key);
    *ret = value;
    return 0;
}

static int meta_number(const struct st *st, const char *path, const char *key, uint64_t *ret,
                       struct err *err)
{
    const char *text = NULL;
    int rc = meta_text(st, path, key, &text, err);
    if (rc < 0)
        return rc;
    size_t len = strlen(text);
    if (!len || len > 19 || strspn(text, "0123456789") != len)
        return err_set(err, -ERR_FORMAT, "%s: %s is \"%.32s\", expected a number", path, key, text);
    *ret = strtoull(text, NULL, 10);
    return 0;
}

static int info_kind(const struct st *st, const char *path, struct wire_info *info, struct err *err)
{
    const char *kind = NULL, *codec = NULL, *encoding = NULL;
    int rc = meta_text(st, path, "skerry.kind", &kind, err);
    if (rc == 0)
        rc = meta_text(st, path, "skerry.codec", &codec, err);
    if (rc == 0)
        rc = meta_text(st, path, "skerry.encoding", &encoding, err);
    if (rc < 0)
        return rc;
    if (!strcmp(kind, "contribution"))
        info->kind = WIRE_CONTRIBUTION;
    else if (!strcmp(kind, "delta"))
        info->kind = WIRE_DELTA;
    else
        return err_set(err, -ERR_FORMAT,
                       "%s: skerry.kind is \"%.32s\", expected contribution or "
                       "delta",
                       path, kind);
    if (codec_parse(codec, &info->codec) < 0)
        return err_set(err, -ERR_FORMAT,
                       "%s: skerry.codec is \"%.32s\", expected f32, bf16, int8 "
                       "or e3m0",
                       path, codec);
    const char *expected = info->codec == CODEC_F32 ? "value" : "difference";
    if (strcmp(encoding, expected) != 0)
        return err_set(err, -ERR_FORMAT, "%s: skerry.encoding is \"%.32s\", %s has \"%s\"", path,
                       encoding, codec, expected);
    return 0;
}

static int info_from(const struct st *st, const char *path, struct wire_info *ret, struct err *err)
{
    struct wire_info info = {0};
    int rc = info_kind(st, path, &info, err);
    if (rc == 0)
        rc = meta_number(st, path, "skerry.module", &info.module_id, err);
    if (rc == 0)
        rc = meta_number(st, path, "skerry.base", &info.base, err);
    if (rc == 0 && info.kind == WIRE_DELTA)
        rc = meta_number(st, path, "skerry.version", &info.version, err);
    if (rc == 0 && info.kind == WIRE_CONTRIBUTION)
        rc = meta_number(st, path, "skerry.samples", &info.samples, err);
    if (rc == 0)
        *ret = info;
    return rc;
}

static int info_same(const struct wire_info *want, const struct wire_info *got, const char *path,
                     struct err *err)
{
    if (got->kind != want->kind)
        return err_set(err, -ERR_FORMAT, "%s is a %s, expected a %s", path, kind_name(got->kind),
                       kind_name(want->kind));
    if (got->codec != want->codec)
        return err_set(err, -ERR_FORMAT, "%s is coded as %s, but the job file says %s", path,
                       codec_name(got->codec), codec_name(want->codec));
    if (got->module_id != want->module_id)
        return err_set(err, -ERR_FORMAT, "%s is of module %" PRIu64 ", expected module %" PRIu64,
                       path, got->module_id, want->module_id);
    if (got->base != want->base)
        return err_set(err, -ERR_STALE,
                       "%s starts from version %" PRIu64 ", expected version "
                       "%" PRIu64,
                       path, got->base, want->base);
    if (got->kind == WIRE_DELTA && got->version != got->base + 1)
        return err_set(err, -ERR_FORMAT,
                       "%s leads from version %" PRIu64 " to %" PRIu64 ", expected the next one",
                       path, got->base, got->version);
    return 0;
}

int wire_info_read(const char *path, struct wire_info *ret, struct err *err)
{
    struct st st = {0};
    int rc = st_open(path, &st, err);
    if (rc == 0)
        rc = info_from(&st, path, ret, err);
    st_release(&st);
    return rc;
}

/* ---- reading ---- */

static int tensor_expect(const struct st_tensor *got, const char *name, const char *suffix,
                         const struct shape *want, const char *path, struct err *err)
{
    size_t len = strlen(name);
    if (strncmp(got->name, name, len) != 0 || strcmp(got->name + len, suffix) != 0)
        return err_set(err, -ERR_FORMAT, "%s: tensor %s is in the place of %s%s", path, got->name,
                       name, suffix);
    if (got->dtype != want->dtype)
        return err_set(err, -ERR_FORMAT, "%s: tensor %s is %s, expected %s", path, got->name,
                       st_dtype_name(got->dtype), st_dtype_name(want->dtype));
    if (got->rank != want->rank || memcmp(got->shape, want->dims, want->rank * sizeof *want->dims))
        return err_set(err, -ERR_FORMAT, "%s: tensor %s does not have the module's shape", path,
                       got->name);
    return 0;
}

/* The number of tensors of the layout that have scales. */
static size_t count_scaled(const struct layout *layout, enum codec codec)
{
    size_t n = 0;
    for (size_t t = 0; t < layout->st.n_tensors; t++)
        n += codec_has_scale(layout_codec(layout, t, codec));
    return n;
}

/* The scales of all tensors with scales come first. */
static int match_layout(const struct st *st, const struct layout *layout, struct wire *w,
                        struct err *err)
{
    const size_t n = layout->st.n_tensors, first = count_scaled(layout, w->info.codec);
    if (st->n_tensors != first + n)
        return err_set(err, -ERR_FORMAT, "%s has %zu tensors, expected %zu", w->path, st->n_tensors,
                       first + n);
    for (size_t t = 0, s = 0; t < n; t++) {
        const struct st_tensor *tensor = &layout->st.tensors[t];
        const enum codec codec = layout_codec(layout, t, w->info.codec);
        struct shape want = payload_shape(codec, tensor);
        int rc = tensor_expect(&st->tensors[first + t], tensor->name, "", &want, w->path, err);
        w->at[t] = (struct wire_place){.codec = codec, .payload = st->tensors[first + t].offset};
        if (rc == 0 && codec_has_scale(codec)) {
            want = scale_shape(codec, tensor);
            w->at[t].scale = st->tensors[s].offset;
            rc = tensor_expect(&st->tensors[s++], tensor->name, SCALE_SUFFIX, &want, w->path, err);
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int places_new(size_t n, struct wire_place **ret, struct err *err)
{
    *ret = mem_try_array(n, sizeof(**ret));
    return *ret ? 0 : err_set(err, -ENOMEM, "no memory for a table of %zu tensors", n);
}

static int await(const struct wire *w, uint64_t end, struct err *err)
{
    return w->source ? w->source->await(w->source->arg, end, err) : 0;
}

static int read_header(const struct wire *w, struct st *st, struct err *err)
{
    uint64_t end;
    if (w->source == NULL)
        return st_read(w->fd, w->path, st, err);
    int rc = await(w, 8, err); /* its length */
    if (rc == 0)
        rc = st_header_end(w->fd, w->path, w->source->bytes, &end, err);
    if (rc == 0)
        rc = await(w, end, err);
    return rc == 0 ? st_read_part(w->fd, w->path, w->source->bytes, st, err) : rc;
}

static int open_file(const char *path, const struct wire_source *source,
                     const struct wire_info *want, const struct layout *layout, struct wire *ret,
                     struct err *err)
{
    struct wire w = {.fd = source ? fcntl(source->fd, F_DUPFD_CLOEXEC, 0)
                                  : open(path, O_RDONLY | O_CLOEXEC),
                     .source = source,
                     .n_tensors = layout->st.n_tensors};
    if (w.fd < 0)
        return err_errno(err, "opening %s", path);
    struct st st = {0};
    w.path = str_dup(path);
    int rc = read_header(&w, &st, err);
    if (rc == 0)
        rc = info_from(&st, path, &w.info, err);
    if (rc == 0)
        rc = info_same(want, &w.info, path, err);
    if (rc == 0)
        rc = places_new(w.n_tensors, &w.at, err);
    if (rc == 0)
        rc = match_layout(&st, layout, &w, err);
    st_release(&st);
    if (rc < 0)
        wire_close(&w);
    else
        *ret = w;
    return rc;
}

int wire_open(const char *path, const struct wire_info *want, const struct layout *layout,
              struct wire *ret, struct err *err)
{
    return open_file(path, NULL, want, layout, ret, err);
}

int wire_open_source(const struct wire_source *source, const char *path,
                     const struct wire_info *want, const struct layout *layout, struct wire *ret,
                     struct err *err)
{
    return open_file(path, source, want, layout, ret, err);
}

void wire_close(struct wire *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        (void)close(w->fd); /* read only: nothing to lose */
    mem_free(w->path);
    mem_free(w->at);
    *w = (struct wire){.fd = -1};
}

int wire_read(const struct wire *w, size_t t, uint64_t first, size_t n, void *payload,
              uint16_t *scales, struct err *err)
{
    const enum codec c = w->at[t].codec;
    const size_t bytes = codec_payload_bytes(c, n);
    uint64_t offset = w->at[t].payload + codec_payload_bytes(c, (size_t)first);
    int rc = await(w, offset + bytes, err);
    if (rc == 0)
        rc = file_pread_all(w->fd, payload, bytes, offset, w->path, err);
    if (rc < 0 || !codec_has_scale(c))
        return rc;
    offset = w->at[t].scale + first / CODEC_BLOCK * sizeof *scales;
    return file_pread_all(w->fd, scales, codec_scales(c, n) * sizeof *scales, offset, w->path, err);
}

/* ---- writing ---- */

static void writer_info(struct st_writer *w, const struct wire_info *info)
{
    st_writer_meta(w, "skerry.kind", kind_name(info->kind));
    st_writer_meta(w, "skerry.codec", codec_name(info->codec));
    st_writer_meta(w, "skerry.encoding", info->codec == CODEC_F32 ? "value" : "difference");
    st_writer_number(w, "skerry.module", info->module_id);
    st_writer_number(w, "skerry.base", info->base);
    if (info->kind == WIRE_DELTA)
        st_writer_number(w, "skerry.version", info->version);
    else
        st_writer_number(w, "skerry.samples", info->samples);
}

static int writer_tensors(struct st_writer *w, enum codec codec, const struct layout *layout,
                          struct err *err)
{
    size_t n = layout->st.n_tensors;
    for (size_t t = 0; t < n; t++) {
        const struct st_tensor *tensor = &layout->st.tensors[t];
        struct shape s = scale_shape(codec, tensor);
        if (!codec_has_scale(layout_codec(layout, t, codec)))
            continue;
        char name[ST_NAME_MAX + sizeof SCALE_SUFFIX];
        (void)snprintf(name, sizeof name, "%s" SCALE_SUFFIX, tensor->name); /* fits */
        int rc = st_writer_add(w, name, s.dtype, s.rank, s.dims, err);
        if (rc < 0)
            return rc;
    }
    for (size_t t = 0; t < n; t++) {
        const struct st_tensor *tensor = &layout->st.tensors[t];
        struct shape s = payload_shape(layout_codec(layout, t, codec), tensor);
        int rc = st_writer_add(w, tensor->name, s.dtype, s.rank, s.dims, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The tensors follow each other in the order of writer_tensors. */
static void place(struct wire_out *w, uint64_t offset, const struct layout *layout,
                  enum codec codec)
{
    const size_t n = layout->st.n_tensors;
    for (size_t t = 0; t < n; t++) {
        w->at[t] = (struct wire_place){.codec = layout_codec(layout, t, codec)};
        if (!codec_has_scale(w->at[t].codec))
            continue;
        w->at[t].scale = offset;
        offset += codec_scales(codec, (size_t)layout->st.tensors[t].count) * sizeof(uint16_t);
    }
    for (size_t t = 0; t < n; t++) {
        w->at[t].payload = offset;
        offset += codec_payload_bytes(w->at[t].codec, (size_t)layout->st.tensors[t].count);
    }
}

int wire_header(const struct wire_info *info, const struct layout *layout, struct buf *ret,
                uint64_t *ret_bytes, struct err *err)
{
    struct st_writer *writer = st_writer_new();
    writer_info(writer, info);
    int rc = writer_tensors(writer, info->codec, layout, err);
    if (rc == 0)
        rc = st_writer_header(writer, ret, ret_bytes, err);
    st_writer_free(writer);
    return rc;
}

int wire_out_open(struct wire_out *ret, struct file_out *out, const struct wire_info *info,
                  const struct layout *layout, struct err *err)
{
    struct wire_out w = {.out = out};
    struct buf header;
    buf_init(&header, ST_HEADER_MAX + 16);
    int rc = wire_header(info, layout, &header, &w.bytes, err);
    if (rc == 0)
        rc = places_new(layout->st.n_tensors, &w.at, err);
    if (rc == 0)
        rc = file_out_pwrite(out, header.data, header.len, 0, err);
    if (rc == 0) {
        place(&w, header.len, layout, info->codec);
        *ret = w;
    } else {
        wire_out_release(&w);
    }
    buf_release(&header);
    return rc;
}

int wire_out_write(struct wire_out *w, size_t t, uint64_t first, size_t n, const void *payload,
                   const uint16_t *scales, struct err *err)
{
    const enum codec c = w->at[t].codec;
    int rc = file_out_pwrite(w->out, payload, codec_payload_bytes(c, n),
                             w->at[t].payload + codec_payload_bytes(c, (size_t)first), err);
    if (rc < 0 || !codec_has_scale(c))
        return rc;
    return file_out_pwrite(w->out, scales, codec_scales(c, n) * sizeof *scales,
                           w->at[t].scale + first / CODEC_BLOCK * sizeof *scales, err);
}

void wire_out_release(struct wire_out *w)
{
    mem_free(w->at);
    w->at = NULL;
}
