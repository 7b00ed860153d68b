#include "common/data/dataset.h"

#include "common/data/dataset_impl.h"
#include "common/data/shard.h"

/* The kinds of dataset: the first that matches opens it; the last takes all others, or reports why
 * it cannot. */
static const struct dataset_source *const sources[] = {
    &dataset_text,
    &dataset_folder,
    &dataset_tars,
};

static int find_source(const struct dataset_options *opt, const struct dataset_source **ret,
                       struct err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(sources) / sizeof(sources[0]); i++) {
        *ret = sources[i];
        rc = sources[i]->matches(opt, err);
    }
    return rc < 0 ? rc : 0;
}

static int no_captions(const struct dataset *ds, struct err *err)
{
    char beside[DATASET_BESIDE_MAX];
    return err_set(err, -ERR_FORMAT,
                   "%s has no captions: expected KEY.txt beside the images, \"caption\" in "
                   "KEY.json of a tar, or metadata.jsonl in a folder%s",
                   ds->name, dataset_left_beside(&ds->left, beside));
}

/* Class names must be UTF-8, because they travel as JSON, and lines in terminals and files. */
static int check_classes(const struct dataset *ds, struct err *err)
{
    for (size_t i = 0; i < ds->classes.n; i++) {
        const char *name = ds->classes.items[i];
        if (!str_is_utf8(name, strlen(name)))
            return err_set(err, -ERR_FORMAT,
                           "%s: the name of class %zu, '%.200s', is not UTF-8; rename the class",
                           ds->name, i, name);
        for (const char *p = name; *p; p++)
            if (str_control(p) > 0)
                return err_set(err, -ERR_FORMAT,
                               "%s: the name of class %zu, '%.200s', has a line break or another "
                               "control character; rename the class",
                               ds->name, i, name);
    }
    return 0;
}

static bool is_parquet(const char *name)
{
    return str_ends(name, ".parquet") || str_ends(name, ".arrow");
}

/* Whether there are Parquet or Arrow files at a path, in place of what is read. */
static bool holds_parquet(const char *path)
{
    struct file_names names = {0};
    bool ret = is_parquet(path);
    if (!ret && file_is_dir(path) && file_list(path, DATASET_ENTRIES_MAX, &names, NULL) == 0)
        for (size_t i = 0; i < names.n && !ret; i++)
            ret = is_parquet(names.items[i]);
    file_names_release(&names);
    return ret;
}

static int open_source(const struct dataset_options *opt, struct dataset **ret, struct err *err)
{
    const struct dataset_source *source;
    int rc = find_source(opt, &source, err);
    if (rc < 0)
        return rc;
    struct dataset *ds = mem_alloc(sizeof(*ds));
    ds->source = source;
    ds->path = str_dup(opt->path);
    ds->name = str_dup(opt->name ? opt->name : opt->path);
    ds->column = str_dup(opt->column);
    ds->captions = opt->captions;
    rc = source->open(ds, opt, err);
    if (rc == 0 && ds->captions && !ds->any_captions)
        rc = no_captions(ds, err);
    if (rc == 0)
        rc = check_classes(ds, err);
    ds->left_out = dataset_left_say(&ds->left);
    if (rc < 0)
        dataset_close(ds);
    else
        *ret = ds;
    return rc;
}

int dataset_open(const struct dataset_options *opt, struct dataset **ret, struct err *err)
{
    int rc = open_source(opt, ret, err);
    if (rc == -ERR_FORMAT && err && holds_parquet(opt->path))
        (void)err_set(err, rc, "%s; `python3 -m skerry.parquet` makes such data of Parquet files",
                      err->msg);
    return rc;
}

void dataset_close(struct dataset *ds)
{
    if (!ds)
        return;
    ds->source->close(ds);
    file_names_release(&ds->classes);
    mem_free(ds->left_out);
    mem_free(ds->column);
    mem_free(ds->path);
    mem_free(ds->name);
    mem_free(ds);
}

size_t dataset_classes(const struct dataset *ds)
{
    return ds->classes.n;
}

const char *dataset_class(const struct dataset *ds, size_t i)
{
    return i < ds->classes.n ? ds->classes.items[i] : "?";
}

uint64_t dataset_samples(const struct dataset *ds)
{
    return ds->samples;
}

bool dataset_leaves_captions(const struct dataset *ds)
{
    return ds->any_captions && !ds->captions;
}

const char *dataset_left_out(const struct dataset *ds)
{
    return ds->left_out;
}

const char *dataset_reads(const struct dataset *ds)
{
    return ds->captions && ds->source->reads_captioned ? ds->source->reads_captioned
                                                       : ds->source->reads;
}

int dataset_cut(struct dataset *ds, const struct dataset_cut *opt, struct dataset_report *ret,
                struct err *err)
{
    struct cutter c;
    int rc = cut_open(&c, ds, opt, err);
    return rc < 0 ? rc : cut_close(&c, ds->source->cut(&c, ds), ret);
}
