/* SPDX-License-Identifier: Apache-2.0 */
/* A whole trainer in one file of C99: three arms of a spiral are told apart by a network of one
 * hidden layer.
 *
 *   cc -O2 trainer.c $(pkg-config --cflags --libs dt) -lm -o trainer
 *   dt run -n 4 ./trainer --save spiral.checkpoint
 *
 * docs/trainer.md builds it up from hello_allreduce. */
#define _POSIX_C_SOURCE 200809L
#include <dt/dt.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  SAMPLES = 3000,
  INPUTS = 2,
  HIDDEN = 64,
  CLASSES = 3,
  MICRO = 8,   /* samples that are computed together */
  BATCH = 96,  /* samples of a step, on all ranks together, so that any number of ranks learns the
                  same */
  REPORT = 250 /* steps between two lines of output */
};

/* One flat array holds all parameters, one behind the other. */
enum {
  W1 = 0,                     /* [HIDDEN][INPUTS] */
  B1 = W1 + HIDDEN * INPUTS,  /* [HIDDEN] */
  W2 = B1 + HIDDEN,           /* [CLASSES][HIDDEN] */
  B2 = W2 + CLASSES * HIDDEN, /* [CLASSES] */
  PARAMETERS = B2 + CLASSES
};
static const dt_param kParams[] = {{B1 - W1, "W1", DT_F32, 0},
                                   {W2 - B1, "b1", DT_F32, 0},
                                   {B2 - W2, "W2", DT_F32, 0},
                                   {PARAMETERS - B2, "b2", DT_F32, 0}};

/* What a checkpoint holds, and all that a rank must know to go on: plain bytes, broadcast and
 * written as they are. */
typedef struct {
  char magic[8];
  int64_t step;                         /* done */
  int64_t epoch, consumed, size, order; /* as in dt_sampler_state */
  float parameters[PARAMETERS];
  float velocity[PARAMETERS];
} State;
static const char kMagic[8] = "spiral1";

typedef struct {
  dt_job* job;
  dt_comm* comm;
  dt_reducer* reducer;
  dt_sampler* sampler;
  dt_place place;
  int64_t local_batch; /* samples of this rank per step: several times MICRO */
  float* gradient[4];  /* of W1, b1, W2, b2, inside the reducer's buckets */
  State state;
  double totals[3]; /* loss, correct, samples since the last report, of this rank */
} Trainer;

static void fail(const char* what, const char* why) {
  fprintf(stderr, "trainer: %s: %s\n", what, why);
  exit(1);
}

/* The others hear of this rank's end, and end with an error that names it. */
static void check(dt_status status) {
  if (status != DT_OK) fail(dt_status_name(status), dt_last_error());
}

/* ---- The data set: a formula, equal on all ranks ---- */

