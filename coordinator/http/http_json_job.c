/* A job as text.  Its rounds, up to HTTP_JSON_ROUNDS_MAX, would be megabytes of small JSON values,
 * so they are made one at a time. */
#include "common/job/job.h"
#include "coordinator/http/http_json.h"

#define ROUND_BYTES_MAX 768 /* with a comma */

static int write_round(const struct round_rec *r, bool first, struct buf *out)
{
    char text[ROUND_BYTES_MAX];
    json_t *o = http_json_round(r);
    const size_t n = json_dumpb(o, text, sizeof text, HTTP_JSON_FLAGS);
    json_decref(o);
    int rc = first ? 0 : buf_append_byte(out, ',');
    if (rc == 0)
        rc = n > sizeof text ? -ERR_LIMIT : buf_append(out, text, n);
    return rc;
}

static int write_job(const struct job *j, size_t rounds, const char *rest, struct buf *out)
{
    const size_t n = strlen(rest) - 1; /* without its }, which comes at the end */
    const size_t begin = j->n_rounds > rounds ? j->n_rounds - rounds : 0;
    buf_init(out, n + (rounds + 1) * ROUND_BYTES_MAX);
    int rc = buf_append(out, rest, n);
    if (rc == 0)
        rc = buf_append_str(out, ",\"history\":[");
    for (size_t i = begin; rc == 0 && i < j->n_rounds; i++)
        rc = write_round(&j->rounds[i], i == begin, out);
    return rc < 0 ? rc : buf_append_str(out, "]}");
}

static void hide_secrets(json_t *job)
{
    char *spec = job_without_secrets(json_string_value(json_object_get(job, "spec")));
    http_json_put(job, "spec", http_json_text(spec));
    mem_free(spec);
}

int http_json_job_text(struct coordinator *co, uint64_t id, size_t rounds, size_t samples,
                       bool secrets, struct buf *ret, struct err *err)
{
    json_t *o = http_json_job(co, id, samples, err);
    if (o == NULL)
        return err->code;
    if (!secrets)
        hide_secrets(o);
    char *rest = json_dumps(o, HTTP_JSON_FLAGS);
    struct buf out = {0};
    const int rc = rest ? write_job(view_job_record(co, id), rounds, rest, &out) : -ENOMEM;
    json_decref(o);
    mem_free(rest);
    if (rc < 0) {
        buf_release(&out);
        return err_set(err, rc, "job %" PRIu64 " cannot be written as JSON", id);
    }
    *ret = out;
    return 0;
}
