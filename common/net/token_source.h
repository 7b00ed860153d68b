/* Reads a token from where a person or a unit gives it.  That should not be the command line, which
 * every user of the machine can read.
 *
 *     -           standard input, one line; at a terminal without echo
 *     @FILE FILE  a file that contains it
 *     skerry1.…   the token itself */
#ifndef COMMON_NET_TOKEN_SOURCE_H
#define COMMON_NET_TOKEN_SOURCE_H

#include "common/net/token.h"

/* Errors of token_parse(), and of reading. */
int token_source_read(const char *given, struct token *ret, struct err *err);
/* Overwrites a token given in argv itself, after it was read; leaves anything else. */
void token_source_wipe(const char *given);

#endif
