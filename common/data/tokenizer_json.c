/* Reading a Hugging Face tokenizer.json: byte-level BPE and nothing else. */
#include <jansson.h>

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/data/tokenizer_impl.h"

#define NONE UINT32_MAX
#define ADDED_MAX 65536
#define POOL_MAX (256u << 20)

struct reader {
    struct tokenizer *t;
    const char *name;
    struct buf scratch;
    struct err *err;
    int16_t byte_of[512]; /* code point of GPT-2's alphabet -> byte; -1: none */
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct reader *r, const char *fmt,
                                                        ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return err_set(r->err, -ERR_FORMAT, "tokenizer %s: %s", r->name, why);
}

static int no_memory(const struct reader *r)
{
    return err_set(r->err, -ENOMEM, "out of memory for the tokenizer %s", r->name);
}

/* ---- GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for
 * U+0100 and on ---- */

static void make_alphabet(struct reader *r)
{
    int next = 256;
    memset(r->byte_of, 0xff, sizeof(r->byte_of));
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        r->byte_of[itself ? b : next++] = (int16_t)b;
    }
}

/* Text of the alphabet as bytes, into scratch.  Text with other characters (added
 * tokens) is what it is. */
static int to_bytes(struct reader *r, const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + len;
    buf_clear(&r->scratch);
    while (p < end) {
        uint32_t c = *p;
        size_t n = c < 0x80 ? 1 : 2;
        if (n == 2)
            c = p + 1 < end ? (c & 0x1f) << 6 | (p[1] & 0x3f) : NONE;
        if ((*p >= 0x80 && (*p & 0xe0) != 0xc0) || c >= 512 || r->byte_of[c] < 0) {
            buf_clear(&r->scratch);
            return buf_append(&r->scratch, text, len);
        }
        int rc = buf_append_byte(&r->scratch, (uint8_t)r->byte_of[c]);
        if (rc < 0)
            return rc;
        p += n;
    }
    return 0;
}

/* ---- tables ---- */

static uint32_t table_size(size_t n)
{
    uint32_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static int make_room(struct reader *r, size_t vocab, size_t merges)
{
    struct tokenizer *t = r->t;
    uint32_t texts = table_size(vocab), pairs = table_size(merges);
    t->tokens = mem_try_array(vocab, sizeof(*t->tokens));
    t->by_text = mem_try_array(texts, sizeof(*t->by_text));
    t->merges = mem_try_array(pairs, sizeof(*t->merges));
    if (!t->tokens || !t->by_text || !t->merges)
        return no_memory(r);
    memset(t->by_text, 0xff, texts * sizeof(*t->by_text));
    memset(t->merges, 0xff, pairs * sizeof(*t->merges));
    t->vocab = (uint32_t)vocab;
    t->text_mask = texts - 1;
    t->merge_mask = pairs - 1;
    return 0;
}

/* Bytes as the text of an id. */
static int set_token(struct reader *r, uint32_t id, const void *bytes, size_t len)
{
    struct tokenizer *t = r->t;
    if (len == 0 || len > TOKENIZER_PIECE_MAX)
        return refuse(r, "the token %u is empty or longer than %d bytes", id, TOKENIZER_PIECE_MAX);
    t->tokens[id] = (struct token){(uint32_t)t->pool.len, (uint32_t)len, true, false};
    if (buf_append(&t->pool, bytes, len) < 0)
        return refuse(r, "its tokens have more than %u bytes together", POOL_MAX);
    if (tokenizer_find(t, bytes, len) >= 0)
        return 0; /* another id with the same text: the first stays */
    uint32_t i = tokenizer_hash(bytes, len);
    while (t->by_text[i & t->text_mask] != NONE)
        i++;
    t->by_text[i & t->text_mask] = id;
    return 0;
}

/* An id of the file. */
static int read_id(const struct reader *r, const json_t *value, const char *what, uint32_t *ret)
{
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= TOKENIZER_VOCAB_MAX)
        return refuse(r, "the id of '%.64s' is not a number below %u", what, TOKENIZER_VOCAB_MAX);
    *ret = (uint32_t)id;
    return 0;
}

/* ---- vocabulary, merges, added tokens ---- */

/* One more than the highest id. */
static int find_size(const struct reader *r, json_t *vocab, const json_t *added, size_t *ret)
{
    const char *text;
    json_t *value;
    size_t size = 0, i;
    uint32_t id = 0;
    json_object_foreach(vocab, text, value)
    {
        int rc = read_id(r, value, text, &id);
        if (rc < 0)
            return rc;
        size = id >= size ? (size_t)id + 1 : size;
    }
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        int rc = read_id(r, json_object_get(value, "id"), content ? content : "?", &id);
        if (rc < 0)
            return rc;
        size = id >= size ? (size_t)id + 1 : size;
    }
    *ret = size;
    return 0;
}

