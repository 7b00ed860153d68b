#include "common/data/text_source.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <jansson.h>
#include <strings.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/data/feature.h"
#include "common/data/unicode.h"

#define BLOCK_BYTES (64 * 1024)
#define WINDOW_IDS (32 * 1024) /* ids of a token file that are read at once */
#define WIDE_IDS 64            /* ids that a file needs to be judged by them */
#define KEY_MAX 512
#define STEM_MAX 255
#define LLMC_HEADER 1024 /* bytes: 256 int32 */
#define LLMC_MAGIC 20240520
#define LLMC_LLAMA3 20240801 /* ids of 32 bits */
#define LLMC_END 50256       /* GPT-2's end of text */

enum format { FORMAT_NONE, FORMAT_JSONL, FORMAT_PLAIN, FORMAT_TOKENS };

struct text_source {
    struct file_names files; /* full paths */
    char *field, *column;
    char *alias; /* name of the only file, if its own says nothing */
    enum format format;
    size_t folder;          /* bytes of the files' names, of the folder that all are below */
    size_t left;            /* files and folders that were left out */
    uint64_t bytes, before; /* size of all files, and of those already read */

    /* The file that is being read. */
    size_t at;
    struct archive *archive;
    struct buf data; /* text that was read, but is not used up */
    size_t used;     /* bytes of data that are used up */
    uint64_t line;   /* from 0 */
    bool ended, split;

    /* In a token file. */
    int fd;                     /* -1: none is open */
    size_t document;            /* the first id of the document that was given out */
    size_t read;                /* the ids before this were given out */
    size_t token, tokens;       /* the next id, and their number */
    size_t window_at, window_n; /* the first id of the window, and their number */
    uint16_t window[WINDOW_IDS];

    const char *broken; /* why the last call failed, if it did for a line alone */
    json_t *object;     /* holds the document that was given out */
    struct feature feature;
    char key[KEY_MAX];
};

/* ---- the files ---- */

/* In either case, as those of images. */
static bool ends(const char *name, const char *ending)
{
    const size_t n = strlen(name), len = strlen(ending);
    return n >= len && strcasecmp(name + n - len, ending) == 0;
}

/* Bytes of the name before the ending of its packing. */
static size_t unpacked(const char *name)
{
    return strlen(name) - (ends(name, ".zst") ? 4 : ends(name, ".gz") ? 3 : 0);
}

/* The format by the name, and the length of the name without these endings (may be NULL). */
static enum format format_by(const char *name, size_t *ret_bare)
{
    static const struct {
        const char *ending;
        enum format format;
    } endings[] = {{".jsonl", FORMAT_JSONL}, {".txt", FORMAT_PLAIN}, {".bin", FORMAT_TOKENS}};
    char *bare = str_ndup(name, unpacked(name));
    const bool packed = name[strlen(bare)] != '\0';
    enum format ret = FORMAT_NONE;
    for (size_t i = 0; i < 3 && ret == FORMAT_NONE; i++) {
        if (!ends(bare, endings[i].ending) || (packed && endings[i].format == FORMAT_TOKENS))
            continue;
        ret = endings[i].format;
        if (ret_bare)
            *ret_bare = strlen(bare) - strlen(endings[i].ending);
    }
    mem_free(bare);
    return ret;
}

static enum format format_of(const char *name)
{
    return format_by(name, NULL);
}

/* The name of the current file. */
static const char *file_name(const struct text_source *s)
{
    return s->alias ? s->alias : s->files.items[s->at];
}

