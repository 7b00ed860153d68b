/* The captions of an image: in a tar, or in a file beside it in a folder. */
#include "common/base/base.h"
#include "common/data/captions.h"
#include "common/data/dataset_impl.h"

void dataset_captions_init(struct dataset_captions *c)
{
    *c = (struct dataset_captions){0};
    buf_init(&c->text, CAPTIONS_MAX);
}

void dataset_captions_clear(struct dataset_captions *c)
{
    buf_clear(&c->text);
    c->cut = c->not_utf8 = c->from_txt = false;
}

static int add_text(struct dataset_captions *c, const json_t *text)
{
    return json_is_string(text)
               ? captions_add(&c->text, json_string_value(text), json_string_length(text), &c->cut)
               : -EINVAL;
}

const char *dataset_captions_value(struct dataset_captions *c, const json_t *value)
{
    const json_t *item;
    size_t i;
    int rc = 0;
    if (json_is_array(value))
        json_array_foreach(value, i, item) rc = rc < 0 ? rc : add_text(c, item);
    else if (value && !json_is_null(value))
        rc = add_text(c, value);
    if (rc == -EINVAL)
        return "is neither a text nor a list of texts";
    return rc < 0 ? err_text(rc) : NULL;
}

const json_t *dataset_captions_under(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    return json_is_null(value) ? NULL : value;
}

const json_t *dataset_captions_of(const json_t *root, const char **ret_key)
{
    const json_t *many = dataset_captions_under(root, "captions");
    *ret_key = many ? "captions" : "caption";
    return many ? many : dataset_captions_under(root, *ret_key);
}

bool dataset_captions_in(const json_t *root)
{
    const char *key;
    const json_t *value = dataset_captions_of(root, &key);
    return json_string_length(value) > 0 || json_array_size(value) > 0;
}

int dataset_captions_json(struct dataset_captions *c, const json_t *root, const char *key,
                          struct err *err)
{
    const char *name;
    const json_t *value = dataset_captions_of(root, &name);
    if (c->from_txt)
        return 0;
    const char *why = dataset_captions_value(c, value);
    return why ? err_set(err, -ERR_FORMAT, "\"%s\" in %s.json %s", name, key, why) : 0;
}

int dataset_captions_txt(struct dataset_captions *c, const struct buf *txt, const char *key,
                         struct err *err)
{
    dataset_captions_clear(c);
    c->from_txt = true;
    int rc = captions_add_lines(&c->text, buf_str(txt), txt->len, &c->cut);
    if (rc == -ERR_FORMAT) {
        c->not_utf8 = true;
        return 0;
    }
    return rc < 0 ? err_set(err, rc, "the captions in %s.txt: %s", key, err_text(rc)) : 0;
}

char *dataset_captions_path(const char *path)
{
    return str_printf("%.*s.txt", (int)(strrchr(path, '.') - path), path);
}

int dataset_captions_beside(struct dataset_captions *c, const char *path, struct err *err)
{
    char *txt = dataset_captions_path(path), *key = str_ndup(txt, strlen(txt) - 4);
    struct buf text;
    int rc = 0;
    dataset_captions_clear(c);
    if (file_exists(txt) && (rc = file_read(txt, DATASET_JSON_MAX, &text, err)) == 0) {
        rc = dataset_captions_txt(c, &text, key, err);
        buf_release(&text);
    }
    if (rc == -ERR_LIMIT) /* the code would mean an image that is too large */
        rc = err_set(err, -ERR_FORMAT, "%s is larger than %u bytes", txt, DATASET_JSON_MAX);
    mem_free(key);
    mem_free(txt);
    return rc;
}
