/* State saves itself.
 *
 * A record that has a row is const to all callers; a caller that changes it gets it for writing
 * from the edit function of its table (state_edit_task, job_edit_path ...), which marks it.  At the
 * end of the turn persist_changes() looks at all that were marked and queues the rows that are not
 * what they were: a mark too many costs a look, one too few does not compile.  A job itself needs
 * no mark, its row is compared in every turn.  Fields marked (m) have no column: task_memory() and
 * its like give a record for those alone, and mark nothing. */
#ifndef COORDINATOR_MARK_H
#define COORDINATOR_MARK_H

#include "common/base/base.h"

/* (m) What a record's row was when it was last queued, and whether it may have changed. */
struct row_mark {
    uint64_t seen;   /* hash; 0: no row yet */
    uint64_t commit; /* that has what was queued last; a job's: of all that belongs to it */
    bool edited;
};

/* Ids or indices, in the order in which they came. */
struct marks {
    uint64_t *at;
    size_t n, cap;
};

/* At the end. */
static inline void marks_add(struct marks *m, uint64_t id)
{
    if (m->n == m->cap) {
        m->cap = m->cap ? m->cap * 2 : 16;
        m->at = mem_realloc(m->at, m->cap * sizeof(*m->at));
    }
    m->at[m->n++] = id;
}

/* Marks a record that m lists by id, once. */
static inline void row_edit(struct row_mark *row, struct marks *m, uint64_t id)
{
    if (!row->edited)
        marks_add(m, id);
    row->edited = true;
}

#endif
