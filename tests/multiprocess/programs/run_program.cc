// SPDX-License-Identifier: Apache-2.0
// What the tests of `dt run` start as ranks: run_program MODE [ARGUMENTS].
#include <dirent.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

int number(const char* text) { return text == nullptr ? -1 : atoi(text); }
int rank() { return number(getenv("RANK")); }

void say(const std::string& text) {
  fwrite(text.data(), 1, text.size(), stdout);
  fflush(stdout);
}

// Until a signal ends the process.
[[noreturn]] void stay() {
  for (;;) pause();
}

int print_lines(int count) {
  for (int i = 0; i < count; ++i) {
    printf("rank %d line %d %.*s\n", rank(), i, i % 50,
           "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
  }
  return 0;
}

// The named rank fails, the others stay.
int fail(int failing_rank, int code) {
  if (rank() != failing_rank) stay();
  say("about to fail\n");
  return code;
}

int print_all(const char* const* names) {
  std::string line = "place";
  for (; *names != nullptr; ++names) {
    const char* value = getenv(*names);
    line += std::string(" ") + (value == nullptr ? "(none)" : value);
  }
  say(line + "\n");
  return 0;
}

// Leaves a child behind that ignores SIGTERM; with `own_session` it leaves the group too.
int leave_child(bool own_session, const std::string& then) {
  int ready[2];
  if (pipe(ready) != 0) return 9;
  const pid_t child = fork();
  if (child == 0) {
    if (own_session) setsid();
    signal(SIGTERM, SIG_IGN);
    if (write(ready[1], "x", 1) != 1) _exit(9);
    stay();
  }
  char byte;
  if (read(ready[0], &byte, 1) != 1) return 9;
  say("pids " + std::to_string(getpid()) + " " + std::to_string(child) + " end\n");
  if (then == "stay") stay();
  return atoi(then.c_str());
}

void block_usr1() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

bool await_usr1() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  int signal = 0;
  return sigwait(&set, &signal) == 0 && signal == SIGUSR1;
}

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "(none)" : value;
}

void say_attempt() {
  say("attempt " + variable("DT_ATTEMPT") + " " + variable("TORCHELASTIC_RESTART_COUNT") + "\n");
}

// The named rank fails in the named attempt; all others end well there, and all do in others.
int fail_attempt(int failing_rank, int failing_attempt) {
  say_attempt();
  if (number(getenv("DT_ATTEMPT")) != failing_attempt) return 0;
  if (rank() != failing_rank) stay();
  return 5;
}

// In the first attempt each rank waits for SIGUSR1 and then fails; in others it ends well at once.
int fail_told(int code) {
  block_usr1();
  say_attempt();
  say("ready " + std::to_string(getpid()) + " end\n");
  if (number(getenv("DT_ATTEMPT")) != 0) return 0;
  if (!await_usr1()) return 1;
  say("about to fail\n");
  return code;
}

// Every rank shows progress, the others print ordinary lines between; done at SIGUSR1.
int progress(int steps) {
  block_usr1();
  say("begin\n");
  for (int i = 0; i < steps; ++i) {
    say((rank() == 0 ? "\rstep " : "\rhidden ") + std::to_string(i));
    if (rank() != 0) say("\rline " + std::to_string(i) + "\n");
  }
  if (!await_usr1()) return 1;
  say("\rdone\n");
  return 0;
}

// Says which part of which attempt it is, then ends well at SIGUSR1 and fails at SIGUSR2.
int take_part() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  say("attempt " + variable("DT_ATTEMPT") + " rank " + variable("DT_RANK") + " of " +
      variable("DT_WORLD_SIZE") + " node " + variable("DT_NODE_RANK") + " of " +
      variable("DT_NODE_COUNT") + " ready " + std::to_string(getpid()) + " end\n");
  int signal = 0;
  return sigwait(&set, &signal) == 0 && signal == SIGUSR1 ? 0 : 5;
}

int wait_for_usr1() {
  block_usr1();
  say("ready " + std::to_string(getpid()) + "\n");
  say("got " + std::to_string(await_usr1()) + "\n");
  return 0;
}

