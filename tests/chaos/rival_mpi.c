/* SPDX-License-Identifier: Apache-2.0
 * rival_mpi VICTIM FOLDER: a rank of MPI for rivals.py: allreduces in a loop until an error, each
 * element checked. Rank VICTIM does what the file FOLDER/fault says. */
#include <mpi.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank, size;

static void tell(const char* event, const char* message) {
  char line[2048], clean[1024];
  struct timespec now;
  size_t i;
  clock_gettime(CLOCK_MONOTONIC, &now);
  for (i = 0; message[i] != '\0' && i + 1 < sizeof clean; ++i) {
    clean[i] = message[i] < ' ' || message[i] == '"' || message[i] == '\\' ? ' ' : message[i];
  }
  clean[i] = '\0';
  snprintf(line, sizeof line,
           "{\"event\": \"%s\", \"rank\": %d, \"pid\": %d, \"at\": %lld, \"message\": \"%s\"}\n",
           event, rank, (int)getpid(), (long long)now.tv_sec * 1000000000 + now.tv_nsec, clean);
  fputs(line, stdout);
  fflush(stdout);
}

int main(int argc, char** argv) {
  float data[1001], sum[1001];
  char path[1024], fault[64] = "", text[MPI_MAX_ERROR_STRING + 1] = "";
  int told_wrong = 0;
  if (argc != 3) return 2;
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  snprintf(path, sizeof path, "%s/fault", argv[2]);
  for (int step = 0;; ++step) {
    int count = 1000, status, length = 0;
    MPI_Op op = MPI_SUM;
    fault[0] = '\0';
    if (rank == atoi(argv[1]) && access(path, F_OK) == 0) {
      FILE* file = fopen(path, "r");
      if (file != NULL) {
        if (fgets(fault, sizeof fault, file) == NULL) fault[0] = '\0';
        fclose(file);
      }
      unlink(path);
      tell("fault", "");
    }
    if (strcmp(fault, "absent") == 0) pause();
    if (strcmp(fault, "wrong_count") == 0) ++count;
    if (strcmp(fault, "wrong_op") == 0) op = MPI_MAX;
    for (int i = 0; i < 1001; ++i) data[i] = (float)(rank + 1);
    status = MPI_Allreduce(data, sum, count, MPI_FLOAT, op, MPI_COMM_WORLD);
    if (status != MPI_SUCCESS) {
      MPI_Error_string(status, text, &length);
      tell("error", text);
      _exit(9);
    }
    for (int i = 0; i < 1000 && !told_wrong; ++i) {
      if (sum[i] == (float)(size * (size + 1) / 2)) continue;
      told_wrong = 1;
      snprintf(text, sizeof text, "step %d: element %d is %g", step, i, sum[i]);
      tell("wrong", text);
    }
    if (step == 0) tell("ready", "");
    poll(NULL, 0, 1); /* as a step that computes */
  }
}
