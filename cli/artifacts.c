#include "cli/artifacts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/export.h"
#include "cli/loss_svg.h"
#include "cli/merge.h"
#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/transfer.h"

#define POINTS_MAX (4u << 20)
#define SVG_MAX (8u << 20)
#define LEVELS_MAX 64

int artifacts_blob(struct cli *cli, const char *sha256_hex, const char *path, struct err *err)
{
    uint8_t sha256[HASH_BYTES];
    char url[128];

    if (hash_unhex(sha256_hex, sha256, sizeof sha256) < 0)
        return err_set(err, -ERR_FORMAT, "the coordinator named a blob '%s', which is no SHA-256",
                       sha256_hex);
    snprintf(url, sizeof url, "/v1/blobs/%s", sha256_hex);
    return http_get_file(cli->http, url, path, sha256, NULL, NULL, err);
}

/* ---- metrics and the curve ---- */

struct points {
    struct loss_point *items;
    size_t n, cap;
    int router; /* path whose points are left out; -1: there is none */
};

static int points_add(struct points *p, struct loss_point point)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 1024;
        struct loss_point *more =
            cap <= POINTS_MAX ? mem_try_realloc_array(p->items, cap, sizeof *more) : NULL;
        if (!more)
            return -ENOMEM;
        p->items = more;
        p->cap = cap;
    }
    p->items[p->n++] = point;
    return 0;
}

/* One metric record; round records lie at the step that the round ended with. */
static int take_record(struct points *p, const json_t *record)
{
    struct loss_point point = {.step = (double)cli_int(record, "step", 0), .loss = NAN};

    point.path = (int)cli_int(record, "path", 0);
    if (point.path == p->router)
        return 0; /* its loss is of another kind */
    if (!strcmp(cli_str(record, "kind", ""), "loss")) {
        point.loss = cli_num(record, "loss", NAN);
        point.replica = (int)cli_int(record, "replica", 0);
    } else if (!strcmp(cli_str(record, "kind", ""), "round")) {
        point.loss = cli_num(record, "eval_loss", NAN);
        point.replica = -1;
    } /* an evaluation's record has no step; its round has its loss */
    return isnan(point.loss) ? 0 : points_add(p, point);
}

/* Appends a page of JSON lines to the file and its points to p; *after moves on. */
static int take_page(const char *text, FILE *f, struct points *p, uint64_t *after,
                     size_t *ret_lines)
{
    *ret_lines = 0;
    while (*text) {
        size_t len = strcspn(text, "\n");
        json_t *record = json_loadb(text, len, 0, NULL);
        if (record) {
            *after = (uint64_t)cli_int(record, "n", (json_int_t)*after);
            int rc = take_record(p, record);
            json_decref(record);
            if (rc < 0)
                return rc;
            ++*ret_lines;
        }
        if (fwrite(text, 1, len, f) != len || fputc('\n', f) == EOF)
            return -EIO;
        text += len + (text[len] == '\n');
    }
    return 0;
}

static int download_metrics(struct cli *cli, uint64_t job, FILE *f, struct points *p,
                            struct err *err)
{
    uint64_t after = 0, before;
    size_t lines;

    do {
        struct http_response page = {0};
        char path[96];
        before = after;
        snprintf(path, sizeof path, "/v1/jobs/%llu/metrics?after=%llu", (unsigned long long)job,
                 (unsigned long long)after);
        int rc = http_call(cli->http, "GET", path, NULL, 0, &page, err);
        if (rc < 0)
            return rc;
        rc = http_response_check(&page, err);
        if (rc == 0) {
            rc = take_page(page.body, f, p, &after, &lines);
            if (rc < 0)
                err_set(err, rc, "writing metrics.jsonl: %s", err_text(rc));
        }
        http_response_release(&page);
        if (rc < 0)
            return rc;
    } while (lines > 0 && after > before);
    return 0;
}

