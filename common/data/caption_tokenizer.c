#include "common/data/caption_tokenizer.h"

#include "common/base/file.h"
#include "common/data/tokenizer_build.h"

#define CONFIG_MAX (16u << 20)
#define EXTRA_IDS_MAX 10000
#define MERGES_MAX (1u << 20)

struct caption_tokenizer {
    struct tokenizer *t;
    enum caption_kind kind;
    uint32_t length;
    int32_t pad;
};

/* The folder that is being read. */
struct folder {
    const char *dir;
    json_t *config, *map; /* NULL: not there */
    int kind;             /* -1: not named */
    struct err *err;
};

const char *caption_kind_name(enum caption_kind kind)
{
    return kind == CAPTION_CLIP ? "CLIP" : "T5";
}

static bool has_file(const struct folder *f, const char *name)
{
    char *path = file_join(f->dir, name);
    bool there = file_exists(path);
    mem_free(path);
    return there;
}

/* Loads a JSON file; *ret is NULL if it is not there. */
static int read_object(const struct folder *f, const char *name, size_t max, size_t flags,
                       json_t **ret)
{
    char *path = file_join(f->dir, name);
    struct buf text = {0};
    json_error_t fault;
    int rc = 0;
    *ret = NULL;
    if (file_exists(path)) {
        rc = file_read(path, max, &text, f->err);
        if (rc == 0)
            rc = file_check_placeholder(path, buf_str(&text), text.len, f->err);
        if (rc == 0) {
            *ret = json_loadb(buf_str(&text), text.len, flags, &fault);
            if (!*ret)
                rc = err_set(f->err, -ERR_FORMAT, "%s, line %d: %s", path, fault.line, fault.text);
            else if (!json_is_object(*ret))
                rc = err_set(f->err, -ERR_FORMAT, "%s is not a JSON object", path);
        }
        buf_release(&text);
    }
    mem_free(path);
    return rc;
}

/* ---- the configuration ---- */

static int find_kind(struct folder *f)
{
    static const char *const names[] = {"CLIPTokenizer", "CLIPTokenizerFast", "T5Tokenizer",
                                        "T5TokenizerFast"};
    const json_t *class = json_object_get(f->config, "tokenizer_class");
    const char *name = json_is_string(class) ? json_string_value(class) : "";
    f->kind = -1;
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0)
            f->kind = i < 2 ? CAPTION_CLIP : CAPTION_T5;
    if (f->kind < 0 && *name && strcmp(name, "PreTrainedTokenizerFast") != 0 &&
        strcmp(name, "TokenizersBackend") != 0)
        return err_set(f->err, -ERR_FORMAT,
                       "the tokenizer in %s is of the class '%.64s', expected CLIPTokenizer or "
                       "T5Tokenizer",
                       f->dir, name);
    static const char *const sides[] = {"padding_side", "truncation_side"};
    for (int i = 0; i < 2; i++) {
        const json_t *side = json_object_get(f->config, sides[i]);
        if (json_is_string(side) && strcmp(json_string_value(side), "right") != 0)
            return err_set(f->err, -ERR_FORMAT,
                           "the tokenizer in %s has the %s '%.64s', expected right", f->dir,
                           sides[i], json_string_value(side));
    }
    return 0;
}

/* A named special token of the folder, a text or an object; NULL: it has none. */
static const json_t *named(const struct folder *f, const char *name)
{
    const json_t *token = json_object_get(f->map, name);
    if (!token || json_object_get(f->config, "added_tokens_decoder"))
        token = json_object_get(f->config, name);
    return token && !json_is_null(token) ? token : NULL;
}

static const char *content_of(const json_t *token)
{
    const char *text =
        json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    return text ? text : "";
}

/* The text of a named special token, by default that of the kind. */
static const char *special_text(const struct folder *f, enum caption_kind kind, const char *name)
{
    const json_t *token = named(f, name);
    if (token)
        return content_of(token);
    if (kind == CAPTION_CLIP)
        return strcmp(name, "bos_token") == 0 ? "<|startoftext|>" : "<|endoftext|>";
    return strcmp(name, "eos_token") == 0   ? "</s>"
           : strcmp(name, "pad_token") == 0 ? "<pad>"
           : strcmp(name, "unk_token") == 0 ? "<unk>"
                                            : "";
}