static int take_vocab(struct reader *r, json_t *vocab)
{
    const char *text;
    size_t len;
    json_t *value;
    uint32_t id = 0;
    json_object_keylen_foreach(vocab, text, len, value)
    {
        int rc = read_id(r, value, text, &id);
        if (rc == 0 && r->t->tokens[id].used)
            rc = refuse(r, "two tokens have the id %u, one of them '%.64s'", id, text);
        if (rc == 0 && to_bytes(r, text, len) < 0)
            rc = no_memory(r);
        if (rc == 0)
            rc = set_token(r, id, r->scratch.data, r->scratch.len);
        if (rc < 0)
            return rc;
    }
    for (int b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        int64_t hit = tokenizer_find(r->t, &byte, 1);
        r->t->byte_ids[b] = hit < 0 ? NONE : (uint32_t)hit;
    }
    return 0;
}

/* The two sides of a merge, "a b" or ["a", "b"]. */
static int merge_sides(const json_t *item, const char *side[2], size_t len[2])
{
    if (json_is_string(item)) {
        side[0] = json_string_value(item);
        const char *space = strchr(side[0], ' ');
        if (!space)
            return -EINVAL;
        len[0] = (size_t)(space - side[0]);
        side[1] = space + 1;
        len[1] = json_string_length(item) - len[0] - 1;
        return 0;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *text = json_array_get(item, i);
        if (!json_is_string(text) || json_array_size(item) != 2)
            return -EINVAL;
        side[i] = json_string_value(text);
        len[i] = json_string_length(text);
    }
    return 0;
}

static void add_merge(struct tokenizer *t, uint32_t left, uint32_t right, uint32_t rank,
                      uint32_t id)
{
    uint32_t i = tokenizer_pair_hash(left, right);
    for (; t->merges[i & t->merge_mask].id != NONE; i++) {
        struct merge *m = &t->merges[i & t->merge_mask];
        if (m->left == left && m->right == right) {
            m->rank = rank; /* as a map that is filled in order has it */
            m->id = id;
            return;
        }
    }
    t->merges[i & t->merge_mask] = (struct merge){left, right, rank, id};
}

static int take_merges(struct reader *r, const json_t *merges)
{
    const json_t *item;
    size_t i;
    struct buf whole;
    int rc = 0;
    buf_init(&whole, 2 * TOKENIZER_PIECE_MAX);
    json_array_foreach(merges, i, item)
    {
        const char *side[2];
        size_t len[2];
        int64_t ids[3] = {-1, -1, -1};
        buf_clear(&whole);
        rc = merge_sides(item, side, len);
        for (int k = 0; rc == 0 && k < 2; k++) {
            rc = to_bytes(r, side[k], len[k]);
            ids[k] = rc < 0 ? -1 : tokenizer_find(r->t, r->scratch.data, r->scratch.len);
            if (ids[k] >= 0)
                rc = buf_append(&whole, r->scratch.data, r->scratch.len);
        }
        ids[2] = rc < 0 ? -1 : tokenizer_find(r->t, whole.data, whole.len);
        if (rc < 0 || ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
            rc = refuse(r, "merge %zu is not made of two tokens that together are a token", i);
            break;
        }
        add_merge(r->t, (uint32_t)ids[0], (uint32_t)ids[1], (uint32_t)i, (uint32_t)ids[2]);
    }
    buf_release(&whole);
    return rc;
}

