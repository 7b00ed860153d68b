#include "cli/show/models.h"

#include "cli/base/cli.h"
#include "cli/base/merge.h"
#include "cli/base/model_folder.h"
#include "common/base/moving.h"
#include "cli/show/artifacts.h"
#include "cli/show/card.h"
#include "common/base/file.h"
#include "common/data/tar.h"
#include "common/job/job.h"
#include "common/job/recipe.h"
#include "common/net/http/http_client.h"

#define LEVELS_MAX 64
#define MARK ".skerry" /* in a model's folder: whose it is */
#define MARK_MAX 1000
#define ENTRIES_MAX 1000000
#define MODEL_TRIES 5 /* tries while the job replaces the version being fetched */

/* The models of a job that are being fetched. */
struct fetch {
    struct cli *cli;
    uint64_t job;
    bool ema, replace;
    struct job_spec spec;
    json_t *modules, *about; /* the newest answers */
    char *parts;             /* folder of modules, each named by its SHA-256 */
    char *beside, *tar;      /* a temporary folder, and the companions in it; NULL: none yet */
    bool adapter;            /* they are of an adapter of peft */
    size_t n, done;          /* models */
};

/* ---- the folders ---- */

/* Adds to an error about a file of the folder what to do. */
static int say_other(const char *dir, struct err *err)
{
    const struct err why = *err;
    return err_set(err, -EEXIST,
                   "%s, and would be taken for a part of this model: give another folder with "
                   "--out, or remove %s",
                   why.msg, dir);
}

static int check_folder(const struct job_spec *spec, bool router, const char *dir, struct err *err)
{
    const bool told = job_has_captions(spec) && !router, text = spec->model.type == JOB_MODEL_LLAMA;
    const struct {
        const char *name;
        bool ours;
    } files[] = {
        {"model.safetensors", !told},
        {"diffusion_pytorch_model.safetensors", told},
        {"generation_config.json", text},
        {"tokenizer_config.json", text},
    };
    int rc = 0;
    if (spec->model.type == JOB_MODEL_EXTERNAL) /* its companions may have any name */
        return 0;
    for (size_t i = 0; i < sizeof files / sizeof *files && rc == 0; i++) {
        char *path = file_join(dir, files[i].name);
        if (!files[i].ours && file_exists(path)) {
            (void)err_set(err, -EEXIST, "%s is of another kind of model", path);
            rc = say_other(dir, err);
        }
        mem_free(path);
    }
    return rc;
}

/* Whose the model is: also of two coordinators no jobs have the same (mem_free). */
static char *mark_of(const json_t *about)
{
    return str_printf("job %lld (%.200s), submitted %.60s", cli_int(about, "id", 0),
                      cli_str(about, "name", ""), cli_str(about, "created_at", ""));
}

static int other_model(const char *dir, const char *whose, struct err *err)
{
    return err_set(err, -EEXIST,
                   "%s holds the model of %s: give another folder with --out, or write over it "
                   "with --replace",
                   dir, whose);
}

/* Refuses a folder with anything but this job's model; hidden files are nobody's. */
static int check_owner(const json_t *about, const char *dir, struct err *err)
{
    char *path = file_join(dir, MARK), *mark = mark_of(about);
    struct file_names names = {0};
    struct buf was = {0};
    const bool marked = file_read(path, MARK_MAX, &was, NULL) == 0;
    int rc = 0;
    if (marked && strcmp(buf_str(&was), mark) != 0)
        rc = other_model(dir, buf_str(&was), err);
    else if (!marked && file_list(dir, ENTRIES_MAX, &names, NULL) == 0 && names.n > 0)
        rc = err_set(err, -EEXIST,
                     "%s holds files that are not of this job's export, such as %s: give another "
                     "folder with --out, or write among and over them with --replace",
                     dir, names.items[0]);
    file_names_release(&names);
    buf_release(&was);
    mem_free(mark);
    mem_free(path);
    return rc;
}

static int mark_folder(const json_t *about, const char *dir, struct err *err)
{
    char *path = file_join(dir, MARK), *mark = mark_of(about);
    int rc = file_mkdirs(dir, 0777, err);
    if (rc == 0)
        rc = file_write_atomic(path, mark, strlen(mark), 0644, err);
    mem_free(mark);
    mem_free(path);
    return rc;
}