/* Takes the text files of a folder or a pattern. */
static int take_names(struct text_source *s, const char *path, bool folder, struct err *err)
{
    struct file_names names = {0};
    int rc = folder ? file_list(path, TEXT_FILES_MAX, &names, err)
                    : file_pattern(path, TEXT_FILES_MAX, &names, err);
    if (rc == -EINVAL)
        rc = err_set(err, -ENOENT, "there is no text at %s", path);
    else if (rc == -ERR_LIMIT)
        rc = err_set(err, rc,
                     "%s has more than %d files: put many documents into one file, such as a "
                     ".jsonl with one on each line",
                     path, TEXT_FILES_MAX);
    if (rc < 0)
        return rc;
    s->files.items = mem_alloc_array(names.n ? names.n : 1, sizeof(char *));
    const char *last = "";
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        enum format f = format_of(names.items[i]);
        s->left += f == FORMAT_NONE;
        if (f == FORMAT_NONE)
            continue;
        if (s->files.n && (f == FORMAT_TOKENS) != (s->format == FORMAT_TOKENS))
            rc = err_set(err, -ERR_FORMAT, "%s mixes token files (.bin) with text, such as %s",
                         path, names.items[i]);
        if (rc == 0 && unpacked(last) == unpacked(names.items[i]) &&
            strncmp(last, names.items[i], unpacked(last)) == 0)
            rc = err_set(err, -ERR_FORMAT, "%s: %s and %s are one text in two packings: remove one",
                         path, last, names.items[i]);
        last = names.items[i];
        s->format = f;
        s->files.items[s->files.n++] =
            folder ? file_join(path, names.items[i]) : str_dup(names.items[i]);
    }
    file_names_release(&names);
    if (rc == 0 && s->files.n == 0)
        rc = err_set(err, -ERR_FORMAT,
                     "%s holds no text: expected .jsonl or .txt (also .zst, .gz) or .bin files",
                     path);
    return rc;
}

static int find_files(struct text_source *s, const struct text_source_options *opt, struct err *err)
{
    bool folder = file_is_dir(opt->path);
    if (folder || !file_exists(opt->path))
        return take_names(s, opt->path, folder, err);
    const char *name = opt->name ? opt->name : opt->path;
    s->format = format_of(name);
    if (s->format == FORMAT_NONE)
        return err_set(err, -ERR_FORMAT,
                       "%s is not text in a known form: expected a folder, or a .jsonl or .txt "
                       "(also .zst, .gz) or .bin file",
                       name);
    s->alias = str_dup(name);
    s->files.items = mem_alloc_array(1, sizeof(char *));
    s->files.items[s->files.n++] = str_dup(opt->path);
    return 0;
}

/* Files of one name in several folders, as a pattern finds them, are told apart by the folders. */
static size_t common_folder(const struct text_source *s)
{
    const char *first = s->alias ? s->alias : s->files.items[0];
    size_t n = strlen(first);
    for (size_t i = 1; i < s->files.n; i++) {
        size_t same = 0;
        while (same < n && s->files.items[i][same] == first[same])
            same++;
        n = same;
    }
    while (n > 0 && first[n - 1] != '/')
        n--;
    return n;
}

int text_source_open(const struct text_source_options *opt, struct text_source **ret,
                     struct err *err)
{
    struct text_source *s = mem_alloc(sizeof(*s));
    s->fd = -1;
    buf_init(&s->data, TEXT_DOCUMENT_MAX);
    s->field = str_dup(opt->field ? opt->field : "text");
    s->column = str_dup(opt->column);
    int rc = find_files(s, opt, err);
    for (size_t i = 0; rc == 0 && i < s->files.n; i++) {
        uint64_t size;
        rc = file_size(s->files.items[i], &size, err);
        s->bytes += rc == 0 ? size : 0;
    }
    s->folder = rc == 0 ? common_folder(s) : 0;
    if (rc == 0 && s->column && s->format != FORMAT_JSONL)
        rc = err_set(err, -ERR_FORMAT, "%s: only .jsonl can have a column ('%s')", opt->path,
                     s->column);
    if (rc < 0)
        text_source_close(s);
    else
        *ret = s;
    return rc;
}

static void close_file(struct text_source *s)
{
    if (s->archive)
        archive_read_free(s->archive);
    s->archive = NULL;
    if (s->fd >= 0)
        (void)close(s->fd); /* read only: nothing to lose */
    s->fd = -1;
    s->window_n = 0;
    buf_clear(&s->data);
    s->used = 0;
    s->line = 0;
    s->token = s->tokens = s->read = 0;
    s->ended = s->split = false;
}

void text_source_close(struct text_source *s)
{
    if (!s)
        return;
    close_file(s);
    json_decref(s->object);
    feature_release(&s->feature);
    buf_release(&s->data);
    file_names_release(&s->files);
    mem_free(s->alias);
    mem_free(s->field);
    mem_free(s->column);
    mem_free(s);
}

size_t text_source_left(const struct text_source *s)
{
    return s->left;
}

uint64_t text_source_bytes(const struct text_source *s)
{
    return s->bytes;
}

uint64_t text_source_done(const struct text_source *s)
{
    return s->before + (s->archive ? (uint64_t)archive_filter_bytes(s->archive, -1)
                                   : s->read * sizeof(*s->window));
}

/* ---- text, packed or not ---- */

