/* What a task of any kind comes to, at workers that do not compute: blobs and the report on them.
 */
#ifndef TESTS_SIM_RESULT_H
#define TESTS_SIM_RESULT_H

#include "common/base/base.h"
#include "common/net/blobstore.h"
#include "proto/skerry.pb-c.h"

#define RESULT_BLOBS_MAX 64
#define RESULT_MODULES_MAX 8
#define RESULT_NEEDS_MAX 384

/* What is wrong with a result. */
enum lie {
    LIE_NONE,
    LIE_FAILED,  /* the task failed, perhaps at the next try it will not */
    LIE_LASTING, /* nobody can do it */
    LIE_BAD,     /* more samples are broken than the job takes */
    LIE_HUGE,    /* contributions that would throw the model far away; a step twice as long; other
                  * samples or values than are asked for */
    LIE_NAN,
    LIE_MISSING, /* it names a blob that is not there */
    LIE_EMPTY,   /* nothing was brought */
    LIE_SAMPLES, /* more samples than it had; of a step another momentum */
    LIE_BASE,    /* of a version that is not there yet; of a step another delta; as LIE_HUGE */
    LIE_MEMORY,
    LIES
};

struct result {
    struct result_blob {
        struct blob_id id;
        void *data;
        size_t len;
        bool lie; /* another worker would make something else of the task */
    } blobs[RESULT_BLOBS_MAX];
    size_t n_blobs, n_sent;
    bool snapshot; /* the phase goes on */
    bool asks;     /* it is what a sampler has others evaluate, and not reported */
    uint32_t steps;
    uint8_t *report; /* ReportRequest, packed */
    size_t report_len;
};

/* The weights of a version 0, in a new file. */
void result_begin(const char *path);
/* Can a phase begin with these versions of its modules?  Even a liar cannot train from what fits no
 * network. */
bool result_fits(const Skerry__V1__Task *t, char *const *bases);

/* The blobs that an outer step is made of: how many there are. */
size_t result_needs(const Skerry__V1__Task *t, const Skerry__V1__Blob *ret[RESULT_NEEDS_MAX]);

/* bases: local files of the modules of a phase, by level, or of the blobs that an outer step needs;
 * scratch: a file that may be written, and others whose names begin with its name. */
void result_make(const Skerry__V1__Task *t, char *const *bases, const char *scratch, enum lie lie,
                 struct result *ret);
/* What a phase gives to the module of one level before its end. */
void result_part(const Skerry__V1__Task *t, uint32_t level, char *const *bases, const char *scratch,
                 struct result *ret);
/* How far a phase is after `steps` of `total`.  Of one that is bounded by time it can be folded. */
void result_snapshot(const Skerry__V1__Task *t, uint32_t steps, uint32_t total, char *const *bases,
                     const char *scratch, struct result *ret);
/* What a sampler has an expert evaluated at. */
void result_input(const Skerry__V1__Task *t, uint32_t n, struct result *ret);
void result_release(struct result *r);

/* The held-out loss of a version that has these bits; few are bad, twice as large as the others. */
float result_loss(const uint8_t sha256[32]);

#endif
