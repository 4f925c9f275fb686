/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of words by skip-gram with negative samples (Mikolov and others 2013), on parameter
 * servers:
 *
 *   dt run -n 4 --servers 2 ./skipgram
 *
 * A worker pulls the rows of the words in its batch, and pushes the gradients of these rows. It
 * does not wait for the other workers, but is at most `--ahead` steps ahead of the slowest. */
#define _POSIX_C_SOURCE 200809L
#include <dt/dt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

enum {
  COLUMNS = 64,
  PAIRS = 256,  /* of a word and one near it, in a batch */
  OTHERS = 32,  /* words that are near none of them, for all pairs of a batch */
  WINDOW = 5,   /* how far "near" is */
  BLOCK = 200,  /* words in a row that are one worker's */
  TESTS = 32,   /* batches that nobody trains on */
  WORDS = 20000 /* the most in the vocabulary */
};
static const float kWeight = 5.0f / OTHERS; /* as five for each pair */

typedef struct {
  int64_t steps, report, ahead, save_ms;
  double rate;
  const char* text;
  const char* checkpoint;
} Options;

typedef struct {
  int64_t words[PAIRS];         /* rows of the one variable */
  int64_t near[PAIRS + OTHERS]; /* of the other; behind the pairs' those of OTHERS */
  float word_values[PAIRS][COLUMNS];
  float near_values[PAIRS + OTHERS][COLUMNS];
  dt_work* pulls[2];
} Batch;

typedef struct {
  dt_ps* ps;
  int32_t words, near; /* variables */
  Text text;
  int32_t index, workers; /* this worker has each `workers`-th block of the text */
  double* chances;        /* [vocabulary], sums of count^0.75 */
  uint64_t random;
} Worker;

static void fail(const char* what, const char* why) {
  fprintf(stderr, "skipgram: %s: %s\n", what, why);
  exit(1);
}

static void check(dt_status status) {
  if (status != DT_OK) fail(dt_status_name(status), dt_last_error());
}

/* A number below `bound`. */
static int64_t draw(Worker* w, int64_t bound) {
  w->random = w->random * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((w->random >> 33) % (uint64_t)bound);
}

