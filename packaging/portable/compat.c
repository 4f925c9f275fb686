/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of glibc that are newer than the oldest one that portable packages run with, made of
 * older ones. They are linked, hidden, into what uses them. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* libstdc++ and OpenSSL ask whether there is one thread only. "No" is always right. */
char __libc_single_threaded = 0;

/* For std::random_device. The kernel has had it since 3.17. */
uint32_t arc4random(void);
uint32_t arc4random(void) {
  uint32_t value = 0;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

/* 2.33 made functions of what the older glibc has by a number of the structure, 1 on x86-64. */
int __xstat64(int version, const char* path, struct stat64* out);
int __lxstat64(int version, const char* path, struct stat64* out);
int __fxstat64(int version, int fd, struct stat64* out);
int __fxstatat64(int version, int folder, const char* path, struct stat64* out, int flags);
int stat64(const char* path, struct stat64* out) { return __xstat64(1, path, out); }
int lstat64(const char* path, struct stat64* out) { return __lxstat64(1, path, out); }
int fstat64(int fd, struct stat64* out) { return __fxstat64(1, fd, out); }
int fstatat64(int folder, const char* path, struct stat64* out, int flags) {
  return __fxstatat64(1, folder, path, out, flags);
}
/* On x86-64 both structures are the same. */
int stat(const char* path, struct stat* out) { return stat64(path, (struct stat64*)out); }
int lstat(const char* path, struct stat* out) { return lstat64(path, (struct stat64*)out); }
int fstat(int fd, struct stat* out) { return fstat64(fd, (struct stat64*)out); }
int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return fstatat64(folder, path, (struct stat64*)out, flags);
}

static int64_t now_ns(clockid_t clock) {
  struct timespec now;
  (void)clock_gettime(clock, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* The older glibc waits by CLOCK_REALTIME only, which may be set meanwhile. So this waits for a
 * second at most by that clock and then returns, as if woken for no reason, and the caller looks at
 * its own clock again: a clock that is set forward does no harm, one that is set back by x
 * lengthens one wait by x. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, until);
  const int64_t until_ns = until->tv_sec * INT64_C(1000000000) + until->tv_nsec;
  const int64_t left_ns = until_ns - now_ns(clock);
  const int64_t slice_ns = left_ns < INT64_C(1000000000) ? left_ns : INT64_C(1000000000);
  const int64_t end_ns = now_ns(CLOCK_REALTIME) + (slice_ns > 0 ? slice_ns : 0);
  const struct timespec end = {end_ns / INT64_C(1000000000), end_ns % INT64_C(1000000000)};
  const int result = pthread_cond_timedwait(condition, mutex, &end);
  return result == ETIMEDOUT && now_ns(clock) < until_ns ? 0 : result;
}

const char* sigabbrev_np(int number) {
  static const char* const kNames[] = {
      NULL,   "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
      "SEGV", "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
      "TTOU", "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS"};
  return number > 0 && number < 32 ? kNames[number] : NULL;
}
