/* An event file of TensorBoard: records that are only appended.
 *
 *     event_file_open(&f, path, err);
 *     event_scalar(&f, "loss", step, 0.5, err);
 *     event_file_sync(&f, err);         // what is before f.bytes is on the disk
 *     event_file_close(&f);
 *
 * A record is framed as TFRecord has it: the length (8 bytes), its masked CRC-32C (4), the message
 * (proto/tensorboard.proto), its masked CRC-32C; all little-endian. */
#ifndef CLI_EVENT_FILE_H
#define CLI_EVENT_FILE_H

#include "common/base/base.h"

#define EVENT_BYTES_MAX ((size_t)64 << 20) /* of a record; a longer one is refused */

struct event_file {
    int fd; /* -1: closed */
    char *path;
    uint64_t bytes;
};

/* Makes the file, which must not be there, with the record that says what it is. */
int event_file_open(struct event_file *f, const char *path, struct err *err);
int event_scalar(struct event_file *f, const char *tag, int64_t step, double value,
                 struct err *err);
/* Markdown, as TensorBoard shows it. */
int event_text(struct event_file *f, const char *tag, int64_t step, const char *text,
               struct err *err);
/* -ERR_FORMAT: these bytes are no PNG. */
int event_image(struct event_file *f, const char *tag, int64_t step, const void *png, size_t len,
                struct err *err);
int event_file_sync(const struct event_file *f, struct err *err);
void event_file_close(struct event_file *f); /* closed is fine */

/* Width and height of a PNG from its header; -ERR_FORMAT: it has none. */
int event_png_size(const void *png, size_t len, int32_t *ret_width, int32_t *ret_height);
/* CRC-32C (Castagnoli), as iSCSI has it (RFC 3720). */
uint32_t event_crc32c(const void *data, size_t len);

#endif
