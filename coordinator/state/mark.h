/* Marks: how changed records get saved.
 *
 * A record that has a row is const to all callers; a caller that changes it gets it for writing
 * from the edit function of its table (state_edit_task, job_edit_path ...), which marks it.  At the
 * end of the turn persist_changes() compares all marked records and queues the rows that have
 * changed.  A needless mark costs a comparison; a missing one does not compile.  A job needs no
 * mark: its row is compared in every turn.  Fields marked (m) have no column: task_memory() and the
 * like give a record for writing only those, and mark nothing. */
#ifndef COORDINATOR_MARK_H
#define COORDINATOR_MARK_H

#include "common/base/base.h"

/* (m) A record's row when it was last queued, and whether it may have changed since. */
struct row_mark {
    uint64_t seen;   /* hash of the row; 0: no row yet */
    uint64_t commit; /* the last commit that it was queued for; of a job, with all its records */
    bool edited;
};

/* Ids or indices, in order of arrival. */
struct marks {
    uint64_t *at;
    size_t n, cap;
};

/* Appends id. */
static inline void marks_add(struct marks *m, uint64_t id)
{
    if (m->n == m->cap) {
        m->cap = m->cap ? m->cap * 2 : 16;
        m->at = mem_realloc(m->at, m->cap * sizeof(*m->at));
    }
    m->at[m->n++] = id;
}

/* Marks a record, which m lists by id once. */
static inline void row_edit(struct row_mark *row, struct marks *m, uint64_t id)
{
    if (!row->edited)
        marks_add(m, id);
    row->edited = true;
}

#endif