static int unreadable(struct text_source *s, struct err *err)
{
    const char *why = archive_error_string(s->archive);
    return err_set(err, archive_errno(s->archive) == ENOMEM ? -ENOMEM : -ERR_FORMAT,
                   "%s is broken or cut short, after line %" PRIu64 ": %s", file_name(s), s->line,
                   why ? why : "unreadable");
}

static int open_text(struct text_source *s, struct err *err)
{
    struct archive_entry *entry;
    uint64_t size;
    int rc = file_size(s->files.items[s->at], &size, err);
    if (rc < 0)
        return rc;
    s->archive = archive_read_new();
    if (!s->archive)
        return err_set(err, -ENOMEM, "out of memory while opening %s", file_name(s));
    archive_read_support_filter_gzip(s->archive);
    archive_read_support_filter_zstd(s->archive);
    archive_read_support_format_raw(s->archive);
    archive_read_support_format_empty(s->archive);
    if (archive_read_open_filename(s->archive, s->files.items[s->at], BLOCK_BYTES) != ARCHIVE_OK)
        return unreadable(s, err);
    rc = archive_read_next_header(s->archive, &entry);
    s->ended = rc == ARCHIVE_EOF;
    return rc == ARCHIVE_OK || rc == ARCHIVE_EOF ? 0 : unreadable(s, err);
}

/* Reads more of the file into s->data; sets s->ended at its end. */
static int read_more(struct text_source *s, struct err *err)
{
    uint8_t *p;
    if (s->used) {
        buf_consume(&s->data, s->used);
        s->used = 0;
    }
    int rc = buf_reserve(&s->data, BLOCK_BYTES, &p);
    if (rc == -ERR_LIMIT)
        return err_set(err, rc,
                       "%s, line %" PRIu64 ": a document of more than %u MiB: cut it into several",
                       file_name(s), s->line + 1, TEXT_DOCUMENT_MAX >> 20);
    if (rc < 0)
        return err_set(err, rc, "out of memory while reading %s", file_name(s));
    la_ssize_t n = archive_read_data(s->archive, p, BLOCK_BYTES);
    if (n < 0)
        return unreadable(s, err);
    buf_commit(&s->data, (size_t)n);
    s->ended = n == 0;
    return 0;
}

/* Skips the byte order mark of UTF-8, with which some editors begin a file; refuses other
 * encodings by theirs. */
static int skip_mark(struct text_source *s, struct err *err)
{
    while (s->data.len < 3 && !s->ended) {
        int rc = read_more(s, err);
        if (rc < 0)
            return rc;
    }
    const uint8_t *p = s->data.data;
    if (s->data.len >= 2 && ((p[0] == 0xff && p[1] == 0xfe) || (p[0] == 0xfe && p[1] == 0xff)))
        return err_set(err, -ERR_FORMAT,
                       "%s is UTF-16 by its first bytes, expected UTF-8: convert it with "
                       "`iconv -f UTF-16 -t UTF-8`",
                       file_name(s));
    s->used = unicode_mark(buf_str(&s->data), s->data.len);
    return 0;
}

/* The stem for keys, such as "train-00000": the path below the common folder, without endings; of a
 * long one the end. */
static int stem(const struct text_source *s, const char **ret)
{
    size_t end = 0;
    (void)format_by(file_name(s), &end);
    const size_t from = end > s->folder + STEM_MAX ? end - STEM_MAX : s->folder;
    *ret = file_name(s) + from;
    return (int)(end - from);
}

static void numbered_key(struct text_source *s, uint64_t number)
{
    const char *base;
    int n = stem(s, &base);
    (void)snprintf(s->key, sizeof(s->key), "%.*s/%" PRIu64, n, base, number);
}

/* The next line into *ret, without its end: 1, or 0 at the end of the file. */
static int next_line(struct text_source *s, const char **ret, size_t *ret_len, struct err *err)
{
    size_t seen = 0; /* bytes of the rest without a line end */
    for (;;) {
        const char *from = buf_str(&s->data) + s->used;
        size_t rest = s->data.len - s->used;
        const char *end = rest > seen ? memchr(from + seen, '\n', rest - seen) : NULL;
        if (!end && !s->ended) {
            seen = rest;
            int rc = read_more(s, err);
            if (rc < 0)
                return rc;
            continue;
        }
        if (!end && rest == 0)
            return 0;
        *ret = from;
        *ret_len = end ? (size_t)(end - from) : rest;
        s->used += *ret_len + (end != NULL);
        s->line++;
        return 1;
    }
}

