#include "worker/data/latents.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "worker/data/data.h"

#define FILES_MAX 65536
#define SUFFIX ".lat"
#define PROBE_BYTES ((size_t)4 << 20)

struct latents {
    struct latents_options opt;
    char *dir;
    size_t record; /* bytes of a record, with its checksum */
    pthread_mutex_t lock;
    uint64_t refused;      /* bytes of the smallest file without room; UINT64_MAX: all had room */
    bool failed;           /* logged */
    struct timespec since; /* time of opening: files written since then stay */
};

static bool before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

static uint64_t file_bytes(const struct latents *l, const struct latents_place *at)
{
    return (uint64_t)at->samples * (l->opt.mirrored ? 2 : 1) * l->record;
}

/* The present time by the directory's file system, whose clock may not be ours. */
static int file_clock(const char *dir, struct timespec *ret, struct err *err)
{
    char *path = file_join(dir, "clock");
    struct stat st;
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int rc = fd < 0 || write(fd, "", 1) != 1 || fstat(fd, &st) < 0
                 ? err_errno(err, "writing %s", path)
                 : 0;
    if (rc == 0)
        *ret = st.st_mtim;
    if (fd >= 0)
        (void)close(fd);
    (void)unlink(path);
    mem_free(path);
    return rc;
}

/* The file of a shard: its name is a hash of all that its bytes depend on. */
static char *path_of(const struct latents *l, const uint8_t shard[HASH_BYTES])
{
    uint8_t sum[HASH_BYTES];
    char hex[HASH_HEX_MAX];
    struct hash h;
    hash_init(&h);
    hash_update(&h, l->opt.encoder, HASH_BYTES);
    hash_update(&h, shard, HASH_BYTES);
    hash_update(&h, &(uint64_t){l->opt.values * 2 + l->opt.mirrored}, sizeof(uint64_t));
    hash_final(&h, sum);
    hash_hex(sum, 16, hex);
    return str_printf("%s/%s" SUFFIX, l->dir, hex);
}

static uint64_t offset_of(const struct latents *l, const struct latents_place *at)
{
    const uint64_t n = l->opt.mirrored ? 2 * (uint64_t)at->index + at->mirror : at->index;
    return n * l->record;
}

/* Never 0, which is a hole's. */
static uint64_t checksum(const struct latents *l, const struct latents_place *at,
                         const uint16_t *values)
{
    const uint64_t key = data_content_key((const uint8_t *)values, l->opt.values * sizeof *values);
    return (key ^ (offset_of(l, at) + 1)) | 1;
}

bool latents_get(struct latents *l, const struct latents_place *at, uint16_t *out)
{
    if (at->mirror && !l->opt.mirrored)
        return false;
    char *path = path_of(l, at->shard_sha256);
    uint64_t sum = 0, offset = offset_of(l, at);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool found =
        fd >= 0 && file_pread_all(fd, &sum, sizeof sum, offset, path, NULL) == 0 && sum != 0 &&
        file_pread_all(fd, out, l->opt.values * sizeof *out, offset + sizeof sum, path, NULL) == 0;
    if (fd >= 0)
        (void)close(fd);
    mem_free(path);
    return found && sum == checksum(l, at, out);
}

/* Bytes of all files at their full lengths, and in *oldest the path of the file that was written
 * longest ago, or NULL if none is from before this set: shards come round in turn, so within one
 * set a file that displaced another would itself be displaced before it is read again. */
static uint64_t bytes_held(const struct latents *l, char **oldest)
{
    struct file_names names;
    struct timespec at = {0};
    uint64_t bytes = 0;
    *oldest = NULL;
    if (file_list(l->dir, FILES_MAX, &names, NULL) < 0)
        return 0;
    for (size_t i = 0; i < names.n; i++) {
        char *path = file_join(l->dir, names.items[i]);
        struct stat st;
        const bool ours = str_ends(names.items[i], SUFFIX) && stat(path, &st) == 0;
        bytes += ours ? (uint64_t)st.st_size : 0;
        if (ours && before(&st.st_mtim, *oldest ? &at : &l->since)) {
            mem_free(*oldest);
            *oldest = path;
            at = st.st_mtim;
        } else {
            mem_free(path);
        }
    }
    file_names_release(&names);
    return bytes;
}

int latents_open(const struct latents_options *opt, struct latents **ret, struct err *err)
{
    struct timespec since;
    uint64_t free_bytes = 0;
    char *oldest;
    int rc = file_mkdirs(opt->dir, 0700, err);
    if (rc == 0)
        rc = file_clock(opt->dir, &since, err);
    if (rc == 0 && opt->spare)
        rc = file_disk_free(opt->dir, &free_bytes, err);
    if (rc < 0)
        return rc;
    struct latents *l = mem_alloc(sizeof *l);
    l->opt = *opt;
    l->since = since;
    l->refused = UINT64_MAX;
    l->dir = str_dup(opt->dir);
    l->record = sizeof(uint64_t) + opt->values * sizeof(uint16_t);
    if (opt->spare) {
        const uint64_t most = bytes_held(l, &oldest) + free_bytes / 2;
        l->opt.max_bytes = most < opt->max_bytes ? most : opt->max_bytes;
        mem_free(oldest);
    }
    pthread_mutex_init(&l->lock, NULL);
    *ret = l;
    return 0;
}

