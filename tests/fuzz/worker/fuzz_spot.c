/* Answers of a metadata service: whatever it says is a notice, none, or an error. */
#include "worker/spot_notice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int rc, const struct spot_notice *n)
{
    if (rc != 0 && rc != 1 && rc != -ERR_FORMAT)
        abort();
    if (rc == 1 && (n->ms > SPOT_MS_MAX || (!n->leave && n->ms) || !n->reason[0]))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_alloc(size + 1);
    struct spot_notice n;
    struct err err = {0};
    memcpy(text, data, size);
    expect(spot_aws_action(text, 1763799600, &n, &err), &n);
    expect(spot_aws_rebalance(text, &n, &err), &n);
    expect(spot_gcp_preempted(text, &n, &err), &n);
    expect(spot_gcp_maintenance(text, &n, &err), &n);
    expect(spot_azure_events(text, "vm1", 1763799600, &n, &err), &n);
    mem_free(text);
    return 0;
}
