// SPDX-License-Identifier: Apache-2.0
// Parameter servers of this process through dt.hpp, and workers that are its threads.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <dt/dt.hpp>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace dt_test::ps_test {

namespace {

constexpr int64_t kPatienceMs = 60'000;
constexpr int64_t kRows = 10;
constexpr int32_t kColumns = 3;

using Floats = std::vector<float>;
using Rows = std::vector<int64_t>;

struct Servers {
  explicit Servers(int count, int workers) {
    std::string any;
    std::string real;
    for (int i = 0; i < count; ++i) any += std::string(i > 0 ? "," : "") + "127.0.0.1:0";
    for (int i = 0; i < count; ++i) {
      dt::Config own;
      own.set("ps.servers", any);
      own.set("ps.index", std::to_string(i));
      own.set("ps.workers", std::to_string(workers));
      all.push_back(std::make_unique<dt::PsServer>(&own));
      real += std::string(i > 0 ? "," : "") + "127.0.0.1:" + std::to_string(all.back()->port());
    }
    config.set("ps.servers", real);
    config.set("ps.workers", std::to_string(workers));
  }
  dt::Ps connect(int worker) const {
    dt::PsOptions options;
    options.worker = worker;
    options.timeout_ms = kPatienceMs;
    return dt::Ps(&config, options);
  }

  std::vector<std::unique_ptr<dt::PsServer>> all;
  dt::Config config;
};

/// What one worker does; its rows at the end.
Floats train(dt::Ps& ps, int worker) {
  dt::PsSpec spec;
  spec.rate = 0.5;
  spec.initial_value = 1;
  dt::PsVariable weight = ps.variable("w", kRows, kColumns, spec);
  Floats whole(kRows * kColumns);
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<float>(i);
  weight.push(whole);
  const Rows rows = {7, 2, 7, 0};
  weight.push(Floats(rows.size() * kColumns, static_cast<float>(worker + 1)), rows, 1);
  ps.clock(0);
  weight.pull(whole);
  ps.clock(0);
  ps.leave();
  return whole;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const dt::Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// The configuration of a job with one server: at `address`.
dt::Config one_server(const std::string& address, bool serves) {
  dt::Config config;
  config.set("ps.servers", address);
  config.set("ps.workers", "1");
  if (serves) config.set("ps.index", "0");
  return config;
}

/// Whether the kernel lets this thread of the process sleep.
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name = text.rfind(") ");
  return name != std::string::npos && text[name + 2] == 'S';
}

bool has_ipv6_loopback() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool has =
      fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (fd >= 0) close(fd);
  return has;
}