static uint32_t noise(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

static float uniform(uint32_t x) { return (float)(noise(x) >> 8) / 16777216.0f; } /* [0, 1) */

/* Returns the class. */
static int read_sample(int64_t index, float input[INPUTS]) {
  const int class = (int)(index % CLASSES);
  const float along = uniform((uint32_t)index);
  const float angle =
      4 * along + 2.0943951f * (float)class + 0.3f * (uniform((uint32_t)index + SAMPLES) - 0.5f);
  input[0] = along * cosf(angle);
  input[1] = along * sinf(angle);
  return class;
}

/* ---- The network ---- */

static void initialise(float* parameters) {
  for (int i = 0; i < PARAMETERS; ++i) {
    const float scale = i < B1 ? 3.0f : i >= W2 && i < B2 ? 0.3f : 0;
    parameters[i] = scale * (2 * uniform(1000000u + (uint32_t)i) - 1);
  }
}

/* Adds the gradients of MICRO samples, each multiplied by `scale`, to those that are there. With
 * `last` each gradient is ready as soon as it is complete, and its bucket travels while this goes
 * on. */
static void train_micro_batch(Trainer* t, const int64_t* indices, float scale, int last) {
  const float* p = t->state.parameters;
  float input[MICRO][INPUTS], hidden[MICRO][HIDDEN], slope[MICRO][CLASSES];
  for (int m = 0; m < MICRO; ++m) {
    const int class = read_sample(indices[m], input[m]);
    for (int h = 0; h < HIDDEN; ++h) {
      hidden[m][h] = tanhf(p[W1 + h * INPUTS] * input[m][0] + p[W1 + h * INPUTS + 1] * input[m][1] +
                           p[B1 + h]);
    }
    float* logit = slope[m];
    float sum = 0;
    int best = 0;
    for (int c = 0; c < CLASSES; ++c) {
      logit[c] = p[B2 + c];
      for (int h = 0; h < HIDDEN; ++h) logit[c] += p[W2 + c * HIDDEN + h] * hidden[m][h];
      if (logit[c] > logit[best]) best = c;
    }
    const float largest = logit[best];
    for (int c = 0; c < CLASSES; ++c) sum += logit[c] = expf(logit[c] - largest);
    for (int c = 0; c < CLASSES; ++c) logit[c] /= sum; /* now the probability */
    t->totals[0] -= log(fmax((double)logit[class], 1e-30));
    t->totals[1] += best == class;
    t->totals[2] += 1;
    logit[class] -= 1; /* now the slope of the loss */
    for (int c = 0; c < CLASSES; ++c) logit[c] *= scale;
  }

  for (int m = 0; m < MICRO; ++m) {
    for (int c = 0; c < CLASSES; ++c) {
      for (int h = 0; h < HIDDEN; ++h) t->gradient[2][c * HIDDEN + h] += slope[m][c] * hidden[m][h];
      t->gradient[3][c] += slope[m][c];
    }
  }
  if (last) check(dt_reducer_ready(t->reducer, 3, NULL, NULL));
  if (last) check(dt_reducer_ready(t->reducer, 2, NULL, NULL));

  for (int m = 0; m < MICRO; ++m) {
    for (int h = 0; h < HIDDEN; ++h) {
      float back = 0;
      for (int c = 0; c < CLASSES; ++c) back += slope[m][c] * p[W2 + c * HIDDEN + h];
      back *= 1 - hidden[m][h] * hidden[m][h];
      for (int i = 0; i < INPUTS; ++i) t->gradient[0][h * INPUTS + i] += back * input[m][i];
      t->gradient[1][h] += back;
    }
  }
  if (last) check(dt_reducer_ready(t->reducer, 1, NULL, NULL));
  if (last) check(dt_reducer_ready(t->reducer, 0, NULL, NULL));
}

static void train_step(Trainer* t, const int64_t* indices) {
  for (int i = 0; i < 4; ++i) memset(t->gradient[i], 0, (size_t)kParams[i].count * sizeof(float));
  for (int64_t first = 0; first < t->local_batch; first += MICRO) {
    train_micro_batch(t, indices + first, 1.0f / (float)t->local_batch,
                      first + MICRO == t->local_batch);
  }
  check(dt_reducer_finish(t->reducer, NULL)); /* now each gradient is the average over the ranks */
  int64_t at = 0;
  for (int i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < kParams[i].count; ++j, ++at) {
      t->state.velocity[at] = 0.9f * t->state.velocity[at] + t->gradient[i][j];
      t->state.parameters[at] -= 0.1f * t->state.velocity[at];
    }
  }
  ++t->state.step;
}

/* ---- The checkpoint: rank 0 alone reads and writes it ---- */

/* A crash at any moment leaves the old file or the new one. */
static int write_file(const char* name, const State* state) {
  char beside[4096];
  if (snprintf(beside, sizeof beside, "%s.new", name) >= (int)sizeof beside) return 0;
  FILE* file = fopen(beside, "wb");
  if (file == NULL) return 0;
  int good =
      fwrite(state, sizeof *state, 1, file) == 1 && fflush(file) == 0 && fsync(fileno(file)) == 0;
  good = fclose(file) == 0 && good;
  return good && rename(beside, name) == 0;
}

static void save(Trainer* t, const char* name) {
  dt_sampler_state at;
  int32_t all_good;
  int good = 1;
  if (name == NULL) return;
  dt_sampler_state_init(&at);
  check(dt_sampler_save(t->sampler, -1, &at));
  t->state.epoch = at.epoch;
  t->state.consumed = at.consumed;
  t->state.size = at.size;
  t->state.order = at.order;
  if (t->place.rank == 0) good = write_file(name, &t->state);
  if (!good) fprintf(stderr, "trainer: cannot write %s: %s\n", name, strerror(errno));
  check(dt_agree(t->job, good, &all_good)); /* no rank goes on, or ends well, without the file */
  if (!all_good) exit(1);
}