static int64_t find_text(struct build *b, const char *text)
{
    int64_t id = tokenizer_find(b->t, text, strlen(text));
    if (id < 0 && build_text(b, text, strlen(text)) == 0)
        id = tokenizer_find(b->t, b->scratch.data, b->scratch.len);
    return id;
}

/* Adds a token for which texts are searched, with an object's flags or without.  A mere name does
 * not change tokens of the file or of added_tokens_decoder (the first n_kept). */
static int add_token(struct build *b, const json_t *token, const char *text, bool is_named,
                     size_t n_kept)
{
    int64_t id = find_text(b, text);
    if (id < 0)
        return build_refuse(b, "its special token '%.64s' is not in its vocabulary", text);
    for (size_t i = 0; !json_is_object(token) && i < n_kept; i++)
        if (b->t->added[i].id == (uint32_t)id)
            return 0;
    struct added flags = {
        .id = (uint32_t)id,
        .special = is_named || json_is_true(json_object_get(token, "special")),
        .normalized = json_is_true(json_object_get(token, "normalized")),
        .single_word = json_is_true(json_object_get(token, "single_word")),
        .lstrip = json_is_true(json_object_get(token, "lstrip")),
        .rstrip = json_is_true(json_object_get(token, "rstrip")),
    };
    return build_added(b, text, strlen(text), flags);
}

/* Adds the tokens of added_tokens_decoder, then the named ones; of equal ones the last decides. */
static int add_tokens(const struct folder *f, struct build *b, enum caption_kind kind)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    const char *key;
    json_t *token;
    size_t i;
    int rc = 0;
    json_object_foreach(json_object_get(f->config, "added_tokens_decoder"), key, token)
    {
        if (rc == 0)
            rc = add_token(b, token, content_of(token), false, 0);
    }
    const size_t n_kept = b->t->n_added;
    for (i = 0; rc == 0 && i < 4; i++) {
        const char *text = special_text(f, kind, names[i]);
        if (*text)
            rc = add_token(b, named(f, names[i]), text, true, n_kept);
    }
    for (size_t k = 0; rc == 0 && k < 2; k++) {
        json_array_foreach(named(f, lists[k]), i, token)
        {
            if (rc == 0)
                rc = add_token(b, token, content_of(token), true, n_kept);
        }
    }
    return rc;
}

/* ---- the files ---- */

/* Takes merges, "a b" in each line after an optional "#version". */
static int take_merges(struct build *b, const char *text, size_t n_lines)
{
    uint32_t rank = 0;
    int rc = build_merge_room(b, n_lines);
    while (rc == 0 && *text) {
        const size_t len = strcspn(text, "\n"), end = len && text[len - 1] == '\r' ? len - 1 : len;
        const char *space = memchr(text, ' ', end);
        const bool comment = rank == 0 && strncmp(text, "#version", 8) == 0;
        if (end > 0 && !comment) {
            const size_t left = space ? (size_t)(space - text) : end;
            const char *side[2] = {text, space ? space + 1 : text + end};
            const size_t lens[2] = {left, space ? end - left - 1 : 0};
            rc = build_merge_text(b, side, lens, rank++);
        }
        text += len + (text[len] == '\n');
    }
    return rc;
}

static int read_merges(const struct folder *f, struct build *b)
{
    char *path = file_join(f->dir, "merges.txt");
    struct buf text;
    size_t lines = 1;
    int rc = file_read(path, TOKENIZER_FILE_MAX, &text, f->err);
    mem_free(path);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < text.len; i++)
        lines += text.data[i] == '\n';
    rc = lines > MERGES_MAX ? build_refuse(b, "merges.txt has %zu lines, at most %u are possible",
                                           lines, MERGES_MAX)
                            : take_merges(b, buf_str(&text), lines);
    buf_release(&text);
    return rc;
}

