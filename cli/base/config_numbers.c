#include "cli/base/config_numbers.h"

#include "cli/base/cli.h"
#include "common/base/buf.h"

/* "0.5", or "true" and "false". */
static const char *say_value(const struct config_number *w, double value, char out[32])
{
    if (w->yes_or_no)
        return value != 0 ? "true" : "false";
    (void)snprintf(out, 32, "%.10g", value);
    return out;
}

/* Appends how the two differ, if they do. */
static int add_difference(const json_t *config, const struct config_number *w, struct buf *out)
{
    char got[32], ours[32];
    const json_t *there = json_object_get(config, w->key);
    const double theirs = w->theirs != 0           ? w->theirs
                          : json_is_boolean(there) ? json_is_true(there)
                                                   : cli_num(config, w->key, w->absent);
    if (isnan(theirs))
        return -ERR_NOTFOUND;
    if (fabs(theirs - w->value) > 1e-9 * fabs(w->value))
        (void)buf_printf(out, "%s%s %s, but the job's %s is %s", out->len ? "; " : "", w->key,
                         say_value(w, theirs, got), w->ours, say_value(w, w->value, ours));
    return 0;
}

int config_numbers_check(const char *dir, const json_t *config, const struct config_number *w,
                         size_t n, struct err *err)
{
    struct buf differ;
    int rc = 0;
    buf_init(&differ, sizeof err->msg);
    for (size_t i = 0; i < n && rc == 0; i++)
        if (add_difference(config, &w[i], &differ) < 0)
            rc = err_set(err, -ERR_CONFIG, "%s/config.json has no %s to compare %s with", dir,
                         w[i].key, w[i].ours);
    if (rc == 0 && differ.len > 0)
        rc = err_set(err, -ERR_CONFIG, "%s/config.json says %s", dir, buf_str(&differ));
    buf_release(&differ);
    return rc;
}