static int longest_first(const void *a, const void *b)
{
    const struct added *x = a, *y = b;
    if (x->len != y->len)
        return x->len > y->len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int take_added_token(struct reader *r, const json_t *item)
{
    static const char *const unknown[] = {"single_word", "lstrip", "rstrip"};
    struct tokenizer *t = r->t;
    const char *text = json_string_value(json_object_get(item, "content"));
    size_t len = json_string_length(json_object_get(item, "content"));
    bool special = json_is_true(json_object_get(item, "special"));
    uint32_t id = 0;
    if (!text || !*text)
        return refuse(r, "an added token has no content");
    for (size_t i = 0; i < 3; i++)
        if (json_is_true(json_object_get(item, unknown[i])))
            return refuse(r, "the added token '%.64s' has %s, which is not supported", text,
                          unknown[i]);
    int rc = read_id(r, json_object_get(item, "id"), text, &id);
    if (rc < 0)
        return rc;
    const struct token *k = &t->tokens[id];
    if (!k->used)
        rc = set_token(r, id, text, len);
    else if (k->len != len || memcmp(t->pool.data + k->at, text, len) != 0)
        rc = refuse(r, "the added token '%.64s' has the id %u of another token", text, id);
    if (rc < 0)
        return rc;
    t->tokens[id].special = special;
    t->added[t->n_added++] = (struct added){id, (uint32_t)len, special};
    return 0;
}

static int take_added(struct reader *r, const json_t *added)
{
    const json_t *item;
    size_t i, n = json_array_size(added);
    if (n == 0)
        return 0;
    if (n > ADDED_MAX)
        return refuse(r, "it has %zu added tokens, at most %d are possible", n, ADDED_MAX);
    r->t->added = mem_try_array(n, sizeof(*r->t->added));
    if (!r->t->added)
        return no_memory(r);
    json_array_foreach(added, i, item)
    {
        int rc = take_added_token(r, item);
        if (rc < 0)
            return rc;
    }
    qsort(r->t->added, r->t->n_added, sizeof(*r->t->added), longest_first);
    return 0;
}

/* ---- how text is split ---- */

static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "?";
}

static int take_pattern(struct reader *r, const char *pattern)
{
    static const struct {
        const char *text;
        enum split split;
    } known[] = {
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         SPLIT_GPT2},
        {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         SPLIT_GPT2},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         SPLIT_CL100K},
        {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
         "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
         SPLIT_CL100K},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         SPLIT_DIGIT},
    };
    for (size_t i = 0; pattern && i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(pattern, known[i].text) == 0) {
            r->t->split = known[i].split;
            return 0;
        }
    }
    return refuse(r,
                  "it splits text by the pattern %.200s; only those of GPT-2 and cl100k are "
                  "supported",
                  pattern ? pattern : "(none)");
}

/* ByteLevel, the last step: alone it splits as GPT-2 does. */
static int take_byte_level(struct reader *r, const json_t *part, bool first)
{
    const json_t *use_regex = json_object_get(part, "use_regex");
    bool split = !use_regex || json_is_true(use_regex);
    if (strcmp(type_of(part), "ByteLevel") != 0)
        return refuse(r, "it has the pre-tokenizer '%.64s', expected ByteLevel", type_of(part));
    if (json_is_true(json_object_get(part, "add_prefix_space")))
        return refuse(r, "ByteLevel has add_prefix_space, which is not supported");
    if (split && !first)
        return refuse(r, "it splits text twice: by a pattern and by ByteLevel's use_regex");
    if (first)
        r->t->split = split ? SPLIT_GPT2 : SPLIT_WHOLE;
    return 0;
}

static int take_split(struct reader *r, const json_t *part)
{
    const char *behavior = json_string_value(json_object_get(part, "behavior"));
    bool invert = json_is_true(json_object_get(part, "invert"));
    if (strcmp(type_of(part), "Split") != 0)
        return refuse(r, "it has the pre-tokenizer '%.64s'; expected Split and ByteLevel",
                      type_of(part));
    /* The patterns match everything: to keep the matches, or to remove the rest. */
    if (!behavior || strcmp(behavior, invert ? "Removed" : "Isolated") != 0)
        return refuse(r, "it splits text with the behavior '%.64s', expected Isolated",
                      behavior ? behavior : "?");
    const json_t *pattern = json_object_get(part, "pattern");
    return take_pattern(r, json_string_value(json_object_get(pattern, "Regex")));
}

static int take_pre_tokenizer(struct reader *r, const json_t *part)
{
    if (strcmp(type_of(part), "Sequence") != 0)
        return take_byte_level(r, part, true);
    const json_t *list = json_object_get(part, "pretokenizers");
    size_t n = json_array_size(list);
    if (n != 1 && n != 2)
        return refuse(r, "it has %zu pre-tokenizers in a row; expected Split and ByteLevel", n);
    int rc = n == 2 ? take_split(r, json_array_get(list, 0)) : 0;
    return rc < 0 ? rc : take_byte_level(r, json_array_get(list, n - 1), n == 1);
}

/* ---- the ends of a document ---- */

static int32_t find_special(const struct tokenizer *t, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int64_t id = tokenizer_find(t, names[i], strlen(names[i]));
        if (id >= 0 && t->tokens[id].special)
            return (int32_t)id;
    }
    return -1;
}

