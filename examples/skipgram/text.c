/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "text.h"

#include <ctype.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 24, SLOTS = 1 << 18, RAREST = 5 };

typedef struct {
  char name[LONGEST];
  int64_t count;
  int32_t number; /* in the order of their appearance, then by frequency */
} Word;

typedef struct {
  Word* slots; /* [SLOTS], by the hash of the name */
  int32_t used;
  int32_t* words;
  int64_t length, room;
} Reader;

static Word* find(Reader* reader, const char* name) {
  uint32_t hash = 2166136261u;
  for (const char* c = name; *c != '\0'; ++c) hash = (hash ^ (unsigned char)*c) * 16777619u;
  for (uint32_t i = hash % SLOTS;; i = (i + 1) % SLOTS) {
    Word* word = &reader->slots[i];
    if (word->name[0] == '\0' || strcmp(word->name, name) == 0) return word;
  }
}

static int add(Reader* reader, const char* name) {
  Word* word = find(reader, name);
  if (word->name[0] == '\0') {
    if (reader->used == SLOTS / 2) return 1; /* a text of very many words: the others do */
    strcpy(word->name, name);
    word->number = reader->used++;
  }
  ++word->count;
  if (reader->length == reader->room) {
    reader->room = 2 * reader->room + 65536;
    int32_t* const more = realloc(reader->words, (size_t)reader->room * sizeof *more);
    if (more == NULL) return 0;
    reader->words = more;
  }
  reader->words[reader->length++] = word->number;
  return 1;
}

static int read_file(Reader* reader, FILE* file) {
  char name[LONGEST];
  int length = 0;
  for (int c = 0; c != EOF;) {
    c = fgetc(file);
    if (c != EOF && isalpha(c) && c < 128) {
      if (length < LONGEST - 1) name[length++] = (char)tolower(c);
    } else if (length > 0) {
      name[length] = '\0';
      length = 0;
      if (!add(reader, name)) return 0;
    }
  }
  return 1;
}

/* Frequent ones first; equal on all workers. */
static int compare(const void* a, const void* b) {
  const Word* left = *(Word* const*)a;
  const Word* right = *(Word* const*)b;
  if (left->count != right->count) return left->count < right->count ? 1 : -1;
  return strcmp(left->name, right->name);
}

static const char* number_words(Reader* reader, int32_t most_words, Text* out) {
  Word** sorted = calloc((size_t)reader->used + 1, sizeof *sorted);
  int32_t* numbers = calloc((size_t)reader->used + 1, sizeof *numbers);
  if (sorted == NULL || numbers == NULL) return "out of memory";
  int32_t kinds = 0;
  for (int32_t i = 0; i < SLOTS; ++i) {
    if (reader->slots[i].name[0] != '\0') sorted[kinds++] = &reader->slots[i];
  }
  qsort(sorted, (size_t)kinds, sizeof *sorted, compare);
  while (out->vocabulary < kinds && out->vocabulary < most_words &&
         sorted[out->vocabulary]->count >= RAREST) {
    ++out->vocabulary;
  }
  out->names = calloc((size_t)out->vocabulary + 1, sizeof *out->names);
  out->counts = calloc((size_t)out->vocabulary + 1, sizeof *out->counts);
  if (out->names == NULL || out->counts == NULL) return "out of memory";
  for (int32_t i = 0; i < kinds; ++i) {
    numbers[sorted[i]->number] = i < out->vocabulary ? i : -1;
    if (i >= out->vocabulary) continue;
    out->names[i] = strdup(sorted[i]->name);
    out->counts[i] = sorted[i]->count;
  }
  for (int64_t i = 0; i < reader->length; ++i) {
    const int32_t number = numbers[reader->words[i]];
    if (number >= 0) reader->words[out->length++] = number;
  }
  out->words = reader->words;
  free(sorted);
  free(numbers);
  return out->length < 1000 ? "it has fewer than 1000 words" : NULL;
}

const char* read_text(const char* pattern, int32_t most_words, Text* out) {
  memset(out, 0, sizeof *out);
  glob_t found;
  if (glob(pattern, 0, NULL, &found) != 0) return "no such file";
  Reader reader = {calloc(SLOTS, sizeof(Word)), 0, NULL, 0, 0};
  if (reader.slots == NULL) return "out of memory";
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    FILE* const file = fopen(found.gl_pathv[i], "r");
    if (file == NULL) continue;
    const int read = read_file(&reader, file);
    fclose(file);
    if (!read) return "out of memory";
  }
  globfree(&found);
  const char* const why = number_words(&reader, most_words, out);
  free(reader.slots);
  return why;
}
