/* Decides what the agent does next: a pure function of its state and an event.  The agent
 * (worker/agent.c) calls it with each event and carries out its actions; nothing here waits, sends
 * or computes.
 *
 *   IDLE ─ask─► ASKING ─task─► PLANNING ─► FETCHING ─► RUNNING ─► UPLOADING ─► REPORTING ─► IDLE
 *                                 ▲          │  (other hash)│         any failure ──▲  │
 *                                 ├─ AWAITING ◄┘            │                          ▼
 *                                 └────────────────────────┘                        SAVING
 *   revoked: a task on the compute thread is STOPPING until the thread answers; any other is over
 *   hung: a thread that does not answer is left behind by the end of this process
 *   leaving: a result under way, and a snapshot that a phase can still save, get the remaining time
 *            (SENDS); then good-bye (BYE); when the coordinator has heard it (HEARD) and the
 * compute thread is done, the end (ENDED) */
#ifndef WORKER_DECIDE_AGENT_H
#define WORKER_DECIDE_AGENT_H

#include "common/base/base.h"

enum agent_state {
    AGENT_IDLE,     /* no task; asks when it has joined, or when the timer fires */
    AGENT_ASKING,   /* for a task */
    AGENT_PLANNING, /* compute thread: which blobs? */
    AGENT_FETCHING,
    AGENT_AWAITING, /* blobs are missing, and the coordinator cannot be reached */
    AGENT_RUNNING,  /* compute thread */
    AGENT_STOPPING, /* revoked: the compute thread answers within a step, or hangs */
    AGENT_UPLOADING,
    AGENT_REPORTING,
    AGENT_SAVING, /* the report is answered; the local checkpoint is still being written */
    AGENT_STATES,
};

/* Stages of leaving. */
enum agent_leave { AGENT_STAYS, AGENT_SENDS, AGENT_BYE, AGENT_HEARD, AGENT_ENDED };

/* The agent's state. */
struct agent_core {
    enum agent_state state;
    enum agent_leave leave;
    bool cut;    /* FETCHING: the connection was lost meanwhile */
    bool saving; /* the compute thread writes the local checkpoint */
    bool drain;  /* it takes no other task */
    bool broken; /* this process cannot continue after its task */
    bool hung;   /* the compute thread is not waited for any more */
    int saved;   /* snapshots of a notice: 1: it has asked for the first, 2: for the second */
};

enum agent_news {
    /* From the session and its timers. */
    AGENT_JOINED,
    AGENT_LOST,
    AGENT_REFUSED_FOR_EVER, /* wrong key, secret or version */
    AGENT_TIMER,
    AGENT_REVOKED, /* the task in hand */
    AGENT_DRAIN,
    /* Answers to what was asked or reported. */
    AGENT_GIVEN,       /* a task */
    AGENT_NOTHING,     /* no task */
    AGENT_NOTHING_YET, /* no task and nothing new, and the answer came at once: ask after a while */
    AGENT_ACCEPTED,    /* the report */
    AGENT_REJECTED,    /* the report: the result does not count */
    AGENT_UNANSWERED,  /* try again after a while */
    AGENT_UNSENT,      /* not connected: JOINED follows */
    AGENT_HAS_MORE,    /* it holds modules that the ASSIGN in flight does not list */
    /* The steps of a task. */
    AGENT_PLANNED,
    AGENT_FETCHED, /* all */
    AGENT_UNFETCHED,
    AGENT_RAN,
    AGENT_MISBUILT, /* a version rebuilt from deltas has a wrong hash */
    AGENT_UPLOADED,
    AGENT_MISSING, /* the coordinator lacks a file that was sent */
    AGENT_FAILED,  /* any of these steps */
    AGENT_SAVED,
    /* Leaving. */
    AGENT_LEAVE,
    AGENT_LATE, /* the time for sending a result is over */
    AGENT_GOODBYE,
    AGENT_HUNG, /* the compute thread has not answered for long to a stop, or saves for long */
    AGENT_NEWS,
};

/* An event. */
struct agent_event {
    enum agent_news news;
    bool joined;        /* UNFETCHED: whether the coordinator can be reached */
    bool drain;         /* with an answer: no other task after this */
    const char *reason; /* LEAVE */
    bool saves;         /* LEAVE: the running task sends a snapshot */
};

/* To be done in this order. */
enum agent_action {
    AGENT_DO_LEAVE = 1 << 0, /* log decision.reason, stop the task's work */
    AGENT_DO_REVOKE = 1 << 1,
    AGENT_DO_STOP_TIMER = 1 << 2,
    AGENT_DO_DROP = 1 << 3,   /* transfers */
    AGENT_DO_CANCEL = 1 << 4, /* the report or question in flight */
    AGENT_DO_UNSENT = 1 << 5, /* the coordinator does not take what this attempt has made */
    AGENT_DO_FAIL = 1 << 6,   /* the report will say why */
    AGENT_DO_WHOLE = 1 << 7,  /* whole versions, no deltas, from now on */
    AGENT_DO_FINISH = 1 << 8, /* the task is forgotten */
    AGENT_DO_START = 1 << 9,  /* read the task's message, then as AGENT_DO_PLAN */
    AGENT_DO_PLAN = 1 << 10,
    AGENT_DO_FETCH = 1 << 11,
    AGENT_DO_RUN = 1 << 12,
    AGENT_DO_SAVE = 1 << 13,
    AGENT_DO_UPLOAD = 1 << 14,
    AGENT_DO_RESUME = 1 << 15, /* the upload */
    AGENT_DO_REPORT = 1 << 16,
    AGENT_DO_ASK = 1 << 17,
    AGENT_DO_TIMER = 1 << 18,
    AGENT_DO_LATE = 1 << 19, /* start the timer of AGENT_LATE */
    AGENT_DO_BYE = 1 << 20,
    AGENT_DO_END = 1 << 21,
    AGENT_DO_SENT = 1 << 22, /* it has taken it */
};

struct agent_decision {
    unsigned actions;   /* enum agent_action */
    const char *reason; /* why it leaves; NULL: what broke this process */
};

/* Advances the core.  Events that are meaningless in a state change nothing. */
struct agent_decision decide_agent(struct agent_core *c, const struct agent_event *ev);

/* Whether the present task has not been reported yet: a verdict on it is on an earlier attempt, or
 * on fragments that were sent. */
bool decide_agent_makes(const struct agent_core *c);

/* After a notice, with left_ms until the machine goes: go on with the task, ask for a snapshot and
 * go on, or leave.  took_ns: what the last snapshot took to be begun, made and sent (0: none was
 * sent).
 *
 * One is asked for half a minute before, so that little is lost if the last one does not arrive,
 * and at once if nobody knows how long one takes.  The worker leaves when half as much again as
 * one takes is left, and what a good-bye needs, or half a minute if that is not known. */
enum agent_notice { AGENT_NOTICE_WAIT, AGENT_NOTICE_SAVE, AGENT_NOTICE_LEAVE };
enum agent_notice decide_agent_notice(struct agent_core *c, uint64_t left_ms, uint64_t took_ns);

/* Whether the compute thread has the present task. */
bool decide_agent_computes(const struct agent_core *c);

#endif
