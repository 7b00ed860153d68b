/* Reading a Hugging Face tokenizer.json: its model, vocabulary and added tokens. */
#include "common/data/tokenizer_build.h"

/* Reads an id of the file. */
static int read_id(const struct build *b, const json_t *value, const char *what, uint32_t *ret)
{
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= TOKENIZER_VOCAB_MAX)
        return build_refuse(b, "the id of '%.64s' is not a number below %u", what,
                            TOKENIZER_VOCAB_MAX);
    *ret = (uint32_t)id;
    return 0;
}

/* One more than the highest id. */
static int find_size(const struct build *b, json_t *vocab, const json_t *added, size_t *ret)
{
    const char *text;
    json_t *value;
    size_t size = json_array_size(vocab), i;
    uint32_t id = 0;
    json_object_foreach(vocab, text, value)
    {
        int rc = read_id(b, value, text, &id);
        if (rc < 0)
            return rc;
        size = id >= size ? (size_t)id + 1 : size;
    }
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        int rc = read_id(b, json_object_get(value, "id"), content ? content : "?", &id);
        if (rc < 0)
            return rc;
        size = id >= size ? (size_t)id + 1 : size;
    }
    *ret = size;
    return 0;
}

static int take_vocab(struct build *b, json_t *vocab)
{
    const char *text;
    size_t len;
    json_t *value;
    uint32_t id = 0;
    json_object_keylen_foreach(vocab, text, len, value)
    {
        int rc = read_id(b, value, text, &id);
        if (rc == 0)
            rc = build_token(b, id, text, len);
        if (rc < 0)
            return rc;
    }
    if (!b->t->characters)
        build_bytes(b);
    return 0;
}

