/* Where a person or a unit gives a token: off the command line, which every user of the machine can
 * read.
 *
 *     -           standard input, one line; at a terminal without an echo
 *     @FILE FILE  a file that holds it
 *     skerry1.…   the token itself */
#ifndef COMMON_NET_TOKEN_SOURCE_H
#define COMMON_NET_TOKEN_SOURCE_H

#include "common/net/token.h"

/* Errors as token_parse(), and of reading. */
int token_source_read(const char *given, struct token *ret, struct err *err);
/* Overwrites a token that stands in argv itself, once it was read; anything else stays. */
void token_source_wipe(const char *given);

#endif