/* The path of a mixture's router, -1 in other jobs. */
static int find_router(struct cli *cli, uint64_t job, int *ret, struct err *err)
{
    char url[64];
    json_t *answer = NULL;
    const json_t *path;
    size_t i;

    *ret = -1;
    snprintf(url, sizeof url, "/v1/jobs/%llu", (unsigned long long)job);
    int rc = cli_call(cli, "GET", url, NULL, &answer, err);
    if (rc < 0)
        return rc;
    json_array_foreach(json_object_get(answer, "path_list"), i, path)
    {
        if (!strcmp(cli_str(path, "network", ""), "router"))
            *ret = (int)cli_int(path, "path", -1);
    }
    json_decref(answer);
    return 0;
}

int artifacts_metrics(struct cli *cli, uint64_t job, const char *dir, struct err *err)
{
    struct points p = {0};
    struct buf svg;
    char *jsonl = file_join(dir, "metrics.jsonl"), *curve = file_join(dir, "loss.svg");
    FILE *f = fopen(jsonl, "w");
    int rc;

    buf_init(&svg, SVG_MAX);
    if (!f) {
        rc = err_errno(err, "creating %s", jsonl);
        goto out;
    }
    rc = find_router(cli, job, &p.router, err);
    if (rc == 0)
        rc = download_metrics(cli, job, f, &p, err);
    if (fclose(f) != 0 && rc == 0)
        rc = err_errno(err, "writing %s", jsonl);
    if (rc == 0)
        rc = loss_svg(p.items, p.n, "Training loss (bold: the mean of all; dots: held out)", &svg);
    if (rc == 0)
        rc = file_write_atomic(curve, svg.data, svg.len, 0644, err);
out:
    buf_release(&svg);
    mem_free(p.items);
    mem_free(curve);
    mem_free(jsonl);
    return rc;
}

static int take_sample(struct cli *cli, const json_t *sample, const char *dir, const char *grid,
                       struct err *err)
{
    const char *text = cli_str(sample, "text", NULL);
    char *file = file_join(dir, text ? "sample.txt" : grid);
    int rc;
    if (text) {
        char *all = str_printf("%s\n", text);
        rc = file_write_atomic(file, all, strlen(all), 0644, err);
        mem_free(all);
    } else {
        rc = artifacts_blob(cli, cli_str(sample, "blob", ""), file, err);
    }
    mem_free(file);
    return rc;
}

/* The newest sample of a path, JSON null for the mixture; NULL if there is none. */
static const json_t *newest_of(const json_t *list, const json_t *path)
{
    for (size_t i = json_array_size(list); i-- > 0;) {
        const json_t *sample = json_array_get(list, i);
        if (json_equal(json_object_get(sample, "path"), path))
            return sample;
    }
    return NULL;
}

/* The mixture's grid, and beside it one of each of its experts. */
static int take_mixture(struct cli *cli, const json_t *list, const json_t *mixture, const char *dir,
                        struct err *err)
{
    int rc = take_sample(cli, mixture, dir, "samples.png", err);
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        const json_t *sample = json_array_get(list, i), *path = json_object_get(sample, "path");
        char grid[64];
        if (!json_is_integer(path) || newest_of(list, path) != sample)
            continue;
        snprintf(grid, sizeof grid, "samples-expert-%lld.png", (long long)json_integer_value(path));
        rc = take_sample(cli, sample, dir, grid, err);
    }
    return rc;
}

int artifacts_samples(struct cli *cli, uint64_t job, const char *dir, struct err *err)
{
    char path[64];
    json_t *answer;

    snprintf(path, sizeof path, "/v1/jobs/%llu", (unsigned long long)job);
    int rc = cli_call(cli, "GET", path, NULL, &answer, err);
    if (rc < 0)
        return rc;
    const json_t *list = json_object_get(answer, "samples");
    size_t n = json_array_size(list);
    if (n == 0)
        rc = err_set(err, -ERR_NOTFOUND, "job %llu has drawn no samples yet",
                     (unsigned long long)job);
    else if (newest_of(list, json_null()))
        rc = take_mixture(cli, list, newest_of(list, json_null()), dir, err);
    else
        rc = take_sample(cli, json_array_get(list, n - 1), dir, "samples.png", err);
    json_decref(answer);
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
        if (!json_is_object(blob)) /* version 0 has no average: it is its own */
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
    return err_set(err, -ERR_NOTFOUND, "the job has no model yet: version 0 is still to be made");
}

