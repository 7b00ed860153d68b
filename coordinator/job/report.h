/* Reports of workers about their tasks. */
#ifndef COORDINATOR_REPORT_H
#define COORDINATOR_REPORT_H

struct Skerry__V1__Blob;
struct Skerry__V1__ReportRequest;
struct blob_ref;
struct coordinator;
struct err;
struct job;
struct task;
struct worker;

/* Applies a report that fits its lease; 0, or -ERR_STALE / -EINVAL with the
 * reason that the worker is told. */
int report_apply(struct coordinator *co, struct worker *w,
                 const struct Skerry__V1__ReportRequest *r, struct err *err);

int report_blob(struct coordinator *co, const struct Skerry__V1__Blob *b, const char *what,
                struct blob_ref *ret, struct err *err);
int report_feature(struct coordinator *co, struct job *j, struct task *t,
                   const struct Skerry__V1__ReportRequest *r, struct err *err);
int report_cluster(struct coordinator *co, struct job *j, struct task *t,
                   const struct Skerry__V1__ReportRequest *r, struct err *err);
int report_split(struct coordinator *co, struct job *j, struct task *t,
                 const struct Skerry__V1__ReportRequest *r, struct err *err);
int report_score(struct coordinator *co, struct job *j, struct task *t,
                 const struct Skerry__V1__ReportRequest *r, struct err *err);
/* Keeps figures that came with a result. */
void report_rows(struct coordinator *co, struct job *j, const struct task *t,
                 const struct Skerry__V1__ReportRequest *r);

#endif
