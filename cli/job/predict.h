/* What a job will take, before it is submitted: time, memory, and bytes on the network.
 *
 *     predict_measure(&job, &comp, vocab, &way, &at, err);   // runs `workerd measure`
 *     predict(&job.spec, &comp, &at, &opt, &p);
 *
 * A step is measured on this machine, so "a worker" is one like it, or a part of it where all of
 * them share it.  Not counted: encoders, texts that are generated, and what partitions cost to
 * learn.  A job whose outer.fragments is auto is predicted with those that `skerry submit` would
 * give it, if all is as it says here. */
#ifndef CLI_PREDICT_H
#define CLI_PREDICT_H

#include "cli/job/fragments.h"
#include "cli/job/job_file.h"
#include "common/base/base.h"
#include "common/job/recipe.h"

/* A network of the job on this machine. */
struct measured_network {
    uint64_t parameters; /* 0: the job has no such network */
    uint64_t memory_bytes;
    int batch;
    double step_s;    /* 0: it does not fit */
    double forward_s; /* of a sample */
    double flops;     /* of a step; 0: not known */
};

struct measured {
    char device[128];
    int cards; /* GPUs here, of which one was measured */
    uint64_t room_bytes;
    struct measured_network networks[COMPOSITION_NETWORKS];
    char refused[sizeof(((struct err *)0)->msg)]; /* why a network does not fit; else empty */
};

struct predict_options {
    int workers;          /* at least 1 */
    bool here;            /* they share this machine */
    uint64_t bytes_per_s; /* of every link, the coordinator's too; 0: they cost nothing */
    uint64_t holdout;     /* held-out samples; 0: not known, then as many as are asked for */
    double data_s;        /* that reading and cutting the data takes */
};

struct prediction {
    int phases;                    /* of a round */
    uint64_t up_bytes, down_bytes; /* of the largest phase's contribution, and new version */
    uint64_t snapshot_bytes;       /* of one of its snapshots */
    double snapshot_s;             /* between two; 0: it sends none */
    int snapshots;                 /* in a phase */
    int averages;                  /* of the weights: fetched in the job by those that evaluate */
    uint64_t average_bytes;
    double train_s; /* of a round: steps, on the worker that has most to do */
    double fold_s;  /* of a round: from its last step to the next one's first */
    double link_s;  /* of a round: what its bytes through the coordinator's link make all wait */
    double rest_s;  /* of the job: held-out losses and grids of samples */
    double start_s; /* of the job: its data, and programs that come and go */
    double total_s;
    uint64_t seen;                 /* samples, by all phases of the main network */
    struct exchange whole;         /* link_s and fold_s without fragments */
    struct fragments_choice parts; /* where the job file names none */
};

struct predict_way {
    bool size;    /* the parameters alone, which takes no time */
    int together; /* workers that train on this machine at the same time; 0: one */
    int threads;  /* of each; 0: all */
};

/* Of the composition's networks; vocab: of texts.  Takes seconds.  Negative: there is no workerd
 * beside this program, or it cannot compute, with a sentence. */
int predict_measure(const struct job_file *job, const struct composition *c, uint32_t vocab,
                    const struct predict_way *way, struct measured *ret, struct err *err);

/* The workers of a job of which nobody says how many: one for each phase of a round, but where
 * rounds have a phase for each worker as many as `skerry run` begins, PREDICT_WORKERS. */
#define PREDICT_WORKERS 2
uint32_t predict_workers(const struct composition *c);
/* The phases of a path in a round on so many workers, at least one. */
uint32_t predict_replicas(const struct composition *c, uint32_t path, uint64_t workers);

/* The snapshots of a phase so long, so far apart (0: none is asked for), each of which takes sent_s
 * to arrive: the worker makes none that has not arrived half an interval before the phase's end. */
int predict_snapshots(double phase_s, double apart_s, double sent_s);

/* Pure.  Every network of the composition has a step_s. */
void predict(const struct job_spec *spec, const struct composition *c, const struct measured *at,
             const struct predict_options *opt, struct prediction *ret);

/* For a person: a few lines; samples: to train on, 0: not known. */
void predict_show(const struct job_spec *spec, const struct measured *at,
                  const struct predict_options *opt, const struct prediction *p, uint64_t samples,
                  FILE *out);

#endif