/* The path's blobs by level: those it stopped at early, else the newest. */
static int choose_blobs(const json_t *job, const json_t *path, const json_t *modules, bool ema,
                        const char *blobs[LEVELS_MAX], size_t *ret, struct err *err)
{
    const json_t *best = json_object_get(path, "best_blobs"), *ids;
    size_t n = json_array_size(best);
    bool stopped = ema && n > 0;
    ids = json_object_get(path, "modules");
    n = stopped ? n : json_array_size(ids);
    if (n > LEVELS_MAX)
        return err_set(err, -ERR_LIMIT, "the path has %zu levels, at most %d are known", n,
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

/* The path's entry in the job, which must be a complete model of its own. */
static int find_path(const json_t *job, uint32_t number, const json_t **ret, struct err *err)
{
    const json_t *list = json_object_get(job, "path_list"), *path = json_array_get(list, number);
    if (!path)
        return err_set(err, -EINVAL, "the job has the paths 0 to %zu; there is no %u",
                       json_array_size(list) - 1, number);
    if (strcmp(cli_str(path, "network", "main"), "main") != 0)
        return err_set(err, -EINVAL,
                       "path %u is the router, which is no model by itself: export another path",
                       number);
    *ret = path;
    return 0;
}

static int download_levels(struct cli *cli, const json_t *job, const json_t *route,
                           const json_t *modules, bool ema, const char *dir, struct err *err)
{
    const char *blobs[LEVELS_MAX];
    char *parts[LEVELS_MAX] = {0};
    char *path = file_join(dir, "model.safetensors");
    size_t n = 0;

    int rc = choose_blobs(job, route, modules, ema, blobs, &n, err);
    if (rc == 0)
        rc = file_mkdirs(dir, 0777, err);
    for (size_t i = 0; i < n && rc == 0; i++) {
        parts[i] = str_printf("%s.level%zu", path, i);
        rc = artifacts_blob(cli, blobs[i], parts[i], err);
    }
    if (rc == 0)
        rc = n == 1 ? file_rename(parts[0], path, err) : merge_safetensors(parts, n, path, err);
    for (size_t i = 0; i < n; i++) {
        if (parts[i])
            (void)file_remove(parts[i], NULL); /* the single one was renamed */
        mem_free(parts[i]);
    }
    mem_free(path);
    return rc;
}

int artifacts_model(struct cli *cli, uint64_t job, uint32_t number, bool ema, const char *dir,
                    struct err *err)
{
    json_t *modules = NULL, *about = NULL;
    const json_t *route = NULL;
    char path[64];

    snprintf(path, sizeof path, "/v1/modules?job=%llu", (unsigned long long)job);
    int rc = cli_call(cli, "GET", path, NULL, &modules, err);
    snprintf(path, sizeof path, "/v1/jobs/%llu", (unsigned long long)job);
    if (rc == 0)
        rc = cli_call(cli, "GET", path, NULL, &about, err);
    if (rc == 0)
        rc = find_path(about, number, &route, err);
    if (rc == 0)
        rc = download_levels(cli, about, route, modules, ema, dir, err);
    if (rc == 0)
        rc = export_write(cli, about, dir, ema, err);
    if (rc == 0 && cli_int(route, "round", 0) == 0)
        fprintf(stderr,
                "skerry: path %u of job %llu has not ended a round yet: these are the weights that "
                "it began with\n",
                number, (unsigned long long)job);
    json_decref(about);
    json_decref(modules);
    return rc;
}
