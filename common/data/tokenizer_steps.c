/* The parts of a tokenizer.json around its model: normalizer, pre-tokenizer, post-processor.
 * Unknown ones are refused by name. */
#include "common/data/tokenizer_build.h"

#define META "\xe2\x96\x81" /* U+2581 */

static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "?";
}

static bool is_type(const json_t *part, const char *type)
{
    return strcmp(type_of(part), type) == 0;
}

static const char *text_of(const json_t *part, const char *key)
{
    const char *text = json_string_value(json_object_get(part, key));
    return text ? text : "";
}

/* ---- normalizers ---- */

static int take_replace(struct build *b, const json_t *part)
{
    const json_t *pattern = json_object_get(part, "pattern");
    const char *regex = text_of(pattern, "Regex"), *string = text_of(pattern, "String");
    const char *content = text_of(part, "content");
    const bool to_meta = strcmp(content, META) == 0, to_space = strcmp(content, " ") == 0;
    if (strcmp(regex, "\\s+") == 0 && to_space)
        return build_rewrite(b, REWRITE_SPACES);
    if (strcmp(regex, " {2,}") == 0 && (to_meta || to_space))
        return build_rewrite(b, REWRITE_RUNS);
    if (strcmp(string, " ") == 0 && to_meta) {
        b->t->meta = true;
        return build_rewrite(b, REWRITE_META);
    }
    return build_refuse(b, "it replaces '%.64s' by '%.64s', which is not supported",
                        *regex ? regex : string, content);
}

static int from_base64(const char *text, size_t len, uint8_t *out, size_t *ret_len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    size_t n = 0, i = 0;
    for (; i < len && text[i] != '='; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit)
            return -EINVAL;
        bits = bits << 6 | (uint32_t)(digit - digits);
        if (i % 4)
            out[n++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    *ret_len = n;
    return len % 4 || len - i > 2 ? -EINVAL : 0;
}

static int take_precompiled(struct build *b, const json_t *part)
{
    const json_t *map = json_object_get(part, "precompiled_charsmap");
    const size_t len = json_string_length(map);
    size_t n = 0;
    if (len == 0)
        return 0;
    uint8_t *bytes = mem_try(len);
    if (!bytes)
        return build_no_memory(b);
    int rc = from_base64(json_string_value(map), len, bytes, &n);
    rc = rc < 0 ? build_refuse(b, "its precompiled_charsmap is not base64")
                : build_charsmap(b, bytes, n);
    mem_free(bytes);
    return rc;
}

static int take_strip(struct build *b, const json_t *part)
{
    int rc = 0;
    if (json_is_true(json_object_get(part, "strip_left")))
        rc = build_rewrite(b, REWRITE_STRIP_LEFT);
    if (rc == 0 && json_is_true(json_object_get(part, "strip_right")))
        rc = build_rewrite(b, REWRITE_STRIP_RIGHT);
    return rc;
}

static int take_normalizer(struct build *b, const json_t *part)
{
    if (is_type(part, "NFC"))
        return build_rewrite(b, REWRITE_NFC);
    if (is_type(part, "Lowercase"))
        return build_rewrite(b, REWRITE_LOWER);
    if (is_type(part, "Replace"))
        return take_replace(b, part);
    if (is_type(part, "Strip"))
        return take_strip(b, part);
    if (is_type(part, "Precompiled"))
        return take_precompiled(b, part);
    if (is_type(part, "Prepend") && strcmp(text_of(part, "prepend"), META) == 0) {
        b->t->meta = true;
        return build_rewrite(b, REWRITE_PREPEND);
    }
    return build_refuse(b,
                        "it has the normalizer '%.64s', expected NFC, Lowercase, Replace, Strip, "
                        "Prepend or Precompiled",
                        type_of(part));
}

/* ---- pre-tokenizers ---- */

static int take_pattern(struct build *b, const char *pattern)
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
        /* Older files have this pattern, but their class cuts like newer ones. */
        {"'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+", SPLIT_CLIP},
        {"<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|"
         "[^\\s\\p{L}\\p{N}]+",
         SPLIT_CLIP},
    };
    for (size_t i = 0; pattern && i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(pattern, known[i].text) == 0) {
            b->t->split = known[i].split;
            return 0;
        }
    }
    return build_refuse(b,
                        "it splits text by the pattern %.200s; only those of GPT-2, cl100k, "
                        "Qwen 2 and CLIP are supported",
                        pattern ? pattern : "(none)");
}

