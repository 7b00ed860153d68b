#include "cli/show/event_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "proto/tensorboard.pb-c.h"

#define FILE_VERSION "brain.Event:2"
#define POLYNOMIAL 0x82f63b78u /* reversed */
#define MASK 0xa282ead8u
#define DTYPE_STRING 7
#define RGB 3
#define PNG_SIDE_MAX (1 << 20)

/* ---- framing ---- */

static uint32_t table[256];

static void make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? c >> 1 ^ POLYNOMIAL : c >> 1;
        table[i] = c;
    }
}

uint32_t event_crc32c(const void *data, size_t len)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint8_t *p = data;
    uint32_t c = ~0u;
    pthread_once(&once, make_table);
    for (size_t i = 0; i < len; i++)
        c = c >> 8 ^ table[(c ^ p[i]) & 255];
    return ~c;
}

static void put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

/* Writes a masked CRC, rotated and shifted: the CRC of data with CRCs in it would be weak. */
static void put_crc(uint8_t out[4], const void *data, size_t len)
{
    const uint32_t c = event_crc32c(data, len);
    put(out, (c >> 15 | c << 17) + MASK, 4);
}

static int append(struct event_file *f, Tensorboard__Event *event, struct err *err)
{
    event->wall_time = (double)clock_wall_ms() / 1000;
    const size_t len = tensorboard__event__get_packed_size(event);
    if (len > EVENT_BYTES_MAX)
        return err_set(err, -ERR_LIMIT, "%s: an event of %zu bytes, expected at most %zu", f->path,
                       len, EVENT_BYTES_MAX);
    uint8_t *record = mem_try(len + 16);
    if (!record)
        return err_set(err, -ENOMEM, "no memory for an event of %zu bytes", len);
    put(record, len, 8);
    put_crc(record + 8, record, 8);
    tensorboard__event__pack(event, record + 12);
    put_crc(record + 12 + len, record + 12, len);
    int rc = file_write_all(f->fd, record, len + 16, f->path, err);
    mem_free(record);
    if (rc == 0)
        f->bytes += len + 16;
    return rc;
}

/* ---- files ---- */

int event_file_open(struct event_file *f, const char *path, struct err *err)
{
    static char version[] = FILE_VERSION;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    *f = (struct event_file){.fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
    if (f->fd < 0)
        return err_errno(err, "creating %s", path);
    f->path = str_dup(path);
    event.what_case = TENSORBOARD__EVENT__WHAT_FILE_VERSION;
    event.file_version = version;
    int rc = append(f, &event, err);
    if (rc < 0)
        event_file_close(f);
    return rc;
}

int event_file_sync(const struct event_file *f, struct err *err)
{
    return file_sync(f->fd, f->path, err);
}

void event_file_close(struct event_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    mem_free(f->path);
    *f = (struct event_file){.fd = -1};
}

/* ---- events ---- */

/* An event with one value, which lacks only its tag. */
static int append_value(struct event_file *f, const char *tag, int64_t step,
                        Tensorboard__SummaryValue *value, struct err *err)
{
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    value->tag = (char *)(uintptr_t)tag;
    summary.n_value = 1;
    summary.value = &value;
    event.step = step;
    event.what_case = TENSORBOARD__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    return append(f, &event, err);
}

int event_scalar(struct event_file *f, const char *tag, int64_t step, double value, struct err *err)
{
    Tensorboard__SummaryValue v = TENSORBOARD__SUMMARY_VALUE__INIT;
    v.value_case = TENSORBOARD__SUMMARY_VALUE__VALUE_SIMPLE_VALUE;
    v.simple_value = (float)value;
    return append_value(f, tag, step, &v, err);
}

int event_text(struct event_file *f, const char *tag, int64_t step, const char *text,
               struct err *err)
{
    static char plugin_name[] = "text";
    Tensorboard__SummaryValue v = TENSORBOARD__SUMMARY_VALUE__INIT;
    Tensorboard__SummaryMetadata metadata = TENSORBOARD__SUMMARY_METADATA__INIT;
    Tensorboard__PluginData plugin = TENSORBOARD__PLUGIN_DATA__INIT;
    Tensorboard__TensorProto tensor = TENSORBOARD__TENSOR_PROTO__INIT;
    Tensorboard__TensorShape shape = TENSORBOARD__TENSOR_SHAPE__INIT;
    Tensorboard__TensorDim dim = TENSORBOARD__TENSOR_DIM__INIT, *dims = &dim;
    ProtobufCBinaryData bytes = {strlen(text), (uint8_t *)(uintptr_t)text};
    dim.size = 1;
    shape.n_dim = 1;
    shape.dim = &dims;
    tensor.dtype = DTYPE_STRING;
    tensor.tensor_shape = &shape;
    tensor.n_string_val = 1;
    tensor.string_val = &bytes;
    plugin.plugin_name = plugin_name;
    metadata.plugin_data = &plugin;
    v.metadata = &metadata;
    v.value_case = TENSORBOARD__SUMMARY_VALUE__VALUE_TENSOR;
    v.tensor = &tensor;
    return append_value(f, tag, step, &v, err);
}

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

int event_png_size(const void *png, size_t len, int32_t *ret_width, int32_t *ret_height)
{
    const uint8_t *p = png;
    if (len < 24 || memcmp(p, "\x89PNG\r\n\x1a\n", 8) != 0 || memcmp(p + 12, "IHDR", 4) != 0)
        return -ERR_FORMAT;
    const uint32_t width = big_endian(p + 16), height = big_endian(p + 20);
    if (width == 0 || width > PNG_SIDE_MAX || height == 0 || height > PNG_SIDE_MAX)
        return -ERR_FORMAT;
    *ret_width = (int32_t)width;
    *ret_height = (int32_t)height;
    return 0;
}

int event_image(struct event_file *f, const char *tag, int64_t step, const void *png, size_t len,
                struct err *err)
{
    Tensorboard__SummaryValue v = TENSORBOARD__SUMMARY_VALUE__INIT;
    Tensorboard__SummaryImage image = TENSORBOARD__SUMMARY_IMAGE__INIT;
    if (event_png_size(png, len, &image.width, &image.height) < 0)
        return err_set(err, -ERR_FORMAT, "a picture of step %lld is no PNG", (long long)step);
    image.colorspace = RGB;
    image.encoded_image_string = (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)png};
    v.value_case = TENSORBOARD__SUMMARY_VALUE__VALUE_IMAGE;
    v.image = &image;
    return append_value(f, tag, step, &v, err);
}
