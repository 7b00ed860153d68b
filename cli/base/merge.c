#include "cli/base/merge.h"

#include <fcntl.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "common/base/file.h"
#include "common/st/st.h"

#define PIECE (1u << 20)

static int declare(struct st_writer *w, const char *part, struct err *err)
{
    struct st st;

    int rc = st_open(part, &st, err);
    if (rc < 0)
        return rc;
    for (size_t t = 0; rc == 0 && t < st.n_tensors; t++)
        rc = st_writer_add(w, st.tensors[t].name, st_dtype_at_home(&st, &st.tensors[t]),
                           st.tensors[t].rank, st.tensors[t].shape, err);
    st_release(&st);
    return rc;
}

/* Writes a tensor unchanged, or in the dtype that it has in the user's model. */
static int copy_tensor(struct st_writer *w, const struct st *st, const struct st_tensor *t, int fd,
                       const char *part, void *piece, struct err *err)
{
    const enum st_dtype to = st_dtype_at_home(st, t);
    void *out = to != t->dtype ? (char *)piece + PIECE : piece;
    int rc = 0;
    for (uint64_t at = 0; at < t->bytes && rc == 0; at += PIECE) {
        const size_t len = t->bytes - at < PIECE ? (size_t)(t->bytes - at) : PIECE;
        if (cli_interrupted)
            return err_set(err, -ERR_CANCELLED, "interrupted");
        rc = file_pread_all(fd, piece, len, t->offset + at, part, err);
        if (rc == 0 && to != t->dtype)
            st_from_f32(to, piece, len / sizeof(float), out);
        if (rc == 0)
            rc = st_writer_write(w, out, len / st_dtype_bytes(t->dtype) * st_dtype_bytes(to), err);
    }
    return rc;
}

static int copy_payload(struct st_writer *w, const char *part, void *piece, struct err *err)
{
    struct st st;
    int fd = open(part, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_errno(err, "opening %s", part);
    int rc = st_read(fd, part, &st, err);
    if (rc == 0) {
        for (size_t t = 0; rc == 0 && t < st.n_tensors; t++)
            rc = copy_tensor(w, &st, &st.tensors[t], fd, part, piece, err);
        st_release(&st);
    }
    close(fd);
    return rc;
}

int merge_safetensors(char *const *parts, size_t n, const char *path, struct err *err)
{
    struct st_writer *w = st_writer_new();
    void *piece = mem_alloc(3 * PIECE); /* a piece, and its values, twice as wide */
    int rc = 0;

    st_writer_meta(w, "format", "pt");
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = declare(w, parts[i], err);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = copy_payload(w, parts[i], piece, err);
    if (rc == 0)
        rc = st_writer_commit(w, NULL, NULL, err);
    mem_free(piece);
    st_writer_free(w);
    return rc;
}