static int take_object(struct text_source *s, const char *line, size_t len,
                       struct text_document *ret, struct err *err)
{
    json_error_t fault;
    json_decref(s->object);
    s->object = NULL;
    if (str_json_exceeds(line, len, TEXT_VALUES_MAX, TEXT_VALUES_MAX))
        return err_set(err, -ERR_LIMIT,
                       "%s, line %" PRIu64 ": more than %u values: leave out the keys beside the "
                       "text",
                       file_name(s), s->line, TEXT_VALUES_MAX);
    s->object = feature_json(line, len, JSON_ALLOW_NUL, &fault);
    s->broken = "not JSON";
    if (!s->object)
        return err_set(err, -ERR_FORMAT, "%s, line %" PRIu64 ", column %d: %s", file_name(s),
                       s->line, fault.column, fault.text);
    const json_t *text = json_object_get(s->object, s->field);
    s->broken = "no object with a text";
    if (!json_is_string(text))
        return err_set(err, -ERR_FORMAT,
                       "%s, line %" PRIu64
                       ": expected an object with a text \"%s\"; data.text_field (of `skerry new`: "
                       "--text-field) names the key of yours",
                       file_name(s), s->line, s->field);
    numbered_key(s, s->line - 1);
    *ret = (struct text_document){
        .key = s->key,
        .file = file_name(s) + s->folder,
        .text = json_string_value(text),
        .len = json_string_length(text),
    };
    s->broken = NULL;
    if (!s->column)
        return 1;
    const json_t *column = json_object_get(s->object, s->column);
    const char *why = column ? feature_from_json(column, &s->feature) : "is missing";
    s->broken = why ? "its column is missing or wrong" : NULL;
    if (why)
        return err_set(err, -ERR_FORMAT, "%s, line %" PRIu64 ": the column '%s' %s", file_name(s),
                       s->line, s->column, why);
    ret->feature = s->feature.v;
    ret->dim = s->feature.n;
    return 1;
}

static int next_object(struct text_source *s, struct text_document *ret, struct err *err)
{
    const char *line;
    size_t len;
    for (;;) {
        int rc = next_line(s, &line, &len, err);
        if (rc <= 0)
            return rc;
        size_t i = 0;
        while (i < len && strchr(" \t\r", line[i]) && line[i])
            i++;
        if (i < len)
            return take_object(s, line, len, ret, err);
    }
}

static int next_plain(struct text_source *s, struct text_document *ret, struct err *err)
{
    const char *base;
    if (s->line)
        return 0;
    while (!s->ended) {
        int rc = read_more(s, err);
        if (rc < 0)
            return rc;
    }
    int n = stem(s, &base);
    (void)snprintf(s->key, sizeof(s->key), "%.*s", n, base);
    *ret = (struct text_document){.key = s->key,
                                  .file = file_name(s) + s->folder,
                                  .text = buf_str(&s->data) + s->used,
                                  .len = s->data.len - s->used};
    s->line = 1;
    return 1;
}

/* ---- token files ---- */

/* The ids from `at` (below s->tokens) on that are in memory, at least one. */
static int ids_from(struct text_source *s, size_t at, const uint16_t **ret, size_t *ret_n,
                    struct err *err)
{
    if (at < s->window_at || at - s->window_at >= s->window_n) {
        const size_t rest = s->tokens - at, n = rest < WINDOW_IDS ? rest : WINDOW_IDS;
        s->window_n = 0;
        int rc = file_pread_all(s->fd, s->window, n * sizeof(*s->window), at * sizeof(*s->window),
                                file_name(s), err);
        if (rc < 0)
            return rc;
        s->window_at = at;
        s->window_n = n;
    }
    *ret = s->window + (at - s->window_at);
    *ret_n = s->window_n - (at - s->window_at);
    return 0;
}

/* Are the first ids halves of wider ones?  Then every second one is small, and others are not. */
static int check_width(struct text_source *s, struct err *err)
{
    const uint16_t *ids;
    size_t n = 0;
    bool low = false;
    int rc = s->tokens < WIDE_IDS ? 0 : ids_from(s, 0, &ids, &n, err);
    s->window_n = 0; /* what is trained on is read when it is cut */
    for (size_t i = 0; i + 1 < n; i += 2) {
        if (ids[i + 1] > 15)
            return 0;
        low = low || ids[i] > 15;
    }
    return !low ? rc
                : err_set(err, -ERR_FORMAT,
                          "%s seems to hold token ids of 32 bits or more, since every second of 16 "
                          "bits is below 16: write them as numpy's uint16, or bring the text, with "
                          "data.tokenizer",
                          file_name(s));
}