/* Takes [["piece", score], ...] of Unigram: ids are the positions. */
static int take_pieces(struct build *b, const json_t *vocab)
{
    struct tokenizer *t = b->t;
    const json_t *item;
    size_t i;
    t->scores = mem_try_array(t->vocab, sizeof(*t->scores));
    if (!t->scores)
        return build_no_memory(b);
    for (i = 0; i < t->vocab; i++)
        t->scores[i] = NAN; /* added tokens are not pieces */
    json_array_foreach(vocab, i, item)
    {
        const json_t *text = json_array_get(item, 0), *score = json_array_get(item, 1);
        if (!json_is_string(text) || !json_is_number(score))
            return build_refuse(b, "token %zu is not a pair of a text and a score", i);
        int rc = build_token(b, (uint32_t)i, json_string_value(text), json_string_length(text));
        if (rc < 0)
            return rc;
        t->scores[i] = json_number_value(score);
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

static int take_merges(struct build *b, const json_t *merges)
{
    const json_t *item;
    size_t i;
    json_array_foreach(merges, i, item)
    {
        const char *side[2] = {"", ""};
        size_t len[2] = {0, 0};
        (void)merge_sides(item, side, len);
        int rc = build_merge_text(b, side, len, (uint32_t)i);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int take_added(struct build *b, const json_t *added)
{
    const json_t *item;
    size_t i;
    json_array_foreach(added, i, item)
    {
        const json_t *content = json_object_get(item, "content");
        struct added flags = {
            .special = json_is_true(json_object_get(item, "special")),
            .normalized = json_is_true(json_object_get(item, "normalized")),
            .single_word = json_is_true(json_object_get(item, "single_word")),
            .lstrip = json_is_true(json_object_get(item, "lstrip")),
            .rstrip = json_is_true(json_object_get(item, "rstrip")),
        };
        const char *text = json_is_string(content) ? json_string_value(content) : "";
        int rc = read_id(b, json_object_get(item, "id"), text, &flags.id);
        if (rc == 0)
            rc = build_added(b, text, strlen(text), flags);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- the model ---- */

static bool is_set(const json_t *value)
{
    return value && !json_is_null(value) &&
           !(json_is_string(value) && json_string_length(value) == 0);
}

/* Refuses settings that would change the ids in ways that are not supported. */
static int check_model(const struct build *b, const json_t *model)
{
    const json_t *type = json_object_get(model, "type"), *vocab = json_object_get(model, "vocab");
    const char *name = json_is_string(type) ? json_string_value(type) : type ? "?" : "BPE";
    const bool unigram = strcmp(name, "Unigram") == 0;
    if (strcmp(name, "BPE") == 0
            ? !json_is_object(vocab) || !json_is_array(json_object_get(model, "merges"))
            : !unigram || !json_is_array(vocab))
        return build_refuse(
            b, "its model is '%.64s', expected BPE with vocab and merges, or Unigram", name);
    if (is_set(json_object_get(model, "continuing_subword_prefix")))
        return build_refuse(b, "its model has continuing_subword_prefix, which is not supported");
    if (b->t->characters && !b->t->meta)
        return build_refuse(b, "its model neither has bytes for tokens (ByteLevel) nor U+2581 for "
                               "spaces (Metaspace); other kinds are not supported");
    if (unigram && !b->t->characters)
        return build_refuse(b, "its model is 'Unigram' over the pre-tokenizer ByteLevel");
    return 0;
}

static int take_options(struct build *b, const json_t *model)
{
    struct tokenizer *t = b->t;
    const json_t *suffix = json_object_get(model, "end_of_word_suffix");
    t->whole_words = json_is_true(json_object_get(model, "ignore_merges"));
    t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    t->fuse_unk = json_is_array(json_object_get(model, "vocab")) ||
                  json_is_true(json_object_get(model, "fuse_unk"));
    t->suffix = is_set(suffix);
    if (t->suffix && (!json_is_string(suffix) || strcmp(json_string_value(suffix), "</w>") != 0))
        return build_refuse(b, "its model has an end_of_word_suffix other than </w>");
    if (t->byte_fallback && (t->suffix || !t->characters))
        return build_refuse(b, "its model has byte_fallback beside tokens for all bytes");
    return 0;
}

/* Takes the token for text that the vocabulary lacks. */
static int take_unknown(struct build *b, const json_t *model)
{
    const json_t *token = json_object_get(model, "unk_token"),
                 *id = json_object_get(model, "unk_id");
    int64_t unk = -1;
    if (json_is_string(token)) {
        if (build_text(b, json_string_value(token), json_string_length(token)) < 0)
            return build_no_memory(b);
        unk = tokenizer_find(b->t, b->scratch.data, b->scratch.len);
    } else if (json_is_integer(id) && json_integer_value(id) >= 0 &&
               json_integer_value(id) < b->t->vocab) {
        unk = json_integer_value(id);
    }
    if (unk < 0 && (is_set(token) || is_set(id)))
        return build_refuse(b, "its model's token for unknown text is not in its vocabulary");
    b->t->unk = (int32_t)unk;
    return 0;
}

static int read_root(struct build *b, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    size_t size = 0;
    int rc = tokenizer_read_steps(b, json_object_get(root, "normalizer"),
                                  json_object_get(root, "pre_tokenizer"));
    if (rc == 0)
        rc = check_model(b, model);
    if (rc == 0)
        rc = take_options(b, model);
    if (rc == 0)
        rc = find_size(b, vocab, added, &size);
    if (rc == 0)
        rc = build_room(b, size, json_array_size(merges));
    if (rc == 0)
        rc = json_is_array(vocab) ? take_pieces(b, vocab) : take_vocab(b, vocab);
    if (rc == 0)
        rc = take_merges(b, merges);
    if (rc == 0)
        rc = take_added(b, added);
    if (rc == 0)
        rc = take_unknown(b, model);
    if (rc == 0)
        rc = tokenizer_read_ends(b, json_object_get(root, "post_processor"));
    return rc;
}

/* Lists and maps, commas and colons: room for the largest vocabulary, with merges as lists, of
 * which tokenizers made from SentencePiece models have two for each token. */
#define LISTS_MAX (2u * TOKENIZER_VOCAB_MAX)
#define VALUES_MAX (8u * TOKENIZER_VOCAB_MAX)

int tokenizer_read_json(struct build *b, const void *json, size_t len)
{
    json_error_t fault;
    if (str_json_exceeds(json, len, LISTS_MAX, VALUES_MAX))
        return err_set(b->err, -ERR_LIMIT,
                       "tokenizer %s holds more values than %u tokens and their merges need",
                       b->name, TOKENIZER_VOCAB_MAX);
    json_t *root = json_loadb(json, len, 0, &fault);
    if (!root)
        return err_set(b->err, -ERR_FORMAT, "tokenizer %s, line %d: %s", b->name, fault.line,
                       fault.text);
    int rc = read_root(b, root);
    json_decref(root);
    return rc;
}

int tokenizer_read_clip(struct build *b, json_t *vocab)
{
    struct tokenizer *t = b->t;
    size_t size = 0;
    t->split = SPLIT_CLIP;
    t->suffix = true;
    int rc = find_size(b, vocab, NULL, &size);
    if (rc == 0)
        rc = build_room(b, size, 0);
    if (rc == 0)
        rc = take_vocab(b, vocab);
    if (rc == 0)
        rc = build_rewrite(b, REWRITE_NFC);
    if (rc == 0)
        rc = build_rewrite(b, REWRITE_SPACES);
    return rc < 0 ? rc : build_rewrite(b, REWRITE_LOWER);
}
