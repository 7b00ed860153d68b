/* What `skerry doctor` makes of what it has found: a verdict on each thing, and what to do.
 *
 *     diagnose(&facts, &d);
 *     diagnosis_print(&d, stdout);
 *
 * Pure.  Texts are sentences without a full stop; an empty one is a thing that is well. */
#ifndef CLI_DIAGNOSIS_H
#define CLI_DIAGNOSIS_H

#include <jansson.h>

#include "common/base/base.h"

/* How many of each there are. */
enum { DOCTOR_PROGRAMS = 2, DOCTOR_PORTS = 2, DOCTOR_PLACES = 2, DOCTOR_TEXT = 512 };

struct doctor_program {
    const char *name;
    bool here;               /* beside this program */
    char said[64];           /* "workerd 0.1.0" */
    char wrong[DOCTOR_TEXT]; /* why it does not start */
};

/* A device, tried with a small model. */
struct doctor_device {
    char text[128]; /* "cpu: CPU, 2 threads, AVX2"; empty: not tried */
    double parameters, images_per_s;
    uint64_t room_bytes; /* that training may take */
    char wrong[DOCTOR_TEXT];
};

/* A folder that is written to. */
struct doctor_place {
    const char *what; /* "work directories" */
    char path[256];
    bool writable;
    uint64_t free_bytes;
};

struct doctor_port {
    const char *what; /* "workers" */
    uint16_t number;
    char wrong[DOCTOR_TEXT]; /* why it cannot be reached, or not be listened on */
    int code;                /* of it, as http_client_connect() gives it; 0: none */
};

struct doctor_coordinator {
    bool known;       /* there is a token */
    bool only_joins;  /* it is a worker\'s */
    char host[256];   /* that the token names */
    char role[16];    /* the token's */
    char version[64]; /* empty: it has not told */
    int64_t ahead_ms; /* our clock before its */
    double round_trip_s;
    double up, down;         /* bytes per second; 0: not tried */
    char wrong[DOCTOR_TEXT]; /* why it does not tell */
    char link_wrong[DOCTOR_TEXT];
};

/* What the kernel knows of our clock. */
enum doctor_clock {
    DOCTOR_CLOCK_UNKNOWN, /* in a container: the clock is the host's */
    DOCTOR_CLOCK_FREE,    /* nobody synchronises it */
    DOCTOR_CLOCK_NTP,
};

struct doctor_facts {
    const char *version; /* ours */
    struct doctor_program programs[DOCTOR_PROGRAMS];
    struct doctor_device device, cpu; /* the one that is chosen; and the CPU, if that is a card */
    bool card;                        /* the system has a card of NVIDIA */
    char card_wrong[DOCTOR_TEXT];     /* why it is not used */
    struct doctor_place places[DOCTOR_PLACES];
    enum doctor_clock clock;
    struct doctor_port ports[DOCTOR_PORTS];
    struct doctor_coordinator coordinator;
};

enum verdict {
    VERDICT_OK,
    VERDICT_WARN, /* it works, but worse than it could */
    VERDICT_FAIL, /* it does not */
};

struct finding {
    const char *name; /* "disk" */
    enum verdict verdict;
    char found[3 * DOCTOR_TEXT];
    const char *advice; /* what to do; "" where all is well */
};

#define FINDINGS_MAX 16
/* Findings, in the order in which they are shown. */
struct diagnosis {
    struct finding items[FINDINGS_MAX];
    size_t n;
};

void diagnose(const struct doctor_facts *f, struct diagnosis *ret);
enum verdict diagnosis_worst(const struct diagnosis *d);
/* A line each, and one below with what to do. */
void diagnosis_print(const struct diagnosis *d, FILE *out);
/* {"checks": [{"name", "verdict", "found", "advice"}]} */
json_t *diagnosis_json(const struct diagnosis *d);

#endif
