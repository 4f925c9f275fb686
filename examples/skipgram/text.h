/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SKIPGRAM_TEXT_H
#define SKIPGRAM_TEXT_H

#include <stdint.h>

/* The words of files, as numbers; the most frequent one is 0. Words that are rare are left out. */
typedef struct {
  int32_t* words; /* [length] */
  int64_t length;
  char** names;    /* [vocabulary] */
  int64_t* counts; /* [vocabulary] */
  int32_t vocabulary;
} Text;

/* NULL, or why there is none. `pattern` names files as a shell would. */
const char* read_text(const char* pattern, int32_t most_words, Text* out);

#endif
