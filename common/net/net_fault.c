#include "common/net/net_fault.h"

#ifdef SKERRY_FAULTS

static struct net_fault knobs;
static bool loaded;

static void parse(const char *text)
{
    struct net_fault f = {0};
    for (const char *p = text; *p; p += strcspn(p, ","), p += *p == ',') {
        unsigned a = 0, b = 0;
        if (sscanf(p, "write_max=%u", &a) == 1)
            f.write_max = a;
        else if (sscanf(p, "delay_ms=%u", &a) == 1)
            f.delay_ms = a;
        else if (sscanf(p, "cut=%u", &a) == 1)
            f.cut_frames = a;
        else if (sscanf(p, "drop=%u:%u", &a, &b) == 2) {
            f.drop_method = a;
            f.drop_every = b;
        }
    }
    knobs = f;
    loaded = true;
}

const struct net_fault *net_fault(void)
{
    if (!loaded) {
        const char *text = getenv("SKERRY_FAULT_NET");
        parse(text ? text : "");
    }
    return &knobs;
}

bool net_fault_set(const char *text)
{
    parse(text);
    return true;
}

#else

const struct net_fault *net_fault(void)
{
    static const struct net_fault none;
    return &none;
}

bool net_fault_set(const char *text)
{
    return false;
}

#endif
