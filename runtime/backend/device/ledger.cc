// SPDX-License-Identifier: Apache-2.0
#include "backend/device/ledger.h"

#include <algorithm>
#include <cstring>

#include "base/xxh64.h"
#include "collective/descriptor.h"

namespace dt::backend {

std::string Ledger::Entry::call() const {
  return collective::describe(signature, count, std::string(name, strnlen(name, kNameBytes)));
}

Ledger::Entry Ledger::add(const collective::Collective& collective, int64_t sequence) {
  struct Fingerprint {
    uint64_t before;
    uint64_t signature;
    int64_t count;
    char name[kNameBytes];
  };
  static_assert(sizeof(Fingerprint) == 24 + kNameBytes);
  Entry entry;
  entry.sequence = sequence;
  entry.signature = collective::signature_of(collective);
  // Else the ranks' own counts would look like a disagreement.
  entry.count = is_irregular(collective.kind) ? 0 : collective.count;
  memcpy(entry.name, collective.name.data(), std::min(collective.name.size(), kNameBytes - 1));
  return state_.with([&](State& state) {
    Fingerprint fingerprint = {state.chain, entry.signature, entry.count, {}};
    memcpy(fingerprint.name, entry.name, kNameBytes);
    entry.position = ++state.last;
    entry.chain = state.chain = xxh64(&fingerprint, sizeof fingerprint);
    state.recent[static_cast<size_t>(entry.position % kRecent)] = entry;
    if (entry.position % kMarkEvery == 0) {
      state.marks[static_cast<size_t>(entry.position / kMarkEvery % kMarks)] = {entry.position,
                                                                                entry.chain};
    }
    return entry;
  });
}

std::vector<Ledger::Entry> Ledger::take(bool last) {
  return state_.with([&](State& state) {
    std::vector<Entry> news;
    if (last && state.told == state.last && state.last > 0) --state.told;
    const int64_t recent = std::max(state.told, state.last - kRecent);
    const int64_t oldest = std::max(state.told, state.last - kMarkEvery * (kMarks - 1));
    for (int64_t at = (oldest / kMarkEvery + 1) * kMarkEvery; at <= recent; at += kMarkEvery) {
      Entry mark;
      mark.position = at;
      mark.chain = state.marks[static_cast<size_t>(at / kMarkEvery % kMarks)].chain;
      news.push_back(mark);
    }
    for (int64_t at = recent + 1; at <= state.last; ++at) {
      news.push_back(state.recent[static_cast<size_t>(at % kRecent)]);
    }
    state.told = state.last;
    return news;
  });
}

void OrderBook::enlist(std::shared_ptr<Ledger> ledger) {
  ledgers_.with([&](auto& all) {
    // Nobody makes a new owner of one that only the book holds, so that the count is right.
    if (all.size() >= kEndedMax)
      std::erase_if(all, [](const auto& each) { return each.use_count() == 1; });
    all.push_back(std::move(ledger));
  });
}

std::vector<std::shared_ptr<Ledger>> OrderBook::ledgers() {
  return ledgers_.with([](auto& all) {
    std::vector<std::shared_ptr<Ledger>> told;
    std::erase_if(all, [&](const auto& each) {
      const bool ended = each.use_count() == 1;
      told.push_back(each);
      return ended;
    });
    return told;
  });
}

}  // namespace dt::backend