/* A ByteLevel after a known pattern must not cut again, except with CLIP, whose words it leaves
 * whole. */
static int take_byte_level(struct build *b, const json_t *part, bool cut)
{
    const json_t *use_regex = json_object_get(part, "use_regex");
    const bool split = !use_regex || json_is_true(use_regex);
    const bool prefix = json_is_true(json_object_get(part, "add_prefix_space"));
    if (prefix && cut)
        return build_refuse(b, "ByteLevel has add_prefix_space after Split, which is not "
                               "supported");
    if (split && cut && b->t->split != SPLIT_CLIP)
        return build_refuse(b, "it splits text twice: by a pattern and by ByteLevel's use_regex");
    if (split && !cut)
        b->t->split = SPLIT_GPT2;
    b->t->prefix = prefix ? PREFIX_ALL : PREFIX_NONE;
    b->t->characters = false;
    return 0;
}

static int take_split(struct build *b, const json_t *part)
{
    const char *behavior = text_of(part, "behavior");
    const bool invert = json_is_true(json_object_get(part, "invert"));
    /* The patterns match everything: to keep the matches, or to remove the rest. */
    if (strcmp(behavior, invert ? "Removed" : "Isolated") != 0)
        return build_refuse(b, "it splits text with the behavior '%.64s', expected Isolated",
                            *behavior ? behavior : "?");
    int rc = take_pattern(b, text_of(json_object_get(part, "pattern"), "Regex"));
    if (rc == 0 && b->t->split == SPLIT_CLIP && !invert)
        rc = build_refuse(b, "CLIP's pattern does not cover spaces, so invert is expected");
    return rc;
}

static int take_metaspace(struct build *b, const json_t *part)
{
    static const char *const schemes[] = {"never", "first", "always"};
    static const enum prefix prefixes[] = {PREFIX_NONE, PREFIX_FIRST, PREFIX_ALL};
    struct tokenizer *t = b->t;
    const json_t *split = json_object_get(part, "split");
    const json_t *scheme = json_object_get(part, "prepend_scheme");
    const bool add = !json_is_false(json_object_get(part, "add_prefix_space"));
    const char *name = json_is_string(scheme) ? json_string_value(scheme)
                       : add                  ? "always"
                                              : "never";
    size_t i = 0;
    while (i < 3 && strcmp(name, schemes[i]) != 0)
        i++;
    if (i == 3 || strcmp(text_of(part, "replacement"), META) != 0)
        return build_refuse(b,
                            "Metaspace has the prepend_scheme '%.64s' and the replacement "
                            "'%.64s', expected always, first or never, and U+2581",
                            name, text_of(part, "replacement"));
    t->prefix = prefixes[i];
    t->meta = t->metaspace = true;
    t->cut_at_space = !split || json_is_true(split);
    return 0;
}

static int take_pre_tokenizer(struct build *b, const json_t *part, bool first)
{
    struct tokenizer *t = b->t;
    if (t->metaspace || (!first && !t->characters))
        return build_refuse(b,
                            "the pre-tokenizer '%.64s' comes after the last one that is possible",
                            type_of(part));
    if (is_type(part, "ByteLevel"))
        return take_byte_level(b, part, !first);
    if (is_type(part, "Metaspace"))
        return take_metaspace(b, part);
    if (is_type(part, "Split") && first)
        return take_split(b, part);
    if (is_type(part, "WhitespaceSplit") && first) {
        t->split = SPLIT_SPACES;
        return 0;
    }
    return build_refuse(b,
                        "it has the pre-tokenizer '%.64s'; expected ByteLevel, Split and "
                        "ByteLevel, Metaspace, or WhitespaceSplit and Metaspace",
                        type_of(part));
}