/* The template of a single text: what stands before and after it. */
static void take_template(struct tokenizer *t, const json_t *post)
{
    const json_t *item, *text;
    size_t i;
    bool after = false;
    json_array_foreach(json_object_get(post, "processors"), i, item)
    {
        take_template(t, item);
    }
    json_array_foreach(json_object_get(post, "single"), i, item)
    {
        text = json_object_get(json_object_get(item, "SpecialToken"), "id");
        after = after || json_object_get(item, "Sequence");
        int64_t id = !json_is_string(text)
                         ? -1
                         : tokenizer_find(t, json_string_value(text), json_string_length(text));
        if (id >= 0 && after)
            t->eos = (int32_t)id;
        else if (id >= 0)
            t->bos = (int32_t)id;
    }
}

static void take_ends(struct reader *r, const json_t *post)
{
    static const char *const begins[] = {"<|begin_of_text|>", "<s>", "<|endoftext|>"};
    static const char *const ends[] = {"<|end_of_text|>", "</s>", "<|endoftext|>"};
    struct tokenizer *t = r->t;
    t->bos = find_special(t, begins, 3);
    t->eos = find_special(t, ends, 3);
    take_template(t, post);
}

/* ---- the file ---- */

static bool is_set(const json_t *value)
{
    return value && !json_is_null(value) &&
           !(json_is_string(value) && json_string_length(value) == 0);
}

/* What would change the ids in ways that we do not know. */
static int check_model(const struct reader *r, const json_t *root, const json_t *model)
{
    static const char *const no[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type");
    if (!json_is_object(json_object_get(model, "vocab")) ||
        !json_is_array(json_object_get(model, "merges")) || (type && !json_is_string(type)) ||
        (type && strcmp(json_string_value(type), "BPE") != 0))
        return refuse(r, "its model is '%.64s', expected BPE with vocab and merges",
                      json_is_string(type) ? json_string_value(type) : "?");
    for (size_t i = 0; i < 2; i++)
        if (is_set(json_object_get(model, no[i])))
            return refuse(r, "its model has %s, which is not supported", no[i]);
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return refuse(r, "its model has byte_fallback; only byte-level BPE is supported");
    const json_t *normalizer = json_object_get(root, "normalizer");
    if (is_set(normalizer))
        return refuse(r,
                      "it has the normalizer '%.64s'; texts are taken as they are, expected none",
                      type_of(normalizer));
    return 0;
}

static int read_root(struct reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    size_t size = 0;
    int rc = check_model(r, root, model);
    if (rc == 0)
        rc = find_size(r, vocab, added, &size);
    if (rc == 0 && size == 0)
        rc = refuse(r, "its vocabulary is empty");
    if (rc == 0)
        rc = make_room(r, size, json_array_size(merges));
    if (rc == 0)
        rc = take_vocab(r, vocab);
    if (rc == 0)
        rc = take_merges(r, merges);
    if (rc == 0)
        rc = take_added(r, added);
    if (rc == 0)
        rc = take_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"));
    if (rc == 0)
        take_ends(r, json_object_get(root, "post_processor"));
    r->t->whole_words = json_is_true(json_object_get(model, "ignore_merges"));
    return rc;
}

int tokenizer_parse(const void *json, size_t len, const char *name, struct tokenizer **ret,
                    struct err *err)
{
    json_error_t fault;
    if (len > TOKENIZER_FILE_MAX)
        return err_set(err, -ERR_LIMIT, "tokenizer %s has %zu bytes, at most %u are possible", name,
                       len, TOKENIZER_FILE_MAX);
    json_t *root = json_loadb(json, len, 0, &fault);
    if (!root)
        return err_set(err, -ERR_FORMAT, "tokenizer %s, line %d: %s", name, fault.line, fault.text);
    struct reader r = {.t = mem_alloc(sizeof(*r.t)), .name = name, .err = err};
    buf_init(&r.t->pool, POOL_MAX);
    buf_init(&r.scratch, TOKENIZER_FILE_MAX);
    make_alphabet(&r);
    int rc = read_root(&r, root);
    json_decref(root);
    buf_release(&r.scratch);
    if (rc < 0)
        tokenizer_free(r.t);
    else
        *ret = r.t;
    return rc;
}

int tokenizer_open(const char *path, struct tokenizer **ret, struct err *err)
{
    struct buf text;
    int rc = file_read(path, TOKENIZER_FILE_MAX, &text, err);
    if (rc < 0)
        return rc;
    rc = tokenizer_parse(buf_str(&text), text.len, path, ret, err);
    buf_release(&text);
    return rc;
}
