// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "ps/server_core.h"

namespace dt::ps {
namespace {

/// No more requests are read of a worker that has not taken so many bytes of answers.
constexpr int64_t kMostUnsent = 8 * kPartBytes;

}  // namespace

void Session::open(tcp::Socket socket) {
  link_ = std::make_shared<tcp::Link>(
      loop_,
      [this](const std::string& reason) {
        if (core_ != nullptr) core_->on_lost(*this, reason);
      },
      [this](bool) {
        if (core_ != nullptr) core_->on_lost(*this, "it has closed the connection");
      });
  link_->open(std::move(socket));
  receive();
}

void Session::close() {
  core_ = nullptr;
  link_->close();
}

void Session::receive() {
  if (core_ == nullptr || receiving_ || unsent_ > kMostUnsent) return;
  receiving_ = true;
  link_->receive(
      [this](const tcp::Header& header) -> void* {
        if (header.bytes > kMostBytes) {
          core_->drop(*this, "it sends a message that is too long");
          return nullptr;
        }
        header_ = header;
        // Never shrinks: filling it anew would cost as much as copying.
        if (payload_.size() < static_cast<size_t>(header.bytes)) {
          payload_.resize(static_cast<size_t>(header.bytes));
        }
        return payload_.data();
      },
      [this, keep = weak_from_this()] {
        const auto self = keep.lock();
        receiving_ = false;
        if (core_ == nullptr) return;
        core_->on_message(*this, header_, {payload_.data(), static_cast<size_t>(header_.bytes)});
        receive();
      });
}

void Session::send(const tcp::Header& header, const void* data, std::function<void()> keep) {
  if (core_ == nullptr) return;
  const int64_t bytes = header.bytes + static_cast<int64_t>(sizeof header);
  unsent_ += bytes;
  link_->send(header, data, [weak = weak_from_this(), bytes, keep = std::move(keep)] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->unsent_ -= bytes;
    self->receive();
  });
}

void Session::answer(What what, uint64_t sequence, int64_t count) {
  tcp::Header header;
  header.what = static_cast<uint32_t>(what);
  header.sequence = sequence;
  header.count = count;
  send(header, nullptr, {});
}

void Session::answer(What what, uint64_t sequence, std::string payload) {
  const auto kept = std::make_shared<std::string>(std::move(payload));
  tcp::Header header;
  header.what = static_cast<uint32_t>(what);
  header.sequence = sequence;
  header.bytes = static_cast<int64_t>(kept->size());
  send(header, kept->data(), [kept] {});
}

void Session::answer(uint64_t sequence, int64_t count, std::shared_ptr<float[]> values,
                     int64_t bytes) {
  tcp::Header header;
  header.what = static_cast<uint32_t>(What::kValues);
  header.sequence = sequence;
  header.count = count;
  header.bytes = bytes;
  const float* const data = values.get();
  send(header, data, [kept = std::move(values)] {});
}

void Session::refuse(uint64_t sequence, Code code, std::string text) {
  answer(What::kRefused, sequence, encode(Refusal{code, std::move(text)}));
}

}  // namespace dt::ps