static bool is_router(const json_t *path)
{
    return !strcmp(cli_str(path, "network", ""), "router");
}

/* The folder of a path's model, of a job with n paths (mem_free): DIR itself or, beside it, DIR-0,
 * DIR-1 .. and DIR-router. */
static char *folder_of(const char *dir, size_t n, bool router, uint32_t number)
{
    if (n == 1 || !dir[0]) /* without a name it is refused */
        return str_dup(dir);
    char *base = str_dup(dir), *folder;
    for (size_t len = strlen(base); len > 0 && base[len - 1] == '/';)
        base[--len] = '\0';
    const char *slash = strrchr(base, '/'), *last = slash ? slash + 1 : base;
    const char *name = !last[0] || !strcmp(last, ".") || !strcmp(last, "..") ? "/model" : "";
    folder = router ? str_printf("%s%s-router", base, name)
                    : str_printf("%s%s-%" PRIu32, base, name, number);
    mem_free(base);
    return folder;
}

int models_check_folders(const struct job_spec *spec, const char *dir, struct err *err)
{
    struct composition c;
    int rc = recipe_compose(spec, &c, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < c.n_paths && rc == 0; i++) {
        const bool router = c.paths[i].network != 0;
        char *folder = folder_of(dir, c.n_paths, router, i);
        rc = check_folder(spec, router, folder, err);
        mem_free(folder);
    }
    composition_release(&c);
    return rc;
}

/* Files of an earlier job that libraries would read as this model's, tokenizers first, and of these
 * those first that only companions have. */
static const char *const others[] = {"special_tokens_map.json",
                                     "added_tokens.json",
                                     "chat_template.jinja",
                                     "tokenizer.json",
                                     "tokenizer.model",
                                     "tokenizer_config.json",
                                     "config.json",
                                     "generation_config.json"};
enum { COMPANIONS_ALONE = 3, TOKENIZER_FILES = 6, OTHER_FILES = sizeof others / sizeof *others };

/* Removes the first n of them if they may be replaced.  Else refuses the folder if one is there, or
 * only names it, as a person may have put it there. */
static int clear_others(const char *dir, size_t n, bool replace, bool refuse, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        char *path = file_join(dir, others[i]);
        if (replace) {
            rc = file_remove(path, err);
        } else if (file_exists(path) && refuse) {
            (void)err_set(err, -EEXIST, "%s is not of this job", path);
            rc = say_other(dir, err);
        } else if (file_exists(path)) {
            fprintf(stderr, "skerry: %s was there before, and is not of this job\n", path);
        }
        mem_free(path);
    }
    return rc;
}

/* A companion comes from the job's submitter, so it must not be weights. */
static bool is_companion(const char *name)
{
    return !model_folder_is_weights(name);
}

/* One that no export of a llama writes over anyway. */
static bool is_other_companion(const char *name)
{
    for (size_t i = COMPANIONS_ALONE; i < OTHER_FILES; i++)
        if (strcmp(name, others[i]) == 0)
            return false;
    return is_companion(name);
}

/* Refuses a folder in which a companion would replace a file: a submitter would choose which. */
static int compare_companions(const char *tar, const char *dir, bool (*wanted)(const char *name),
                              struct err *err)
{
    const struct tar_unpack how = {.max = TAR_FOLDER_BYTES, .wanted = wanted, .compare = true};
    const int rc = tar_unpack(tar, dir, &how, err);
    return rc == -EEXIST ? say_other(dir, err) : rc;
}

/* Writes the companions of the warm start's weights, such as config.json; what a llama's export has
 * made itself gives way. */
static int write_companions(const json_t *job, const char *tar, const char *dir, struct err *err)
{
    const struct tar_unpack how = {.mode = 0644, .max = TAR_FOLDER_BYTES, .wanted = is_companion};
    const int rc = tar_unpack(tar, dir, &how, err);
    return rc == 0 ? artifacts_keep_config(job, dir, err) : rc;
}

/* Refuses a folder with files that are not this model's, or takes what it may replace; before the
 * weights come, which replace others. */