// Ends half a second after the first SIGINT, and says how many have come until then.
int count_interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  say("ready " + std::to_string(getpid()) + " end\n");
  int signal = 0;
  int count = sigwait(&set, &signal) == 0 ? 1 : 0;
  const timespec half_a_second = {0, 500'000'000};
  while (sigtimedwait(&set, nullptr, &half_a_second) == SIGINT) ++count;
  say("interrupts " + std::to_string(count) + "\n");
  return 0;
}

// Reports each SIGINT and SIGTERM, and goes on.
[[noreturn]] void ignore_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int each : {SIGINT, SIGTERM}) sigaddset(&set, each);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  say("ready " + std::to_string(getpid()) + " end\n");
  for (int signal = 0;;) {
    if (sigwait(&set, &signal) == 0) say("ignored\n");
  }
}

int listen_on_master_port() {
  if (rank() != 0) return 0;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(number(getenv("MASTER_PORT"))));
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(fd, 8) != 0) {
    perror("listen");
    return 1;
  }
  say("listening\n");
  return 0;
}

int list_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  int count = 0;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder)) ++count;
  }
  closedir(folder);
  say("descriptors " + std::to_string(count) + "\n");
  return 0;
}

int list_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  std::string line = "cpus";
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) line += " " + std::to_string(cpu);
  }
  say(line + "\n");
  return 0;
}

int count_input() {
  size_t bytes = 0;
  while (getchar() != EOF) ++bytes;
  say("read " + std::to_string(bytes) + "\n");
  return 0;
}

int run(const std::string& mode, const char* first, const char* second) {
  if (mode == "lines") return print_lines(number(first));
  if (mode == "fail") return fail(number(first), number(second));
  if (mode == "leave") return leave_child(false, first);
  if (mode == "leave-session") return leave_child(true, first);
  if (mode == "progress") return progress(number(first));
  if (mode == "usr1") return wait_for_usr1();
  if (mode == "listen") return listen_on_master_port();
  if (mode == "descriptors") return list_descriptors();
  if (mode == "input") return count_input();
  if (mode == "endless") {
    for (;;) say("more\n");
  }
  if (mode == "ignore-term") ignore_signals();
  if (mode == "stay" || mode == "catch-term") {
    if (mode == "catch-term") signal(SIGTERM, [](int caught) { _exit(128 + caught); });
    say("ready " + std::to_string(getpid()) + " end\n");
    stay();
  }
  if (mode == "cpus") return list_cpus();
  if (mode == "count-int") return count_interrupts();
  if (mode == "huge") {
    say(std::string(static_cast<size_t>(number(first)), 'x') + "\n");
    return 0;
  }
  if (mode == "bytes") {  // NUL, invalid UTF-8, a progress line, CR LF, and no line end at last
    say(std::string("a\0b\xff\n10%\r20%\rfull\ndos\r\nlast", 27));
    return 0;
  }
  if (mode == "both") {
    fputs("to stderr\n", stderr);
    say("to stdout\n");
    return 0;
  }
  if (mode == "variables") {
    for (const char* name : {first, second}) {
      const char* value = getenv(name);
      say(std::string(name) + "=" + (value == nullptr ? "(none)" : value) + "\n");
    }
    return 0;
  }
  if (mode == "fail-attempt") return fail_attempt(number(first), number(second));
  if (mode == "part") return take_part();
  if (mode == "fail-told") return fail_told(number(first));
  if (mode == "place") {
    const char* const names[] = {
        "DT_RANK",      "DT_WORLD_SIZE",    "DT_LOCAL_RANK", "DT_LOCAL_SIZE",
        "DT_NODE_RANK", "DT_NODE_COUNT",    "RANK",          "WORLD_SIZE",
        "LOCAL_RANK",   "LOCAL_WORLD_SIZE", "GROUP_RANK",    "GROUP_WORLD_SIZE",
        nullptr};
    return print_all(names);
  }
  fprintf(stderr, "run_program: unknown mode %s\n", mode.c_str());
  return 99;
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 2) return 99;
  return run(arguments[1], argument_count > 2 ? arguments[2] : "",
             argument_count > 3 ? arguments[3] : "");
}
