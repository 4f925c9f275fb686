// SPDX-License-Identifier: Apache-2.0
// One who sits between two sides that have the same token, and changes what passes: two real
// guards, and with encryption the data behind them. The input is a list of changes, each of a byte
// of one direction. Properties: no crash, nothing is wanted or held without bounds; both sides come
// through only where nothing was changed; and what arrives of encrypted data is what was sent, up
// to the first change.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "net/guard.h"
#include "net/security.h"
#include "net/tls.h"

namespace {

using namespace dt::net;

constexpr size_t kMostHeld = 8192;
constexpr int kMostTurns = 64;
constexpr int kMessages = 4;

void require_middle(bool holds) {
  if (!holds) std::abort();
}

/// At `at` of the bytes of one direction.
struct Change {
  bool to_server;
  size_t at;
  uint8_t flip;
};

/// What passes in one direction.
class Wire {
 public:
  Wire(const std::vector<Change>& changes, bool to_server) {
    for (const Change& each : changes) {
      if (each.to_server == to_server && each.flip != 0) changes_.push_back(each);
    }
  }
  std::string pass(const std::string& words) {
    std::string bytes = words;
    for (const Change& each : changes_) {
      if (each.at < passed_ || each.at >= passed_ + bytes.size()) continue;
      bytes[each.at - passed_] = static_cast<char>(bytes[each.at - passed_] ^ each.flip);
    }
    passed_ += bytes.size();
    changed_ |= bytes != words;  // changes may cancel each other
    return bytes;
  }
  bool changed() const { return changed_; }

 private:
  std::vector<Change> changes_;
  size_t passed_ = 0;
  bool changed_ = false;
};

Security guarded(SecurityMode mode) {
  static const Token token = std::move(Token::from_text(std::string(64, '7'))).value();
  Security security;
  security.mode = mode;
  security.token = token;
  return security;
}

/// Gives `from`'s words to `to`; what `to` does not take stays in `rest`. False: there were none.
bool hand_over(Guard* from, Wire* wire, Guard* to, std::string* rest) {
  const std::string words = from->take_output();
  require_middle(words.size() <= kMostHeld);
  *rest += wire->pass(words);
  while (!rest->empty() && to->wanted() > 0) {
    const size_t wanted = to->wanted();
    require_middle(wanted <= kMostHeld);
    const size_t taken = std::min(wanted, rest->size());
    to->feed(rest->data(), taken);
    rest->erase(0, taken);
  }
  return !words.empty();
}

/// False: the receiver has given up, and with it the connection.
bool check_data(Tls* sender, Tls* receiver, Wire* wire, std::string rest) {
  std::string sent;
  std::string got;
  bool whole = true;
  // What TLS still had to say after its greeting comes first.
  if (!rest.empty()) whole = receiver->open(rest.data(), rest.size(), &got).ok();
  for (int i = 0; i < kMessages && whole; ++i) {
    const std::string message(size_t{1} << (3 * i), static_cast<char>('a' + i));
    std::string sealed;
    require_middle(sender->seal(message, &sealed).ok());
    sent += message;
    const std::string passed = wire->pass(sealed);
    const bool changed = passed != sealed;
    whole = receiver->open(passed.data(), passed.size(), &got).ok();
    require_middle(sent.compare(0, got.size(), got) == 0);
    if (!wire->changed()) require_middle(whole && got == sent);
    if (changed) require_middle(got.size() < sent.size());
  }
  return whole;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const SecurityMode mode = data[0] % 2 == 0 ? SecurityMode::kAuth : SecurityMode::kEncrypt;
  const Purpose purpose = data[0] / 2 % 2 == 0 ? Purpose::kStore : Purpose::kMesh;
  std::vector<Change> changes;
  for (size_t at = 1; at + 4 <= bytes; at += 4) {
    changes.push_back({data[at] % 2 == 1,
                       static_cast<size_t>(data[at + 1]) | size_t{data[at + 2]} << 8,
                       data[at + 3]});
  }
  Guard client(guarded(mode), purpose, Side::kClient);
  Guard server(guarded(mode), purpose, Side::kServer);
  Wire up(changes, true);
  Wire down(changes, false);
  std::string for_server;
  std::string for_client;
  int turns = 0;
  bool moved = true;
  while (moved) {
    require_middle(++turns < kMostTurns);
    moved = hand_over(&client, &up, &server, &for_server);
    moved |= hand_over(&server, &down, &client, &for_client);
  }
  const bool changed = up.changed() || down.changed();
  const bool both = client.established() && server.established();
  if (!changed) require_middle(both);
  if (mode == SecurityMode::kAuth && changed) require_middle(!both);
  if (!both || mode == SecurityMode::kAuth) return 0;
  const auto of_client = client.take_tls();
  const auto of_server = server.take_tls();
  if (check_data(of_server.get(), of_client.get(), &down, for_client)) {
    (void)check_data(of_client.get(), of_server.get(), &up, for_server);
  }
  return 0;
}