static int prepare_folder(const struct fetch *f, bool router, const char *dir, struct err *err)
{
    const bool external = f->spec.model.type == JOB_MODEL_EXTERNAL;
    const bool known = artifacts_has_tokenizer(f->about);
    int rc = check_folder(&f->spec, router, dir, err);
    if (rc == 0 && f->spec.model.type == JOB_MODEL_LLAMA && !(known && f->tar && !f->replace))
        rc = clear_others(dir, known ? COMPANIONS_ALONE : TOKENIZER_FILES, f->replace, !known, err);
    if (rc == 0 && external && !f->tar)
        rc = clear_others(dir, OTHER_FILES, f->replace, false, err);
    if (rc == 0 && f->tar && !f->replace)
        rc = compare_companions(f->tar, dir, external ? is_companion : is_other_companion, err);
    return rc;
}

/* ---- the model ---- */

/* The newest blob of the wanted kind that a module has; NULL: none yet. */
static const char *newest_blob(const json_t *module, bool ema)
{
    const json_t *version;
    size_t i;
    json_array_foreach(json_object_get(module, "versions"), i, version)
    {
        const json_t *blob = json_object_get(version, ema ? "ema" : "full");
        if (!json_is_object(blob)) /* version 0 is its own average */
            blob = json_object_get(version, "full");
        if (json_is_object(blob))
            return cli_str(blob, "sha256", "");
    }
    return NULL;
}

static const json_t *module_by_id(const json_t *modules, json_int_t id)
{
    const json_t *module;
    size_t i;
    json_array_foreach(json_object_get(modules, "items"), i, module)
    {
        if (cli_int(module, "id", 0) == id)
            return module;
    }
    return NULL;
}

static int no_model(const json_t *job, struct err *err)
{
    const char *state = cli_str(job, "state", "");
    if (cli_job_ended(state))
        return err_set(err, -ERR_NOTFOUND, "the job has no model to export, it is %s: %s", state,
                       cli_str(job, "reason", "it ended before version 0 was made"));
    return err_set(
        err, -ERR_NOTFOUND,
        "the job has no model yet, because version 0 is still to be made: try again in a "
        "moment, or see `skerry status` for what it waits for");
}

/* The path's blobs by level: those of its early stop, else the newest. */
static int choose_blobs(const json_t *job, const json_t *path, const json_t *modules, bool ema,
                        const char *blobs[LEVELS_MAX], size_t *ret, struct err *err)
{
    const json_t *best = json_object_get(path, "best_blobs"), *ids;
    size_t n = json_array_size(best);
    bool stopped = ema && n > 0;
    ids = json_object_get(path, "modules");
    n = stopped ? n : json_array_size(ids);
    if (n > LEVELS_MAX)
        return err_set(err, -ERR_LIMIT, "the path has %zu levels, at most %d are supported", n,
                       LEVELS_MAX);
    for (size_t i = 0; i < n; i++) {
        blobs[i] =
            stopped ? json_string_value(json_array_get(best, i))
                    : newest_blob(module_by_id(modules, json_integer_value(json_array_get(ids, i))),
                                  ema);
        if (!blobs[i])
            return no_model(job, err);
    }
    *ret = n;
    return 0;
}

static int look(struct fetch *f, struct err *err)
{
    const unsigned long long job = f->job;
    json_t *modules = NULL, *about = NULL;
    int rc = cli_call(f->cli, "GET", NULL, &modules, err, "/v1/modules?job=%llu", job);
    if (rc == 0)
        rc = cli_call(f->cli, "GET", NULL, &about, err, "/v1/jobs/%llu", job);
    if (rc < 0) {
        json_decref(modules);
        return rc;
    }
    json_decref(f->modules);
    json_decref(f->about);
    f->modules = modules;
    f->about = about;
    return 0;
}

static int find_path(const struct fetch *f, uint32_t number, const json_t **ret, struct err *err)
{
    const json_t *list = json_object_get(f->about, "path_list");
    const json_t *path = json_array_get(list, number);
    const size_t n = json_array_size(list);
    if (!path && n <= 1)
        return err_set(err, -EINVAL, "there is no path %" PRIu32 ": the job has only path 0",
                       number);
    if (!path)
        return err_set(err, -EINVAL, "there is no path %" PRIu32 ": the job has the paths 0 to %zu",
                       number, n - 1);
    *ret = path;
    return 0;
}

