/* Reads users' text, one document at a time.
 *
 *   x.jsonl  x.jsonl.zst  x.jsonl.gz   one object per line; the text is a string field
 *   x.txt (.zst .gz)                   one document
 *   x.bin                              token ids: uint16, as nanoGPT writes them, or
 *                                      with llm.c's header of 1024 bytes (magic
 *                                      20240520, version 1, uint16); documents end at
 *                                      GPT-2's end-of-text (50256) with the header,
 *                                      else the file is one document
 *   DIR                                all of these in it, sorted by name
 *
 * Reads each source once, in bounded memory: a document has at most TEXT_DOCUMENT_MAX
 * bytes, and a line TEXT_VALUES_MAX values.  Broken lines are errors that name file and line, after
 * which the next line can be read; files that are shortened meanwhile are errors, too.  One thread
 * at a time.
 *
 * Links to libarchive. */
#ifndef COMMON_DATA_TEXT_SOURCE_H
#define COMMON_DATA_TEXT_SOURCE_H

#include "common/base/base.h"

struct text_source;

#define TEXT_DOCUMENT_MAX (256u << 20)
#define TEXT_VALUES_MAX 200000u /* values of one line of a .jsonl */
#define TEXT_FILES_MAX 65536

struct text_source_options {
    const char *path;
    const char *name;   /* decides the format and names documents; NULL: path */
    const char *field;  /* field of a .jsonl; NULL: "text" */
    const char *column; /* field of a .jsonl with an array of numbers; NULL: none */
};

/* A document, borrowed until the next call: text, or ids. */
struct text_document {
    const char *key;  /* "train-00000/17": file, below the source's folder, and line from 0 */
    const char *file; /* its name below the source's folder, for a person */
    const char *text; /* NULL: a token file's, whose ids text_source_ids() reads */
    size_t len;       /* bytes */
    size_t n_ids;
    const float *feature; /* the column; NULL: none asked for */
    size_t dim;
};

/* Lists the files and refuses a path without any; reads nothing yet. */
int text_source_open(const struct text_source_options *opt, struct text_source **ret,
                     struct err *err);
/* 1 with the next document, 0 at the end of all. */
int text_source_next(struct text_source *s, struct text_document *ret, struct err *err);
/* Why the line of a .jsonl for which that failed is broken: a constant, "not JSON", and the line as
 * "x.jsonl, line 7" in *ret_where (mem_free).  NULL: more than a line is. */
const char *text_source_broken(const struct text_source *s, char **ret_where);
/* The ids at..at+n of the document that was given out last, of a token file. */
int text_source_ids(struct text_source *s, size_t at, size_t n, uint32_t *ret, struct err *err);
void text_source_close(struct text_source *s); /* NULL is fine */

/* The number of files and folders that are left out. */
size_t text_source_left(const struct text_source *s);
/* Bytes of the files on disk, and how many of them were read so far. */
uint64_t text_source_bytes(const struct text_source *s);
uint64_t text_source_done(const struct text_source *s);

#endif