/* One part, or the parts of a Sequence. */
static size_t parts_of(const json_t *part, const char *key, const json_t **ret_list)
{
    *ret_list = is_type(part, "Sequence") ? json_object_get(part, key) : NULL;
    return *ret_list ? json_array_size(*ret_list) : json_is_object(part);
}

int tokenizer_read_steps(struct build *b, const json_t *normalizer, const json_t *pre_tokenizer)
{
    const json_t *list;
    size_t n = parts_of(normalizer, "normalizers", &list);
    int rc = 0;
    b->t->characters = true; /* unless ByteLevel says otherwise */
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = take_normalizer(b, list ? json_array_get(list, i) : normalizer);
    n = parts_of(pre_tokenizer, "pretokenizers", &list);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = take_pre_tokenizer(b, list ? json_array_get(list, i) : pre_tokenizer, i == 0);
    if (rc == 0 && b->t->characters && b->t->split != SPLIT_WHOLE && b->t->split != SPLIT_SPACES)
        rc = build_refuse(b, "it has only the pre-tokenizer 'Split'; expected Split and ByteLevel");
    return rc;
}

/* ---- the ends of a text ---- */

static int put(struct build *b, const char *text, int32_t *end)
{
    int64_t id = tokenizer_find(b->t, text, strlen(text));
    if (id < 0)
        return build_refuse(b, "its post-processor adds '%.64s', which is not in the vocabulary",
                            text);
    if (*end >= 0)
        return build_refuse(b, "its post-processor adds more than one token at an end of a text");
    *end = (int32_t)id;
    return 0;
}

static int take_template(struct build *b, const json_t *post)
{
    const json_t *item;
    size_t i;
    bool after = false;
    int rc = 0;
    json_array_foreach(json_object_get(post, "single"), i, item)
    {
        const json_t *special = json_object_get(item, "SpecialToken");
        after = after || json_object_get(item, "Sequence");
        if (special && rc == 0)
            rc = put(b, text_of(special, "id"), after ? &b->t->put_last : &b->t->put_first);
    }
    return rc;
}

static int take_pair(struct build *b, const json_t *post)
{
    const json_t *cls = json_array_get(json_object_get(post, "cls"), 0);
    const json_t *sep = json_array_get(json_object_get(post, "sep"), 0);
    if (!json_is_string(cls) || !json_is_string(sep))
        return build_refuse(b, "its post-processor '%.64s' has no cls and sep", type_of(post));
    int rc = put(b, json_string_value(cls), &b->t->put_first);
    return rc < 0 ? rc : put(b, json_string_value(sep), &b->t->put_last);
}

static int take_post_processor(struct build *b, const json_t *post)
{
    if (is_type(post, "TemplateProcessing"))
        return take_template(b, post);
    if (is_type(post, "RobertaProcessing") || is_type(post, "BertProcessing"))
        return take_pair(b, post);
    if (is_type(post, "ByteLevel"))
        return 0;
    return build_refuse(b,
                        "it has the post-processor '%.64s', expected TemplateProcessing, "
                        "RobertaProcessing, BertProcessing or ByteLevel",
                        type_of(post));
}

int tokenizer_read_ends(struct build *b, const json_t *post_processor)
{
    static const char *const begins[] = {"<|begin_of_text|>", "<s>", "<|startoftext|>",
                                         "<|endoftext|>"};
    static const char *const ends[] = {"<|end_of_text|>", "</s>", "<|endoftext|>"};
    struct tokenizer *t = b->t;
    const json_t *list;
    size_t n = parts_of(post_processor, "processors", &list);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = take_post_processor(b, list ? json_array_get(list, i) : post_processor);
    t->bos = t->put_first >= 0 ? t->put_first : build_special(b, begins, 4);
    t->eos = t->put_last >= 0 ? t->put_last : build_special(b, ends, 3);
    return rc;
}