static int64_t draw_other(Worker* w) {
  const double at = (double)draw(w, 1 << 30) / (1 << 30) * w->chances[w->text.vocabulary - 1];
  int32_t low = 0;
  int32_t high = w->text.vocabulary - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (w->chances[middle] > at) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/* Of words from `from` to `to`, of which this is one of `parts`. */
static void draw_batch(Worker* w, int64_t from, int64_t to, int32_t part, int32_t parts,
                       Batch* batch) {
  const int64_t blocks = (to - from - 2 * WINDOW) / BLOCK / parts;
  for (int i = 0; i < PAIRS; ++i) {
    const int64_t block = draw(w, blocks) * parts + part;
    const int64_t at = from + WINDOW + block * BLOCK + draw(w, BLOCK);
    const int64_t step = 1 + draw(w, WINDOW);
    batch->words[i] = w->text.words[at];
    batch->near[i] = w->text.words[draw(w, 2) == 0 ? at - step : at + step];
  }
  for (int i = 0; i < OTHERS; ++i) batch->near[PAIRS + i] = draw_other(w);
}

/* Where the text ends that workers train on: the last twentieth is for tests. */
static int64_t train_end(const Worker* w) { return w->text.length / 20 * 19; }

/* Begins to read the rows of a batch. */
static void pull(Worker* w, Batch* batch) {
  check(dt_ps_pull(w->ps, w->words, batch->words, PAIRS, batch->word_values[0], &batch->pulls[0]));
  check(dt_ps_pull(w->ps, w->near, batch->near, PAIRS + OTHERS, batch->near_values[0],
                   &batch->pulls[1]));
}

static void finish(dt_work** work) {
  if (*work == NULL) return;
  check(dt_work_wait(*work, -1, NULL));
  dt_work_destroy(*work);
  *work = NULL;
}

/* Four sums, which a compiler may compute at the same time. */
static float dot_product(const float* a, const float* b) {
  float sums[4] = {0, 0, 0, 0};
  for (int c = 0; c < COLUMNS; c += 4) {
    for (int k = 0; k < 4; ++k) sums[k] += a[c + k] * b[c + k];
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* The loss of a pair whose words are near each other or not, and its slopes. */
static double add_pair(const float* word, const float* near, int are_near, float weight,
                       float* restrict word_slope, float* restrict near_slope) {
  const float chance = 1 / (1 + expf(-dot_product(word, near)));
  const float slope = weight * (chance - (float)are_near);
  for (int c = 0; c < COLUMNS; ++c) {
    word_slope[c] += slope * near[c];
    near_slope[c] += slope * word[c];
  }
  return -weight * log(fmax(are_near ? (double)chance : 1 - (double)chance, 1e-30));
}

/* The mean loss of a batch whose rows are there. */
static double slopes(const Batch* batch, float word_slopes[PAIRS][COLUMNS],
                     float near_slopes[PAIRS + OTHERS][COLUMNS]) {
  double loss = 0;
  memset(word_slopes, 0, sizeof(float[PAIRS][COLUMNS]));
  memset(near_slopes, 0, sizeof(float[PAIRS + OTHERS][COLUMNS]));
  for (int i = 0; i < PAIRS; ++i) {
    loss += add_pair(batch->word_values[i], batch->near_values[i], 1, 1, word_slopes[i],
                     near_slopes[i]);
    for (int o = PAIRS; o < PAIRS + OTHERS; ++o) {
      loss += add_pair(batch->word_values[i], batch->near_values[o], 0, kWeight, word_slopes[i],
                       near_slopes[o]);
    }
  }
  return loss / PAIRS;
}

/* The loss of text that no worker trains on. */
static double test(Worker* w) {
  static Batch batch;
  static float word_slopes[PAIRS][COLUMNS], near_slopes[PAIRS + OTHERS][COLUMNS];
  const uint64_t before = w->random;
  double loss = 0;
  w->random = 1; /* the same batches each time */
  for (int i = 0; i < TESTS; ++i) {
    draw_batch(w, train_end(w), w->text.length, 0, 1, &batch);
    pull(w, &batch);
    finish(&batch.pulls[0]);
    finish(&batch.pulls[1]);
    loss += slopes(&batch, word_slopes, near_slopes) / TESTS;
  }
  w->random = before;
  return loss;
}

static void train(Worker* w, const Options* options) {
  static Batch batches[2];
  static float word_slopes[PAIRS][COLUMNS], near_slopes[PAIRS + OTHERS][COLUMNS];
  dt_work* pushes[2] = {NULL, NULL};
  draw_batch(w, 0, train_end(w), w->index, w->workers, &batches[0]);
  pull(w, &batches[0]);
  for (int64_t step = 1; step <= options->steps; ++step) {
    Batch* const batch = &batches[(step - 1) % 2];
    Batch* const next = &batches[step % 2];
    finish(&batch->pulls[0]);
    finish(&batch->pulls[1]);
    draw_batch(w, 0, train_end(w), w->index, w->workers, next);
    pull(w, next); /* comes while this one is computed */
    (void)slopes(batch, word_slopes, near_slopes);
    finish(&pushes[0]);
    finish(&pushes[1]);
    check(dt_ps_push(w->ps, w->words, batch->words, PAIRS, word_slopes[0], -1, &pushes[0]));
    check(dt_ps_push(w->ps, w->near, batch->near, PAIRS + OTHERS, near_slopes[0], -1, &pushes[1]));
    check(dt_ps_clock(w->ps, options->ahead));
    if (w->index == 0 && (step % options->report == 0 || step == options->steps)) {
      printf("step %" PRId64 ": loss %.4f\n", step, test(w));
      fflush(stdout);
    }
  }
  for (int i = 0; i < 2; ++i) {
    finish(&pushes[i]);
    finish(&batches[options->steps % 2].pulls[i]);
  }
}

/* Words whose vectors point the same way. */
static void show_neighbours(Worker* w, int64_t of) {
  const int32_t count = w->text.vocabulary;
  float* const all = calloc((size_t)count * COLUMNS, sizeof *all);
  if (all == NULL) fail("words", "out of memory");
  check(dt_ps_pull(w->ps, w->words, NULL, -1, all, NULL));
  int64_t best[4] = {-1, -1, -1, -1};
  double scores[4] = {-2, -2, -2, -2};
  for (int64_t i = 0; i < count; ++i) {
    double dot = 0, mine = 1e-30, theirs = 1e-30;
    for (int c = 0; c < COLUMNS; ++c) {
      const double a = all[of * COLUMNS + c], b = all[i * COLUMNS + c];
      dot += a * b;
      mine += a * a;
      theirs += b * b;
    }
    double score = i == of ? -2 : dot / sqrt(mine * theirs);
    int64_t word = i;
    for (int k = 0; k < 4; ++k) {
      if (score <= scores[k]) continue;
      const double less = scores[k];
      const int64_t other = best[k];
      scores[k] = score;
      best[k] = word;
      score = less;
      word = other;
    }
  }
  printf("near \"%s\":", w->text.names[of]);
  for (int k = 0; k < 4 && best[k] >= 0; ++k) printf(" %s", w->text.names[best[k]]);
  printf("\n");
  free(all);
}

static void work(const Options* options, const dt_ps_place* place) {
  static Worker w;
  const char* const why = read_text(options->text, WORDS, &w.text);
  if (why != NULL) fail(options->text, why);
  if (w.text.length < 30 * BLOCK) fail(options->text, "too few words");
  w.chances = calloc((size_t)w.text.vocabulary, sizeof *w.chances);
  if (w.chances == NULL) fail("words", "out of memory");
  double sum = 0;
  for (int32_t i = 0; i < w.text.vocabulary; ++i) {
    w.chances[i] = sum += pow((double)w.text.counts[i], 0.75);
  }
  check(dt_ps_connect(NULL, NULL, &w.ps));
  dt_ps_spec spec;
  dt_ps_spec_init(&spec);
  spec.rows = w.text.vocabulary;
  spec.columns = COLUMNS;
  spec.optimizer = DT_PS_ADAGRAD;
  spec.rate = options->rate;
  spec.name = "near";
  check(dt_ps_variable(w.ps, &spec, &w.near));
  spec.name = "words";
  spec.initial = DT_PS_UNIFORM;
  spec.initial_value = 0.5 / COLUMNS;
  check(dt_ps_variable(w.ps, &spec, &w.words));

  if (place->role == DT_PS_EVALUATOR) {
    printf("loss %.4f\n", test(&w));
  } else {
    w.workers = place->workers > 0 ? place->workers : 1;
    w.index = place->index % w.workers;
    w.random = 100 + (uint64_t)place->index;
    if (train_end(&w) < (w.workers + 1) * (int64_t)BLOCK) fail(options->text, "too few words");
    train(&w, options);
    if (place->index == 0) show_neighbours(&w, w.text.vocabulary > 200 ? 100 : 0);
  }
  dt_ps_statistics statistics;
  dt_ps_statistics_init(&statistics);
  check(dt_ps_stats(w.ps, &statistics));
  printf("worker %d: %" PRId64 " pushes, %" PRId64 " pulls, %" PRId64
         " reconnects, at most %" PRId64 " steps ahead\n",
         (int)place->index, statistics.pushes, statistics.pulls, statistics.reconnects,
         statistics.most_ahead);
  check(dt_ps_leave(w.ps));
  dt_ps_destroy(w.ps);
}

static void serve(const Options* options, const dt_ps_place* place) {
  dt_ps_server_options serving;
  dt_ps_server_options_init(&serving);
  serving.checkpoint = options->checkpoint;
  serving.save_every_ms = options->save_ms;
  dt_ps_server* server = NULL;
  check(dt_ps_serve(NULL, &serving, &server));
  check(dt_ps_server_wait(server, -1, NULL));
  dt_ps_server_statistics statistics;
  dt_ps_server_statistics_init(&statistics);
  check(dt_ps_server_stats(server, &statistics));
  const double seconds = (double)statistics.busy_ns * 1e-9;
  printf("server %d: %" PRId64 " pushes of %" PRId64 " rows, %" PRId64
         " pulls, %.0f requests a "
         "second of its processor\n",
         (int)place->index, statistics.pushes, statistics.pushed_rows, statistics.pulls,
         (double)(statistics.pushes + statistics.pulls) / fmax(seconds, 1e-9));
  dt_ps_server_destroy(server);
}

int main(int count, char** given) {
  Options options = {400, 100, 4, 1000, 0.1, "/usr/share/common-licenses/*", NULL};
  for (int i = 1; i + 1 < count; i += 2) {
    const char* const value = given[i + 1];
    if (strcmp(given[i], "--steps") == 0) {
      options.steps = atoll(value);
    } else if (strcmp(given[i], "--report") == 0) {
      options.report = atoll(value);
    } else if (strcmp(given[i], "--ahead") == 0) {
      options.ahead = atoll(value);
    } else if (strcmp(given[i], "--save-ms") == 0) {
      options.save_ms = atoll(value);
    } else if (strcmp(given[i], "--rate") == 0) {
      options.rate = atof(value);
    } else if (strcmp(given[i], "--text") == 0) {
      options.text = value;
    } else if (strcmp(given[i], "--checkpoint") == 0) {
      options.checkpoint = value;
    } else {
      fail(given[i], "no such option");
    }
  }
  if (count % 2 == 0) fail(given[count - 1], "it needs a value");
  if (options.steps < 1 || options.report < 1) fail("--steps, --report", "at least 1");
  dt_ps_place place;
  dt_ps_place_init(&place);
  check(dt_ps_info(NULL, &place));
  if (place.role == DT_PS_SERVER) {
    serve(&options, &place);
  } else {
    work(&options, &place);
  }
  return 0;
}