void latents_close(struct latents *l)
{
    if (!l)
        return;
    pthread_mutex_destroy(&l->lock);
    mem_free(l->dir);
    mem_free(l);
}

/* Makes room for a new file, by dropping others.  Counted anew each time: other sets of encoders
 * have their files in the same place. */
static bool make_room(const struct latents *l, uint64_t bytes)
{
    bool fits = true;
    for (bool full = true; full && fits;) {
        char *oldest;
        full = bytes_held(l, &oldest) + bytes > l->opt.max_bytes;
        fits = !full || (oldest && unlink(oldest) == 0);
        mem_free(oldest);
    }
    return fits;
}

/* Is there room for the shard's file, or is it there?  Looks for no room where there was none for a
 * smaller file: that reads the whole directory, and nothing frees it while the set is open.  Under
 * the lock. */
static bool admit(struct latents *l, const struct latents_place *at, const char *path)
{
    const uint64_t bytes = file_bytes(l, at);
    if (bytes <= l->opt.max_bytes &&
        (file_exists(path) || (bytes < l->refused && make_room(l, bytes))))
        return true;
    if (l->refused == UINT64_MAX)
        log_warn("latents",
                 "encoders.cache (%" PRIu64 " bytes) has no room for the %" PRIu64 " of a shard of "
                 "%u pictures: what does not fit is encoded anew each time",
                 l->opt.max_bytes, bytes, at->samples);
    l->refused = bytes < l->refused ? bytes : l->refused;
    return false;
}

static int write_record(struct latents *l, const struct latents_place *at, const char *path,
                        const uint16_t *values, struct err *err)
{
    const uint64_t sum = checksum(l, at, values), offset = offset_of(l, at);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(err, "opening %s", path);
    int rc = ftruncate(fd, (off_t)file_bytes(l, at)) < 0 ? err_errno(err, "sizing %s", path) : 0;
    if (rc == 0) /* the checksum comes last: a crash leaves a hole, or a damaged record */
        rc = file_pwrite_all(fd, values, l->opt.values * sizeof *values, offset + sizeof sum, path,
                             err);
    if (rc == 0)
        rc = file_pwrite_all(fd, &sum, sizeof sum, offset, path, err);
    (void)close(fd);
    return rc;
}

void latents_put(struct latents *l, const struct latents_place *at, const uint16_t *values)
{
    struct err err = {0};
    if (at->mirror && !l->opt.mirrored)
        return;
    char *path = path_of(l, at->shard_sha256);
    pthread_mutex_lock(&l->lock);
    if (admit(l, at, path) && write_record(l, at, path, values, &err) < 0 && !l->failed) {
        log_warn("latents", "latents are not kept: %s", err.msg);
        l->failed = true;
    }
    pthread_mutex_unlock(&l->lock);
    mem_free(path);
}

/* ---- what keeping them takes ---- */

uint64_t latents_room(const struct latents *l)
{
    return l->opt.max_bytes;
}

size_t latents_record(const struct latents *l)
{
    return l->record;
}

double latents_share(const struct latents *l, const uint8_t shard_sha256[HASH_BYTES],
                     uint32_t start, uint32_t count)
{
    const uint64_t sides = l->opt.mirrored ? 2 : 1, all = count * sides;
    const uint64_t n = all < LATENTS_LOOKED_AT ? all : LATENTS_LOOKED_AT;
    char *path = path_of(l, shard_sha256);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t there = 0, sum;
    for (uint64_t i = 0; i < n && fd >= 0; i++)
        there += file_pread_all(fd, &sum, sizeof sum, (start * sides + i * all / n) * l->record,
                                path, NULL) == 0 &&
                 sum != 0;
    if (fd >= 0)
        (void)close(fd);
    mem_free(path);
    return n ? (double)there / (double)n : 0;
}

/* Reading begins with what the host's memory has of the file dropped, as far as it can be. */
static int measure_file(const struct latents *l, int fd, const char *path, void *record, size_t n,
                        double *ret_put_s, double *ret_get_s, struct err *err)
{
    int rc = 0;
    uint64_t begun = clock_now_ns();
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = file_pwrite_all(fd, record, l->record, i * l->record, path, err);
    if (rc == 0 && fdatasync(fd) < 0)
        rc = err_errno(err, "flushing %s", path);
    *ret_put_s = clock_since_s(begun) / (double)n;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    begun = clock_now_ns();
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = file_pread_all(fd, record, l->record, i * l->record, path, err);
    *ret_get_s = clock_since_s(begun) / (double)n;
    return rc;
}

int latents_measure(const struct latents *l, double *ret_put_s, double *ret_get_s, struct err *err)
{
    const size_t n = l->record < PROBE_BYTES ? PROBE_BYTES / l->record : 1;
    char *path = file_join(l->dir, "measured");
    void *record = mem_try_zero(l->record);
    double put_s = 0, get_s = 0;
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int rc = fd < 0    ? err_errno(err, "opening %s", path)
             : !record ? err_set(err, -ENOMEM, "no memory for %zu bytes of latents", l->record)
                       : measure_file(l, fd, path, record, n, &put_s, &get_s, err);
    if (fd >= 0)
        (void)close(fd);
    (void)unlink(path);
    mem_free(record);
    mem_free(path);
    if (rc < 0)
        return rc;
    *ret_put_s = put_s;
    *ret_get_s = get_s;
    return 0;
}