/* Reads CLIP from vocab.json and merges.txt, with the known steps of its class. */
static int read_clip(const struct folder *f, struct build *b)
{
    json_t *vocab = NULL;
    int rc = read_object(f, "vocab.json", TOKENIZER_FILE_MAX, 0, &vocab);
    if (rc == 0)
        rc = tokenizer_read_clip(b, vocab);
    if (rc == 0)
        rc = read_merges(f, b);
    int64_t unk = rc < 0 ? -1 : find_text(b, special_text(f, CAPTION_CLIP, "unk_token"));
    b->t->unk = (int32_t)unk;
    json_decref(vocab);
    return rc;
}

static int read_file(const struct folder *f, struct build *b, const char *name)
{
    char *path = file_join(f->dir, name);
    struct buf text;
    int rc = file_read(path, TOKENIZER_FILE_MAX, &text, f->err);
    mem_free(path);
    if (rc < 0)
        return rc;
    rc = text.len == 0                       ? build_refuse(b, "%s is empty", name)
         : strcmp(name, "spiece.model") == 0 ? tokenizer_read_spm(b, text.data, text.len)
                                             : tokenizer_read_json(b, text.data, text.len);
    buf_release(&text);
    return rc;
}

static int read_any(const struct folder *f, struct build *b)
{
    const json_t *extra = json_object_get(f->config, "extra_ids");
    const double n = extra ? json_number_value(extra) : 100;
    if (has_file(f, "tokenizer.json"))
        return read_file(f, b, "tokenizer.json");
    if (f->kind != CAPTION_T5 && has_file(f, "vocab.json") && has_file(f, "merges.txt"))
        return read_clip(f, b);
    if (f->kind != CAPTION_CLIP && has_file(f, "spiece.model")) {
        if (!(n >= 0 && n <= EXTRA_IDS_MAX))
            return build_refuse(b, "its extra_ids are %g, expected 0 to %d", n, EXTRA_IDS_MAX);
        b->extra_ids = (uint32_t)n;
        return read_file(f, b, "spiece.model");
    }
    return err_set(f->err, -ENOENT,
                   "there is no tokenizer in %s: expected tokenizer.json, or CLIP's vocab.json and "
                   "merges.txt, or T5's spiece.model",
                   f->dir);
}

/* ---- opening ---- */

static int check_kind(const struct folder *f, struct build *b, enum caption_kind *ret)
{
    const struct tokenizer *t = b->t;
    const int is = t->scores ? CAPTION_T5 : t->suffix && !t->characters ? CAPTION_CLIP : -1;
    if (is < 0)
        return build_refuse(b, "it is neither CLIP's (BPE with </w>) nor T5's (Unigram)");
    if (f->kind >= 0 && f->kind != is)
        return build_refuse(b, "its class is that of %s, but its model is that of %s",
                            caption_kind_name((enum caption_kind)f->kind),
                            caption_kind_name((enum caption_kind)is));
    *ret = (enum caption_kind)is;
    return 0;
}

/* Sets the special tokens around a text, unless a post-processor has set them. */
static int take_ends(const struct folder *f, struct build *b, enum caption_kind kind)
{
    struct tokenizer *t = b->t;
    if (t->put_first >= 0 || t->put_last >= 0)
        return 0;
    const char *last = special_text(f, kind, "eos_token");
    const char *first = kind == CAPTION_CLIP ? special_text(f, kind, "bos_token") : NULL;
    t->put_last = (int32_t)find_text(b, last);
    t->put_first = first ? (int32_t)find_text(b, first) : -1;
    if (t->put_last < 0 || (first && t->put_first < 0))
        return build_refuse(b, "its vocabulary lacks '%.64s'", t->put_last < 0 ? last : first);
    return 0;
}

static int read_folder(const struct folder *f, struct build *b, struct caption_tokenizer *c)
{
    const json_t *length = json_object_get(f->config, "model_max_length");
    int rc = read_any(f, b);
    if (rc == 0)
        rc = check_kind(f, b, &c->kind);
    if (rc == 0)
        rc = add_tokens(f, b, c->kind);
    if (rc == 0)
        rc = take_ends(f, b, c->kind);
    if (rc < 0)
        return rc;
    const char *pad = special_text(f, c->kind, "pad_token");
    c->pad = (int32_t)find_text(b, pad);
    if (c->pad < 0)
        return build_refuse(b, "its vocabulary lacks the token '%.64s' for padding", pad);
    if (json_number_value(length) >= 1 && json_number_value(length) <= INT32_MAX)
        c->length = (uint32_t)json_number_value(length);
    return build_finish(b);
}