/* Gets a module's file, unless it was fetched for another path, or before the export was cut. */
static int get_part(const struct fetch *f, const char *blob, const char *part, struct err *err)
{
    char what[64] = "downloading the model";
    if (file_exists(part))
        return 0;
    if (f->n > 1)
        (void)snprintf(what, sizeof what, "downloading model %zu of %zu", f->done + 1, f->n);
    struct moving show = moving_begin(what);
    int rc = artifacts_blob_shown(f->cli, blob, part, f->cli->json ? NULL : &show, err);
    moving_clear();
    return rc == -ERR_NOTFOUND ? (err->code = -ERR_STALE) : rc; /* it was there when chosen */
}

/* Does a path that is still to be fetched cross the module? */
static bool is_crossed_later(const struct fetch *f, uint32_t number, const json_t *module)
{
    const json_t *list = json_object_get(f->about, "path_list"), *id;
    size_t i;
    for (size_t p = (size_t)number + 1; p < json_array_size(list); p++)
        json_array_foreach(json_object_get(json_array_get(list, p), "modules"), i, id)
        {
            if (json_equal(id, module))
                return true;
        }
    return false;
}

/* The name of the file of weights. */
static const char *name_of(const struct fetch *f, const json_t *path)
{
    if (cli_int(json_object_get(f->about, "input"), "caption", 0) > 0 && !is_router(path))
        return "diffusion_pytorch_model.safetensors";
    return f->adapter ? "adapter_model.safetensors" : "model.safetensors"; /* as peft has it */
}

static int download_levels(struct fetch *f, uint32_t number, const json_t *path,
                           const char *const *blobs, size_t n, const char *dir, struct err *err)
{
    char *parts[LEVELS_MAX] = {0};
    char *file = file_join(dir, name_of(f, path));
    if (!f->parts)
        f->parts = file_join(dir, ".parts");
    int rc = file_mkdirs(f->parts, 0777, err);
    for (size_t i = 0; i < n && rc == 0; i++) {
        parts[i] = file_join(f->parts, blobs[i]);
        rc = get_part(f, blobs[i], parts[i], err);
    }
    if (rc == 0)
        rc = merge_safetensors(parts, n, file, err);
    for (size_t i = 0; i < n; i++) {
        const json_t *module = json_array_get(json_object_get(path, "modules"), i);
        if (rc == 0 && !is_crossed_later(f, number, module))
            (void)file_remove(parts[i], NULL);
        mem_free(parts[i]);
    }
    mem_free(file);
    return rc;
}

static bool is_adapter_config(const char *name)
{
    return strcmp(name, "adapter_config.json") == 0;
}

/* Gets the companions, once for all paths, if the job has some. */
static int get_companions(struct fetch *f, struct err *err)
{
    const struct tar_unpack how = {
        .mode = 0600, .max = TAR_FOLDER_BYTES, .wanted = is_adapter_config};
    const json_t *blob = json_object_get(f->about, "companions");
    if (f->tar || !json_is_object(blob))
        return 0;
    int rc = cli_temporary(&f->beside, err);
    if (rc < 0)
        return rc;
    f->tar = file_join(f->beside, "companions.tar");
    rc = artifacts_blob(f->cli, cli_str(blob, "sha256", ""), f->tar, err);
    if (rc == 0)
        rc = tar_unpack(f->tar, f->beside, &how, err);
    char *config = file_join(f->beside, "adapter_config.json");
    f->adapter = f->spec.model.type == JOB_MODEL_EXTERNAL && file_exists(config);
    mem_free(config);
    return rc;
}

