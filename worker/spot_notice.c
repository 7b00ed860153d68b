#include "worker/spot_notice.h"

#include <curl/curl.h>
#include <jansson.h>
#include <time.h>

static int say(struct spot_notice *ret, bool leave, uint32_t ms, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static int say(struct spot_notice *ret, bool leave, uint32_t ms, const char *fmt, ...)
{
    va_list args;
    *ret = (struct spot_notice){.leave = leave, .ms = leave ? ms : 0};
    va_start(args, fmt);
    (void)vsnprintf(ret->reason, sizeof(ret->reason), fmt, args);
    va_end(args);
    return 1;
}

/* From now to then; 0 if it is past. */
static uint32_t left_ms(int64_t then_s, int64_t now_s)
{
    if (then_s <= now_s)
        return 0;
    return then_s - now_s < SPOT_MS_MAX / 1000 ? (uint32_t)(then_s - now_s) * 1000 : SPOT_MS_MAX;
}

/* "2026-11-22T08:22:00Z" */
static bool read_time(const char *text, int64_t *ret)
{
    struct tm t = {0};
    char z = 0;
    if (text == NULL || sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%c", &t.tm_year, &t.tm_mon, &t.tm_mday,
                               &t.tm_hour, &t.tm_min, &t.tm_sec, &z) != 7)
        return false;
    t.tm_year -= 1900;
    t.tm_mon--;
    *ret = timegm(&t);
    return z == 'Z';
}

static json_t *read_object(const char *body, struct err *err)
{
    json_t *doc = json_loads(body, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(doc))
        return doc;
    json_decref(doc);
    (void)err_set(err, -ERR_FORMAT, "a JSON object was expected, not \"%.60s\"", body);
    return NULL;
}

int spot_aws_action(const char *body, int64_t now_s, struct spot_notice *ret, struct err *err)
{
    json_t *doc = read_object(body, err);
    const char *action = json_string_value(json_object_get(doc, "action"));
    int64_t then;
    if (doc == NULL)
        return -ERR_FORMAT;
    int rc;
    if (action == NULL)
        rc = err_set(err, -ERR_FORMAT, "the instance action has no \"action\"");
    else if (!read_time(json_string_value(json_object_get(doc, "time")), &then))
        rc = say(ret, true, SPOT_MS, "AWS will %.20s this instance", action);
    else
        rc = say(ret, true, left_ms(then, now_s), "AWS will %.20s this instance", action);
    json_decref(doc);
    return rc;
}

int spot_aws_rebalance(const char *body, struct spot_notice *ret, struct err *err)
{
    json_t *doc = read_object(body, err);
    if (doc == NULL)
        return -ERR_FORMAT;
    const bool there = json_string_value(json_object_get(doc, "noticeTime")) != NULL;
    json_decref(doc);
    if (!there)
        return err_set(err, -ERR_FORMAT, "the rebalance recommendation has no \"noticeTime\"");
    return say(ret, false, 0, "AWS may take this instance back soon");
}

/* Is the answer this word, perhaps followed by white space? */
static bool is_word(const char *body, const char *word)
{
    const size_t n = strlen(word);
    return strncmp(body, word, n) == 0 && body[n + strspn(body + n, " \r\n")] == '\0';
}

int spot_gcp_preempted(const char *body, struct spot_notice *ret, struct err *err)
{
    if (is_word(body, "TRUE"))
        return say(ret, true, SPOT_GCP_MS, "Google preempts this instance");
    if (is_word(body, "FALSE"))
        return 0;
    return err_set(err, -ERR_FORMAT, "TRUE or FALSE was expected, not \"%.60s\"", body);
}

int spot_gcp_maintenance(const char *body, struct spot_notice *ret, struct err *err)
{
    if (is_word(body, "TERMINATE_ON_HOST_MAINTENANCE"))
        return say(ret, true, 2 * SPOT_MS, "Google maintains this instance's host");
    if (is_word(body, "NONE") || is_word(body, "MIGRATE_ON_HOST_MAINTENANCE"))
        return 0;
    return err_set(err, -ERR_FORMAT, "a maintenance event was expected, not \"%.60s\"", body);
}

static bool concerns(const json_t *event, const char *vm)
{
    size_t i;
    const json_t *name;
    json_array_foreach(json_object_get(event, "Resources"), i, name)
    {
        const char *text = json_string_value(name);
        if (text != NULL && strcasecmp(text, vm) == 0)
            return true;
    }
    return false;
}

/* Does the machine go?  A freeze of some seconds does not matter. */
static bool ends_machine(const char *type)
{
    static const char *const types[] = {"Preempt", "Terminate", "Redeploy", "Reboot"};
    for (size_t i = 0; type != NULL && i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

int spot_azure_events(const char *body, const char *vm, int64_t now_s, struct spot_notice *ret,
                      struct err *err)
{
    json_t *doc = read_object(body, err);
    const json_t *list = json_object_get(doc, "Events"), *event;
    uint32_t least = UINT32_MAX;
    size_t i;
    int rc = 0;
    if (doc == NULL)
        return -ERR_FORMAT;
    if (!json_is_array(list))
        rc = err_set(err, -ERR_FORMAT, "the scheduled events have no \"Events\"");
    json_array_foreach(list, i, event)
    {
        const char *type = json_string_value(json_object_get(event, "EventType"));
        const char *when = json_string_value(json_object_get(event, "NotBefore"));
        if (!ends_machine(type) || !concerns(event, vm))
            continue;
        /* A started event has no time any more. */
        const time_t then = when != NULL && when[0] ? curl_getdate(when, NULL) : -1;
        const uint32_t ms = left_ms(then, now_s);
        if (ms >= least)
            continue;
        least = ms;
        rc = say(ret, true, ms, "Azure's scheduled event: %.20s", type);
    }
    json_decref(doc);
    return rc;
}