int caption_tokenizer_open(const char *dir, struct caption_tokenizer **ret, struct err *err)
{
    struct folder f = {.dir = dir, .err = err};
    struct caption_tokenizer *c = mem_alloc(sizeof(*c));
    struct build b;
    /* A length of 1e30, which means no limit, is written as an integer. */
    const size_t flags = JSON_DECODE_INT_AS_REAL;
    int rc = read_object(&f, "tokenizer_config.json", CONFIG_MAX, flags, &f.config);
    if (rc == 0)
        rc = read_object(&f, "special_tokens_map.json", CONFIG_MAX, flags, &f.map);
    if (rc == 0)
        rc = find_kind(&f);
    if (rc == 0) {
        build_open(&b, dir, err);
        rc = build_close(&b, read_folder(&f, &b, c), &c->t);
    }
    json_decref(f.config);
    json_decref(f.map);
    if (rc < 0)
        mem_free(c);
    else
        *ret = c;
    return rc;
}

void caption_tokenizer_free(struct caption_tokenizer *c)
{
    if (!c)
        return;
    tokenizer_free(c->t);
    mem_free(c);
}

enum caption_kind caption_tokenizer_kind(const struct caption_tokenizer *c)
{
    return c->kind;
}

uint32_t caption_tokenizer_vocab(const struct caption_tokenizer *c)
{
    return tokenizer_vocab(c->t);
}

uint32_t caption_tokenizer_length(const struct caption_tokenizer *c)
{
    return c->length;
}

int32_t caption_tokenizer_pad(const struct caption_tokenizer *c)
{
    return c->pad;
}

/* The room for tokens between the special ones. */
static size_t room_of(const struct tokenizer *t, int most)
{
    return (size_t)(most - (t->put_first >= 0) - (t->put_last >= 0));
}

int caption_tokenizer_cut(const struct caption_tokenizer *c, const void *text, size_t len, int most)
{
    const size_t room = room_of(c->t, most);
    struct tokens tokens = {0};
    int ret = 0;
    if (len <= CAPTION_BYTES_MAX && str_is_utf8(text, len) &&
        tokenizer_encode(c->t, text, len, TOKENIZER_SPECIAL, &tokens, NULL) == 0 && tokens.n > room)
        ret = (int)(tokens.n - room);
    tokens_release(&tokens);
    return ret;
}

int caption_tokenizer_encode(const struct caption_tokenizer *c, const void *text, size_t len,
                             int most, int32_t *ids, int *ret_len, struct err *err)
{
    const struct tokenizer *t = c->t;
    struct tokens tokens = {0};
    int n = 0;
    if (most < 2 || most > CAPTION_TOKENS_MAX)
        return err_set(err, -EINVAL, "a caption of %d tokens, expected 2 to %d", most,
                       CAPTION_TOKENS_MAX);
    if (len > CAPTION_BYTES_MAX)
        return err_set(err, -ERR_LIMIT, "a caption of %zu bytes, at most %u are possible", len,
                       CAPTION_BYTES_MAX);
    if (!str_is_utf8(text, len))
        return err_set(err, -ERR_FORMAT, "a caption is not UTF-8");
    int rc = tokenizer_encode(t, text, len, TOKENIZER_SPECIAL, &tokens, err);
    const size_t room = room_of(t, most);
    if (rc == 0) {
        if (t->put_first >= 0)
            ids[n++] = t->put_first;
        for (size_t i = 0; i < tokens.n && i < room; i++)
            ids[n++] = (int32_t)tokens.ids[i];
        if (t->put_last >= 0)
            ids[n++] = t->put_last;
        *ret_len = n;
        while (n < most)
            ids[n++] = c->pad;
    }
    tokens_release(&tokens);
    return rc;
}
