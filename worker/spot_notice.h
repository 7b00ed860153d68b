/* Reads a cloud's notice that it will take a machine back, from the answers of its metadata
 * service. Pure: the caller gives the time.
 *
 *   AWS    spot/instance-action       {"action": "terminate", "time": "2026-11-22T08:22:00Z"}
 *          events/recommendations/rebalance      {"noticeTime": "2026-11-22T08:22:00Z"}
 *   GCP    instance/preempted         TRUE or FALSE
 *          instance/maintenance-event NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_...
 *   Azure  scheduledevents            {"Events": [{"EventType": "Preempt", "Resources": ["vm1"],
 *                                      "NotBefore": "Mon, 22 Nov 2026 08:22:00 GMT", ...}]}
 *
 * Each reader returns 1 with *ret filled, 0 when there is no notice, or -ERR_FORMAT. */
#ifndef WORKER_SPOT_NOTICE_H
#define WORKER_SPOT_NOTICE_H

#include "common/base/base.h"

#define SPOT_REASON_MAX 160
#define SPOT_NAME_MAX 256
#define SPOT_MS 30000     /* the time left where the cloud does not say */
#define SPOT_GCP_MS 10000 /* the same at GCP, which promises 30 s; 11 s have been seen */
#define SPOT_MS_MAX 3600000u

struct spot_notice {
    bool leave;  /* the machine will be taken back; else it may be soon: save now */
    uint32_t ms; /* time left; 0 without `leave` */
    char reason[SPOT_REASON_MAX];
};

/* spot/instance-action: what happens to the instance, and when. */
int spot_aws_action(const char *body, int64_t now_s, struct spot_notice *ret, struct err *err);
/* The rebalance recommendation: advice, without a time. */
int spot_aws_rebalance(const char *body, struct spot_notice *ret, struct err *err);
/* Whether the preemption has begun. */
int spot_gcp_preempted(const char *body, struct spot_notice *ret, struct err *err);
/* An instance that migrates stays. */
int spot_gcp_maintenance(const char *body, struct spot_notice *ret, struct err *err);
/* vm: this machine's name.  Ignores other machines' events, and freezes of a few seconds. */
int spot_azure_events(const char *body, const char *vm, int64_t now_s, struct spot_notice *ret,
                      struct err *err);

#endif
