// SPDX-License-Identifier: Apache-2.0
// A name with two addresses, of which the first one takes connections and answers nothing.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "fixture.h"
#include "net/address.h"
#include "store/relay.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

constexpr const char* kTwoAddresses = "two-addresses.invalid";
constexpr const char* kNoStore = "no-store.invalid";  // silent, then closed
constexpr const char* kSilent = "127.0.0.2";
constexpr const char* kClosed = "127.0.0.3";
constexpr const char* kServing = "127.0.0.1";

/// Keeps the port of a store at kSilent. What comes is accepted by the kernel alone.
struct SilentListener {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

  explicit SilentListener(uint16_t port) {
    const net::Address at = net::literal_address(kSilent, port).value();
    REQUIRE(bind(fd, reinterpret_cast<const sockaddr*>(&at.storage), at.length) == 0);
    REQUIRE(listen(fd, SOMAXCONN) == 0);
  }
  ~SilentListener() { close(fd); }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;
};

}  // namespace

/// The resolver of this program.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** result) {
  static const auto system =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool literal = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  const bool found = !literal && node != nullptr && strcmp(node, kTwoAddresses) == 0;
  const bool is_none = !literal && node != nullptr && strcmp(node, kNoStore) == 0;
  if (!found && !is_none) return system(node, service, hints, result);
  const int error = system(kSilent, service, hints, result);
  if (error != 0) return error;
  return system(found ? kServing : kClosed, service, hints, &(*result)->ai_next);
}

TEST_CASE("Client: an address that keeps silent does not use up the time of the next one") {
  constexpr int64_t kGreetingMs = 2000;  // of each address
  Job job(1);
  const SilentListener silent(job.server->port());
  ClientOptions options = job.client_options(0);
  options.host = kTwoAddresses;
  options.greeting_ms = kGreetingMs;
  const auto client = Client::connect(job.loop.get(), options, patiently());
  if (!client.ok()) FAIL(client.status().message());
  CHECK(client.value()->ping(patiently()).ok());
}

TEST_CASE(
    "Client: a listener that never answers is no store of dt, also if another address is closed") {
  Job job(1);
  const SilentListener silent(job.server->port());
  ClientOptions options = job.client_options(0);
  options.host = kNoStore;
  options.greeting_ms = 100;
  const auto client = Client::connect(job.loop.get(), options, patiently());
  CHECK(client.status().code() == Code::kUnsupported);
}

TEST_CASE("relay: an address that keeps silent does not use up the time of the next one") {
  constexpr int64_t kRelayMs = 4000;
  Job job(1);
  const SilentListener silent(job.server->port());
  const auto loop = std::move(net::Loop::start()).value();
  RelayOptions options;
  options.host = kTwoAddresses;
  options.port = job.server->port();
  options.job_id = "a";
  options.attempt = 2;
  options.host_name = "hostB";
  const auto relay = Relay::start(loop.get(), options, briefly(kRelayMs));  // half for each address
  if (!relay.ok()) FAIL(relay.status().message());
  CHECK(relay.value()->store_address() == kServing);
}