static int open_tokens(struct text_source *s, struct err *err)
{
    const char *path = s->files.items[s->at];
    int32_t header[3];
    uint64_t size;
    int rc = file_size(path, &size, err);
    if (rc < 0)
        return rc;
    if (size % 2)
        return err_set(err, -ERR_FORMAT,
                       "%s has an odd number of bytes: expected token ids of 16 bits",
                       file_name(s));
    s->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0)
        return err_errno(err, "cannot open %s", path);
    s->tokens = size / 2;
    if (size < sizeof(header))
        return 0;
    rc = file_pread_all(s->fd, header, sizeof(header), 0, file_name(s), err);
    if (rc == 0 && header[0] == LLMC_LLAMA3)
        return err_set(err, -ERR_FORMAT,
                       "%s is llm.c's for Llama 3, with token ids of 32 bits, but only those of 16 "
                       "bits are read: bring its text, with data.tokenizer",
                       file_name(s));
    s->split = rc == 0 && header[0] == LLMC_MAGIC;
    if (!s->split)
        return rc < 0 ? rc : check_width(s, err);
    if (header[1] != 1 || size < LLMC_HEADER || header[2] < 0 ||
        (uint64_t)header[2] != (size - LLMC_HEADER) / 2)
        return err_set(err, -ERR_FORMAT,
                       "%s begins as a file of llm.c does, but its version is not 1 or its number "
                       "of tokens is not the one in its header",
                       file_name(s));
    s->token = LLMC_HEADER / 2;
    return 0;
}

/* Takes the tokens up to the next end-of-text token, which begins a document. */
static int next_tokens(struct text_source *s, struct text_document *ret, struct err *err)
{
    const uint16_t *ids;
    size_t at = s->token, n;
    if (at >= s->tokens)
        return 0;
    s->document = at;
    at = s->split ? at + 1 : s->tokens;
    while (at < s->tokens) {
        int rc = ids_from(s, at, &ids, &n, err);
        if (rc < 0)
            return rc;
        size_t i = 0;
        while (i < n && ids[i] != LLMC_END)
            i++;
        at += i;
        if (i < n)
            break;
    }
    s->token = at;
    numbered_key(s, s->line++);
    *ret = (struct text_document){
        .key = s->key, .file = file_name(s) + s->folder, .n_ids = at - s->document};
    return 1;
}

int text_source_ids(struct text_source *s, size_t at, size_t n, uint32_t *ret, struct err *err)
{
    const uint16_t *ids;
    size_t there;
    for (at += s->document; n > 0; at += there, n -= there) {
        int rc = ids_from(s, at, &ids, &there, err);
        if (rc < 0)
            return rc;
        there = there < n ? there : n;
        for (size_t i = 0; i < there; i++)
            *ret++ = ids[i];
    }
    s->read = at;
    return 0;
}

/* ---- documents ---- */

static int next_in_file(struct text_source *s, struct text_document *ret, struct err *err)
{
    enum format f = format_of(file_name(s));
    if (!s->archive && s->fd < 0) {
        int rc = f == FORMAT_TOKENS ? open_tokens(s, err) : open_text(s, err);
        if (rc == 0 && f != FORMAT_TOKENS)
            rc = skip_mark(s, err);
        if (rc < 0)
            return rc;
    }
    return f == FORMAT_TOKENS  ? next_tokens(s, ret, err)
           : f == FORMAT_JSONL ? next_object(s, ret, err)
                               : next_plain(s, ret, err);
}

const char *text_source_broken(const struct text_source *s, char **ret_where)
{
    if (s->broken)
        *ret_where = str_printf("%s, line %" PRIu64, file_name(s), s->line);
    return s->broken;
}

int text_source_next(struct text_source *s, struct text_document *ret, struct err *err)
{
    s->broken = NULL;
    for (; s->at < s->files.n; s->at++) {
        uint64_t size;
        int rc = next_in_file(s, ret, err);
        if (rc != 0)
            return rc;
        close_file(s);
        if (file_size(s->files.items[s->at], &size, NULL) == 0)
            s->before += size;
    }
    return 0;
}
