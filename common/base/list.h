/* An intrusive circular doubly-linked list.  The head is a node of its own; a
 * node is in at most one list.
 *
 *     struct task { int id; struct list link; };
 *     struct list tasks;
 *     list_init(&tasks);
 *     list_push(&tasks, &t->link);
 *     for (struct list *l = tasks.next; l != &tasks; l = l->next)
 *         use(list_entry(l, struct task, link));
 */
#ifndef COMMON_BASE_LIST_H
#define COMMON_BASE_LIST_H

#include "common/base/base.h"

struct list {
    struct list *next, *prev;
};

#define list_entry(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

/* Adds a node at the end. */
static inline void list_push(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void list_push_front(struct list *head, struct list *node)
{
    list_push(head->next, node);
}

/* Leaves the node as an empty list, so removing it twice is harmless. */
static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* Removes and returns the first node; NULL: the list is empty. */
static inline struct list *list_pop(struct list *head)
{
    if (list_empty(head))
        return NULL;
    struct list *first = head->next;
    list_remove(first);
    return first;
}

/* Moves all nodes of `from`, in order, to the end of `to`. */
static inline void list_append(struct list *to, struct list *from)
{
    if (list_empty(from))
        return;
    to->prev->next = from->next;
    from->next->prev = to->prev;
    to->prev = from->prev;
    from->prev->next = to;
    list_init(from);
}

#endif