/// Variables of the environment, until it goes.
class Variables {
 public:
  void set(const std::string& name, const std::string& value) {
    names_.push_back(name);
    setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace

TEST_CASE("ps: destroying a server ends a wait of another thread, and frees the port") {
  dt_ps_server* server = nullptr;
  int32_t port = 0;
  const dt::Config config = one_server("127.0.0.1:0", true);
  REQUIRE(dt_ps_serve(config.get_handle(), nullptr, &server) == DT_OK);
  REQUIRE(dt_ps_server_port(server, &port) == DT_OK);
  const dt::Config at_port = one_server("127.0.0.1:" + std::to_string(port), false);
  dt_ps* ps = nullptr;
  REQUIRE(dt_ps_connect(at_port.get_handle(), nullptr, &ps) == DT_OK);
  std::atomic<pid_t> waiter{0};
  dt_status status = DT_OK;
  std::string text;
  std::thread waits([&] {
    waiter = gettid();
    status = dt_ps_server_wait(server, kPatienceMs / 2, nullptr);
    text = dt_last_error();
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while ((waiter == 0 || !sleeps(waiter)) && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  dt_ps_server_destroy(server);
  // The port is free again at once, also while the other thread still returns.
  const dt::Config again = one_server("127.0.0.1:" + std::to_string(port), true);
  dt_ps_server* second = nullptr;
  const dt_status served = dt_ps_serve(again.get_handle(), nullptr, &second);
  waits.join();
  CHECK(status == DT_ERR_ABORTED);
  CHECK_MESSAGE(text.find("was destroyed") != std::string::npos, text);
  REQUIRE(served == DT_OK);
  // The worker goes on with the second one.
  CHECK(dt_ps_leave(ps) == DT_OK);
  dt_ps_destroy(ps);
  dt_ps_server_destroy(second);
}

TEST_CASE("ps: a server that is named by an address of another host listens on all of its own") {
  // 192.0.2.1 is an address of nobody, as that of a service in front of this host would be.
  dt::Config config = one_server("192.0.2.1:0", true);
  config.set("security.mode", "none");
  const dt::PsServer server(&config);
  std::vector<std::string> hosts = {"127.0.0.1"};
  if (has_ipv6_loopback()) hosts.push_back("[::1]");
  for (const std::string& host : hosts) {
    CAPTURE(host);
    dt::Config at = one_server(host + ":" + std::to_string(server.port()), false);
    at.set("security.mode", "none");
    dt::PsOptions options;
    options.worker = 0;
    options.connect_ms = 10'000;
    dt::Ps ps(&at, options);
    ps.leave();
  }
}

TEST_CASE("ps: a port that is in use is an error of the system, with its address") {
  dt::Config config = one_server("127.0.0.1:0", true);
  const dt::PsServer first(&config);
  const std::string address = "127.0.0.1:" + std::to_string(first.port());
  dt::Config same = one_server(address, true);
  dt_ps_server* second = nullptr;
  CHECK(dt_ps_serve(same.get_handle(), nullptr, &second) == DT_ERR_SYSTEM);
  const std::string text = dt_last_error();
  CAPTURE(text);
  CHECK(text.find("parameter server 0 cannot listen at " + address) != std::string::npos);
  CHECK(text.find("ps.servers") != std::string::npos);
  CHECK(text.find("network.port_range") == std::string::npos);
}

TEST_CASE("ps: what DT_PS_LISTEN_FD names must be a socket that listens") {
  int ends[2] = {-1, -1};
  int pipes[2] = {-1, -1};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  REQUIRE(pipe2(pipes, O_CLOEXEC) == 0);
  for (const int fd : {ends[0], pipes[0]}) {
    Variables variables;
    variables.set("DT_PS_SERVERS", "127.0.0.1:4711");
    variables.set("DT_PS_INDEX", "0");
    variables.set("DT_PS_WORKERS", "1");
    variables.set("DT_PS_LISTEN_FD", std::to_string(fd));
    dt_ps_server* server = nullptr;
    CHECK(dt_ps_serve(nullptr, nullptr, &server) == DT_ERR_CONFIG);
    const std::string text = dt_last_error();
    CAPTURE(text);
    CHECK(text.find("DT_PS_LISTEN_FD=" + std::to_string(fd)) != std::string::npos);
    CHECK(text.find("pass_fds") != std::string::npos);
    dt_ps_server_destroy(server);
  }
  for (const int fd : {ends[0], ends[1], pipes[0], pipes[1]}) close(fd);
}

TEST_CASE("ps: a server that begins after its agent has shut its socket ends") {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  REQUIRE(listen(fd, 1) == 0);  // at a port that the kernel chooses
  REQUIRE(shutdown(fd, SHUT_RD) == 0);
  Variables variables;
  variables.set("DT_PS_SERVERS", "127.0.0.1:4711");
  variables.set("DT_PS_INDEX", "0");
  variables.set("DT_PS_WORKERS", "1");
  variables.set("DT_PS_LISTEN_FD", std::to_string(fd));
  dt::PsServer server;
  CHECK(server.wait(kPatienceMs));
  close(fd);
}

TEST_CASE("ps: workers and servers of dt.hpp agree with a plain loop") {
  Servers servers(2, 2);
  const dt_ps_place place = dt::ps_info(&servers.config);
  CHECK(place.role == DT_PS_WORKER);
  CHECK(place.servers == 2);
  Floats wanted;
  for (int64_t i = 0; i < kRows * kColumns; ++i) wanted.push_back(1 - 2 * 0.5F * float(i));
  for (const int64_t row : {7, 2, 7, 0}) {
    for (int32_t c = 0; c < kColumns; ++c) wanted[size_t(row * kColumns + c)] -= 1 + 2;
  }
  Floats found[2];
  {
    std::vector<dt::Ps> workers;  // both are there before a clock looks
    for (int i = 0; i < 2; ++i) workers.push_back(servers.connect(i));
    std::thread other([&] { found[1] = train(workers[1], 1); });
    found[0] = train(workers[0], 0);
    other.join();
    CHECK(workers[0].statistics().clock == 2);
    CHECK(workers[0].statistics().pushed_rows == kRows + 4);
  }
  CHECK(found[0] == wanted);
  CHECK(found[1] == wanted);
  int64_t rows = 0;
  for (const auto& server : servers.all) {
    CHECK(server->wait(kPatienceMs));
    rows += server->statistics().pushed_rows;
  }
  CHECK(rows == 2 * (kRows + 3));  // of equal rows one
}

TEST_CASE("ps: works, their eventfd, and what a destroyed worker leaves") {
  Servers servers(2, 1);
  dt::Ps ps = servers.connect(0);
  dt::PsSpec spec;
  spec.rate = 1;
  dt::PsVariable weight = ps.variable("w", kRows, kColumns, spec);
  const int32_t fd = ps.work_fd();
  CHECK(fd == ps.work_fd());
  Floats values(kRows * kColumns);
  std::vector<dt::Work> works;
  for (int i = 0; i < 5; ++i) works.push_back(weight.push_async(Floats(kRows * kColumns, -1)));
  works.push_back(weight.set_async(Floats(kColumns, 8), Rows{3}));
  works.push_back(weight.pull_async(values));
  for (eventfd_t ended = 0; ended < works.size();) {
    pollfd entry{fd, POLLIN, 0};
    REQUIRE(poll(&entry, 1, kPatienceMs) == 1);
    eventfd_t some = 0;
    REQUIRE(eventfd_read(fd, &some) == 0);
    ended += some;
  }
  for (const dt::Work& work : works) CHECK(work.test());
  for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == (i / kColumns == 3 ? 8 : 5));
  for (auto& server : servers.all) server->close();
  const dt::Work last = weight.pull_async(values);
  ps.close();
  // The work keeps the eventfd.
  pollfd entry{fd, POLLIN, 0};
  CHECK(poll(&entry, 1, kPatienceMs) == 1);
  const auto error = last.error();
  REQUIRE(error);
  CHECK(error->status() == DT_ERR_ABORTED);
}

TEST_CASE("ps: views that do not fit are refused") {
  Servers servers(1, 1);
  dt::Ps ps = servers.connect(0);
  dt::PsVariable weight = ps.variable("w", 4, 2);
  CHECK(refusal([&] { weight.push(Floats(7)); }) ==
        "dt_ps_push: gradients has 7 elements, but there are 4 rows of 2 columns; give one for "
        "each");
  CHECK(refusal([&] { weight.set(Floats(8), Rows{1}); }) ==
        "dt_ps_set: values has 8 elements, but there are 1 rows of 2 columns; give one for each");
  CHECK(refusal([&] { weight.push(std::vector<double>(8)); }) ==
        "dt_ps_push: gradients is not of f32; give float");
  CHECK(refusal([&] { weight.push(Floats(2), std::vector<int32_t>{1}); }) ==
        "dt_ps_push: gradients has rows that are not of i64; give int64_t");
  Floats two(2);
  CHECK(refusal([&] {
          weight.pull(two, Rows{4});
        }).find("rows[0] is 4; variable \"w\" has 4 rows") != std::string::npos);
  Floats none;
  weight.pull(none, Rows{});
  ps.leave();
}

}  // namespace dt_test::ps_test
