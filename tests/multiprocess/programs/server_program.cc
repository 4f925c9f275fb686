// SPDX-License-Identifier: Apache-2.0
// What the tests of `dt run --servers` start: server_program MODE [ARGUMENT]. A rank keeps a
// connection to each server until it ends. A server answers each with a line, and ends when all
// workers have come and the last connection has ended.
#include <dirent.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "(none)" : value;
}

void say(const std::string& text) {
  fwrite(text.data(), 1, text.size(), stdout);
  fflush(stdout);
}

std::vector<std::string> servers() {
  std::vector<std::string> all;
  const std::string text = variable("DT_PS_SERVERS");
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = text.find(',', begin);
    const size_t end = comma == std::string::npos ? text.size() : comma;
    all.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

bool is_server() { return getenv("DT_PS_INDEX") != nullptr; }
size_t index() { return static_cast<size_t>(atoi(variable("DT_PS_INDEX").c_str())); }

int count_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  int count = 0;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder)) ++count;
  }
  closedir(folder);
  return count;
}

/// "HOST:PORT" where the socket listens; another text where it does not.
std::string address_of(int fd) {
  int listens = 0;
  socklen_t size = sizeof listens;
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    return "does not listen";
  }
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (getsockname(fd, generic, &length) != 0 ||
      getnameinfo(generic, length, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "has no address";
  }
  return std::string(host) + ":" + port;
}

int connect_to(const std::string& address) {
  const size_t colon = address.rfind(':');
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints,
                  &found) != 0) {
    return -1;
  }
  const int fd = socket(found->ai_family, SOCK_STREAM, 0);
  const bool connected = connect(fd, found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  return connected ? fd : -1;
}

std::string read_line(int fd) {
  std::string line;
  char byte;
  while (read(fd, &byte, 1) == 1 && byte != '\n') line += byte;
  return line;
}

int serve() {
  const int listener = atoi(variable("DT_PS_LISTEN_FD").c_str());
  const std::string address = address_of(listener);
  say("address " + (address == servers()[index()] ? "right" : address) + " of " +
      std::to_string(servers().size()) + " workers " + variable("DT_PS_WORKERS") + " rank " +
      variable("RANK") + variable("DT_RANK") + " descriptors " +
      std::to_string(count_descriptors()) + "\n");
  say("ready " + std::to_string(getpid()) + " end\n");
  std::vector<pollfd> watched{{listener, POLLIN, 0}};
  int expected = atoi(variable("DT_PS_WORKERS").c_str());
  do {
    poll(watched.data(), watched.size(), -1);
    for (size_t i = watched.size() - 1; i > 0; --i) {
      char byte;
      if (watched[i].revents == 0 || read(watched[i].fd, &byte, 1) > 0) continue;
      close(watched[i].fd);
      watched.erase(watched.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if ((watched[0].revents & POLLIN) == 0) continue;
    const int fd = accept(listener, nullptr, nullptr);
    const std::string line = "from server " + std::to_string(index()) + "\n";
    if (fd < 0 || write(fd, line.data(), line.size()) < 0) return 98;
    watched.push_back({fd, POLLIN, 0});
    --expected;
  } while (expected > 0 || watched.size() > 1);
  say("done\n");
  return 0;
}

/// Every server answers. False: one did not.
bool talk(std::vector<int>* connections) {
  for (const std::string& address : servers()) {
    connections->push_back(connect_to(address));
    const std::string line = connections->back() < 0 ? "" : read_line(connections->back());
    if (line.empty()) return false;
    say("heard " + line + "\n");
  }
  return true;
}

/// Ends at SIGUSR1 with `code`, after it has talked to every server once more.
int work(int code) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  std::vector<int> connections;
  if (!talk(&connections)) return 97;
  say("ready " + std::to_string(getpid()) + " end\n");
  int signal = 0;
  if (sigwait(&set, &signal) != 0 || !talk(&connections)) return 96;
  return code;
}

[[noreturn]] void stay() {
  for (;;) pause();
}

/// Servers wait for SIGTERM, which the second one ignores; ranks end at once.
int ignore_term() {
  if (!is_server()) return 0;
  if (index() == 1) {
    signal(SIGTERM, SIG_IGN);
  } else {
    signal(SIGTERM, [](int) { _exit(write(STDOUT_FILENO, "got SIGTERM\n", 12) == 12 ? 3 : 4); });
  }
  stay();
}

/// Fails, and leaves processes in sessions of their own that write as long as somebody reads.
int fail_flooded() {
  for (int i = 0; i < 4; ++i) {
    int begun[2];
    if (pipe(begun) != 0) return 98;
    if (fork() == 0) {
      close(begun[0]);
      setsid();
      const std::string lines(1 << 16, '\n');
      const auto flood = [&lines] {
        return write(STDOUT_FILENO, lines.data(), lines.size()) > 0;  // ends by SIGPIPE
      };
      if (!flood() || write(begun[1], "b", 1) != 1) _exit(98);
      close(begun[1]);
      while (flood()) {
      }
      _exit(0);
    }
    close(begun[1]);
    char byte;
    if (read(begun[0], &byte, 1) != 1) return 98;
    close(begun[0]);
  }
  return 7;
}

/// Servers fail at SIGUSR1; ranks end at once.
int fail_late() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  say("ready " + std::to_string(getpid()) + " end\n");
  int signal = 0;
  return !is_server() ? 0 : sigwait(&set, &signal) == 0 ? 8 : 9;
}

int run(const std::string& mode, int number) {
  if (mode == "work") return is_server() ? serve() : work(number);
  if (mode == "ignore-term") return ignore_term();
  if (mode == "fail-server") {  // the named one
    if (!is_server()) stay();
    if (index() != static_cast<size_t>(number)) return serve();
    say("about to fail\n");
    return 7;
  }
  if (mode == "fail-flooded") return is_server() ? fail_flooded() : 0;
  if (mode == "fail-late") return fail_late();
  fprintf(stderr, "server_program: unknown mode %s\n", mode.c_str());
  return 99;
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 2) return 99;
  return run(arguments[1], argument_count > 2 ? atoi(arguments[2]) : 0);
}