/* The first parameters, or those of the checkpoint, come from rank 0 to all. */
static void begin(Trainer* t, const char* name) {
  State* state = &t->state;
  memset(state, 0, sizeof *state);
  if (t->place.rank == 0) {
    FILE* file = name == NULL ? NULL : fopen(name, "rb");
    if (file != NULL) {
      if (fread(state, sizeof *state, 1, file) != 1 ||
          memcmp(state->magic, kMagic, sizeof kMagic) != 0) {
        fail(name, "this is no checkpoint of this trainer");
      }
      fclose(file);
    } else if (name != NULL && errno != ENOENT) {
      fail(name, strerror(errno));
    } else {
      memcpy(state->magic, kMagic, sizeof kMagic);
      initialise(state->parameters);
    }
  }
  check(dt_broadcast(t->comm, state, sizeof *state, DT_U8, 0, NULL, NULL));
  if (state->step == 0) return;
  dt_sampler_state at;
  dt_sampler_state_init(&at);
  at.epoch = state->epoch;
  at.consumed = state->consumed;
  at.size = state->size;
  at.order = state->order;
  check(dt_sampler_resume(t->sampler, &at));
  if (t->place.rank == 0) printf("goes on after step %" PRId64 "\n", state->step);
}

/* ---- The job ---- */

static void join(Trainer* t) {
  check(dt_init(NULL, &t->job));
  dt_place_init(&t->place);
  check(dt_rank_info(t->job, &t->place));
  check(dt_comm_world(t->job, &t->comm));
  if (BATCH % (MICRO * t->place.world_size) != 0) {
    fail("the number of ranks", "it must divide 12, so that each has whole micro-batches");
  }
  t->local_batch = BATCH / t->place.world_size;

  check(dt_reducer_create(t->comm, kParams, 4, NULL, &t->reducer));
  for (int i = 0; i < 4; ++i) {
    void* pointer;
    check(dt_reducer_grad(t->reducer, i, NULL, &pointer));
    t->gradient[i] = pointer;
  }

  dt_sampler_options options;
  dt_sampler_options_init(&options);
  options.world_size = t->place.world_size;
  options.rank = t->place.rank;
  options.size = SAMPLES;
  options.seed = 1;
  options.whole_batches = 1;
  check(dt_sampler_create(&options, &t->sampler));
}

static void leave(Trainer* t) {
  check(dt_finalize(t->job, -1));
  dt_sampler_destroy(t->sampler);
  dt_reducer_destroy(t->reducer);
  dt_comm_destroy(t->comm);
  dt_job_destroy(t->job);
}

/* Of all ranks. */
static void report(Trainer* t) {
  double sums[3];
  check(dt_allreduce(t->comm, t->totals, sums, 3, DT_F64, DT_SUM, NULL, NULL));
  memset(t->totals, 0, sizeof t->totals);
  if (t->place.rank != 0 || sums[2] < 1) return;
  printf("step %" PRId64 "  loss %.4f  accuracy %.1f %%\n", t->state.step, sums[0] / sums[2],
         100 * sums[1] / sums[2]);
  fflush(stdout);
}

static uint64_t hash_of(const float* values, size_t count) { /* FNV-1a */
  const unsigned char* bytes = (const unsigned char*)values;
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < count * sizeof *values; ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  return hash;
}

int main(int argc, char** argv) {
  static Trainer trainer;
  Trainer* t = &trainer;
  const char* file = NULL;
  long steps = 2000;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && strcmp(argv[i], "--save") == 0) {
      file = argv[i + 1];
    } else if (i + 1 < argc && strcmp(argv[i], "--steps") == 0) {
      steps = atol(argv[i + 1]);
    } else {
      fail("usage", "trainer [--steps N] [--save FILE], which goes on where FILE is, if it exists");
    }
  }
  join(t);
  begin(t, file);

  int32_t stop = 0;
  check(dt_sampler_set_epoch(t->sampler, t->state.epoch));
  while (t->state.step < steps && !stop) {
    int64_t indices[BATCH], count;
    check(dt_sampler_next(t->sampler, t->local_batch, indices, &count));
    if (count == 0) { /* the epoch has ended */
      check(dt_sampler_set_epoch(t->sampler, ++t->state.epoch));
      continue;
    }
    train_step(t, indices);
    if (t->state.step % REPORT == 0) {
      report(t);
      save(t, file);
    }
    check(dt_stop_requested(t->job, &stop)); /* the same answer on all ranks */
  }
  save(t, file);
  check(
      dt_check_equal(t->comm, t->state.parameters, sizeof t->state.parameters, "parameters", NULL));
  if (t->place.rank == 0) {
    printf("%s after step %" PRId64 ", parameters %016" PRIx64 " on all %d ranks\n",
           stop ? "stopped" : "ended", t->state.step, hash_of(t->state.parameters, PARAMETERS),
           t->place.world_size);
  }
  leave(t);
  return 0;
}