static int take_newest(struct fetch *f, uint32_t number, const char *dir, struct err *err)
{
    const json_t *path = NULL;
    const char *blobs[LEVELS_MAX];
    size_t n = 0;

    int rc = find_path(f, number, &path, err);
    if (rc == 0)
        rc = choose_blobs(f->about, path, f->modules, f->ema, blobs, &n, err);
    if (rc == 0)
        rc = get_companions(f, err);
    if (rc == 0)
        rc = prepare_folder(f, is_router(path), dir, err);
    if (rc == 0)
        rc = mark_folder(f->about, dir, err);
    if (rc == 0)
        rc = download_levels(f, number, path, blobs, n, dir, err);
    if (rc == 0)
        rc = is_router(path) ? artifacts_router_files(f->about, dir, f->ema, err)
                             : artifacts_files(f->cli, f->about, dir, f->ema, err);
    if (rc == 0 && f->tar)
        rc = write_companions(f->about, f->tar, dir, err);
    if (rc == 0 && f->spec.model.type != JOB_MODEL_EXTERNAL)
        rc = card_write(f->about, path, &f->spec, f->ema, dir, err);
    if (rc == 0 && cli_int(path, "round", 0) == 0)
        fprintf(stderr,
                "skerry: path %u of job %llu has not ended a round yet: these are the weights that "
                "it began with\n",
                number, (unsigned long long)f->job);
    return rc;
}

/* As take_newest, again where the job has replaced what was to be fetched. */
static int take_path(struct fetch *f, uint32_t number, const char *dir, struct err *err)
{
    int rc = take_newest(f, number, dir, err);
    for (int i = 1; i < MODEL_TRIES && rc == -ERR_STALE; i++) {
        rc = look(f, err);
        if (rc == 0)
            rc = take_newest(f, number, dir, err);
    }
    return rc == -ERR_STALE ? err_wrap(err,
                                       "the job makes new versions faster than they can be "
                                       "fetched; `skerry pause %llu` lets it rest meanwhile",
                                       (unsigned long long)f->job)
                            : rc;
}

/* Where the i-th model that is to be fetched goes (mem_free): that of path *ret. */
static char *folder_at(const struct fetch *f, const char *dir, int only, size_t i, uint32_t *ret)
{
    *ret = only < 0 ? (uint32_t)i : (uint32_t)only;
    const json_t *path = json_array_get(json_object_get(f->about, "path_list"), *ret);
    return folder_of(dir, f->n, is_router(path), *ret);
}

/* Looks at all folders before the first model is fetched. */
static int check_owners(const struct fetch *f, const char *dir, int only, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < f->n && rc == 0 && !f->replace; i++) {
        uint32_t number;
        char *folder = folder_at(f, dir, only, i, &number);
        rc = check_owner(f->about, folder, err);
        mem_free(folder);
    }
    return rc;
}

int models_take(struct cli *cli, uint64_t job, int only, bool ema, const char *dir, bool replace,
                struct file_names *ret, struct err *err)
{
    struct fetch f = {.cli = cli, .job = job, .ema = ema, .replace = replace, .n = 1};
    struct file_names folders = {0};
    int rc = look(&f, err);
    const char *text = cli_str(f.about, "spec", "");
    if (rc == 0)
        rc = job_parse_saved(text, strlen(text), "the job", &f.spec, err);
    if (rc == 0 && only < 0 && (f.n = json_array_size(json_object_get(f.about, "path_list"))) == 0)
        rc = no_model(f.about, err);
    if (rc == 0)
        rc = check_owners(&f, dir, only, err);
    for (; rc == 0 && f.done < f.n; f.done++) {
        uint32_t number;
        char *folder = folder_at(&f, dir, only, f.done, &number);
        rc = take_path(&f, number, folder, err);
        if (rc == 0)
            rc = file_names_add(&folders, COMPOSITION_PATHS_MAX, folder, err);
        else
            mem_free(folder);
    }
    if (f.parts && rc < 0 && http_get_goes_on(rc))
        (void)err_set(err, rc,
                      "%s; what has come of it is kept in %s, and an export to the same folder "
                      "goes on there",
                      err->msg, f.parts);
    else if (f.parts)
        (void)file_remove_tree(f.parts, NULL);
    if (rc == 0)
        *ret = folders;
    else
        file_names_release(&folders);
    if (f.beside)
        (void)file_remove_tree(f.beside, NULL); /* in the temporary directory */
    mem_free(f.beside);
    mem_free(f.tar);
    mem_free(f.parts);
    job_release(&f.spec);
    json_decref(f.about);
    json_decref(f.modules);
    return rc;
}
